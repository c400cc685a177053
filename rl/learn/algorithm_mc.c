/* SPDX-License-Identifier: Apache-2.0 */
/* Monte Carlo: the returns of episodes estimate the values of their states. Evaluates a given policy (rl.policy), or improves its own epsilon-soft
 * one. Source: Sutton & Barto 5.1, 5.4. */
#include "rl/learn/table.h"

/* first: (n, A), time of each entry's first visit in this episode */
typedef struct MonteCarlo {
    Tabular t;
    Memory memory;
    int32_t *first;
} MonteCarlo;

static int64_t entry_at(const MonteCarlo *mc, int64_t copy, int64_t time) {
    int64_t A = mc->t.Q.A;
    return memory_state(&mc->memory, copy, time)[0] * A + (A == 1 ? 0 : mc->memory.A[memory_at(&mc->memory, copy, time)]);
}

static void mark_first_visits(MonteCarlo *mc, int64_t copy) {
    for (int64_t time = mc->memory.T[copy] - 1; time >= 0; time--) mc->first[entry_at(mc, copy, time)] = (int32_t)time;
}

/* At the end of an episode, for its steps in order: value(S,A) += alpha [G - value(S,A)], with `visits: first` only where (S,A) was not seen before.
 */
static void mc_learn(Learner *learner, const Step *step) {
    MonteCarlo *mc = learner->self;
    Tabular *t = &mc->t;
    int64_t *T = &mc->memory.T[step->copy];
    memory_add(&mc->memory, step);
    if (!step->ended && *T < mc->memory.capacity) return;
    memory_returns(t, &mc->memory, step, value_expected(t, step->S_next));
    if (mc->first) mark_first_visits(mc, step->copy);
    for (int64_t time = 0; time < *T; time++) {
        size_t at = memory_at(&mc->memory, step->copy, time);
        if (mc->first && mc->first[entry_at(mc, step->copy, time)] != time) continue;
        learn_toward(t, &t->Q, memory_state(&mc->memory, step->copy, time), t->Q.A == 1 ? 0 : mc->memory.A[at], mc->memory.R[at]);
    }
    *T = 0;
}

static Status mc_open(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    TRY(tabular_open(learner, sizeof(MonteCarlo), recipe->rl_policy ? STATE_VALUES : ACTION_VALUES));
    MonteCarlo *mc = learner->self;
    if (recipe->rl_visits == RL_VISITS_FIRST) {
        TRY(need_numbered_states(learner, "rl.visits: first"));
        mc->first = arena_zero(learner->arena, (size_t)(mc->t.Q.n * mc->t.Q.A) * sizeof *mc->first);
        if (!mc->first) return ST_RESOURCE;
    }
    return memory_open(learner, recipe->rl_max_episode, &mc->memory);
}

static void mc_list_state(Learner *learner, StateList *states) {
    const MonteCarlo *mc = learner->self;
    tabular_list_state(learner, states);
    memory_list_state(&mc->memory, &mc->t, states);
}

const Algorithm algorithm_mc = {
    .name = "mc",
    .help = "Monte Carlo, first or every visit (rl.visits): values of a given policy (rl.policy), or control",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES "policy visits max_episode",
    .open = mc_open,
    .learn = mc_learn,
    .policy = tabular_policy,
    .list_state = mc_list_state,
    OF_A_TABLE,
};
