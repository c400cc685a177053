/* SPDX-License-Identifier: Apache-2.0 */
/* synth.select: writes the best and most diverse rows to selected.jsonl, with the same selection as tune data filter --select. */
#include "data/synth/synth_parts.h"

#include <math.h>
#include <string.h>

static Status synth_select_refuse(const Synth *s, const char *key, const char *problem, const char *hint) {
    int line = recipe_line(s->recipe, key);
    if (line > 0 && s->recipe->path)
        status_fail(ST_CONFIG, "'%s' line %d: '%s' %s", s->recipe->path, line, key, problem);
    else
        status_fail(ST_CONFIG, "'%s' %s", key, problem);
    return hint ? status_hint(ST_CONFIG, "%s", hint) : ST_CONFIG;
}

/* Whether seeds have this type, or self-instruct assigns it. */
static bool is_type(const Synth *s, const char *name) {
    for (size_t t = 0; t < s->seeds.n_types; t++)
        if (strcmp(s->seeds.types[t].name, name) == 0) return true;
    return text_among(s->preset->types, ' ', name);
}

static Status check_quotas(const Synth *s) {
    const NumberMap *quotas = &s->recipe->synth_select_quotas;
    double sum = 0;
    for (size_t i = 0; i < quotas->n; i++) {
        if (!(quotas->values[i] >= 0) || quotas->values[i] != floor(quotas->values[i]))
            return synth_select_refuse(s, "synth.select_quotas",
                                       arena_printf(s->arena, "gives '%s' a number of rows that is not an integer", quotas->keys[i]), NULL);
        if (!is_type(s, quotas->keys[i]))
            return synth_select_refuse(s, "synth.select_quotas",
                                       arena_printf(s->arena, "names '%s', and no seed has this task type", quotas->keys[i]), NULL);
        sum += quotas->values[i];
    }
    return sum <= (double)s->recipe->synth_select
               ? ST_OK
               : synth_select_refuse(s, "synth.select_quotas",
                                     arena_printf(s->arena, "asks for %g rows, and 'synth.select' for %lld", sum, (long long)s->recipe->synth_select),
                                     NULL);
}

Status synth_select_open(Synth *s) {
    const Recipe *r = s->recipe;
    const char *quality = r->synth_select_quality;
    if (r->synth_select < 0) {
        if (quality) return synth_select_refuse(s, "synth.select_quality", "needs 'synth.select'", NULL);
        return r->synth_select_quotas.n ? synth_select_refuse(s, "synth.select_quotas", "needs 'synth.select'", NULL) : ST_OK;
    }
    if (r->synth_select > r->synth_num_rows)
        return synth_select_refuse(
            s, "synth.select",
            arena_printf(s->arena, "is %lld, and 'synth.num_rows' makes %lld", (long long)r->synth_select, (long long)r->synth_num_rows),
            "rows are selected from those that are made: raise synth.num_rows");
    if (quality && !filters_has(s->filters, quality) && !text_among(s->preset->scores, ' ', quality) &&
        !(r->synth_labels && strcmp(quality, "label_margin") == 0))
        return synth_select_refuse(
            s, "synth.select_quality",
            arena_printf(s->arena, "is '%s', which is neither a filter that is on nor a score of preset '%s'", quality, s->preset->name),
            "turn the filter on, such as synth.filters: {judge: 1}");
    return check_quotas(s);
}

Status synth_select_check(const Synth *s, const FilterRow *row, const json_t *json) {
    double quality;
    FilterRow whole = *row;
    whole.json = json;
    if (s->recipe->synth_select < 0 || !s->recipe->synth_select_quality) return ST_OK;
    return select_quality(&whole, s->recipe->synth_select_quality, (double)NAN, &quality);
}

/* ---- the end ---- */

typedef struct Choosing {
    const Synth *s;
    SelectPool *pool;
    Arena *texts;
    FileWriter writer;
} Choosing;

static Status take_row(void *context, const Row *row) {
    Choosing *choosing = context;
    FilterRow read;
    double quality;
    TRY(filter_row_read(row->json, choosing->texts, &read));
    if (!read.id) read.id = arena_printf(choosing->texts, "rows.jsonl line %zu", row->line);
    TRY(select_quality(&read, choosing->s->recipe->synth_select_quality, (double)NAN, &quality));
    return select_pool_add(choosing->pool, &read, quality);
}

static Status write_row(void *context, const char *line, bool chosen) {
    Choosing *choosing = context;
    if (chosen) writer_printf(&choosing->writer, "%s\n", line);
    return ST_OK;
}

/* Types without any kept row have nothing to select. */
static Status synth_select_choose(Choosing *choosing, const char *path, int64_t *n) {
    const Synth *s = choosing->s;
    const NumberMap *map = &s->recipe->synth_select_quotas;
    SelectQuota *quotas = arena_alloc(s->arena, (map->n + 1) * sizeof *quotas);
    SelectConfig config = {.n = s->recipe->synth_select, .share = synth_select_share_text(s->recipe->synth_select_share), .quotas = quotas};
    if (!quotas) return ST_RESOURCE;
    for (size_t i = 0; i < map->n; i++) {
        bool made = false;
        for (size_t r = 0; r < s->n_rows && !made; r++) made = strcmp(s->rows[r].type, map->keys[i]) == 0;
        if (made) quotas[config.n_quotas++] = (SelectQuota){map->keys[i], (int64_t)map->values[i]};
    }
    TRY(writer_open(&choosing->writer, path));
    Status status = select_pool_choose(choosing->pool, &config, write_row, choosing, n);
    if (status == ST_OK) return writer_commit(&choosing->writer);
    writer_abandon(&choosing->writer);
    return status;
}

Status synth_select_write(const Synth *s, int64_t *n) {
    const char *rows = run_path(s->run, "rows.jsonl"), *selected = run_path(s->run, "selected.jsonl");
    Choosing choosing = {.s = s, .texts = arena_new(0)};
    *n = -1;
    Status status = rows && selected && choosing.texts ? ST_OK : ST_RESOURCE;
    if (status == ST_OK && s->recipe->synth_select >= 0) status = select_pool_new(&choosing.pool);
    if (status == ST_OK && choosing.pool) status = rows_read(rows, take_row, &choosing);
    if (status == ST_OK && choosing.pool) status = synth_select_choose(&choosing, selected, n);
    select_pool_free(choosing.pool);
    arena_free(choosing.texts);
    return status;
}
