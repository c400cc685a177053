/* SPDX-License-Identifier: Apache-2.0 */
/* Answers from a fixed list: the labels that a prompt has by synth.labels, and the check whether a classification's inputs get their labels again. */
#include "data/synth/synth_parts.h"

#include <string.h>

/* ---- lists ---- */

static bool is_among(const SynthLabels *labels, const char *text) {
    for (size_t i = 0; i < labels->n; i++)
        if (strcmp(labels->items[i], text) == 0) return true;
    return false;
}

/* False: it is empty, already in the list, or out of memory. */
static bool add_label(Arena *arena, SynthLabels *labels, size_t most, const char *text) {
    if (!labels->items) labels->items = arena_alloc(arena, most * sizeof *labels->items);
    if (!labels->items || !text || !text[0] || is_among(labels, text)) return false;
    labels->items[labels->n++] = text;
    return true;
}

static bool read_labels(const Yaml *node, Arena *arena, SynthLabels *labels) {
    if (node->kind != YAML_LIST || node->n < 2) return false;
    for (size_t i = 0; i < node->n; i++)
        if (node->items[i]->kind != YAML_SCALAR || !add_label(arena, labels, node->n, node->items[i]->text)) return false;
    return true;
}

/* ---- synth.labels ---- */

static Status synth_labels_refuse(const Synth *s, const char *problem) {
    int line = recipe_line(s->recipe, "synth.labels");
    if (line > 0 && s->recipe->path)
        status_fail(ST_CONFIG, "wrong value for 'synth.labels' in '%s' line %d: %s", s->recipe->path, line, problem);
    else
        status_fail(ST_CONFIG, "wrong value for 'synth.labels': %s", problem);
    return status_hint(
        ST_CONFIG,
        "{sentiment: [good, bad]} names the labels of a task type; with preset answer, a text names the seeds' column that lists those of each row");
}

static Status read_types(Synth *s, const Yaml *map) {
    s->labels = arena_zero(s->arena, s->seeds.n_types * sizeof *s->labels);
    if (!s->labels) return ST_RESOURCE;
    for (size_t i = 0; i < map->n; i++) {
        size_t t = 0;
        while (t < s->seeds.n_types && strcmp(s->seeds.types[t].name, map->keys[i]) != 0) t++;
        if (t == s->seeds.n_types) return synth_labels_refuse(s, arena_printf(s->arena, "no seed has the task type '%s'", map->keys[i]));
        if (!read_labels(map->items[i], s->arena, &s->labels[t]))
            return synth_labels_refuse(s, arena_printf(s->arena, "expected a list of two or more different labels for '%s'", map->keys[i]));
    }
    return ST_OK;
}

static bool read_column(const json_t *list, Arena *arena, SynthLabels *labels) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!add_label(arena, labels, json_array_size(list),
                       arena_strdup(arena, json_is_string(json_array_get(list, i)) ? json_string_value(json_array_get(list, i)) : "")))
            return false;
    return labels->n >= 2;
}

/* Every row must have a list, so that none is answered freely by mistake. */
static Status read_columns(Synth *s, const char *column) {
    if (!s->preset->given_prompts) return synth_labels_refuse(s, "new prompts have no seed with such a column");
    for (size_t i = 0; i < s->seeds.n; i++) {
        SynthSeed *seed = &s->seeds.items[i];
        if (read_column(json_object_get(seed->row.json, column), s->arena, &seed->labels)) continue;
        status_fail(ST_INPUT, "'%s': seed '%s' has no list of two or more different texts in '%s'", s->recipe->synth_seeds, seed->id, column);
        return status_hint(ST_INPUT, "synth.labels names the column with the labels of each row");
    }
    return ST_OK;
}

Status synth_labels_open(Synth *s) {
    const Yaml *node = s->recipe->synth_labels;
    if (!node) return ST_OK;
    if (node->kind == YAML_MAP) return read_types(s, node);
    return node->kind == YAML_SCALAR ? read_columns(s, node->text) : synth_labels_refuse(s, "expected a map of task types, or the name of a column");
}

/* For a teacher that continues texts each label starts with a blank. */
static SynthLabels fitting(const Synth *s, const SynthLabels *labels) {
    SynthLabels spaced = {0};
    if (teacher_chats(s->teacher)) return *labels;
    for (size_t i = 0; i < labels->n; i++) add_label(s->round.arena, &spaced, labels->n, arena_printf(s->round.arena, " %s", labels->items[i]));
    return spaced;
}

SynthLabels synth_labels(const Synth *s, const SynthCandidate *c) {
    if (c->seed && c->seed->labels.n) return fitting(s, &c->seed->labels);
    for (size_t t = 0; t < s->seeds.n_types && s->labels; t++)
        if (strcmp(s->seeds.types[t].name, c->type) == 0) return fitting(s, &s->labels[t]);
    return (SynthLabels){0};
}

json_t *synth_labels_json(const SynthLabels *labels) {
    json_t *list = json_array();
    for (size_t i = 0; i < labels->n; i++) json_array_append_new(list, json_string(labels->items[i] + strspn(labels->items[i], " ")));
    return list;
}

/* The chosen label, without the blank. */
const char *synth_chosen_label(const SynthRequest *request) { return request->text + strspn(request->text, " "); }

/* ---- synth.check_labels ---- */

/* The different outputs of one task's rows. */
static SynthLabels labels_of_task(Synth *s, SynthCandidate **rows, size_t n) {
    SynthLabels labels = {0};
    for (size_t i = 0; i < n; i++) add_label(s->round.arena, &labels, n, rows[i]->output);
    return labels;
}

static Status ask_for_label(Synth *s, int stage, const SynthCandidate *c, const SynthLabels *labels, SynthRequest **request) {
    SynthLabels choices = fitting(s, labels);
    *request =
        synth_request_choice(s, stage, json_pack("{s:s, s:s, s:o}", "task", c->instruction, "input", c->input, "labels", synth_labels_json(labels)),
                             choices.items, choices.n);
    return *request ? ST_OK : s->status;
}

Status synth_check_labels(Synth *s, int stage, const char *type, SynthCandidate **rows, size_t n) {
    SynthRequest **requests = arena_zero(s->round.arena, MAX(n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t first = 0, end; first < n; first = end) {
        for (end = first + 1; end < n && rows[end]->instruction == rows[first]->instruction;) end++;
        SynthLabels labels = labels_of_task(s, rows + first, end - first);
        for (size_t i = first; i < end && labels.n > 1 && strcmp(rows[i]->type, type) == 0; i++)
            TRY(ask_for_label(s, stage, rows[i], &labels, &requests[i]));
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        if (!requests[i]) continue;
        candidate_request(s, rows[i], requests[i]);
        const char *reason = requests[i]->refused                                            ? synth_refusal(requests[i])
                             : !requests[i]->text[0]                                         ? "no_label"
                             : strcmp(synth_chosen_label(requests[i]), rows[i]->output) != 0 ? "other_label"
                                                                                             : NULL;
        if (reason)
            TRY(synth_reject(s, rows[i], reason));
        else
            s->stages[stage].count.kept++;
    }
    return s->status;
}
