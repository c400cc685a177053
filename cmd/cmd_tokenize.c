/* tune tokenize: text to ids, one JSON array a text, and back; conversations to the text that the model's template makes of them. */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "lib/text/chat.h"

typedef struct Tokenize { Tokenizer *tokenizer; bool decode, no_special, rows; const char *file, *chat, *chat_template, *now; size_t line; } Tokenize;

static Status encode_text(const Tokenize *job, const char *text, size_t len) {
    Ids ids = {0};
    JsonWriter w = {0};
    Status status = tokenizer_encode(job->tokenizer, text, len, job->no_special ? TOKENIZE_LITERAL : TOKENIZE_SPECIAL, &ids);
    if (status == ST_OK) {
        jw_array(&w, NULL);
        for (size_t i = 0; i < ids.n; i++) jw_int(&w, NULL, ids.data[i]);
        jw_end_array(&w);
        print_result("%s\n", str_text(&w.text));
    }
    jw_release(&w);
    ids_release(&ids);
    return status;
}

static Status decode_ids(const Tokenize *job, const json_t *json) {
    Ids ids = {0};
    Str text = {0}, quoted = {0};
    Status status = json_is_array(json) ? ST_OK : status_fail(ST_INPUT, "no JSON array of token ids");
    for (size_t i = 0; status == ST_OK && i < json_array_size(json); i++) {
        const json_t *id = json_array_get(json, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) status = status_fail(ST_INPUT, "element %zu is no token id", i);
        else ids_push(&ids, (int32_t)json_integer_value(id));
    }
    if (status == ST_OK) status = tokenizer_decode(job->tokenizer, ids.data, ids.n, job->no_special, &text);
    if (status == ST_OK && job->rows) {
        str_append_json(&quoted, str_text(&text), text.len);
        print_result("%s\n", str_text(&quoted));
    } else if (status == ST_OK) {
        print_text(str_text(&text), text.len);
        print_text("\n", 1);
    }
    ids_release(&ids);
    str_release(&text);
    str_release(&quoted);
    return status;
}

static Status one_line(const Tokenize *job, Slice line) {
    if (!job->rows && !job->decode) return encode_text(job, line.data, line.len);
    json_t *row;
    Str where = {0};
    str_printf(&where, "%s line %zu", job->file, job->line);
    Status status = json_read_text(line.data, line.len, str_text(&where), &row);
    str_release(&where);
    TRY(status);
    const json_t *text = json_object_get(row, "text");
    if (job->decode) status = decode_ids(job, row);
    else if (!json_is_string(text)) status = status_fail(ST_INPUT, "a row without a string 'text'");
    else status = encode_text(job, json_string_value(text), json_string_length(text));
    json_decref(row);
    return status;
}

static Status all_lines(Tokenize *job) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, job->file));
    while (status == ST_OK && lines_next(&lines, &line)) {
        job->line = lines.number;
        if (job->rows && line.len == 0) continue;
        status = one_line(job, line);
        if (status != ST_OK && !strstr(status_text(), job->file)) status_prefix(status, "%s line %zu", job->file, lines.number);
    }
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

/* ---- --chat ---- */

static Status render_row(const Tokenize *job, const ChatTemplate *template, Slice line) {
    json_t *row;
    Str quoted = {0};
    Status status;
    ChatRendering rendering = {0};
    TRY(json_read_text(line.data, line.len, "row", &row));
    if (!json_is_array(json_object_get(row, "messages"))) status = status_fail(ST_INPUT, "a row without a list 'messages'");
    else status = chat_template_render(template, row, &(ChatOptions){.now = job->now}, &rendering);
    if (status == ST_OK) {
        str_append_json(&quoted, str_text(&rendering.text), rendering.text.len);
        print_result("%s\n", str_text(&quoted));
    }
    str_release(&quoted);
    chat_rendering_release(&rendering);
    json_decref(row);
    return status;
}

static Status render_rows(Tokenize *job, const ChatTemplate *template) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, job->file));
    for (size_t row = 1; status == ST_OK && lines_next(&lines, &line); row += line.len > 0) {
        if (line.len > 0) status = render_row(job, template, line);
        if (status != ST_OK) status_prefix(status, "row %zu ('%s' line %zu)", row, job->file, lines.number);
    }
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

static Status render_chat(const Command *command, Tokenize *job) {
    ChatTemplate *template;
    TRY(command_needs(command, 1, 1));
    if (job->decode || job->no_special) return status_fail(ST_USAGE, "--chat prints text: --decode and --no-special have no meaning beside it");
    job->file = strcmp(job->chat, "-") != 0 ? job->chat : "/dev/stdin";
    TRY(chat_template_load(command->arguments[0], job->chat_template, &template));
    if (!template) {
        status_fail(ST_INPUT, "'%s' has no chat template", command->arguments[0]);
        return status_hint(ST_INPUT, "name one: --chat-template chatml, llama3, alpaca, plain, or a file");
    }
    Status status = render_rows(job, template);
    chat_template_free(template);
    return status;
}

static Status tokenize(const Command *command, Tokenize *job) {
    if (job->chat) return render_chat(command, job);
    TRY(command_needs(command, 1, 2));
    if (job->chat_template || job->now) return status_fail(ST_USAGE, "%s is for --chat", job->now ? "--now" : "--chat-template");
    job->file = command->n_arguments > 1 && strcmp(command->arguments[1], "-") != 0 ? command->arguments[1] : "/dev/stdin";
    job->rows = text_ends_with(job->file, ".jsonl") || text_ends_with(job->file, ".jsonl.gz");
    TRY(tokenizer_load(command->arguments[0], &job->tokenizer));
    Status status = all_lines(job);
    tokenizer_free(job->tokenizer);
    return status;
}

Status cmd_tokenize(int argc, char **argv) {
    Tokenize job = {0};
    Command command = {
        .arguments_help = "MODEL [FILE]",
        .help = "Prints one JSON array of token ids per text: a .jsonl file has one {\"text\": ...} per row, any other file and stdin one text per line.\n"
                "MODEL is a directory with a tokenizer (tokenizer.json, or vocab.json with merges.txt), or that file.\n"
                "With --chat: the text that the chat template makes of each row {\"messages\", \"tools\", \"documents\", \"add_generation_prompt\", ...}, as a JSON string.\n"
                "    echo 'Hello world' | tune tokenize models/smollm2",
    };
    const Option options[] = {
        {"--decode", OPTION_FLAG, &job.decode, NULL, "the other way: one JSON array per line in, text out (a JSON string for .jsonl)"},
        {"--no-special", OPTION_FLAG, &job.no_special, NULL, "nothing is added, special tokens in the text are plain text; decoding leaves them out"},
        {"--chat", OPTION_TEXT, &job.chat, "ROWS.jsonl", "print rendered conversations instead of ids"},
        {"--chat-template", OPTION_TEXT, &job.chat_template, "FILE|NAME", "instead of the model's own: a file, or chatml, llama3, alpaca, plain"},
        {"--now", OPTION_TEXT, &job.now, "TIME", "'YYYY-MM-DD HH:MM:SS' for templates that write the date (default: the clock)"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = tokenize(&command, &job);
    arena_free(command.arena);
    return status;
}
