/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the rows of a recipe before training; see check.h. */
#include "lib/base/system.h"
#include "lib/base/work.h"
#include "data/branches.h"
#include "data/check/check.h"
#include "data/check/overlap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a recipe's rows ---- */

static Status load_rows(const Recipe *recipe, const ModelConfig *model, RecipeRows *rows, const Yaml *node, const char *key, bool once,
                        Dataset **dataset) {
    DataSource *sources;
    size_t n;
    TRY(data_sources(node, key, recipe->arena, &sources, &n));
    for (size_t i = 0; i < n; i++)
        if (sources[i].weight > 0 && once) return status_fail(ST_CONFIG, "'weight' is not allowed in '%s': each row is evaluated once", key);
    DataConfig config = data_config(recipe, model, rows->chat);
    config.prompts = rows->prompts;
    config.turns = data_turns_text(recipe->data_turns);
    config.pairs = dataset == &rows->rejected ? PAIRS_REJECTED : rows->pairs ? PAIRS_CHOSEN : NO_PAIRS;
    if (config.prompts || config.pairs != NO_PAIRS) config.cache = NULL;
    return dataset_load(&config, sources, n, rows->tokenizer, dataset);
}

static bool holds_steps(const Dataset *dataset) {
    for (size_t i = 0; dataset && i < dataset->n_files; i++)
        if (dataset->files[i].format && strcmp(dataset->files[i].format, "stepwise") == 0) return true;
    return false;
}

static Status open_rows(const Recipe *recipe, const ModelConfig *model, RecipeRows *rows) {
    const char *key;
    const Yaml *eval = recipe_eval_rows(recipe, &key);
    TRY(load_rows(recipe, model, rows, recipe->data_train, "data.train", false, &rows->train));
    if (eval) return load_rows(recipe, model, rows, eval, key, true, &rows->eval);
    recipe_warn_eval_every(recipe);
    return recipe->data_eval_split > 0 ? dataset_split(rows->train, recipe->data_eval_split, (uint64_t)recipe->seed, &rows->eval) : ST_OK;
}

Status recipe_rejected_open(const Recipe *recipe, const ModelConfig *model, RecipeRows *rows) {
    if (!rows->train->format || strcmp(rows->train->format, "preference") != 0) return ST_OK;
    return load_rows(recipe, model, rows, recipe->data_train, "data.train", false, &rows->rejected);
}

static Status open_all(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows) {
    TRY(tokenizer_load_if_any(recipe->model_path, &rows->tokenizer)); /* rows of ids work without one */
    TRY(chat_open_recipe(recipe, rows->tokenizer, &rows->chat));
    TRY(chat_check_now(recipe, rows->chat));
    if (!recipe->data_now && day && chat_writes_date(rows->chat)) TRY(chat_set_now(rows->chat, day));
    TRY(open_rows(recipe, model, rows));
    if (!rows->train->plain_as && !(rows->eval && rows->eval->plain_as))
        TRY(recipe_unread(recipe, "data.as", "leave it out", "does nothing: no row is of plain texts"));
    if (!rows->prompts && rows->train->counts.conversations == 0)
        TRY(recipe_unread(recipe, "data.template_kwargs", "leave it out", "does nothing: no row is a conversation"));
    if (holds_steps(rows->train) || holds_steps(rows->eval)) return ST_OK;
    return recipe_unread(recipe, "data.step_separator", "leave it out", "does nothing: no row is of format stepwise");
}

Status recipe_rows_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows) {
    *rows = (RecipeRows){0};
    return open_all(recipe, model, day, rows);
}

Status recipe_prompts_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows) {
    *rows = (RecipeRows){.prompts = true, .answer = recipe->generate_max_new_tokens};
    return open_all(recipe, model, day, rows);
}

Status recipe_pairs_open(const Recipe *recipe, const ModelConfig *model, const char *day, RecipeRows *rows) {
    *rows = (RecipeRows){.pairs = true};
    TRY(open_all(recipe, model, day, rows));
    return recipe_rejected_open(recipe, model, rows);
}

void recipe_rows_are_read(RecipeRows *rows) {
    chat_close(rows->chat);
    tokenizer_free(rows->tokenizer);
    rows->chat = NULL;
    rows->tokenizer = NULL;
}

void recipe_rows_close(RecipeRows *rows) {
    recipe_rows_are_read(rows);
    dataset_free(rows->eval);
    dataset_free(rows->rejected);
    dataset_free(rows->train);
    *rows = (RecipeRows){0};
}

/* ---- warnings ---- */

void data_check_warn(DataCheck *check, const char *format, ...) {
    char text[4000];
    va_list list;
    if (check->n_warnings == CHECK_WARNINGS) return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char *copy = strdup(text);
    if (copy) check->warnings[check->n_warnings++] = copy;
}

static void keep_warning(void *context, const char *text) { data_check_warn(context, "%s", text); }

void data_check_release(DataCheck *check) {
    for (size_t i = 0; i < check->n_warnings; i++) free(check->warnings[i]);
    *check = (DataCheck){0};
}

/* ---- lengths ---- */

const int check_shares[CHECK_SHARES] = {0, 25, 50, 75, 90, 95, 99, 100};

static int by_size(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static Status measure_lengths(const Dataset *dataset, DataCheck *check) {
    int32_t *lengths = malloc((dataset->n + 1) * sizeof *lengths);
    if (!lengths) return status_fail(ST_RESOURCE, "out of memory for the lengths of %zu rows", dataset->n);
    for (size_t i = 0; i < dataset->n; i++) lengths[i] = dataset_example(dataset, i).depth; /* the length that data.max_length limits */
    qsort(lengths, dataset->n, sizeof *lengths, by_size);
    for (int i = 0; i < CHECK_SHARES; i++) check->percentiles[i] = dataset->n ? lengths[(size_t)check_shares[i] * (dataset->n - 1) / 100] : 0;
    int64_t longest = check->percentiles[CHECK_SHARES - 1], width = 1;
    while (width * CHECK_BARS <= longest) width *= 2;
    check->bar_width = width;
    for (size_t i = 0; i < dataset->n; i++) check->bars[MIN(lengths[i] / width, (int64_t)CHECK_BARS - 1)]++;
    free(lengths);
    return ST_OK;
}

/* ---- begin and end ---- */

static bool is_end(const RecipeRows *rows, const ModelConfig *model, int32_t id) {
    if (rows->tokenizer && id == tokenizer_eos(rows->tokenizer)) return true;
    if (id == chat_end_of_turn(rows->chat)) return true;
    for (size_t i = 0; i < model->n_eos; i++)
        if (model->eos_token_id[i] == id) return true;
    return false;
}

static void look_at_ends(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    int32_t bos = rows->tokenizer ? tokenizer_bos(rows->tokenizer) : -1;
    for (size_t i = 0; i < rows->train->n; i++) {
        const Example example = dataset_example(rows->train, i);
        bool ended = false;
        for (int32_t r = 0; r < example.n_runs && !ended; r++)
            for (int32_t t = example.runs[r].begin; t < example.runs[r].end && !ended; t++) ended = is_end(rows, model, example.targets[t]);
        check->ended += ended;
        check->doubled_bos += bos >= 0 && example.n > 1 && example.ids[0] == bos && example.ids[1] == bos;
    }
    int64_t n = (int64_t)rows->train->n, cut = rows->train->counts.cut;
    bool chat = rows->train->counts.conversations > 0,
         knows_end = model->n_eos > 0 || (rows->tokenizer && tokenizer_eos(rows->tokenizer) >= 0) || chat_end_of_turn(rows->chat) >= 0;
    if (check->ended == 0 && knows_end) {
        data_check_warn(check, "no end token is ever trained: the model will not learn to stop%s",
                        cut >= n ? "; every row is cut at data.max_length"
                        : chat   ? "; the chat template writes none after an answer"
                                 : "");
        check->wrong = check->wrong || chat;
    } else if (check->ended < n && knows_end) {
        data_check_warn(check, "%lld of %lld rows train no end token: the model learns not to stop%s", (long long)(n - check->ended), (long long)n,
                        cut > 0 ? "; data.max_length cuts rows" : "");
    }
    if (check->doubled_bos)
        data_check_warn(check, "%lld of %lld rows begin with BOS twice: the text brings one and the tokenizer adds one",
                        (long long)check->doubled_bos, (long long)n);
    check->wrong = check->wrong || (check->doubled_bos == n && n > 0);
}

/* ---- the template ---- */

/* Words that look like special tokens but are split by the tokenizer. */
static void look_for_unknown_tokens(const Tokenizer *tokenizer, const Str *text, DataCheck *check) {
    for (const char *at = text->data; at && (at = strstr(at, "<|")); at++) {
        const char *end = strstr(at, "|>");
        char token[64];
        if (!end || end - at > 60) continue;
        snprintf(token, sizeof token, "%.*s", (int)(end + 2 - at), at);
        if (tokenizer_id(tokenizer, token) >= 0) continue;
        data_check_warn(check, "template and tokenizer disagree: the template writes %s, which is not a token of this tokenizer", token);
        return;
    }
}

static void look_at_template(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    const DataCounts *counts = &rows->train->counts;
    int32_t end = chat_end_of_turn(rows->chat);
    Str text = {0};
    if (counts->conversations == 0 || !rows->tokenizer) return;
    if (chat_probe(rows->chat, &text) == ST_OK) look_for_unknown_tokens(rows->tokenizer, &text, check);
    str_release(&text);
    bool stops = end == tokenizer_eos(rows->tokenizer);
    for (size_t i = 0; i < model->n_eos; i++) stops = stops || model->eos_token_id[i] == end;
    if (end >= 0 && !stops)
        data_check_warn(
            check,
            "the template ends an answer with %s, which is neither the tokenizer's EOS nor in generation_config.json: other programs will not stop there",
            chat_end_text(rows->chat));
    if (counts->with_system > 0 && counts->with_system < counts->conversations)
        data_check_warn(check, "%lld of %lld conversations have no system message, the others do: see data.system",
                        (long long)(counts->conversations - counts->with_system), (long long)counts->conversations);
    if (counts->templates * 10 > counts->marked * 3)
        data_check_warn(check, "%.0f %% of the answers' tokens come from the template, not from their own words",
                        100 * (double)counts->templates / (double)counts->marked);
}

/* ---- near-duplicate rows: one-permutation minhash of runs of five tokens, compared within bands ---- */

/* Sketches keep 16 bits of a bin, so two different bins are equal once in 65,536 times. Bands are sorted one by one, so that this many rows take no
 * more than some MiB. */
enum { SHINGLE = 5, BINS = 64, BAND = 4, MOST_COMPARED = 50000, ALIKE = 80, EMPTY = UINT16_MAX };
typedef struct Sketch {
    uint16_t bins[BINS];
} Sketch;
typedef struct BandKey {
    uint32_t key, row;
} BandKey;

static void sketch_row(const Example *example, Sketch *sketch) {
    uint32_t least[BINS];
    memset(least, 0xff, sizeof least);
    for (int32_t i = 0; i + SHINGLE <= example->n || i == 0; i++) {
        uint64_t hash = hash_ids(example->ids + i, MIN(SHINGLE, example->n - i));
        uint32_t value = (uint32_t)(hash >> 32) & 0xfffffffeu, *bin = &least[hash % BINS];
        *bin = MIN(*bin, value);
    }
    for (int i = 0; i < BINS; i++) sketch->bins[i] = least[i] == UINT32_MAX ? EMPTY : (uint16_t)(mix64(least[i]) % EMPTY);
}

/* Percentage of the bins that agree, among those that are set in either sketch. */
static int likeness(const Sketch *a, const Sketch *b) {
    int same = 0, used = 0;
    for (int i = 0; i < BINS; i++) {
        bool empty = a->bins[i] == EMPTY && b->bins[i] == EMPTY;
        used += !empty;
        same += !empty && a->bins[i] == b->bins[i];
    }
    return used ? 100 * same / used : 0;
}

static bool key_before(const BandKey *a, const BandKey *b) { return a->key != b->key ? a->key < b->key : a->row < b->row; }

static void sift_down(BandKey *keys, size_t at, size_t n) {
    for (size_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && key_before(&keys[child], &keys[child + 1])) child++;
        if (!key_before(&keys[at], &keys[child])) return;
        BandKey kept = keys[at];
        keys[at] = keys[child];
        keys[child] = kept;
    }
}

/* A heap sort in place, since qsort takes a copy. */
static void sort_keys(BandKey *keys, size_t n) {
    for (size_t i = n / 2; i-- > 0;) sift_down(keys, i, n);
    for (size_t end = n; end > 1;) {
        BandKey last = keys[--end];
        keys[end] = keys[0];
        keys[0] = last;
        sift_down(keys, 0, end);
    }
}

static void fill_band(const Sketch *sketches, size_t n, int band, BandKey *keys) {
    for (size_t i = 0; i < n; i++) {
        uint64_t key = (uint64_t)band;
        for (int k = 0; k < BAND; k++) key = mix64(key ^ sketches[i].bins[band * BAND + k]) + 1;
        keys[i] = (BandKey){(uint32_t)(key >> 32), (uint32_t)i};
    }
}

/* Marks rows that resemble one of the few before them in the same band. */
static void compare_band(const Dataset *dataset, const Sketch *sketches, const BandKey *keys, size_t n, bool *alike) {
    enum { FEW = 8 };
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k-- > 0 && i - k <= FEW && keys[k].key == keys[i].key;) {
            uint32_t row = keys[i].row, other = keys[k].row;
            if (alike[row] || likeness(&sketches[row], &sketches[other]) < ALIKE) continue;
            alike[row] = dataset_example(dataset, row).hash != dataset_example(dataset, other).hash; /* identical rows are counted separately */
        }
}

static Status find_near_duplicates(const Dataset *dataset, DataCheck *check) {
    size_t n = MIN(dataset->n, (size_t)MOST_COMPARED);
    Sketch *sketches = malloc((n + 1) * sizeof *sketches);
    BandKey *keys = malloc((n + 1) * sizeof *keys);
    bool *alike = calloc(n + 1, sizeof *alike);
    bool room = sketches && keys && alike;
    for (size_t i = 0; i < n && room; i++) {
        const Example example = dataset_example(dataset, i);
        work_at("looking for rows much alike", i, n);
        sketch_row(&example, &sketches[i]);
    }
    for (int band = 0; band < BINS / BAND && room; band++) {
        work_at("comparing rows, parts", (uint64_t)band, BINS / BAND);
        fill_band(sketches, n, band, keys);
        sort_keys(keys, n);
        compare_band(dataset, sketches, keys, n, alike);
    }
    work_end("comparing rows, parts");
    if (room) {
        for (size_t i = 0; i < n; i++) check->near_duplicates += alike[i];
        check->compared = (int64_t)n;
        if (check->near_duplicates)
            data_check_warn(check, "%lld of the first %zu rows are much like an earlier one (4 in 5 runs of five tokens)",
                            (long long)check->near_duplicates, n);
        if (n < dataset->n) data_check_warn(check, "rows much alike were looked for among the first %zu of %zu rows only", n, dataset->n);
    }
    free(sketches);
    free(keys);
    free(alike);
    return room ? ST_OK : status_fail(ST_RESOURCE, "out of memory to compare %zu rows", n);
}

/* ---- prompts ---- */

static void look_at_room(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    int64_t whole = rows->train->longest + rows->answer;
    if (whole > model->max_position_embeddings)
        data_check_warn(check,
                        "the longest prompt with an answer of generate.max_new_tokens has %lld tokens, and the model knows contexts of up to %lld",
                        (long long)whole, (long long)model->max_position_embeddings);
}

/* ---- evaluation in training ---- */

static Status look_for_overlap(const RecipeRows *rows, DataCheck *check) {
    Str where = {0};
    if (!rows->eval) return ST_OK;
    Status status = overlap_find(rows, &check->overlapping_eval, &where);
    if (status == ST_OK && check->overlapping_eval > 0)
        data_check_warn(check,
                        "%lld of %zu evaluation rows share a run of %d %s (or all of them, if shorter) with training rows: "
                        "their %s says less than it seems: %s",
                        (long long)check->overlapping_eval, rows->eval->n, OVERLAP_RUN, rows->tokenizer ? "words" : "tokens",
                        rows->prompts ? "reward" : "loss", str_text(&where));
    str_release(&where);
    return status;
}

/* ---- data_check ---- */

static Status look_at_rows(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    DataCounts counts = rows->train->counts;
    if (rows->pairs) counts.dropped_long = counts.cut = 0; /* pairs are dropped as a pair, and the message says so */
    data_counts_warn(&counts, "data.train", keep_warning, check);
    if (rows->eval) data_counts_warn(&rows->eval->counts, "data.eval", keep_warning, check);
    TRY(measure_lengths(rows->train, check));
    if (rows->prompts)
        look_at_room(rows, model, check);
    else
        look_at_ends(rows, model, check);
    look_at_template(rows, model, check);
    TRY(find_near_duplicates(rows->train, check));
    if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    TRY(look_for_overlap(rows, check));
    if (rows->train->counts.trained_tokens == 0 && !rows->prompts) check->wrong = true;
    return ST_OK;
}

static bool is_said(const DataCheck *check, const char *text) {
    for (size_t i = 0; i < check->n_warnings; i++)
        if (strcmp(check->warnings[i], text) == 0) return true;
    return false;
}

/* Checks the rejected answers like the chosen ones. Warnings about complete rows, such as about their prompts, are given once. */
static Status look_at_rejected(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    RecipeRows others = *rows;
    DataCheck found = {0};
    others.train = rows->rejected;
    others.eval = NULL;
    Status status = look_at_rows(&others, model, &found);
    for (size_t i = 0; i < found.n_warnings && status == ST_OK; i++)
        if (!is_said(check, found.warnings[i])) data_check_warn(check, "rejected answers: %s", found.warnings[i]);
    check->wrong = check->wrong || (rows->pairs && found.wrong);
    data_check_release(&found);
    return status;
}

Status data_check(const RecipeRows *rows, const ModelConfig *model, DataCheck *check) {
    TRY(look_at_rows(rows, model, check));
    return rows->rejected ? look_at_rejected(rows, model, check) : ST_OK;
}

void data_check_summary(const RecipeRows *rows, const DataCheck *check, Str *text) {
    const DataCounts *counts = &rows->train->counts;
    str_printf(text, "%lld row%s, %.0f %% of %lld token%s trained, ", (long long)counts->rows, plural(counts->rows),
               counts->tokens ? 100 * (double)counts->trained_tokens / (double)counts->tokens : 0, (long long)counts->tokens, plural(counts->tokens));
    if (check->n_warnings == 0)
        str_append(text, "nothing odd");
    else
        str_printf(text, "%zu %s", check->n_warnings, check->n_warnings == 1 ? "warning" : "warnings");
}
