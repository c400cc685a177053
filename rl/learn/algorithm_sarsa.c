/* Sarsa: learns the values of what it does, exploration included; one step, n steps, or with eligibility traces. Source: Sutton &
 * Barto 6.4, 7.2, 10.1, 12.7. */
#include "rl/learn/table.h"

typedef struct Sarsa { Tabular t; Memory memory; Traces traces; } Sarsa;

/* Q(S,A) += alpha [R + gamma Q(S',A') - Q(S,A)], A': what is done next */
static void learn(Learner *learner, const Step *step) {
    Tabular *t = learner->self;
    int64_t A_next = next_action(t, step);
    learn_toward(t, &t->Q, step->S, step->A, step->R + step->gamma * value_of(&t->Q, step->S_next, A_next));
}

/* The same of the state n steps back: G = R + gamma R' + ... + gamma^n Q(S_n,A_n) */
static void learn_n_step(Learner *learner, const Step *step) {
    Sarsa *self = learner->self;
    Tabular *t = &self->t;
    memory_learn_n_step(t, &self->memory, &t->Q, t->recipe->rl_n_step, step, next_action(t, step));
}

/* Sarsa(lambda): delta = R + gamma Q(S',A') - Q(S,A); z = gamma lambda z + x(S,A); w += alpha delta z */
static void learn_lambda(Learner *learner, const Step *step) {
    Sarsa *self = learner->self;
    Tabular *t = &self->t;
    int64_t A_next = next_action(t, step);
    traces_learn(t, &self->traces, &t->Q, step, step->A, value_of(&t->Q, step->S_next, A_next));
}

static Status open(Learner *learner) {
    TRY(tabular_open(learner, sizeof(Sarsa), ACTION_VALUES));
    Sarsa *self = learner->self;
    return steps_open(learner, &self->memory, &self->traces);
}

static Status update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    return tabular_update(learner, recipe->rl_lambda > 0 ? learn_lambda : recipe->rl_n_step > 1 ? learn_n_step : learn);
}

static void keep(Learner *learner, Keeper *keeper) {
    const Sarsa *self = learner->self;
    tabular_keep(learner, keeper);
    memory_keep(&self->memory, &self->t, keeper);
    traces_keep(&self->traces, &self->t, keeper);
}

const Algorithm algorithm_sarsa = {
    .name = "sarsa", .help = "Sarsa on a table or tiles: one step, n steps (rl.n_step) or traces (rl.lambda)", .tabular = true, .discrete = true,
    .keys = KEYS_OF_TABLES KEYS_OF_EXPLORING KEYS_OF_STEP_SIZES "n_step lambda traces",
    .open = open, .update = update, .act = tabular_act, .policy = tabular_policy, .keep = keep, .values = tabular_values,
};
