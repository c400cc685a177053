/* SPDX-License-Identifier: Apache-2.0 */
/* Off-policy Monte Carlo: learns the values of a target policy, a given one (rl.policy) or the greedy one, from episodes of an epsilon-soft policy b.
 * Returns are weighted by the importance ratio of the target policy to b. Source: Sutton & Barto 5.5 to 5.7. */
#include "rl/learn/table.h"

typedef struct OffPolicy {
    Tabular t;
    Memory memory;
    double *C;
    bool weighted;
} OffPolicy; /* C: (n, A), sum of weights so far */

/* pi(A|S) of the target policy. */
static double target_probability(Tabular *t, const int32_t *S, int64_t A) {
    return t->judged ? t->judged[S[0] * t->A + A] : best_action(&t->Q, S, t->q) == A;
}

static double target_value(Tabular *t, const int32_t *S) {
    double sum = 0;
    for (int64_t a = 0; a < t->A; a++) sum += target_probability(t, S, a) * value_of(&t->Q, S, a);
    return sum;
}

/* Q(S,A) becomes the mean of returns: sum W G / sum W, or sum W G / number of returns. */
static void take_in(OffPolicy *self, const int32_t *S, int64_t A, double G, double W) {
    Tabular *t = &self->t;
    int64_t k = S[0] * t->A + A;
    double *Q = &t->Q.w[k], *C = &self->C[k];
    note_error(t, G - *Q);
    *C += self->weighted ? W : 1;
    *Q += self->weighted ? W / *C * (G - *Q) : (W * G - *Q) / *C;
}

/* At the end of an episode, from the last step backwards: add G with weight W; W *= pi(A|S) / b(A|S). Returns of weight 0 do not change the weighted
 * mean but lower the ordinary one. */
static void off_policy_mc_learn(Learner *learner, const Step *step) {
    OffPolicy *self = learner->self;
    Memory *m = &self->memory;
    int64_t *T = &m->T[step->copy];
    double W = 1;
    memory_add(m, step);
    if (!step->ended && *T < m->capacity) return;
    memory_returns(&self->t, m, step, target_value(&self->t, step->S_next));
    for (int64_t time = *T - 1; time >= 0 && (W > 0 || !self->weighted); time--) {
        size_t at = memory_at(m, step->copy, time);
        const int32_t *S = memory_state(m, step->copy, time);
        take_in(self, S, m->A[at], m->R[at], W);
        W *= target_probability(&self->t, S, m->A[at]) / m->b[at];
    }
    *T = 0;
}

static Status check_coverage(const Recipe *recipe) {
    if (recipe->rl_epsilon_end > 0 && recipe->rl_epsilon_start > 0) return ST_OK;
    status_fail(ST_CONFIG,
                "'off_policy_mc' cannot learn about actions that are never tried: 'rl.epsilon_start' and 'rl.epsilon_end' must be above 0");
    return status_hint(ST_CONFIG, "1 tries all alike");
}

static Status off_policy_mc_open(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    TRY(tabular_open(learner, sizeof(OffPolicy), ACTION_VALUES));
    TRY(need_numbered_states(learner, "off_policy_mc"));
    TRY(check_coverage(recipe));
    OffPolicy *self = learner->self;
    self->weighted = recipe->rl_importance == RL_IMPORTANCE_WEIGHTED;
    self->C = arena_zero(learner->arena, (size_t)(self->t.Q.n * self->t.A) * sizeof *self->C);
    if (!self->C) return ST_RESOURCE;
    if (recipe->rl_policy) TRY(given_policy_read(learner, &self->t.judged));
    return memory_open(learner, recipe->rl_max_episode, &self->memory);
}

static void off_policy_mc_list_state(Learner *learner, StateList *states) {
    const OffPolicy *self = learner->self;
    tabular_list_state(learner, states);
    memory_list_state(&self->memory, &self->t, states);
    state_f64(states, "C", self->C, self->t.Q.n * self->t.A);
}

const Algorithm algorithm_off_policy_mc = {
    .name = "off_policy_mc",
    .help = "Monte Carlo by importance sampling (rl.importance): values of a given policy (rl.policy), or control",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING "policy importance max_episode",
    .open = off_policy_mc_open,
    .learn = off_policy_mc_learn,
    .policy = tabular_policy,
    .list_state = off_policy_mc_list_state,
    OF_A_TABLE,
};
