/* SPDX-License-Identifier: Apache-2.0 */
/* tune tokenize: converts texts to ids, one JSON array a text, and back; renders conversations with the model's chat template. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/base/memory.h"
#include "lib/base/system.h"
#include "cmd/app/commands.h"
#include "cmd/app/terminal.h"
#include "cmd/common/open.h"
#include "data/formats/conversation.h"
#include "lib/text/chat.h"

typedef struct Tokenize {
    Tokenizer *tokenizer;
    _Atomic size_t *absent; /* number of ids to decode that are not in the vocabulary */
    bool decode, no_special, rows;
    const char *file, *chat, *adapter;
    ChatChoice choice;
} Tokenize;
typedef struct Rendering {
    Chat *chat;
    DataConfig config;
    json_t *lent; /* the last row's values for the template */
    Str stray;    /* the first column that has the name of a template variable; n_stray rows have one */
    size_t n_stray;
} Rendering;
typedef struct Line {
    Str text, result;
    size_t number;
} Line;
typedef struct FirstFailure {
    size_t at; /* index of the line */
    Failure failure;
} FirstFailure;
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
    Status status = json_is_array(json) ? ST_OK : status_fail(ST_INPUT, "not a JSON array of token ids");
    for (size_t i = 0; status == ST_OK && i < json_array_size(json); i++) {
        const json_t *id = json_array_get(json, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            status = status_fail(ST_INPUT, "element %zu is not a token id", i);
        else
            ids_push(&ids, (int32_t)json_integer_value(id));
    }
    size_t absent = 0;
    for (size_t i = 0; status == ST_OK && i < ids.n; i++) absent += !tokenizer_token(job->tokenizer, ids.data[i]);
    if (absent) *job->absent += absent;
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
        status = status_hint(status_fail(ST_INPUT, "a row without a string 'text'"),
                             "--chat FILE renders conversations and prompts with their answers, tune data check shows the tokens of any rows");
    else
        status = encode_text(job, json_string_value(text), json_string_length(text), &line->result);
    json_decref(row);
    return status;
}

/* Processes line i. A failure is known to this thread only, so it is saved, unless an earlier line has failed, too. */
static void line_try(const Tokenize *job, Line *lines, size_t i, FirstFailure *first) {
    Status status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : line_run(job, &lines[i]);
    if (status == ST_OK) return;
#pragma omp critical(first_failure)
    if (i < first->at) {
        first->at = i;
        failure_save(&first->failure, status);
    }
}

/* Processes the lines with all threads, then prints the results in order. */
static Status batch_run(const Tokenize *job, Line *lines, size_t n) {
    FirstFailure first = {.at = n};
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t i = 0; i < n; i++) line_try(job, lines, i, &first);
    TRY(memory_check(ST_OK));
    for (size_t i = 0; i < first.at; i++) {
        str_append_char(&lines[i].result, '\n');
        print_text(lines[i].result.data, lines[i].result.len);
    }
    Status status = failure_restore(&first.failure);
    if (status == ST_INTERRUPTED) return status_fail(status, "interrupted at '%s' line %zu", job->file, lines[first.at].number);
    return status == ST_OK || strstr(status_text(), job->file) ? status : status_prefix(status, "'%s' line %zu", job->file, lines[first.at].number);
}

static Status lines_run(const Tokenize *job, Lines *input, Line *lines) {
    bool at_once = strcmp(job->file, "/dev/stdin") == 0 && isatty(STDIN_FILENO); /* a user who types expects an answer to each line */
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

/* Whether a row's column goes to the template or makes up its messages. */
static bool is_column(const char *key) {
    static const char *const names[] = {"messages", "tools",  "documents", "add_generation_prompt", "chat_template_kwargs",
                                        "system",   "prompt", "completion"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(names[i], key) == 0) return true;
    return false;
}

/* Counts rows with a column that has the name of a template variable, since it was probably meant as its value. */
static void count_stray(const json_t *row, Rendering *r) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)row, key, value) {
        if (is_column(key) || !chat_template_names(r->chat->template, key) || json_object_get(r->lent, key)) continue;
        if (r->n_stray++ == 0) str_append(&r->stray, key);
        return;
    }
}

/* Takes special tokens that the directory lacks from the row's own values. */
static Status lend_tokens(json_t *row, Rendering *r) {
    static const char key[] = "chat_template_kwargs";
    json_t *own = json_object_get(row, key);
    json_decref(r->lent);
    r->lent = json_is_object(own) ? json_copy(own) : json_object();
    if (!r->lent) return status_fail(ST_RESOURCE, "out of memory");
    chat_template_set_special(r->chat->template, r->lent, row);
    bool none = !own || json_is_null(own);
    if ((none || json_is_object(own)) && json_object_size(r->lent)) json_object_set(row, key, r->lent);
    return ST_OK;
}

static Status render_messages(json_t *row, Rendering *r) {
    json_t *messages;
    ChatRendering rendering = {0};
    Str quoted = {0};
    TRY(row_messages(row, &r->config, &messages));
    if (!messages) return status_fail(ST_INPUT, "a row without a list 'messages'");
    Status status = lend_tokens(row, r);
    bool asks = json_is_true(json_object_get(row, "add_generation_prompt"));
    if (status == ST_OK) status = messages_render(r->chat, messages, json_array_size(messages), row, asks, &rendering);
    if (status == ST_OK) {
        count_stray(row, r);
        str_append_json(&quoted, str_text(&rendering.text), rendering.text.len);
        print_result("%s\n", str_text(&quoted));
    }
    str_release(&quoted);
    chat_rendering_release(&rendering);
    json_decref(messages);
    return status;
}

static Status render_row(Slice line, Rendering *r) {
    json_t *row;
    TRY(json_read_text(line.data, line.len, "row", &row));
    Status status = render_messages(row, r);
    json_decref(row);
    return status;
}

static Status render_rows(const char *file, Rendering *r) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, file));
    for (size_t row = 1; status == ST_OK && lines_next(&lines, &line); row += line.len > 0) {
        if (line.len > 0) status = interrupt_requested() ? status_fail(ST_INTERRUPTED, "interrupted") : render_row(line, r);
        if (status != ST_OK) status_prefix(status, "row %zu ('%s' line %zu)", row, file, lines.number);
    }
    if (r->n_stray)
        show_message("tune: warning: '%s' of %zu row%s is not given to the chat template: put values for it into 'chat_template_kwargs' of the row",
                     str_text(&r->stray), r->n_stray, r->n_stray == 1 ? "" : "s");
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

static Status no_template(const char *dir) {
    status_fail(ST_INPUT, "'%s' has no chat template", dir);
    return status_hint(ST_INPUT, "use --chat-template chatml, llama3, alpaca, plain, or a file");
}

static Status render_chat(const Command *command, Tokenize *job) {
    Rendering r = {.config = {.system = job->choice.system, .as = "chat"}};
    json_t *kwargs;
    const char *dir = command->arguments[0];
    TRY(command_needs(command, 1, 1));
    if (job->decode || job->no_special) return status_fail(ST_USAGE, "--decode and --no-special do not work with --chat, which prints text");
    TRY(chat_choice_kwargs(&job->choice, &kwargs));
    Status status = chat_open(dir, job->adapter, job->choice.chat_template, job->choice.now, NULL, &r.chat);
    if (status == ST_OK && !chat_has_template(r.chat)) status = no_template(dir);
    r.config.chat = r.chat;
    if (status == ST_OK) {
        status = chat_set_kwargs(r.chat, kwargs, NULL);
        if (status == ST_INPUT) status_prefix(status = ST_USAGE, "--template-kwargs");
    }
    if (status == ST_OK) status = render_rows(strcmp(job->chat, "-") != 0 ? job->chat : "/dev/stdin", &r);
    chat_close(r.chat);
    json_decref(kwargs);
    json_decref(r.lent);
    str_release(&r.stray);
    return status;
}

static Status tokenize(const Command *command, void *context) {
    Tokenize *job = context;
    if (job->chat) return render_chat(command, job);
    TRY(command_needs(command, 1, 2));
    const char *of_chat = job->adapter ? "--adapter" : chat_choice_first(&job->choice);
    if (of_chat) return status_fail(ST_USAGE, "%s is for --chat", of_chat);
    job->file = command->n_arguments > 1 && strcmp(command->arguments[1], "-") != 0 ? command->arguments[1] : "/dev/stdin";
    job->rows = text_ends_with(job->file, ".jsonl") || text_ends_with(job->file, ".jsonl.gz");
    TRY(tokenizer_load(command->arguments[0], &job->tokenizer));
    _Atomic size_t absent = 0;
    job->absent = &absent;
    Status status = all_lines(job);
    size_t n = absent;
    if (n) show_message("tune: warning: %zu id%s not in the vocabulary and left out", n, n == 1 ? " is" : "s are");
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
            "With --chat: renders each row of messages with the chat template, as training does, and prints a JSON string. The row's \"tools\", \"documents\", \"chat_template_kwargs\" and "
            "\"add_generation_prompt\" (false) go to the template.\n"
            "    echo 'Hello world' | tune tokenize models/smollm2",
    };
    const Option options[] = {
        {"--decode", OPTION_FLAG, &job.decode, NULL, "convert ids to text: reads one JSON array per line, writes text (a JSON string for .jsonl)"},
        {"--no-special", OPTION_FLAG, &job.no_special, NULL,
         "add no special tokens, and read those in the text as plain text; with --decode, leave them out"},
        {"--chat", OPTION_TEXT, &job.chat, "ROWS.jsonl", "print rendered conversations instead of ids"},
        {"--adapter", OPTION_TEXT, &job.adapter, "DIR", "use the template that this adapter was trained with"},
        CHAT_OPTIONS(job.choice),
        {0},
    };
    return command_main(&command, argc, argv, options, tokenize, &job);
}
