/* SPDX-License-Identifier: Apache-2.0 */
/* Reads rows of preferences for a training on them. */
#include "rl/pairs/pair_rows.h"

#include "rl/common/run_chat.h"
#include "rl/reward/scorer.h"

/* ---- passes outside the steps ---- */

static int64_t tokens_of(const Pairs *pairs, size_t row, const size_t *other) {
    return pair_tokens_with(&pairs->rows[row], other ? &pairs->rows[*other] : NULL);
}

/* Number of the first of n > 0 rows that together have at most so many tokens, at least 1; 0 tokens: no limit. other_rows: as in PairBatchOptions. */
static size_t rows_within(const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t most_tokens) {
    size_t count = 1;
    int64_t tokens = tokens_of(pairs, rows[0], other_rows);
    if (most_tokens <= 0) return n;
    while (count < n && (tokens += tokens_of(pairs, rows[count], other_rows ? other_rows + count : NULL)) <= most_tokens) count++;
    return count;
}

size_t pair_rows_fit(const Trainer *trainer, const Pairs *pairs, const size_t *rows, const size_t *other_rows, size_t n, int64_t *tokens) {
    const Recipe *recipe = trainer->recipe;
    size_t count = recipe->train_batch_tokens > 0 ? rows_within(pairs, rows, other_rows, n, recipe->train_batch_tokens)
                                                  : MIN(n, (size_t)recipe->train_batch_size);
    count = rows_within(pairs, rows, other_rows, count, trainer->part_tokens);
    if (!tokens) return count;
    *tokens = 0;
    for (size_t i = 0; i < count; i++) *tokens += tokens_of(pairs, rows[i], other_rows ? other_rows + i : NULL);
    return count;
}

/* ---- rows ---- */

static Status load_held_out(PairRows *set, const Recipe *recipe, const char *key, YamlNode node, const PairSource *source) {
    TRY(pairs_load(recipe, key, node, source, &set->eval));
    row_notes_warn(&set->eval->table.notes, key);
    for (size_t i = 0; i < set->eval->table.n_sources; i++)
        if (set->eval->table.sources[i].weight > 0) return status_fail(ST_CONFIG, "'weight' has no place in '%s': each row is evaluated once", key);
    return ST_OK;
}

static Status load_pairs(Trainer *trainer, PairRows *set, const Tokenizer *tokenizer, const Chat *chat) {
    const Recipe *recipe = trainer->recipe;
    bool scores = trainer->objective->scores;
    PairSource source = {.model = &trainer->model->config,
                         .tokenizer = tokenizer,
                         .chat = chat,
                         .unpaired = set->unpaired,
                         .stepwise = set->stepwise,
                         .ends = scores,
                         .reader = set->reader};
    if (scores && trainer->config->options.resume && recipe->output) TRY(run_scores_turns(recipe->output, &set->at_turn));
    source.at_turn = set->at_turn;
    TRY(pairs_load(recipe, "data.train", recipe->data_train, &source, &set->train));
    row_notes_warn(&set->train->table.notes, "data.train");
    const char *key;
    const Yaml *eval = recipe_eval_rows(recipe, &key);
    if (eval) return load_held_out(set, recipe, key, eval, &source);
    recipe_warn_eval_every(recipe);
    return recipe->data_eval_split > 0 ? pairs_split(set->train, recipe->data_eval_split, (uint64_t)recipe->seed, &set->eval) : ST_OK;
}

/* Frees tokenizer and template before memory is planned: they are not needed afterwards. */
static Status load_rows(Trainer *trainer, PairRows *set) {
    Tokenizer *tokenizer = NULL;
    Chat *chat = NULL;
    Status status = run_chat_open(&trainer->recipe, trainer->config->options.resume, &trainer->dated, &tokenizer, &chat);
    if (status == ST_OK) status = load_pairs(trainer, set, tokenizer, chat);
    chat_close(chat);
    tokenizer_free(tokenizer);
    return status;
}

static const char *unit_of(const PairRows *set) {
    bool one = set->train->n == 1;
    if (set->stepwise) return one ? "answer in steps" : "answers in steps";
    if (set->unpaired) return one ? "answer" : "answers";
    return one ? "pair" : "pairs";
}

static void say_rows(const PairRows *set, const Recipe *recipe, bool scores, RunPlan *plan) {
    const Pairs *pairs = set->train;
    run_plan_say(plan, "data: %zu %s, %lld token%s, %lld of them trained", pairs->n, unit_of(set), (long long)pairs->tokens, plural(pairs->tokens),
                 (long long)pairs->trained_tokens);
    run_plan_form(plan, &pairs->table);
    row_notes_report(&pairs->table.notes, "data.train", run_plan_note, plan);
    data_counts_warn(&pairs->table.counts, "data.train", run_plan_warn, plan);
    pairs_report(pairs, recipe, "data.train", run_plan_warn, plan);
    if (set->eval) pairs_report(set->eval, recipe, "data.eval", run_plan_warn, plan);
    if (set->eval) run_plan_say(plan, "held out: %zu row%s", set->eval->n, plural((int64_t)set->eval->n));
    run_plan_count(plan, PLAN_PRINT, "rows", (int64_t)pairs->n);
    run_plan_count(plan, PLAN_PRINT, "tokens", pairs->tokens);
    run_plan_count(plan, PLAN_PRINT, "trained_tokens", pairs->trained_tokens);
    run_plan_count(plan, PLAN_PRINT, "eval_rows", set->eval ? (int64_t)set->eval->n : 0);
    run_plan_text(plan, PLAN_RECORD, "format", set->stepwise ? "stepwise" : set->unpaired ? "kto" : "preference");
    if (scores && !set->at_turn) run_plan_text(plan, PLAN_RECORD, "score_token", "last");
}

Status pair_rows_open(Trainer *trainer, PairRows *set, RunPlan *plan) {
    TRY(load_rows(trainer, set));
    trainer->train = &set->train->table;
    trainer->eval = set->eval ? &set->eval->table : NULL;
    trainer_input(trainer, "data.train", pairs_fingerprint(set->train));
    if (set->eval) trainer_input(trainer, "data.eval", pairs_fingerprint(set->eval));
    say_rows(set, trainer->recipe, trainer->objective->scores, plan);
    return ST_OK;
}

void pair_rows_release(PairRows *set) {
    pair_batch_release(&set->batch);
    pairs_free(set->eval);
    pairs_free(set->train);
}
