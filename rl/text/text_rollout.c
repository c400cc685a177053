/* SPDX-License-Identifier: Apache-2.0 */
/* Rollouts: prompts, completions, rewards. With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) groups with equal rewards, which have no
 * signal, are replaced by groups of further prompts. Each round samples only as many prompts as are missing, so that no useful group is discarded.
 */
#include "rl/text/text_run.h"

#include <math.h>
#include <string.h>

double text_temperature(const Recipe *recipe) { return isnan(recipe->rl_temperature) ? recipe->generate_temperature : recipe->rl_temperature; }

GenerateConfig text_sampling(const TextRl *rl, int64_t step) {
    const Recipe *r = rl->recipe;
    return (GenerateConfig){
        .sample = {.temperature = text_temperature(r),
                   .top_k = r->generate_top_k,
                   .top_p = r->generate_top_p,
                   .min_p = r->generate_min_p,
                   .repetition_penalty = r->generate_repetition_penalty,
                   .typical_p = 1},
        .max_new_tokens = r->generate_max_new_tokens,
        .n = r->rl_num_generations,
        .seed = rng_u64(rng_key((uint64_t)r->seed, RNG_SAMPLE, (uint64_t)step), 0),
        .n_stop = r->generate_stop.n,
        .stop = r->generate_stop.items,
        .n_stop_ids = rl->stop_id >= 0,
        .stop_ids = &rl->stop_id,
        .memory = rl->sampling,
    };
}

/* ---- rewards ---- */

Slice text_prompt(const PromptRow *row) {
    const char *text = row->text ? row->text : json_string_value(json_object_get(row->json, "prompt"));
    return (Slice){text ? text : "", text ? strlen(text) : 0};
}

/* "PREFIX/NAME", interned: one string per name for the whole run. */
static Status name_column(TextRl *rl, const char *prefix, const char *name, const char **named) {
    size_t len = strlen(prefix);
    for (size_t i = 0; i < rl->names.n_columns; i++) {
        *named = rl->names.columns[i];
        if (strncmp(*named, prefix, len) == 0 && (*named)[len] == '/' && strcmp(*named + len + 1, name) == 0) return ST_OK;
    }
    if (!rl->names.columns) rl->names.columns = arena_alloc(rl->arena, COLUMN_NAMES * sizeof *rl->names.columns);
    if (!rl->names.columns) return ST_RESOURCE;
    if (rl->names.n_columns == COLUMN_NAMES)
        return status_hint(status_fail(ST_INPUT, "rewards have more than %d different numbers, '%s' is one more", COLUMN_NAMES, name),
                           "return the same names for every row");
    *named = rl->names.columns[rl->names.n_columns] = arena_printf(rl->arena, "%s/%s", prefix, name);
    if (!*named) return ST_RESOURCE;
    rl->names.n_columns++;
    return ST_OK;
}

static const char *column_name(const RewardSum *column) { return strchr(column->name, '/') + 1; }

/* Index of a reward's sum, or the place to insert it: the recipe's rewards in order, then the other numbers sorted by name. */
static Status find_column(TextRl *rl, RolloutSums *sums, const char *name, bool listed, RewardSum **column) {
    size_t at = listed ? 0 : MIN(rewards_count(rl->rewards), sums->n_columns);
    while (at < sums->n_columns && (listed ? strcmp(column_name(&sums->columns[at]), name) != 0 : strcmp(column_name(&sums->columns[at]), name) < 0))
        at++;
    *column = &sums->columns[at];
    if (at < sums->n_columns && strcmp(column_name(*column), name) == 0) return ST_OK;
    if (sums->n_columns == REWARD_COLUMNS)
        return status_fail(ST_INPUT, "rewards have more than %d different numbers in one step, '%s' is one more", REWARD_COLUMNS, name);
    RewardSum new = {0};
    TRY(name_column(rl, "reward", name, &new.name));
    memmove(*column + 1, *column, (sums->n_columns - at) * sizeof **column);
    **column = new;
    sums->n_columns++;
    return ST_OK;
}

static Status add_columns(TextRl *rl, const RewardScores *scores, RolloutSums *sums) {
    for (size_t k = 0; k < scores->n_columns; k++) {
        const RewardColumn *scored = &scores->columns[k];
        RewardSum *column;
        TRY(find_column(rl, sums, scored->name, k < rewards_count(rl->rewards), &column));
        for (size_t i = 0; i < scores->n_rows; i++) {
            if (isnan(scored->values[i])) continue;
            column->sum += scored->values[i];
            column->known++;
        }
    }
    return ST_OK;
}

double reward_sum_mean(const RewardSum *column) { return column->known > 0 ? column->sum / (double)column->known : (double)NAN; }

Status text_columns_report(TextRl *rl, const RolloutSums *sums, const char *prefix, const char *missing, const char *unscored, Metrics *metrics) {
    int64_t unknown = 0;
    for (size_t k = 0; sums->n_columns > 1 && k < sums->n_columns; k++) {
        const char *name;
        TRY(name_column(rl, prefix, column_name(&sums->columns[k]), &name));
        metric_set(metrics, name, reward_sum_mean(&sums->columns[k]));
        unknown += (int64_t)sums->completions - sums->columns[k].known;
    }
    if (unknown > 0) metric_count(metrics, missing, unknown);
    if (sums->unscored > 0) metric_count(metrics, unscored, sums->unscored);
    return ST_OK;
}

static void add_round(RolloutSums *sums, const Experience *e) {
    for (int64_t i = 0; i < e->n; i++) {
        tally_add(&sums->rewards, e->rewards[i]);
        sums->ended += e->ended[i];
        sums->tokens += (double)experience_trained(e, i);
    }
    for (int64_t g = 0; g < e->n_groups; g++) sums->flat += group_is_flat(e->rewards + g * e->group_size, e->group_size);
    sums->completions += (double)e->n;
    sums->groups += e->n_groups;
    sums->rounds++;
}

/* The policy's own part of an episode: its tokens, and their text with a line for each turn. */
typedef struct OwnWords {
    int32_t *ids;
    Str text;
} OwnWords;

static Status own_turns(const TextRl *rl, const Experience *e, int64_t i, OwnWords *own) {
    size_t n = 0, turn = 0;
    for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) {
        if (e->trained[t]) own->ids[n++] = e->ids[t];
        if (n == turn || (e->trained[t] && t + 1 < e->begin[i + 1])) continue;
        if (turn > 0) str_append_char(&own->text, '\n');
        TRY(tokenizer_decode(rl->tokenizer, own->ids + turn, n - turn, true, &own->text));
        turn = n;
    }
    rl->step.rows[i].policy_text = str_text(&own->text);
    rl->step.rows[i].own_ids = own->ids;
    rl->step.rows[i].n_policy_ids = n;
    return ST_OK;
}

static void own_words_free(OwnWords *own, int64_t n) {
    for (int64_t i = 0; own && i < n; i++) {
        free(own[i].ids);
        str_release(&own[i].text);
    }
    free(own);
}

static Status own_words(const TextRl *rl, const Experience *e, OwnWords **all) {
    OwnWords *own = *all = calloc((size_t)e->n + 1, sizeof *own);
    Status status = own ? ST_OK : status_fail(ST_RESOURCE, "out of memory for episodes");
    for (int64_t i = 0; i < e->n && status == ST_OK; i++) {
        own[i].ids = malloc((size_t)(e->begin[i + 1] - e->begin[i] + 1) * sizeof *own[i].ids);
        status = own[i].ids ? own_turns(rl, e, i, &own[i]) : status_fail(ST_RESOURCE, "out of memory for episodes");
    }
    return status;
}

/* Ranks score the samples together (reward_ranks.c), and all get all numbers. */
static Status score_samples(TextRl *rl, Experience *e, RolloutSums *sums) {
    for (int64_t i = 0; i < e->n; i++) {
        const PromptRow *prompt = e->prompts[i / e->group_size];
        rl->step.rows[i] = (RewardRow){
            .file = prompt->file,
            .unit = prompt->unit,
            .number = (int64_t)prompt->line,
            .prompt = text_prompt(prompt),
            .completion = {str_text(&e->texts[i]), e->texts[i].len},
            .prompt_ids = prompt->ids.data,
            .n_prompt_ids = prompt->ids.n,
            .completion_ids = e->ids + e->begin[i],
            .n_completion_ids = (size_t)(e->begin[i + 1] - e->begin[i]),
            .finish_reason = e->ended[i] ? "stop" : "length",
            .columns = prompt->json,
        };
    }
    const RewardScores *scores = NULL;
    OwnWords *own = NULL;
    Status status = rl->rewards && rl->turns.env ? own_words(rl, e, &own) : ST_OK;
    if (status == ST_OK && rl->rewards) status = rewards_score(rl->rewards, rl->step.rows, (size_t)e->n, &scores);
    own_words_free(own, e->n);
    TRY(status);
    for (int64_t i = 0; i < e->n; i++) {
        double earned = rl->turns.env ? e->rewards[i] : 0; /* the environment's rewards */
        e->rewards[i] = earned + (scores ? scores->sums[i] : 0) - (e->ended[i] ? 0 : rl->recipe->rl_missing_eos_penalty);
        sums->unscored += scores && !scores->judged[i];
        if (!isfinite(e->rewards[i])) return status_fail(ST_NUMERIC, "the rewards of completion %lld add up to %g", (long long)i + 1, e->rewards[i]);
    }
    TRY(text_correlations_add(rl, e, scores, &sums->correlations));
    return scores ? add_columns(rl, scores, sums) : ST_OK;
}

Status text_score(TextRl *rl, Experience *e, RolloutSums *sums) {
    TRY(score_samples(rl, e, sums));
    add_round(sums, e);
    return ST_OK;
}

/* ---- metrics ---- */

static Status describe(TextRl *rl, Metrics *metrics) {
    const RolloutSums *sums = &rl->step.sampled;
    double n = sums->completions;
    TRY(text_columns_report(rl, sums, "reward", "reward_numbers_missing", "reward_unjudged", metrics));
    if (rl->rewards || rl->turns.env) {
        metric_set(metrics, "reward", tally_mean(&sums->rewards));
        metric_set(metrics, "reward_std", tally_std(&sums->rewards));
    }
    if (!rl->algorithm->taught) metric_set(metrics, "zero_std_fraction", (double)sums->flat / (double)sums->groups);
    if (rl->algorithm->compares) metric_count(metrics, "groups_compared", sums->groups - sums->flat);
    metric_set(metrics, "completion_length", sums->tokens / n);
    metric_set(metrics, "eos_fraction", sums->ended / n);
    text_correlations_report(rl, &sums->correlations, metrics);
    metric_count(metrics, "tokens", (int64_t)sums->tokens);
    if (rl->turns.env) metric_set(metrics, "turns", rl->turns.played / n);
    if (rl->sampling_rounds == 1) return ST_OK;
    metric_count(metrics, "sampling_rounds", sums->rounds);
    metric_count(metrics, "groups_sampled", sums->groups);
    metric_count(metrics, "groups_replaced", sums->groups - rl->step.experience.n_groups);
    return ST_OK;
}

/* ---- rounds ---- */

/* Samples and scores `n` prompts from *place on. `asked`: prompts sampled earlier in this step; a completion depends only on the step and its
 * prompt's number within the step. */
static Status one_round(TextRl *rl, const GenerateConfig *config, int64_t n, int64_t asked, int64_t *place) {
    if (rl->turns.env) {
        *place += n;
        TRY(turns_sample(&rl->turns, n, (uint64_t)asked, config, &rl->step.round));
        return text_score(rl, &rl->step.round, &rl->step.sampled);
    }
    for (int64_t i = 0; i < n; i++) rl->step.asked[i] = prompts_at(&rl->prompts, rl->recipe, (*place)++);
    if (rl->algorithm->taught)
        TRY(text_gkd_sample(rl, rl->step.asked, (size_t)n, config, &rl->step.round));
    else
        TRY(text_sample(rl, rl->model, rl->step.asked, (size_t)n, (uint64_t)asked, config, &rl->step.round));
    return text_score(rl, &rl->step.round, &rl->step.sampled);
}

Status text_roll_out(TextRl *rl, int64_t step, int64_t *place, Metrics *metrics) {
    GenerateConfig config = text_sampling(rl, step);
    Experience *e = &rl->step.experience, *round = &rl->step.round;
    int64_t wanted = rl->recipe->rl_prompts_per_step;
    rl->step.sampled = (RolloutSums){0};
    if (rl->algorithm->taught) text_gkd_begin(rl, step, &config);
    if (rl->turns.env) TRY(turns_begin(&rl->turns, (size_t)(wanted * rl->sampling_rounds)));
    experience_clear(e, rl->algorithm->paired ? 2 : config.n);
    while (e->n_groups < wanted && rl->step.sampled.rounds < rl->sampling_rounds) {
        bool last = rl->step.sampled.rounds + 1 == rl->sampling_rounds;
        TRY(one_round(rl, &config, wanted - e->n_groups, rl->step.sampled.groups, place));
        for (int64_t g = 0; g < round->n_groups; g++) {
            bool flat = group_is_flat(round->rewards + g * round->group_size, round->group_size);
            if (rl->algorithm->paired && !flat) TRY(text_pairs_append(rl, g));
            if (!rl->algorithm->paired && (last || !flat)) TRY(experience_append(e, round, g));
        }
    }
    return describe(rl, metrics);
}
