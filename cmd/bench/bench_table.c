/* SPDX-License-Identifier: Apache-2.0 */
/* tune-bench --table: prints bench.json and bench-peers.json as markdown. */
#include "cmd/app/terminal.h"
#include "cmd/bench/bench.h"

static void add_cell(Str *line, const json_t *row, const char *key, double factor, const char *format) {
    const json_t *value = json_object_get(row, key);
    str_append(line, " | ");
    if (json_is_number(value))
        str_printf(line, format, json_number_value(value) * factor);
    else
        str_append(line, "-");
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "?";
}

/* If the row has an error, appends the cell "failed: ...". */
static bool add_error(Str *line, const json_t *row) {
    const char *error = json_string_value(json_object_get(row, "error"));
    if (!error) return false;
    str_append(line, " | failed: ");
    for (; *error; error++) str_printf(line, "%s%c", *error == '|' ? "\\" : "", *error);
    return true;
}

static void add_row(Str *text, const json_t *row) {
    str_printf(text, "| %s %s | %s", text_of(row, "work"), text_of(row, "shape"), text_of(row, "compute"));
    add_cell(text, row, "batch", 1, "%.0f");
    add_cell(text, row, "tokens", 1, "%.0f");
    if (!add_error(text, row)) add_cell(text, row, "tokens_per_second", 1, "%.1f");
    add_cell(text, row, "trained_tokens_per_second", 1, "%.1f");
    add_cell(text, row, "gflops", 1, "%.1f");
    add_cell(text, row, "peak_share", 100, "%.0f %%");
    add_cell(text, row, "product_share", 100, "%.0f %%");
    add_cell(text, row, "gbytes_per_second", 1, "%.2f");
    add_cell(text, row, "read_share", 100, "%.0f %%");
    add_cell(text, row, "mbytes_per_second", 1, "%.1f");
    add_cell(text, row, json_is_number(json_object_get(row, "seconds")) ? "seconds" : "seconds_to_first_step", 1, "%.2f");
    add_cell(text, row, "peak_rss_bytes", 0x1p-20, "%.0f");
    add_cell(text, row, "predicted_bytes", 0x1p-20, "%.0f");
    str_append(text, " |\n");
}

static void add_ratio(Str *text, const json_t *row) {
    const json_t *holds = json_object_get(row, "holds");
    str_printf(text, "| %s | %s", text_of(row, "name"), text_of(row, "peer"));
    if (!add_error(text, row)) str_printf(text, " | %s", text_of(row, "unit"));
    add_cell(text, row, "ours", 1, "%.4g");
    add_cell(text, row, "theirs", 1, "%.4g");
    add_cell(text, row, "ratio", 1, "%.2f");
    add_cell(text, row, "target", 1, "%.3g");
    str_printf(text, " | %s |\n", json_is_boolean(holds) ? (json_is_true(holds) ? "yes" : "no") : "-");
}

/* Describes the machine and the rows; both kinds of file have these. */
static void describe(const json_t *root, Str *text) {
    const json_t *rows = json_object_get(root, "rows"), *row;
    size_t i;
    bool peers = json_object_get(root, "peers") != NULL;
    str_printf(text, "%s, %s, %d threads; products f32 %.0f GF/s, bf16 %.0f GF/s; memory read %.1f GB/s.\n\n", text_of(root, "date"),
               text_of(root, "cpu"), (int)json_integer_value(json_object_get(root, "threads")),
               json_number_value(json_object_get(root, "f32_gflops")), json_number_value(json_object_get(root, "bf16_gflops")),
               json_number_value(json_object_get(root, "read_gbytes_per_second")));
    if (peers)
        str_append(text, "| work | peer | unit | tune | peer's | ratio | target | holds |\n|---|---|---|---|---|---|---|---|\n");
    else
        str_append(
            text,
            "| work | compute | batch | tokens | tokens/s | trained/s | GF/s | of peak | in products | GB/s | of read | MB/s | first step or all, s | MiB | predicted |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    json_array_foreach(rows, i, row) {
        if (peers)
            add_ratio(text, row);
        else
            add_row(text, row);
    }
}

Status bench_table(const char *path) {
    json_t *root;
    Str text = {0};
    TRY(json_read_file(path, &root));
    Status status = json_is_array(json_object_get(root, "rows")) ? ST_OK : status_fail(ST_INPUT, "'%s' has no 'rows'", path);
    if (status == ST_OK) {
        describe(root, &text);
        print_result("%s", str_text(&text));
    } else {
        status_hint(status, "tune-bench ... -o FILE writes such a file");
    }
    str_release(&text);
    json_decref(root);
    return status;
}
