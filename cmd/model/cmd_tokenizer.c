/* SPDX-License-Identifier: Apache-2.0 */
/* tune tokenizer train: trains byte-level BPE on a corpus. */
#include <string.h>

#include "lib/base/system.h"
#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "cmd/app/terminal.h"
#include "lib/text/text.h"

typedef struct Train {
    const char *output, *bos, *eos;
    int64_t vocab_size;
    TextList special;
    bool force;
} Train;

static const size_t CORPUS_LIMIT = (size_t)1 << 40; /* largest text file in bytes */

static Status row_add(BpeTrainer *trainer, const char *path, size_t number, Slice line) {
    json_t *row = NULL;
    Status status = json_read_line(line.data, line.len, path, number, &row);
    const json_t *text = json_object_get(row, "text");
    if (status == ST_OK && !json_is_string(text)) status = status_fail(ST_INPUT, "'%s' line %zu: a row without a string 'text'", path, number);
    if (status == ST_OK) status = bpe_trainer_add(trainer, json_string_value(text), json_string_length(text));
    json_decref(row);
    return status;
}

static Status rows_add(BpeTrainer *trainer, const char *path) {
    Lines lines;
    Slice line;
    Status status = ST_OK;
    TRY(lines_open(&lines, path));
    while (status == ST_OK && lines_next(&lines, &line))
        if (line.len > 0) status = row_add(trainer, path, lines.number, line);
    Status closed = lines_close(&lines);
    return status != ST_OK ? status : closed;
}

static Status file_add(BpeTrainer *trainer, const char *path) {
    if (text_ends_with(path, ".jsonl") || text_ends_with(path, ".jsonl.gz")) return rows_add(trainer, path);
    Str text = {0};
    Status status = file_read(path, CORPUS_LIMIT, &text);
    if (status == ST_OK) {
        status = bpe_trainer_add(trainer, str_text(&text), text.len);
        if (status == ST_INPUT) status_prefix(status, "'%s'", path);
    }
    str_release(&text);
    return status;
}

static Status make_way(const char *file) {
    Str kept = {0};
    Status status = file_exists(file) ? path_backup(file, &kept) : ST_OK;
    if (kept.len > 0) show_line("what was in '%s' is kept in '%s'", file, str_text(&kept));
    str_release(&kept);
    return status;
}

typedef struct Result {
    const Command *command;
    const Train *job;
    const BpeTrained *trained;
} Result;

static Status check_place(const Command *command, const Train *job) {
    const char *file = path_join(command->arena, job->output, "tokenizer.json");
    if (!file) return ST_RESOURCE;
    if (!file_exists(file) || job->force) return ST_OK;
    return status_hint(status_fail(ST_CONFIG, "'%s' already exists", file),
                       "name another directory with -o, or --force, which keeps the old file as NAME.1");
}

/* Writes which special token ends a text, then the tokenizer, so that a folder with a tokenizer always has both. */
static Status write_both(void *context) {
    const Result *result = context;
    const Train *job = result->job;
    const char *file = path_join(result->command->arena, job->output, "tokenizer.json"),
               *settings = path_join(result->command->arena, job->output, "tokenizer_config.json");
    if (!file || !settings) return ST_RESOURCE;
    TRY(check_place(result->command, job)); /* another process may have written one meanwhile */
    TRY(dir_make(job->output));
    if (job->force) TRY(make_way(file));
    if (job->force) TRY(make_way(settings));
    JsonWriter w = {.pretty = true};
    jw_object(&w, NULL);
    jw_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    if (job->bos) jw_string(&w, "bos_token", job->bos);
    if (job->special.n > 0) jw_string(&w, "eos_token", job->eos ? job->eos : job->special.items[0]);
    jw_end_object(&w);
    Status status = file_write_all(settings, str_text(&w.text), w.text.len);
    jw_release(&w);
    return status == ST_OK ? file_write_all(file, str_text(&result->trained->json), result->trained->json.len) : status;
}

static void print_json(const Train *job, const BpeTrained *trained, double seconds) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_string(&w, "output", job->output);
    jw_int(&w, "vocab_size", (int64_t)trained->vocab_size);
    jw_int(&w, "words", (int64_t)trained->n_words);
    jw_double(&w, "seconds", seconds);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static Status cmd_tokenizer_train(const Command *command, const Train *job, BpeTrainer *trainer) {
    BpeTrained trained = {0};
    double start = clock_seconds();
    for (size_t i = 1; i < command->n_arguments; i++) TRY(file_add(trainer, command->arguments[i]));
    TRY(bpe_trainer_finish(trainer, &trained));
    Status status = trained.n_words > 0 ? dir_alone(job->output, write_both, &(Result){command, job, &trained})
                                        : status_fail(ST_INPUT, "there is no text in '%s'%s", command->arguments[1],
                                                      command->n_arguments > 2 ? " and the other files" : "");
    if (status == ST_OK && trained.vocab_size < (size_t)job->vocab_size)
        show_message("warning: the texts have no more pairs to merge: the tokenizer has %zu token%s, not %lld", trained.vocab_size,
                     plural((int64_t)trained.vocab_size), (long long)job->vocab_size);
    if (status == ST_OK)
        show_line("wrote %s: %zu token%s from %zu different word%s in %.1f s", job->output, trained.vocab_size, plural((int64_t)trained.vocab_size),
                  trained.n_words, plural((int64_t)trained.n_words), clock_seconds() - start);
    if (status == ST_OK && command->json) print_json(job, &trained, clock_seconds() - start);
    str_release(&trained.json);
    return status;
}

static bool is_special(const Train *job, const char *token) {
    for (size_t i = 0; i < job->special.n; i++)
        if (!strcmp(job->special.items[i], token)) return true;
    return false;
}

static Status cmd_tokenizer_start(const Command *command, void *context) {
    const Train *job = context;
    BpeTrainer *trainer;
    if (command->n_arguments == 0 || strcmp(command->arguments[0], "train") != 0)
        return status_hint(status_fail(ST_USAGE, "the first argument of tune tokenizer must be 'train'"),
                           "tune tokenizer train FILE... --vocab-size N -o DIR");
    TRY(command_needs(command, 2, COUNT_OF(command->arguments)));
    if (!job->output) return status_fail(ST_USAGE, "tune tokenizer train needs -o DIR");
    if (job->vocab_size <= 0) return status_fail(ST_USAGE, "tune tokenizer train needs --vocab-size N, larger than 0");
    TRY(check_place(command, job));
    if (job->eos && !is_special(job, job->eos)) return status_fail(ST_USAGE, "--eos '%s' is not one of the special tokens", job->eos);
    TRY(bpe_trainer_new((size_t)job->vocab_size, job->special.items, job->special.n, &trainer));
    Status status = job->bos ? bpe_trainer_bos(trainer, job->bos) : ST_OK;
    if (status == ST_OK) status = cmd_tokenizer_train(command, job, trainer);
    bpe_trainer_free(trainer);
    return status;
}

Status cmd_tokenizer(int argc, char **argv) {
    Train job = {0};
    Command command = {
        .arguments_help = "train FILE... --vocab-size N -o DIR",
        .help =
            "Trains byte-level BPE on texts and writes tokenizer.json. A .jsonl file has one document {\"text\": ...} per row, any other file is one document; both may be .gz.\n"
            "The same texts give the same file, in any order.\n"
            "    tune tokenizer train corpus.txt --vocab-size 8192 --special '<|endoftext|>' -o my-tokenizer",
    };
    const Option options[] = {
        {"--vocab-size", OPTION_INT, &job.vocab_size, "N", "total number of tokens: special tokens, 256 bytes, and merges"},
        {"-o", OPTION_TEXT, &job.output, "DIR", "directory for tokenizer.json and tokenizer_config.json"},
        {"--force", OPTION_FLAG, &job.force, NULL, "write even if DIR has a tokenizer; its files are kept as NAME.1, NAME.2, ..."},
        {"--special", OPTION_LIST, &job.special, "TOKEN",
         "a special token, also recognized in the texts; repeatable, the first one is the end-of-text token"},
        {"--bos", OPTION_TEXT, &job.bos, "TOKEN", "the special token that begins every text"},
        {"--eos", OPTION_TEXT, &job.eos, "TOKEN", "the special token that ends a text, if it is not the first"},
        {0},
    };
    return command_main(&command, argc, argv, options, cmd_tokenizer_start, &job);
}
