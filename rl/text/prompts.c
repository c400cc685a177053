/* SPDX-License-Identifier: Apache-2.0 */
/* Turns data rows into prompts. */
#include "rl/text/prompts.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "data/formats/formats.h"

typedef struct Reading {
    PromptSet *set;
    DataConfig *config;
    const Tokenizer *tokenizer;
    const ModelConfig *model;
    RowNotes notes; /* of the current row */
} Reading;

/* A pair has a prompt too, but pairs given to a policy gradient most likely mean that the wrong algorithm was chosen. */
static Status check_kind(const Reading *reading, const DataSource *source, const json_t *row) {
    static const char *const keys[][2] = {{"chosen", "rejected"}, {"chosen_messages", "rejected_messages"}, {"chosen_ids", "rejected_ids"}};
    const char *format = source->format ? source->format : reading->config->format;
    bool pair = false;
    for (size_t i = 0; i < COUNT_OF(keys); i++) pair |= json_object_get(row, keys[i][0]) && json_object_get(row, keys[i][1]);
    if (!pair || (format && (strcmp(format, "prompt") == 0 || strcmp(format, "preference") == 0))) return ST_OK;
    status_fail(ST_INPUT, "the row is a preference pair, but the algorithm learns from prompts whose answers a reward scores");
    return status_hint(ST_INPUT, "rl.algorithm: dpo learns from pairs; data.format: prompt uses only their prompts");
}

static Status check_ids(const Ids *ids, const ModelConfig *model) {
    return ids->n > 0 ? ids_check(ids, model->vocab_size) : status_fail(ST_INPUT, "the prompt has no tokens");
}

/* *kept becomes false if the row is left out. */
static Status fit_length(Reading *reading, Ids *ids, bool *kept) {
    const DataConfig *config = reading->config;
    int64_t extra = (int64_t)ids->n - config->max_length;
    *kept = true;
    if (extra <= 0) return ST_OK;
    if (strcmp(config->truncation, "error") == 0) return row_too_long("prompt", ids->n, config->max_length);
    if (strcmp(config->truncation, "drop") == 0) {
        reading->set->dropped++;
        *kept = false;
        return ST_OK;
    }
    if (strcmp(config->truncation, "keep_end") == 0) memmove(ids->data, ids->data + extra, (size_t)config->max_length * sizeof *ids->data);
    ids->n = (size_t)config->max_length;
    reading->set->cut++;
    return ST_OK;
}

static Status prompts_push(PromptSet *set, const PromptRow *row) {
    TRY(array_grow(&set->items, &set->cap, set->n + 1, sizeof *set->items, "prompts"));
    set->items[set->n++] = *row;
    set->longest = MAX(set->longest, (int64_t)row->ids.n);
    return ST_OK;
}

/* Appends the text of a message, after its role's name if there are several messages. False: it has content other than text. */
static bool say_messages(const json_t *messages, Str *text) {
    size_t n = json_array_size(messages);
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role")), *content = json_string_value(json_object_get(message, "content"));
        if (!role || !content) return false;
        if (n > 1) str_printf(text, "%s%s: ", i ? "\n\n" : "", role);
        str_append(text, content);
    }
    return n > 0;
}

/* Rewards and samples.jsonl show the question as plain text; this makes it for rows of another form than {"prompt": "..."}. */
static Status keep_text(const Reading *reading, const json_t *row, PromptRow *made) {
    Str text = {0};
    json_t *messages;
    if (json_is_string(json_object_get(row, "prompt"))) return ST_OK;
    TRY(row_question_messages(row, &messages));
    bool said = messages && say_messages(messages, &text);
    json_decref(messages);
    if (!said) str_clear(&text);
    Status status = !said && reading->tokenizer ? tokenizer_decode(reading->tokenizer, made->ids.data, made->ids.n, true, &text) : ST_OK;
    made->text = status == ST_OK ? strdup(str_text(&text)) : NULL;
    str_release(&text);
    return status == ST_OK && !made->text ? status_fail(ST_RESOURCE, "out of memory for prompts") : status;
}

static Status read_row(void *context, const DataSource *source, const Row *row) {
    Reading *reading = context;
    PromptRow made = {.file = row->file, .unit = row->unit, .line = row->line};
    bool kept = false;
    row_notes_clear(&reading->notes);
    reading->config->padded = row->padded;
    Status status = check_kind(reading, source, row->json);
    if (status == ST_OK) status = row_question(row->json, reading->config, reading->tokenizer, &made.ids);
    if (status == ST_OK) status = check_ids(&made.ids, reading->model);
    if (status == ST_OK) status = keep_text(reading, row->json, &made);
    if (status == ST_OK) status = fit_length(reading, &made.ids, &kept);
    if (status == ST_OK && kept) {
        made.json = json_incref(row->plain); /* reward programs get the question as plain text, see keep_text */
        row_notes_add(&reading->set->table.notes, &reading->notes, row->file, row->unit, row->line);
        status = prompts_push(reading->set, &made);
        if (status == ST_OK) return ST_OK;
        json_decref(made.json);
    }
    ids_release(&made.ids);
    free(made.text);
    return status;
}

Status prompts_read(YamlNode node, const char *key, const Recipe *recipe, const ModelConfig *model, const Chat *chat, const Tokenizer *tokenizer,
                    PromptSet *set) {
    *set = (PromptSet){.arena = arena_new(0)};
    if (!set->arena) return status_fail(ST_RESOURCE, "out of memory for prompts");
    DataConfig config = data_config(recipe, model, chat);
    Reading reading = {.set = set, .config = &config, .tokenizer = tokenizer, .model = model};
    config.notes = &reading.notes;
    /* Whole rows, not only known columns: reward programs get them */
    SourceReader reader = {.config = &config, .use = ROWS_AS_PROMPTS, .kept = &set->n, .take = read_row, .context = &reading};
    Status status = data_sources_read(node, key, &reader, set->arena, &set->table);
    row_notes_release(&reading.notes);
    TRY(status);
    set->table.n = set->n;
    if (set->n > 0) return ST_OK;
    status_fail(ST_INPUT, "'%s' has no prompts", key);
    return set->dropped ? status_hint(ST_INPUT, "%lld were longer than data.max_length", (long long)set->dropped) : ST_INPUT;
}

const PromptRow *prompts_at(const PromptSet *set, const Recipe *recipe, int64_t place) {
    DataOrder order = {&set->table, (uint64_t)recipe->seed, recipe->data_shuffle};
    return &set->items[data_order_place(&order, place)];
}

int64_t prompts_per_epoch(const PromptSet *set) { return data_order_count(&(DataOrder){.dataset = &set->table}, 0); }

/* Moves the end of sources from item `before` to item `kept`. */
static void close_sources(Dataset *table, size_t *k, size_t before, size_t kept) {
    while (*k < table->n_sources && table->source_begins[*k + 1] == before) table->source_begins[++*k] = kept;
}

Status prompts_split(PromptSet *set, double share, uint64_t seed, PromptSet *held_out) {
    size_t wanted, kept = 0, source = 0;
    *held_out = (PromptSet){0};
    TRY(held_out_count(set->n, share, &wanted));
    RngKey key = rng_key(seed, RNG_SHUFFLE, (uint64_t)1 << 52);
    Status status = ST_OK;
    close_sources(&set->table, &source, 0, 0);
    for (size_t i = 0; i < set->n; i++) {
        bool taken = status == ST_OK && rng_permute(key, set->n, i) < wanted;
        if (taken) status = prompts_push(held_out, &set->items[i]);
        if (!taken || status != ST_OK) set->items[kept++] = set->items[i];
        close_sources(&set->table, &source, i + 1, kept);
    }
    set->n = set->table.n = kept;
    set->longest = 0;
    for (size_t i = 0; i < kept; i++) set->longest = MAX(set->longest, (int64_t)set->items[i].ids.n);
    return status;
}

static void release_row(PromptRow *row) {
    ids_release(&row->ids);
    json_decref(row->json);
    free(row->text);
}

static Status check_row(RewardSet *rewards, const PromptRow *row) {
    return rewards_check(rewards, &(RewardRow){.file = row->file, .unit = row->unit, .number = (int64_t)row->line, .columns = row->json});
}

Status prompts_check(PromptSet *set, RewardSet *rewards, Rejected *rejected) {
    Failure first = {0};
    size_t kept = 0, source = 0, n = set->n;
    Status status = ST_OK;
    if (!rewards) return ST_OK;
    close_sources(&set->table, &source, 0, 0);
    set->longest = 0;
    for (size_t i = 0; i < n; i++) {
        PromptRow row = set->items[i];
        Status fits = status == ST_OK ? check_row(rewards, &row) : ST_OK;
        bool bad = rejected_accepts(rejected, fits);
        if (bad && first.status == ST_OK) failure_save(&first, fits);
        if (bad) rejected_add(rejected, &(RejectedRow){row.file, row.unit, row.line, row.json}, status_text());
        if (bad) release_row(&row);
        if (!bad) set->items[kept++] = row;
        if (!bad) set->longest = MAX(set->longest, (int64_t)row.ids.n);
        if (!bad && fits != ST_OK) status = fits;
        close_sources(&set->table, &source, i + 1, kept);
    }
    set->n = set->table.n = kept;
    return status == ST_OK && kept == 0 && n > 0 ? fail_no_valid_row("data.train", (int64_t)n, &first) : status;
}

void prompts_free(PromptSet *set) {
    for (size_t i = 0; i < set->n; i++) release_row(&set->items[i]);
    free(set->items);
    row_notes_release(&set->table.notes);
    arena_free(set->arena);
    *set = (PromptSet){0};
}

uint64_t prompts_fingerprint(const PromptSet *set) {
    uint64_t hash = set->n;
    for (size_t i = 0; i < set->n; i++) {
        const PromptRow *row = &set->items[i];
        char *text = json_text(row->json, JSON_COMPACT | JSON_SORT_KEYS);
        hash = XXH3_64bits_withSeed(row->ids.data, row->ids.n * sizeof *row->ids.data, hash);
        if (text) hash = XXH3_64bits_withSeed(text, strlen(text), hash);
        free(text);
    }
    return hash;
}
