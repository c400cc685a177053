/* Temporal-difference learning of a given policy's values V: one step, n steps, or TD(lambda). Sources: Sutton 1988; Sutton &
 * Barto 6.1, 7.1, 12.2, 12.5. */
#include "rl/learn/table.h"

typedef struct Td { Tabular t; Memory memory; Traces traces; } Td;

/* V(S) += alpha [R + gamma V(S') - V(S)] */
static void learn(Learner *learner, const Step *step) {
    Tabular *t = learner->self;
    learn_toward(t, &t->Q, step->S, 0, step->R + step->gamma * value_of(&t->Q, step->S_next, 0));
}

/* The same of the state n steps back: G = R + gamma R' + ... + gamma^n V(S_n) */
static void learn_n_step(Learner *learner, const Step *step) {
    Td *self = learner->self;
    memory_learn_n_step(&self->t, &self->memory, &self->t.Q, learner->recipe->rl_n_step, step, 0);
}

/* TD(lambda): delta = R + gamma V(S') - V(S); z = gamma lambda z + x(S); w += alpha delta z */
static void learn_lambda(Learner *learner, const Step *step) {
    Td *self = learner->self;
    Tabular *t = &self->t;
    traces_learn(t, &self->traces, &t->Q, step, 0, value_of(&t->Q, step->S_next, 0));
}

static Status open(Learner *learner) {
    TRY(tabular_open(learner, sizeof(Td), STATE_VALUES));
    Td *self = learner->self;
    return steps_open(learner, &self->memory, &self->traces);
}

static Status update(Learner *learner) {
    const Recipe *recipe = learner->recipe;
    return tabular_update(learner, recipe->rl_lambda > 0 ? learn_lambda : recipe->rl_n_step > 1 ? learn_n_step : learn);
}

static void keep(Learner *learner, Keeper *keeper) {
    const Td *self = learner->self;
    tabular_keep(learner, keeper);
    memory_keep(&self->memory, &self->t, keeper);
    traces_keep(&self->traces, &self->t, keeper);
}

const Algorithm algorithm_td = {
    .name = "td", .help = "values of a given policy by TD(0), n-step TD (rl.n_step) or TD(lambda) (rl.lambda)", .tabular = true, .discrete = true,
    .keys = KEYS_OF_TABLES KEYS_OF_STEP_SIZES "n_step lambda traces policy",
    .open = open, .update = update, .act = tabular_act, .policy = tabular_policy, .keep = keep, .values = tabular_values,
};
