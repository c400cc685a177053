/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that an algorithm reads in general but that have no effect given the value of another key: an error, like every key without an effect. */
#include "rl/keys/algorithm_keys.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rl/text/text_algorithm.h"
#include "rl/text/text_env.h"

static bool idle_keys_is(const char *text, const char *other) { return text && strcmp(text, other) == 0; }

static bool alpha_ends(const Recipe *r) { return r->rl_alpha_schedule == RL_ALPHA_SCHEDULE_LINEAR; }
static bool alpha_counts_visits(const Recipe *r) { return r->rl_alpha_schedule == RL_ALPHA_SCHEDULE_HARMONIC; }
static bool alpha_begins(const Recipe *r) { return r->rl_alpha_schedule != RL_ALPHA_SCHEDULE_VISITS; }
static bool epsilon_counts_visits(const Recipe *r) { return r->rl_epsilon_schedule == RL_EPSILON_SCHEDULE_HARMONIC; }
static bool epsilon_counts_steps(const Recipe *r) { return r->rl_epsilon_schedule != RL_EPSILON_SCHEDULE_HARMONIC; }
static bool explores(const Recipe *r) { return !(idle_keys_is(r->rl_algorithm, "mc") && r->rl_policy); }
static bool has_tiles(const Recipe *r) { return r->rl_tilings > 0; }
static bool has_priorities(const Recipe *r) { return r->rl_prioritized; }
static bool learns_price(const Recipe *r) { return r->rl_ent_coef == 0; }

static const TextAlgorithm *on_text(const Recipe *r) {
    bool elsewhere = r->rl_env && !text_env_is_requested(r->rl_env); /* reinforce and ppo also exist on environments */
    return elsewhere ? NULL : text_algorithm_find(r->rl_algorithm);
}
static bool has_values(const Recipe *r) { return on_text(r) ? r->rl_value_model || on_text(r)->values == VALUES_NEEDED : r->rl_baseline; }
static bool normalizes(const Recipe *r) { return !on_text(r) || has_values(r); }
static bool has_rewards(const Recipe *r) { return !on_text(r) || !on_text(r)->taught; }
static bool has_reference(const Recipe *r) { return !on_text(r) || r->rl_beta > 0 || on_text(r)->paired; }
static bool steers_beta(const Recipe *r) { return !isnan(r->rl_adaptive_kl); }
static bool corrects(const Recipe *r) { return r->rl_sampler_correction != RL_SAMPLER_CORRECTION_NONE; }
static bool scales_scores(const Recipe *r) { return !(idle_keys_is(r->rl_algorithm, "reinforce") && r->rl_value_model); }
static bool discounts(const Recipe *r) { return !(on_text(r) && idle_keys_is(r->rl_algorithm, "reinforce")) || r->rl_value_model || r->rl_env; }

static const struct Rule {
    const char *keys; /* names of section rl */
    bool (*read)(const Recipe *recipe);
    const char *what, *hint;
} rules[] = {
    {"alpha_end", alpha_ends, "does nothing", "it belongs to rl.alpha_schedule: linear"},
    {"alpha_visits", alpha_counts_visits, "does nothing", "it belongs to rl.alpha_schedule: harmonic"},
    {"alpha", alpha_begins, "does nothing with 'rl.alpha_schedule: visits'", "leave it out, or choose another schedule"},
    {"epsilon_visits", epsilon_counts_visits, "does nothing", "it belongs to rl.epsilon_schedule: harmonic"},
    {"epsilon_fraction", epsilon_counts_steps, "does nothing with 'rl.epsilon_schedule: harmonic'", "rl.epsilon_visits says how fast it falls"},
    {"epsilon_start epsilon_end epsilon_fraction epsilon_schedule epsilon_visits", explores, "does nothing", "the policy of rl.policy is played"},
    {"tiles tile_low tile_high", has_tiles, "does nothing without 'rl.tilings'", "8 is usual"},
    {"priority_alpha priority_beta", has_priorities, "does nothing", "it belongs to rl.prioritized: true"},
    {"target_entropy", learns_price, "does nothing with 'rl.ent_coef' above 0", "with 0 the entropy coefficient is tuned towards it"},
    {"vf_coef value_lambda value_learning_rate clip_value", has_values, "does nothing", "no values are learned"},
    {"normalize_advantage", normalizes, "does nothing", "no values are learned"},
    {"kl reference ent_coef max_logprob_diff missing_eos_penalty", has_rewards, "does nothing with 'rl.algorithm: gkd'", "leave it out"},
    {"kl kl_in reference", has_reference, "does nothing with 'rl.beta: 0'", "give rl.beta, such as 0.05"},
    {"kl_horizon", steers_beta, "does nothing", "it belongs to rl.adaptive_kl"},
    {"correction_low correction_high", corrects, "does nothing", "it belongs to rl.sampler_correction"},
    {"scale_rewards", scales_scores, "does nothing with 'rl.value_model'", "leave it out"},
    {"gamma", discounts, "does nothing", "a completion has one reward; it belongs to rl.value_model, or rl.env"},
};

Status idle_keys_check(const Recipe *recipe) {
    for (size_t i = 0; i < COUNT_OF(rules); i++) {
        if (rules[i].read(recipe)) continue;
        const char *keys = rules[i].keys;
        for (Slice word; text_next(&keys, ' ', &word);) {
            char key[64];
            snprintf(key, sizeof key, "rl.%.*s", (int)word.len, word.data);
            TRY(recipe_unread(recipe, key, rules[i].hint, "%s", rules[i].what));
        }
    }
    return ST_OK;
}
