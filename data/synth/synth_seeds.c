/* SPDX-License-Identifier: Apache-2.0 */
/* Seeds: rows written by people, from which new rows are made. Any row with texts is one. */
#include "data/synth/synth_parts.h"

#include <string.h>

typedef struct Reading {
    SynthSeeds *seeds;
    int needs;
} Reading;

static const char *slice_text(Arena *arena, Slice slice) { return slice.len ? arena_strndup(arena, slice.data, slice.len) : ""; }

static Status synth_seeds_fault(const Row *row, const char *problem, const char *hint) {
    status_fail(ST_INPUT, "'%s' %s %zu: %s", row->file, row->unit, row->line, problem);
    return status_hint(ST_INPUT, "%s", hint);
}

/* The type that a task states; otherwise classification is one type, and all other tasks are another. */
static Status type_of(const Row *row, SynthSeed *seed, Arena *arena) {
    const json_t *type = json_object_get(row->json, "task_type"), *classification = json_object_get(row->json, "is_classification");
    if (type && !json_is_null(type) && (!json_is_string(type) || json_string_length(type) == 0))
        return synth_seeds_fault(row, "'task_type' is not a text", "it names the kind of task, such as rewriting");
    if (classification && !json_is_boolean(classification))
        return synth_seeds_fault(row, "'is_classification' is neither true nor false", "leave it out when it is not known");
    seed->classification = json_is_true(classification) || (json_is_string(type) && strcmp(json_string_value(type), "classification") == 0);
    seed->type = json_is_string(type) ? arena_strdup(arena, json_string_value(type))
                 : classification     ? (seed->classification ? "classification" : "generation")
                                      : "general";
    return seed->type ? ST_OK : ST_RESOURCE;
}

static const char *id_of(const Row *row, Arena *arena) {
    const json_t *id = json_object_get(row->json, "id");
    if (json_is_string(id) && json_string_length(id)) return arena_strdup(arena, json_string_value(id));
    if (json_is_integer(id)) return arena_printf(arena, "%lld", (long long)json_integer_value(id));
    return arena_printf(arena, "seed_%zu", row->line);
}

static Status add_to_type(SynthSeeds *seeds, const char *name) {
    size_t t = 0;
    while (t < seeds->n_types && strcmp(seeds->types[t].name, name) != 0) t++;
    if (t == seeds->n_types) {
        TRY(arena_array_grow(seeds->arena, &seeds->types, &seeds->cap_types, seeds->n_types + 1, sizeof *seeds->types));
        seeds->types[seeds->n_types++] = (SynthType){.name = name};
    }
    SynthType *type = &seeds->types[t];
    TRY(arena_array_grow(seeds->arena, &type->seeds, &type->cap, type->n + 1, sizeof *type->seeds));
    type->seeds[type->n++] = seeds->n;
    return ST_OK;
}

static Status read_seed(const Row *row, int needs, Arena *arena, SynthSeed *seed) {
    json_t *copy = json_deep_copy(row->json); /* lives as long as the run: the filter's row borrows from it */
    if (!copy) return status_fail(ST_RESOURCE, "out of memory for the seeds");
    seed->row.json = copy;
    Status status = filter_row_read(copy, arena, &seed->row);
    if (status == ST_INPUT) return status_prefix(status, "'%s' %s %zu", row->file, row->unit, row->line);
    TRY(status);
    TRY(type_of(row, seed, arena));
    seed->id = id_of(row, arena);
    seed->system = seed->row.system.data ? slice_text(arena, seed->row.system) : NULL;
    if (seed->row.context.len > 0)
        seed->hidden_part = seed->row.has_history ? "earlier_turns" : json_object_get(copy, "documents") ? "documents" : "tools";
    seed->instruction = slice_text(arena, seed->row.instruction);
    seed->input = slice_text(arena, seed->row.input);
    seed->output = slice_text(arena, seed->row.completion);
    seed->prompt = seed->instruction && seed->input ? synth_prompt_of(arena, seed->instruction, seed->input) : NULL;
    if (!seed->id || !seed->prompt || !seed->output || (seed->row.system.data && !seed->system)) return ST_RESOURCE;
    seed->row.id = seed->id;
    seed->row.task_type = seed->type;
    if ((needs & NEEDS_INSTRUCTION) && !seed->instruction[0])
        return synth_seeds_fault(
            row, "the seed has no instruction",
            "a seed is {\"instruction\": ..., \"instances\": [{\"input\", \"output\"}], \"task_type\": ...} or {\"messages\": [...]}");
    if ((needs & NEEDS_OUTPUT) && !seed->output[0])
        return synth_seeds_fault(row, "the seed has no text to start from", "this preset works on its answer, or on {\"text\": ...}");
    return ST_OK;
}

static Status add_seed(void *context, const Row *row) {
    Reading *reading = context;
    SynthSeeds *seeds = reading->seeds;
    TRY(arena_array_grow(seeds->arena, &seeds->items, &seeds->cap, seeds->n + 1, sizeof *seeds->items));
    SynthSeed seed = {0};
    Status status = read_seed(row, reading->needs, seeds->arena, &seed);
    seeds->items[seeds->n] = seed;
    if (status == ST_OK) status = add_to_type(seeds, seed.type);
    if (status != ST_OK)
        json_decref((json_t *)seed.row.json);
    else
        seeds->n++;
    return status;
}

Status seeds_read(const char *path, int needs, bool optional, Arena *arena, SynthSeeds *seeds) {
    const char **files;
    size_t n;
    *seeds = (SynthSeeds){.arena = arena};
    if (!path && optional) {
        seeds->types = arena_alloc(arena, sizeof *seeds->types);
        if (seeds->types) seeds->types[seeds->n_types++] = (SynthType){.name = "general"};
        return seeds->types ? ST_OK : ST_RESOURCE;
    }
    if (!path) return status_hint(status_fail(ST_CONFIG, "'synth.seeds' is missing"), "name a file of seeds: synth.seeds: seeds.jsonl");
    TRY(rows_expand(path, arena, &files, &n));
    for (size_t i = 0; i < n; i++) TRY(rows_read(files[i], add_seed, &(Reading){seeds, needs}));
    return seeds->n ? ST_OK : status_fail(ST_INPUT, "'%s' holds no seeds", path);
}

void seeds_release(SynthSeeds *seeds) {
    for (size_t i = 0; i < seeds->n; i++) json_decref((json_t *)seeds->items[i].row.json);
    *seeds = (SynthSeeds){0};
}
