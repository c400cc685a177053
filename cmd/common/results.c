/* SPDX-License-Identifier: Apache-2.0 */
/* Files that commands write: never over an input, and completely or not at all. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "lib/base/memory.h"
#include "cmd/common/results.h"
#include "cmd/app/terminal.h"

/* Devices and pipes do not count: they may be both read and written. */
static bool same_file(const struct stat *file, const char *path) {
    struct stat other;
    return file_stat(path, &other) == 0 && S_ISREG(other.st_mode) && other.st_dev == file->st_dev && other.st_ino == file->st_ino;
}

/* Whether `name` is a file of a model. Other files in its directory, such as earlier results of commands, may be replaced. */
static bool belongs_to_model(const char *name) {
    static const char *const files[] = {"config.json",
                                        "generation_config.json",
                                        "model.safetensors",
                                        "model.safetensors.index.json",
                                        "adapter_config.json",
                                        "adapter_model.safetensors",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "vocab.txt",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json"};
    for (size_t i = 0; i < COUNT_OF(files); i++)
        if (strcmp(name, files[i]) == 0) return true;
    return text_starts_with(name, "model-") && strstr(name, "-of-"); /* a shard */
}

static bool in_model(const struct stat *file, const char *dir) {
    char **names;
    size_t n = 0;
    bool found = false;
    Arena *arena = arena_new(0);
    Status status = arena ? dir_list(dir, arena, &names, &n) : ST_RESOURCE;
    if (status == ST_RESOURCE) memory_no_answer(EIO, dir); /* it may be one of its files */
    if (status != ST_OK) n = 0;
    for (size_t i = 0; i < n && !found; i++) {
        const char *path = belongs_to_model(names[i]) ? path_join(arena, dir, names[i]) : NULL;
        found = path && same_file(file, path);
    }
    arena_free(arena);
    return found;
}

Status check_output(const char *output, const char *const *inputs, size_t n) {
    struct stat file;
    if (!output || file_stat(output, &file) != 0 || !S_ISREG(file.st_mode)) return ST_OK;
    for (size_t i = 0; i < n; i++) {
        if (!inputs[i] || !(dir_exists(inputs[i]) ? in_model(&file, inputs[i]) : same_file(&file, inputs[i]))) continue;
        status_fail(ST_CONFIG, "output '%s' is one of the inputs", output);
        return status_hint(ST_CONFIG, "give it another name");
    }
    return ST_OK;
}

Status check_page(const char *path) {
    FILE *file = path ? fopen(path, "rb") : NULL;
    if (!file) return ST_OK;
    int first = fgetc(file);
    while (first == ' ' || first == '\n' || first == '\r' || first == '\t') first = fgetc(file);
    fclose(file);
    if (first == EOF || first == '<' || first == 0xef) return ST_OK; /* empty, or a page (0xef: a byte order mark) */
    status_fail(ST_CONFIG, "'%s' exists and is not a page: it would be overwritten", path);
    return status_hint(ST_CONFIG, "give the page another name, such as page.html, or remove the file first");
}

/* ---- results: lines to stdout, or to a file that appears when it is complete ---- */

/* Refuses the name of another format, since programs that read the file go by its name. */
static Status check_lines_name(const char *path) {
    static const char *const others[] = {".gz", ".zst", ".csv", ".tsv", ".parquet"};
    for (size_t i = 0; i < COUNT_OF(others); i++)
        if (text_ends_with(path, others[i]))
            return status_hint(status_fail(ST_CONFIG, "output '%s': rows are written as JSON lines, not as %s", path, others[i]),
                               "give it a name that ends with .jsonl");
    return ST_OK;
}

Status result_open(ResultFile *result, const char *path) {
    *result = (ResultFile){.to_file = path != NULL, .writer = {.fd = -1}};
    if (path) TRY(check_lines_name(path));
    if (path) TRY(writer_open(&result->writer, path));
    return writer_alone(&result->writer); /* refuses a second process, since the rows of one would be mixed with the rejected rows of the other */
}

Status result_line(ResultFile *result, const Str *line) {
    result->n++;
    if (result->to_file) {
        writer_write(&result->writer, str_text(line), line->len);
        writer_write(&result->writer, "\n", 1);
    } else {
        print_text(str_text(line), line->len);
        print_text("\n", 1);
    }
    return result->writer.status;
}

Status result_flush(ResultFile *result) { return result->to_file ? writer_flush(&result->writer) : ST_OK; }

Status result_close(ResultFile *result, Status status) {
    if (!result->to_file) return status;
    if (status == ST_OK) status = result_flush(result);
    if (status == ST_OK) return writer_commit(&result->writer);
    Str path = {0};
    str_append(&path, result->writer.path ? result->writer.path : "");
    size_t n = writer_keep_lines(&result->writer);
    if (n > 0)
        show_message("tune: warning: %sthe %zu row%s done so far %s in '%s.partial'", status == ST_INTERRUPTED ? "interrupted: " : "", n,
                     plural((int64_t)n), n == 1 ? "is" : "are", str_text(&path));
    str_release(&path);
    return status;
}
