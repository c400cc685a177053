/* SPDX-License-Identifier: Apache-2.0 */
/* The pool of rows to select from, for tune data filter and tune data synth. */
#include "data/filter/filter.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct SelectPool {
    Arena *texts;
    char **lines;
    SelectRow *rows;
    size_t n, cap;
};

Status select_pool_new(SelectPool **out) {
    SelectPool *pool = *out = calloc(1, sizeof *pool);
    if (pool && (pool->texts = arena_new(0))) return ST_OK;
    select_pool_free(pool);
    *out = NULL;
    return status_errno(ENOMEM, "cannot select rows");
}

void select_pool_free(SelectPool *pool) {
    if (!pool) return;
    arena_free(pool->texts);
    free(pool->lines);
    free(pool->rows);
    free(pool);
}

Status select_quality(const FilterRow *row, const char *name, double measured, double *quality) {
    *quality = name ? row_number(row->json, name) : 1;
    if (isnan(*quality)) *quality = measured;
    if (*quality >= 0) return ST_OK;
    if (isnan(*quality))
        return status_hint(status_fail(ST_INPUT, "row '%s' has no number '%s'", row->id ? row->id : "?", name),
                           "a quality is a column, or a filter that gives scores");
    return status_fail(ST_INPUT, "'%s' of row '%s' is %g: a quality is 0 or more", name, row->id ? row->id : "?", *quality);
}

static Status select_pool_reserve(SelectPool *pool, size_t n) {
    size_t cap = pool->cap;
    TRY(array_grow(&pool->lines, &cap, n, sizeof *pool->lines, "rows to select among"));
    return array_grow(&pool->rows, &pool->cap, n, sizeof *pool->rows, "rows to select among");
}

/* The text to compare: the question, or for a row without one its text. */
static char *compared_text(Arena *arena, const FilterRow *row, size_t *len) {
    Str text = {0};
    str_append_n(&text, row->instruction.data ? row->instruction.data : "", row->instruction.len);
    str_append(&text, "\n");
    str_append_n(&text, row->input.data ? row->input.data : "", row->input.len);
    if (!row->instruction.data) str_append_n(&text, row->completion.data ? row->completion.data : "", row->completion.len);
    char *copy = arena_strndup(arena, str_text(&text), text.len);
    *len = text.len;
    str_release(&text);
    return copy;
}

Status select_pool_add(SelectPool *pool, const FilterRow *row, double quality) {
    Str line = {0};
    size_t len;
    TRY(select_pool_reserve(pool, pool->n + 1));
    filter_row_write(row, &line);
    char *text = compared_text(pool->texts, row, &len), *copy = arena_strndup(pool->texts, str_text(&line), line.len),
         *type = row->task_type ? arena_strdup(pool->texts, row->task_type) : NULL;
    str_release(&line);
    if (!text || !copy || (row->task_type && !type)) return ST_RESOURCE;
    pool->lines[pool->n] = copy;
    pool->rows[pool->n++] = (SelectRow){{text, len}, type, quality};
    return ST_OK;
}

static int by_number(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

Status select_pool_choose(const SelectPool *pool, const SelectConfig *config, OnSelect *on_row, void *context, int64_t *n_chosen) {
    size_t n = 0, next = 0, *chosen = calloc((size_t)MIN(MAX(config->n, 0), (int64_t)pool->n) + 1, sizeof *chosen);
    Status status = chosen ? rows_select(config, pool->rows, pool->n, chosen, &n) : status_errno(ENOMEM, "cannot select rows");
    if (status == ST_OK && n > 1) qsort(chosen, n, sizeof *chosen, by_number);
    for (size_t r = 0; r < pool->n && status == ST_OK; r++) {
        bool is_chosen = next < n && chosen[next] == r;
        next += is_chosen;
        status = on_row(context, pool->lines[r], is_chosen);
    }
    *n_chosen = (int64_t)n;
    free(chosen);
    return status;
}
