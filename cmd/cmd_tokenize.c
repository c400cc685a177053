/* SPDX-License-Identifier: Apache-2.0 */
/* tune tokenize: text to ids, one JSON array a text, and back; conversations to the text that the model's template makes of them. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/system.h"
#include "cmd/cmd.h"
#include "data/formats/conversation.h"
#include "lib/text/chat.h"

typedef struct Tokenize {
    Tokenizer *tokenizer;
    _Atomic size_t *absent; /* ids to decode that are none of the vocabulary's */
    bool decode, no_special, rows;
    const char *file, *chat, *chat_template, *now;
} Tokenize;
typedef struct Line {
    Str text, result;
    size_t number;
    Status status;
} Line;
enum { BATCH_LINES = 4096, BATCH_BYTES = 16 << 20 };

static Status encode_text(const Tokenize *job, const char *text, size_t len, Str *result) {
    Ids ids = {0};
    JsonWriter w = {0};
    Status status = tokenizer_encode(job->tokenizer, text, len, job->no_special ? TOKENIZE_LITERAL : TOKENIZE_SPECIAL, &ids);
    if (status == ST_OK) {
        jw_array(&w, NULL);
        for (size_t i = 0; i < ids.n; i++) jw_int(&w, NULL, ids.data[i]);
        jw_end_array(&w);
        str_append_n(result, str_text(&w.text), w.text.len);
    }
    jw_release(&w);
    ids_release(&ids);
    return status;
}

static Status decode_ids(const Tokenize *job, const json_t *json, Str *result) {
    Ids ids = {0};
    Str text = {0};
    Status status = json_is_array(json) ? ST_OK : status_fail(ST_INPUT, "no JSON array of token ids");
    for (size_t i = 0; status == ST_OK && i < json_array_size(json); i++) {
        const json_t *id = json_array_get(json, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            status = status_fail(ST_INPUT, "element %zu is no token id", i);
        else
            ids_push(&ids, (int32_t)json_integer_value(id));
    }
    for (size_t i = 0; status == ST_OK && i < ids.n; i++) *job->absent += !tokenizer_token(job->tokenizer, ids.data[i]);
    if (status == ST_OK) status = tokenizer_decode(job->tokenizer, ids.data, ids.n, job->no_special, &text);
    if (status == ST_OK && job->rows)
        str_append_json(result, str_text(&text), text.len);
    else if (status == ST_OK)
        str_append_n(result, str_text(&text), text.len);
    ids_release(&ids);
    str_release(&text);
    return status;
}

static Status line_run(const Tokenize *job, Line *line) {
    str_clear(&line->result);
    if (!job->rows && !job->decode) return encode_text(job, str_text(&line->text), line->text.len, &line->result);
    json_t *row;
    Status status = ST_OK;
    TRY(json_read_line(str_text(&line->text), line->text.len, job->file, line->number, &row));
    const json_t *text = json_object_get(row, "text");
    if (job->decode)
        status = decode_ids(job, row, &line->result);
    else if (!json_is_string(text))
        status = status_fail(ST_INPUT, "a row without a string 'text'");
    else
        status = encode_text(job, json_string_value(text), json_string_length(text), &line->result);
    json_decref(row);
    return status;
}

/* All threads work on the lines, and results go out in order. What went wrong is known to the thread that saw it only, so the first line that failed
 * is run again here. */
static Status batch_run(const Tokenize *job, Line *lines, size_t n) {
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = 0; i < n; i++) lines[i].status = interrupt_requested() ? ST_INTERRUPTED : line_run(job, &lines[i]);
    for (size_t i = 0; i < n; i++) {
        if (lines[i].status == ST_INTERRUPTED) return status_fail(ST_INTERRUPTED, "interrupted at '%s' line %zu", job->file, lines[i].number);
        if (lines[i].status != ST_OK) {
            Status status = line_run(job, &lines[i]);
            return strstr(status_text(), job->file) ? status : status_prefix(status, "'%s' line %zu", job->file, lines[i].number);
        }
        str_append_char(&lines[i].result, '\n');
        print_text(lines[i].result.data, lines[i].result.len);
    }
    return ST_OK;
}

static Status lines_run(const Tokenize *job, Lines *input, Line *lines) {
    bool at_once = strcmp(job->file, "/dev/stdin") == 0 && isatty(STDIN_FILENO); /* whoever types wants an answer */
    size_t n = 0, bytes = 0;
    for (Slice line; lines_next(input, &line);) {
        if (job->rows && line.len == 0) continue;
        str_clear(&lines[n].text);
        str_append_n(&lines[n].text, line.data, line.len);
        lines[n++].number = input->number;
        bytes += line.len;
        if (n < BATCH_LINES && bytes < BATCH_BYTES && !at_once) continue;
        TRY(batch_run(job, lines, n));
        n = bytes = 0;
    }
    return batch_run(job, lines, n);
}

static Status all_lines(const Tokenize *job) {
    Lines input;
    TRY(lines_open(&input, job->file));
    Line *lines = calloc(BATCH_LINES, sizeof *lines);
    Status status = lines ? lines_run(job, &input, lines) : status_fail(ST_RESOURCE, "no memory for lines");
    for (size_t i = 0; lines && i < BATCH_LINES; i++) {
        str_release(&lines[i].text);
        str_release(&lines[i].result);
    }
    free(lines);
    Status closed = lines_close(&input);
    return status != ST_OK ? status : closed;
}

/* ---- --chat ---- */

static Status render_row(const Tokenize *job, const ChatTemplate *template, Slice line) {
    json_t *row;
    Str quoted = {0};
    Status status;
    ChatRendering rendering = {0};
    TRY(json_read_text(line.data, line.len, "row", &row));
    bool has_list = json_is_array(json_object_get(row, "messages"));
    json_t *messages = has_list ? messages_for_template(json_object_get(row, "messages")) : NULL;
    if (messages) json_object_set_new(row, "messages", messages);
    if (!has_list)
        status = status_fail(ST_INPUT, "a row without a list 'messages'");
    else if (!messages)
        status = status_fail(ST_RESOURCE, "out of memory for messages");
    else
        status = chat_template_render(template, row, &(ChatOptions){.now = job->now}, &rendering);
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
        if (line.len > 0) status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : render_row(job, template, line);
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
    TRY(chat_template_load(command->arguments[0], NULL, job->chat_template, &template));
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
    _Atomic size_t absent = 0;
    job->absent = &absent;
    Status status = all_lines(job);
    size_t n = absent;
    if (n) show_message("tune: warning: %zu id%s not in the vocabulary, and written as nothing", n, n == 1 ? " is" : "s are");
    tokenizer_free(job->tokenizer);
    return status;
}

Status cmd_tokenize(int argc, char **argv) {
    Tokenize job = {0};
    Command command = {
        .arguments_help = "MODEL [FILE]",
        .help =
            "Prints one JSON array of token ids per text: a .jsonl file has one {\"text\": ...} per row, any other file and stdin one text per line.\n"
            "MODEL is a directory with a tokenizer (tokenizer.json, or vocab.json with merges.txt), or that file.\n"
            "With --chat: the text that the chat template makes of each row {\"messages\", \"tools\", \"documents\", \"add_generation_prompt\", ...}, as a JSON string.\n"
            "    echo 'Hello world' | tune tokenize models/smollm2",
    };
    const Option options[] = {
        {"--decode", OPTION_FLAG, &job.decode, NULL, "the other way: one JSON array per line in, text out (a JSON string for .jsonl)"},
        {"--no-special", OPTION_FLAG, &job.no_special, NULL, "nothing is added, special tokens in the text are plain text; decoding leaves them out"},
        {"--chat", OPTION_TEXT, &job.chat, "ROWS.jsonl", "print rendered conversations instead of ids"},
        {"--chat-template", OPTION_TEXT, &job.chat_template, "FILE|chatml|llama3|alpaca|plain", "instead of the model's own"},
        {"--now", OPTION_TEXT, &job.now, "TIME", "'YYYY-MM-DD HH:MM:SS' for templates that write the date (default: the clock)"},
        {0},
    };
    bool done;
    Status status = command_parse(&command, argc, argv, options, &done);
    if (status == ST_OK && !done) status = tokenize(&command, &job);
    arena_free(command.arena);
    return status;
}
