/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of a recipe's rows for a plan: rows are tokenised, ordered and batched as training does it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/train/plan_command.h"
#include "data/check/check.h"
#include "lib/base/file.h"
#include "lib/base/gguf.h"
#include "lib/recipe/rejected.h"
#include "rl/pairs/preference.h"
#include "rl/text/text_algorithm.h"

/* The steps over `rows`: their number, the mean length of a row, and the largest batch. */
static Status read_steps(const Recipe *recipe, const Dataset *rows, PlanLengths *lengths) {
    DataPlan plan;
    size_t *largest = NULL, n = 0;
    int64_t batches = 0;
    DataOrder order = {.dataset = rows, .seed = (uint64_t)recipe->seed, .shuffle = recipe->data_shuffle};
    data_plan_init(&plan, &order, recipe->train_batch_size, recipe->train_batch_tokens, recipe->train_gradient_accumulation_steps);
    Status status = data_plan_epoch(&plan, 0, &batches);
    lengths->steps = recipe->train_max_steps;
    if (status == ST_OK && lengths->steps < 0) status = data_plan_total(&plan, recipe->train_epochs, &lengths->steps);
    if (status == ST_OK) status = data_plan_largest(&plan, lengths->steps, &largest, &n);
    if (status == ST_OK) {
        int64_t count = data_order_count(&order, 0);
        for (int64_t i = 0; i < count; i++) lengths->tokens += (double)dataset_length(rows, data_order_at(&order, 0, i));
        lengths->rows = (double)count;
        lengths->batches = (double)MAX(batches, 1);
        lengths->largest_batch = (double)dataset_tokens(rows, largest, n);
    }
    free(largest);
    data_plan_release(&plan);
    return status;
}

static Status read_examples(const Recipe *recipe, const ModelConfig *config, PlanLengths *lengths) {
    RecipeRows rows;
    bool prompts = recipe->has_rl && text_algorithm_find(recipe->rl_algorithm);
    Status status = prompts ? recipe_prompts_open(recipe, config, NULL, &rows) : recipe_rows_open(recipe, config, NULL, &rows);
    if (status == ST_OK && !prompts) status = read_steps(recipe, rows.train, lengths);
    for (size_t i = 0; status == ST_OK && prompts && i < rows.train->n; i++) {
        double n = (double)dataset_length(rows.train, i);
        lengths->rows++;
        lengths->tokens += n;
        lengths->longest = fmax(lengths->longest, n);
    }
    recipe_rows_close(&rows);
    return status;
}

static Status read_pairs(const Recipe *recipe, const ModelConfig *config, PlanLengths *lengths) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    Pairs *pairs = NULL, *held_out = NULL;
    PreferenceConfig settings;
    const PreferenceLoss *loss;
    const char *key;
    TRY(preference_configure(recipe, preference_algorithm(recipe->rl_algorithm), &settings, &loss));
    Status status = tokenizer_load_if_any(recipe->model_path, &tokenizer);
    if (status == ST_OK) status = chat_open_recipe(recipe, tokenizer, &chat);
    PairSource source = {.model = config, .tokenizer = tokenizer, .chat = chat, .unpaired = !loss, .reader = recipe->rl_algorithm};
    if (status == ST_OK) status = pairs_load(recipe, "data.train", recipe->data_train, &source, &pairs);
    if (status == ST_OK && pairs->n == 0) status = pairs_none_left(pairs, "data.train");
    bool split = !recipe_eval_rows(recipe, &key) && recipe->data_eval_split > 0;
    if (status == ST_OK && split) status = pairs_split(pairs, recipe->data_eval_split, (uint64_t)recipe->seed, &held_out);
    if (status == ST_OK) status = read_steps(recipe, &pairs->table, lengths);
    pairs_free(held_out);
    pairs_free(pairs);
    chat_close(chat);
    tokenizer_free(tokenizer);
    return status;
}

static Status read_lengths(const Recipe *recipe, PlanLengths *lengths) {
    ModelConfig config = {0};
    TRY(model_config_read(recipe->model_path, recipe->arena, &config));
    if (recipe->has_rl && preference_algorithm(recipe->rl_algorithm)) return read_pairs(recipe, &config, lengths);
    return read_examples(recipe, &config, lengths);
}

Status plan_read_lengths(const Recipe *recipe, PlanLengths *lengths) {
    *lengths = (PlanLengths){0};
    if (recipe->plan_row_tokens > 0) return ST_OK;
    bool model = dir_exists(recipe->model_path) || gguf_is(recipe->model_path);
    if (!model || !recipe->data_train) {
        snprintf(lengths->why, sizeof lengths->why, model ? "the recipe names no rows" : "the model is its config.json alone");
        return ST_OK;
    }
    RejectedMark mark = rejected_mark(recipe->rejected);
    Status status = read_lengths(recipe, lengths);
    rejected_rewind(recipe->rejected, mark);
    if (status == ST_OK || status == ST_RESOURCE || status == ST_INTERRUPTED) return status;
    *lengths = (PlanLengths){0};
    snprintf(lengths->why, sizeof lengths->why, "%s", status_text());
    return ST_OK;
}
