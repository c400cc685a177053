/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/recipe/rejected.h"

#include <stdlib.h>
#include <string.h>

#include "lib/base/file.h"

/* A longer list means that something else is wrong with the file. */
enum { ROOM = 64 << 20, SHOWN = 3 };

bool rejected_accepts(const Rejected *rejected, Status status) { return rejected && status == ST_INPUT; }

Status rejected_add(Rejected *rejected, const RejectedRow *row, const char *reason) {
    JsonWriter w = {0};
    char *dumped = row->row ? json_text(row->row, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    jw_object(&w, NULL);
    jw_string(&w, "file", row->file);
    jw_int(&w, "line", (int64_t)row->line);
    if (strcmp(row->unit, "line") != 0) jw_string(&w, "unit", row->unit); /* then `line` is the row's number in its file */
    jw_string(&w, "reason", reason);
    jw_raw(&w, "row", dumped ? dumped : "null");
    jw_end_object(&w);
    bool placed = strstr(reason, row->file) != NULL; /* the messages about lines that are not JSON name the place */
    if (rejected->n < SHOWN && rejected->n > 0) str_append(&rejected->first, "; ");
    if (rejected->n < SHOWN && !placed) str_printf(&rejected->first, "'%s' %s %zu: ", row->file, row->unit, row->line);
    if (rejected->n < SHOWN) str_append(&rejected->first, reason);
    if (rejected->listed == rejected->n && rejected->lines.len + w.text.len < ROOM) {
        str_append(&rejected->lines, str_text(&w.text));
        str_append_char(&rejected->lines, '\n');
        rejected->listed++;
    }
    rejected->n++;
    free(dumped);
    jw_release(&w);
    return ST_OK;
}

void rejected_restore(Rejected *rejected, int64_t n, const char *lines) {
    for (const char *at = lines, *end; (end = strchr(at, '\n')); at = end + 1, n--) {
        json_t *root = json_parse(at, (size_t)(end - at), 0, NULL);
        const char *file = json_string_value(json_object_get(root, "file")), *reason = json_string_value(json_object_get(root, "reason")),
                   *unit = json_string_value(json_object_get(root, "unit"));
        size_t line = (size_t)json_integer_value(json_object_get(root, "line"));
        if (file && reason) rejected_add(rejected, &(RejectedRow){file, unit ? unit : "line", line, json_object_get(root, "row")}, reason);
        json_decref(root);
    }
    rejected->n += MAX(n, 0);
}

RejectedMark rejected_mark(const Rejected *rejected) {
    return rejected ? (RejectedMark){rejected->n, rejected->listed, rejected->lines.len, rejected->first.len} : (RejectedMark){0};
}

static void shorten(Str *text, size_t len) {
    if (text->len <= len) return;
    text->len = len;
    text->data[len] = '\0';
}

void rejected_rewind(Rejected *rejected, RejectedMark mark) {
    if (!rejected) return;
    rejected->n = mark.n;
    rejected->listed = mark.listed;
    shorten(&rejected->lines, mark.lines);
    shorten(&rejected->first, mark.first);
}

bool rejected_describe(const Rejected *rejected, Str *text) {
    if (!rejected || rejected->n == 0) return false;
    str_printf(text, "%lld row%s left out, data.on_bad_row: skip (%s%s)", (long long)rejected->n, plural(rejected->n), str_text(&rejected->first),
               rejected->n > SHOWN ? "; ..." : "");
    return true;
}

Status rejected_write(const Rejected *rejected, const char *folder) {
    Str path = {0};
    if (!rejected || rejected->n == 0) return ST_OK;
    str_printf(&path, "%s/rejected.jsonl", folder);
    Status status = file_write_all(str_text(&path), str_text(&rejected->lines), rejected->lines.len);
    str_release(&path);
    return status;
}

void rejected_release(Rejected *rejected) {
    if (!rejected) return;
    str_release(&rejected->lines);
    str_release(&rejected->first);
}
