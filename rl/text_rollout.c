/* Rollouts: prompts, completions, rewards. With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) groups whose rewards are all equal, which teach nothing, are replaced by those of further prompts; as many
 * are asked as are missing, so that no group that teaches something is thrown away. */
#include "rl/text_run.h"

#include <math.h>
#include <string.h>

GenerateConfig text_sampling(const TextRl *rl, int64_t step) {
    const Recipe *r = rl->recipe;
    return (GenerateConfig){
        .sample = {.temperature = r->generate_temperature, .top_k = r->generate_top_k, .top_p = r->generate_top_p, .min_p = r->generate_min_p, .repetition_penalty = r->generate_repetition_penalty, .typical_p = 1},
        .max_new_tokens = r->generate_max_new_tokens,
        .n = r->rl_num_generations,
        .seed = rng_u64(rng_key((uint64_t)r->seed, RNG_SAMPLE, (uint64_t)step), 0),
        .n_stop = r->generate_stop.n,
        .stop = r->generate_stop.items,
        .n_stop_ids = rl->stop_id >= 0,
        .stop_ids = &rl->stop_id,
    };
}

/* ---- rewards ---- */

Slice text_prompt(const PromptRow *row) {
    const char *text = json_string_value(json_object_get(row->json, "prompt"));
    return (Slice){text ? text : "", text ? strlen(text) : 0};
}

static Status name_columns(TextRl *rl, const RewardScores *scores, size_t n) {
    if (rl->reward_names) return ST_OK;
    rl->reward_names = arena_zero(rl->arena, REWARD_COLUMNS * sizeof *rl->reward_names);
    if (!rl->reward_names) return ST_RESOURCE;
    for (size_t k = 0; k < n; k++) {
        rl->reward_names[k] = arena_printf(rl->arena, "reward/%s", scores->columns[k].name);
        if (!rl->reward_names[k]) return ST_RESOURCE;
    }
    return ST_OK;
}

/* The sum of each reward, where there are several. */
static Status add_columns(TextRl *rl, const RewardScores *scores, RolloutSums *sums) {
    size_t n = scores->n_columns > 1 ? MIN(scores->n_columns, (size_t)REWARD_COLUMNS) : 0;
    if (n > 0) TRY(name_columns(rl, scores, n));
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < scores->n_rows; i++) {
            if (isnan(scores->columns[k].values[i])) continue;
            sums->columns[k] += scores->columns[k].values[i];
            sums->known[k]++;
        }
    return ST_OK;
}

static void add_round(RolloutSums *sums, const Experience *e) {
    for (int64_t i = 0; i < e->n; i++) {
        sums->rewards += e->rewards[i];
        sums->squares += e->rewards[i] * e->rewards[i];
        sums->ended += e->ended[i];
    }
    for (int64_t g = 0; g < e->n_groups; g++) sums->flat += group_is_flat(e->rewards + g * e->group_size, e->group_size);
    sums->completions += (double)e->n;
    sums->tokens += (double)e->n_tokens;
    sums->groups += e->n_groups;
    sums->rounds++;
}

Status text_judge(TextRl *rl, Experience *e, RolloutSums *sums) {
    for (int64_t i = 0; i < e->n; i++) {
        const PromptRow *prompt = e->prompts[i / e->group_size];
        rl->rows[i] = (RewardRow){
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
    if (rl->rewards) TRY(rewards_score(rl->rewards, rl->rows, (size_t)e->n, &scores));
    for (int64_t i = 0; i < e->n; i++) {
        double earned = rl->turns.env ? e->rewards[i] : 0; /* in the environment */
        e->rewards[i] = earned + (scores ? scores->sums[i] : 0) - (e->ended[i] ? 0 : rl->recipe->rl_missing_eos_penalty);
    }
    add_round(sums, e);
    TRY(text_correlations_add(rl, e, scores, &sums->correlations));
    return scores ? add_columns(rl, scores, sums) : ST_OK;
}

/* ---- metrics ---- */

static void describe(const TextRl *rl, Metrics *metrics) {
    const RolloutSums *sums = &rl->sampled;
    double n = sums->completions, mean = sums->rewards / n;
    for (size_t k = 0; rl->reward_names && k < REWARD_COLUMNS && rl->reward_names[k]; k++)
        metric_set(metrics, rl->reward_names[k], sums->known[k] > 0 ? sums->columns[k] / sums->known[k] : (double)NAN);
    metric_set(metrics, "reward", mean);
    metric_set(metrics, "reward_std", sqrt(fmax(0, sums->squares / n - mean * mean)));
    metric_set(metrics, "zero_std_fraction", (double)sums->flat / (double)sums->groups);
    if (rl->algorithm->compares) metric_count(metrics, "groups_compared", sums->groups - sums->flat);
    metric_set(metrics, "completion_length", sums->tokens / n);
    metric_set(metrics, "eos_fraction", sums->ended / n);
    text_correlations_tell(rl, &sums->correlations, metrics);
    metric_count(metrics, "tokens", (int64_t)sums->tokens);
    if (rl->turns.env) metric_set(metrics, "turns", rl->turns.played / n);
    if (rl->sampling_rounds == 1) return;
    metric_count(metrics, "sampling_rounds", sums->rounds);
    metric_count(metrics, "groups_sampled", sums->groups);
    metric_count(metrics, "groups_replaced", sums->groups - rl->experience.n_groups);
}

/* ---- rounds ---- */

/* Samples and judges `n` prompts from *place on. `asked` of them were asked in this step before: what a completion is follows from the step and its prompt's number in it alone. */
static Status one_round(TextRl *rl, const GenerateConfig *config, int64_t n, int64_t asked, int64_t *place) {
    if (rl->turns.env) {
        *place += n;
        TRY(turns_sample(&rl->turns, n, (uint64_t)asked, config, &rl->round));
        return text_judge(rl, &rl->round, &rl->sampled);
    }
    for (int64_t i = 0; i < n; i++) rl->asked[i] = prompts_at(&rl->prompts, rl->recipe, (*place)++);
    TRY(experience_sample(rl->model, rl->tokenizer, rl->asked, (size_t)n, (uint64_t)asked, config, &rl->round));
    return text_judge(rl, &rl->round, &rl->sampled);
}

Status text_roll_out(TextRl *rl, int64_t step, int64_t *place, Metrics *metrics) {
    GenerateConfig config = text_sampling(rl, step);
    Experience *e = &rl->experience, *round = &rl->round;
    int64_t wanted = rl->recipe->rl_prompts_per_step;
    rl->sampled = (RolloutSums){0};
    if (rl->turns.env) TRY(turns_begin(&rl->turns, (size_t)(wanted * rl->sampling_rounds)));
    experience_clear(e, rl->algorithm->paired ? 2 : config.n);
    while (e->n_groups < wanted && rl->sampled.rounds < rl->sampling_rounds) {
        bool last = rl->sampled.rounds + 1 == rl->sampling_rounds;
        TRY(one_round(rl, &config, wanted - e->n_groups, rl->sampled.groups, place));
        for (int64_t g = 0; g < round->n_groups; g++) {
            bool flat = group_is_flat(round->rewards + g * round->group_size, round->group_size);
            if (rl->algorithm->paired && !flat) TRY(text_pairs_append(rl, g));
            if (!rl->algorithm->paired && (last || !flat)) TRY(experience_append(e, round, g));
        }
    }
    for (int64_t i = 0; rl->recipe->rl_mask_truncated && i < e->n; i++)
        for (int64_t t = e->begin[i]; t < e->begin[i + 1]; t++) e->trained[t] &= e->ended[i];
    describe(rl, metrics);
    return ST_OK;
}
