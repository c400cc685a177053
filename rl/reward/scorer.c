/* SPDX-License-Identifier: Apache-2.0 */
/* Opens reward models and computes scores. */
#include "lib/tensor/compute.h"
#include "rl/reward/scorer.h"

#include "lib/model/adapter.h"
#include "lib/model/not_a_model.h"

#include <stdlib.h>
#include <string.h>

enum { PASS_TOKENS = 2048 };

/* ---- kinds of directories ---- */

/* adapter: NULL for a full model. model: directory of the model, or of the adapter's base. */
typedef struct Found {
    const char *adapter, *model, *template, *now, *as;
    json_t *kwargs; /* NULL: none */
    bool at_turn;
} Found;

static bool has(Arena *arena, const char *dir, const char *name) {
    const char *path = path_join(arena, dir, name);
    return path && file_exists(path);
}

/* The run that a directory is, or that it belongs to as adapter/ or model/. */
static Status find_run(Arena *arena, const char *dir, const char **run) {
    static const char *const parts[] = {"adapter", "model"};
    const char *above = path_join(arena, dir, "..");
    *run = dir;
    if (!above) return ST_RESOURCE;
    if (has(arena, dir, "recipe.yaml")) return ST_OK;
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *part = path_join(arena, above, parts[i]);
        if (!part) return ST_RESOURCE;
        if (same_folder(part, dir)) *run = above;
    }
    return ST_OK;
}

/* Runs of earlier versions do not record which token is scored. */
Status run_scores_turns(const char *dir, bool *turns) {
    Arena *arena = arena_new(0);
    const char *path = arena ? path_join(arena, dir, "started.json") : NULL;
    json_t *started = NULL;
    Status status = path ? ST_OK : status_fail(ST_RESOURCE, "out of memory");
    bool there = status == ST_OK && file_exists(path);
    if (there) status = json_read_file(path, &started);
    *turns = there && !json_object_get(started, "score_token");
    json_decref(started);
    arena_free(arena);
    return status;
}

/* Reads the run's template, its values and date, if its recipe has them, and how it read plain texts. */
static Status read_rendering(Arena *arena, const char *dir, Found *found) {
    Recipe *recipe;
    const char *run;
    TRY(find_run(arena, dir, &run));
    if (!has(arena, run, "recipe.yaml")) return ST_OK;
    TRY(recipe_read(path_join(arena, run, "recipe.yaml"), NULL, 0, &recipe));
    if (recipe->model_chat_template) found->template = arena_strdup(arena, recipe->model_chat_template);
    if (recipe->data_now) found->now = arena_strdup(arena, recipe->data_now);
    recipe_set_old_defaults(recipe);
    found->as = arena_strdup(arena, data_as_text(recipe->data_as));
    Status status = recipe_template_kwargs(recipe, &found->kwargs);
    recipe_free(recipe);
    TRY(status);
    return run_scores_turns(run, &found->at_turn);
}

static Status find_base(Arena *arena, const ScorerOptions *options, Found *found) {
    if (options->base_dir)
        found->model = options->base_dir;
    else
        TRY(adapter_base(found->adapter, arena, &found->model));
    if (dir_exists(found->model)) return ST_OK;
    status_fail(ST_INPUT, "the base model '%s' of the reward model in '%s' is not a directory on this machine", found->model, found->adapter);
    return status_hint(ST_INPUT, "put it there, or merge the two with tune merge and name the result");
}

static Status find_part(Arena *arena, const char *dir, Found *found) {
    const char *adapter = path_join(arena, dir, "adapter"), *model = path_join(arena, dir, "model");
    if (!adapter || !model) return ST_RESOURCE;
    if (has(arena, adapter, "adapter_config.json"))
        *found = (Found){.adapter = adapter};
    else if (has(arena, model, "config.json"))
        *found = (Found){.model = model};
    else if (has(arena, dir, "adapter_config.json"))
        *found = (Found){.adapter = dir};
    else
        *found = (Found){.model = dir};
    return ST_OK;
}

static Status scorer_find(Arena *arena, const char *dir, const ScorerOptions *options, Found *found) {
    if (!dir_exists(dir))
        return hint_no_directory(status_fail(ST_INPUT, "no reward model '%s'", dir), dir,
                                 "a reward model is a run of tune reward, or the directory of a model or adapter with a score");
    TRY(find_part(arena, dir, found));
    TRY(read_rendering(arena, dir, found));
    if (options->chat_template) {
        found->template = options->chat_template;
        json_decref(found->kwargs); /* they were for another template */
        found->kwargs = NULL;
    }
    if (options->template_kwargs && !found->kwargs) found->kwargs = json_object();
    if (options->template_kwargs && (!found->kwargs || json_object_update(found->kwargs, (json_t *)(uintptr_t)options->template_kwargs) != 0))
        return status_fail(ST_RESOURCE, "out of memory for a reward model");
    if (options->now) found->now = options->now;
    return found->adapter ? find_base(arena, options, found) : ST_OK;
}

static Status has_score(Arena *arena, const Found *found, bool *is) {
    static const char *const name = "score";
    LoraConfig lora;
    ModelConfig config;
    if (found->adapter) {
        TRY(adapter_config_read(found->adapter, arena, &lora));
        *is = module_matches(name, lora.saved, lora.n_saved);
    } else if (has(arena, found->model, "config.json")) {
        TRY(model_config_read(found->model, arena, &config));
        *is = config.scores;
    }
    return ST_OK;
}

Status scorer_fits(const char *dir, bool *is) {
    Arena *arena = arena_new(0);
    Found found;
    *is = false;
    if (!arena) return status_fail(ST_RESOURCE, "out of memory");
    Status status = find_part(arena, dir, &found);
    if (status == ST_OK) status = has_score(arena, &found, is);
    arena_free(arena);
    return status;
}

/* ---- opening ---- */

static Status check_has_score(const Scorer *scorer, const Found *found) {
    if (found->adapter || scorer->model->config.scores) return ST_OK;
    status_fail(ST_INPUT, "'%s' is a language model, not a reward model: it has no score", found->model);
    return status_hint(ST_INPUT, "tune reward makes one from preferences");
}

static Status open_model(Scorer *scorer, const Found *found, const ScorerOptions *options) {
    const Model *base = options->base;
    const Device *device = options->device ? options->device : base->device;
    DType compute = options->compute ? compute_from_text(options->compute) : base ? base->compute : compute_from_text("auto");
    scorer->shared = base && found->adapter && compute == base->compute && model_can_share_weights(base) && same_folder(base->dir, found->model);
    if (scorer->shared)
        TRY(model_share_weights_scored(base, 0, &scorer->model));
    else
        TRY(model_load(found->model, &(ModelOptions){.device = device, .compute = compute, .scores = true}, &scorer->model));
    TRY(check_has_score(scorer, found));
    return found->adapter ? adapter_load(scorer->model, found->adapter, false) : ST_OK;
}

static Status open_found(Scorer *scorer, const Found *found, const ScorerOptions *options) {
    TRY(open_model(scorer, found, options));
    scorer->dir = found->model;
    scorer->as = found->as ? found->as : "text";
    scorer->at_turn = found->at_turn;
    TRY(tokenizer_load_if_any(found->model, &scorer->tokenizer));
    if (!scorer->tokenizer) return ST_OK;
    TRY(chat_open(found->model, found->adapter, found->template, found->now, scorer->tokenizer, &scorer->chat));
    return chat_set_kwargs(scorer->chat, found->kwargs, scorer->tokenizer);
}

static Status open_parts(Scorer *scorer, const char *dir, const ScorerOptions *options) {
    Found found = {0};
    Status status = scorer_find(scorer->arena, dir, options, &found);
    if (status == ST_OK) status = open_found(scorer, &found, options);
    json_decref(found.kwargs);
    TRY(status);
    scorer->tape = tape_new(scorer->model->device, scorer->model->compute, 0);
    if (!scorer->tape) return status_fail(ST_RESOURCE, "out of memory for the tape");
    tape_record(scorer->tape, false);
    return ST_OK;
}

Status scorer_open(const char *dir, const ScorerOptions *options, Scorer **out) {
    *out = NULL;
    Arena *arena = arena_new(0);
    Scorer *scorer = arena ? arena_zero(arena, sizeof *scorer) : NULL;
    if (!scorer) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for a reward model");
    }
    scorer->arena = arena;
    Status status = open_parts(scorer, dir, options);
    if (status == ST_OK)
        *out = scorer;
    else
        scorer_close(scorer);
    return status;
}

void scorer_close(Scorer *scorer) {
    if (!scorer) return;
    tape_free(scorer->tape);
    chat_close(scorer->chat);
    tokenizer_free(scorer->tokenizer);
    model_free(scorer->model);
    free(scorer->ids);
    free(scorer->rows);
    free(scorer->segments);
    arena_free(scorer->arena);
}

/* ---- scoring ---- */

static bool same_prompt(const ScorerRow *a, const ScorerRow *b) {
    return a->n_prompt == b->n_prompt && (a->prompt == b->prompt || memcmp(a->prompt, b->prompt, a->n_prompt * sizeof *a->prompt) == 0);
}

/* Number of rows of a pass, and their number of tokens. */
static size_t scorer_fit(const ScorerRow *rows, size_t n, size_t *tokens) {
    size_t count = 0;
    for (*tokens = 0; count < n; count++) {
        size_t more = rows[count].n_answer + (count > 0 && same_prompt(&rows[count], &rows[count - 1]) ? 0 : rows[count].n_prompt);
        if (count > 0 && *tokens + more > PASS_TOKENS) break;
        *tokens += more;
    }
    return count;
}

static Status scorer_reserve(Scorer *scorer, size_t tokens, size_t n) {
    if (tokens > scorer->cap_tokens) {
        TRY(array_resize(&scorer->ids, tokens, sizeof *scorer->ids, "tokens"));
        scorer->cap_tokens = tokens;
    }
    if (n > scorer->cap_rows) {
        TRY(array_resize(&scorer->rows, n, sizeof *scorer->rows, "rows"));
        TRY(array_resize(&scorer->segments, 2 * n, sizeof *scorer->segments, "prompts and answers"));
        scorer->cap_rows = n;
    }
    return ST_OK;
}

static void push_segment(Scorer *scorer, ModelBatch *batch, const int32_t *ids, size_t n, int32_t parent) {
    Layout *layout = &batch->layout;
    int64_t begin = layout->n_tokens;
    memcpy(scorer->ids + begin, ids, n * sizeof *ids);
    layout->n_tokens += (int64_t)n;
    scorer->segments[layout->n_segments++] = (Segment){.begin = begin, .end = layout->n_tokens, .parent = parent};
}

static ModelBatch lay_out(Scorer *scorer, const ScorerRow *rows, size_t n) {
    ModelBatch batch = {.ids = scorer->ids, .layout = {.segments = scorer->segments}};
    int32_t parent = -1, prompt_end = 0;
    for (size_t i = 0; i < n; i++) {
        if (i == 0 || !same_prompt(&rows[i], &rows[i - 1])) {
            parent = rows[i].n_prompt > 0 ? batch.layout.n_segments : -1;
            if (parent >= 0) push_segment(scorer, &batch, rows[i].prompt, rows[i].n_prompt, -1);
            prompt_end = (int32_t)batch.layout.n_tokens;
        }
        if (rows[i].n_answer > 0) push_segment(scorer, &batch, rows[i].answer, rows[i].n_answer, parent);
        scorer->rows[i] = (rows[i].n_answer > 0 ? (int32_t)batch.layout.n_tokens : prompt_end) - 1;
    }
    return batch;
}

/* scores NULL: runs on the meta device. */
static Status score_pass(Scorer *scorer, Tape *tape, const ScorerRow *rows, size_t n, size_t tokens, double *scores) {
    int64_t count = (int64_t)n;
    TRY(scorer_reserve(scorer, tokens, n));
    ModelBatch batch = lay_out(scorer, rows, n);
    tape_reset(tape);
    Tensor *ends = tensor_view(tape_arena(tape), tape_device(tape), DT_I32, 1, &count, scorer->rows);
    if (!ends) return ST_RESOURCE;
    Tensor *result = op_row_scores(tape, model_forward(scorer->model, tape, &batch), scorer->model->score, ends);
    TRY(tape_status(tape));
    if (scores) tensor_read(result, scores);
    return ST_OK;
}

Status scorer_score(Scorer *scorer, const ScorerRow *rows, size_t n, double *scores) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].n_prompt + rows[i].n_answer == 0) return status_fail(ST_INPUT, "row %zu has no tokens to score", i + 1);
    for (size_t i = 0, count, tokens; i < n; i += count) {
        count = scorer_fit(rows + i, n - i, &tokens);
        TRY(score_pass(scorer, scorer->tape, rows + i, count, tokens, scores + i));
    }
    return ST_OK;
}

/* Runs the first pass, which is the largest, since all rows have the same size. */
static Status pass_bytes(Scorer *scorer, const ScorerRow *rows, size_t n, size_t *bytes) {
    size_t tokens, count = scorer_fit(rows, n, &tokens);
    Tape *meta = tape_new(device_plan(scorer->model->device), scorer->model->compute, 0);
    if (!meta) return status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    tape_record(meta, false);
    Status status = score_pass(scorer, meta, rows, count, tokens, NULL);
    *bytes += tape_peak_bytes(meta);
    tape_free(meta);
    return status;
}

Status scorer_bytes(Scorer *scorer, const ScorerShape *shape, size_t *bytes) {
    size_t n_prompts = (shape->n + shape->group - 1) / shape->group;
    int32_t *prompts = calloc(n_prompts, MAX(shape->n_prompt, (size_t)1) * sizeof *prompts),
            *answer = calloc(MAX(shape->n_answer, (size_t)1), sizeof *answer);
    ScorerRow *rows = calloc(shape->n, sizeof *rows);
    Status status = prompts && answer && rows ? ST_OK : status_fail(ST_RESOURCE, "out of memory for the plan of a step");
    for (size_t i = 0; i < shape->n && status == ST_OK; i++) {
        int32_t *prompt = prompts + i / shape->group * shape->n_prompt;
        if (shape->n_prompt > 0) prompt[0] = (int32_t)(i / shape->group % 2); /* differs from the neighbouring prompt, so that they are not shared */
        rows[i] = (ScorerRow){prompt, answer, shape->n_prompt, shape->n_answer};
    }
    *bytes = scorer->shared ? 0 : model_memory(scorer->model, false).packed;
    if (status == ST_OK) status = pass_bytes(scorer, rows, shape->n, bytes);
    free(prompts);
    free(answer);
    free(rows);
    return status;
}

bool tokenizers_agree(const Tokenizer *a, const Tokenizer *b) {
    int32_t n = tokenizer_vocab_size(a);
    if (n != tokenizer_vocab_size(b)) return false;
    for (int32_t id = 0; id < n; id++) {
        const char *x = tokenizer_token(a, id), *y = tokenizer_token(b, id);
        if (!x != !y || (x && strcmp(x, y) != 0)) return false;
    }
    return true;
}
