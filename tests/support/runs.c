/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

Recipe *recipe_of_lines(const char *format, ...) {
    enum { MAX_SETTINGS = 64 };
    const char *settings[MAX_SETTINGS];
    char *text;
    size_t n = 0;
    va_list arguments;
    va_start(arguments, format);
    assert_true(vasprintf(&text, format, arguments) >= 0);
    va_end(arguments);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(n < MAX_SETTINGS);
        settings[n++] = line;
    }
    Recipe *recipe;
    check_ok(recipe_read(NULL, settings, n, &recipe));
    free(text);
    return recipe;
}

Runtime runtime_of(const Recipe *recipe) { return (Runtime){device_cpu(), recipe_compute(recipe)}; }

size_t metrics_read(const char *run_dir, const char *key, double *values, size_t cap) {
    Lines lines;
    Slice line;
    size_t n = 0;
    check_ok(lines_open(&lines, temp_file(run_dir, "metrics.jsonl")));
    while (n < cap && lines_next(&lines, &line)) {
        json_t *row;
        check_ok(json_read_text(line.data, line.len, "metrics.jsonl", &row));
        const json_t *value = json_object_get(row, key);
        if (value) values[n++] = json_is_number(value) ? json_number_value(value) : (double)NAN;
        json_decref(row);
    }
    check_ok(lines_close(&lines));
    return n;
}

void metrics_text(const char *run_dir, Str *text) {
    Lines lines;
    Slice line;
    check_ok(lines_open(&lines, temp_file(run_dir, "metrics.jsonl")));
    while (lines_next(&lines, &line)) {
        json_t *row;
        check_ok(json_read_text(line.data, line.len, "metrics.jsonl", &row));
        json_object_del(row, "seconds");
        json_object_del(row, "tokens_per_second");
        char *rest = json_dumps(row, JSON_SORT_KEYS);
        str_printf(text, "%s\n", rest);
        free(rest);
        json_decref(row);
    }
    check_ok(lines_close(&lines));
}

void check_same_file(const char *dir, const char *a, const char *b, const char *file) {
    Mapping bytes[2];
    check_ok(file_map(temp_file(temp_file(dir, a), file), &bytes[0]));
    check_ok(file_map(temp_file(temp_file(dir, b), file), &bytes[1]));
    bool same = bytes[0].size == bytes[1].size && (bytes[0].size == 0 || memcmp(bytes[0].data, bytes[1].data, bytes[0].size) == 0);
    if (!same) fail_msg("%s of %s differs from that of %s", file, a, b);
    file_unmap(&bytes[0]);
    file_unmap(&bytes[1]);
}
