/* SPDX-License-Identifier: Apache-2.0 */
/* Dyna-Q: Q-learning that also stores the last outcome of each action as a model, and learns from the model between steps. Intended for deterministic
 * worlds. Sources: Sutton 1990; Sutton & Barto 8.2. */
#include "rl/learn/table.h"

/* The model: for each (S,A) its R, S', and gamma (0 if the process ended). `seen` lists the pairs that were tried. */
typedef struct DynaQ {
    Tabular t;
    double *R, *gamma;
    int32_t *S_next, *seen, *n_seen;
} DynaQ;

/* Q(S,A) += alpha [R + gamma max_a Q(S',a) - Q(S,A)] */
static void learn_from(Tabular *t, const int32_t *S, int64_t A, double R, double gamma, const int32_t *S_next) {
    learn_toward(t, &t->Q, S, A, R + gamma * value_best(t, S_next));
}

static void dyna_q_remember(DynaQ *self, const Step *step) {
    int64_t k = step->S[0] * self->t.A + step->A;
    if (self->S_next[k] < 0) self->seen[self->n_seen[0]++] = (int32_t)k;
    self->R[k] = step->R;
    self->gamma[k] = step->gamma;
    self->S_next[k] = step->S_next[0];
}

static void plan(DynaQ *self) {
    int32_t A = (int32_t)self->t.A, k = self->seen[(int32_t)(draw(&self->t) * self->n_seen[0])], S = k / A;
    learn_from(&self->t, &S, k % A, self->R[k], self->gamma[k], &self->S_next[k]);
}

static void dyna_q_learn(Learner *learner, const Step *step) {
    DynaQ *self = learner->self;
    learn_from(&self->t, step->S, step->A, step->R, step->gamma, step->S_next);
    dyna_q_remember(self, step);
    for (int64_t i = 0; i < learner->recipe->rl_planning_steps; i++) plan(self);
}

static Status dyna_q_open(Learner *learner) {
    TRY(tabular_open(learner, sizeof(DynaQ), ACTION_VALUES));
    TRY(need_numbered_states(learner, "dyna_q"));
    DynaQ *self = learner->self;
    size_t n = (size_t)(self->t.Q.n * self->t.A);
    self->R = arena_zero(learner->arena, n * sizeof *self->R);
    self->gamma = arena_zero(learner->arena, n * sizeof *self->gamma);
    self->S_next = arena_alloc(learner->arena, n * sizeof *self->S_next);
    self->seen = arena_zero(learner->arena, n * sizeof *self->seen);
    self->n_seen = arena_zero(learner->arena, sizeof *self->n_seen);
    if (!self->R || !self->gamma || !self->S_next || !self->seen || !self->n_seen) return ST_RESOURCE;
    for (size_t k = 0; k < n; k++) self->S_next[k] = -1;
    return ST_OK;
}

static void dyna_q_list_state(Learner *learner, StateList *states) {
    const DynaQ *self = learner->self;
    size_t n = (size_t)(self->t.Q.n * self->t.A);
    tabular_list_state(learner, states);
    state_f64(states, "model/R", self->R, (int64_t)n);
    state_f64(states, "model/gamma", self->gamma, (int64_t)n);
    state_bytes(states, "model/S_next", self->S_next, n * sizeof *self->S_next);
    state_bytes(states, "model/seen", self->seen, n * sizeof *self->seen);
    state_bytes(states, "model/n_seen", self->n_seen, sizeof *self->n_seen);
}

const Algorithm algorithm_dyna_q = {
    .name = "dyna_q",
    .help = "Dyna-Q: Q-learning plus rl.planning_steps updates from a learned model per step (Sutton 1990)",
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES "planning_steps",
    .open = dyna_q_open,
    .learn = dyna_q_learn,
    .policy = tabular_policy,
    .list_state = dyna_q_list_state,
    OF_A_TABLE,
};
