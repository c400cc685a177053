/* The gambler's problem of Sutton & Barto (example 4.3): capital 1..99, a stake on heads, reward 1 for reaching 100.
 * A stake beyond min(capital, 100 - capital) counts as that much; 0 is none. */
#include "rl/env_kinds.h"

#include <math.h>

#define GOAL 100

static void start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    *state = (double)(1 + env_below(draws, GOAL - 1));
}

static bool step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    double stake = fmin(*action, fmin(*state, GOAL - *state)), heads = ((const double *)context)[0];
    *state += env_uniform(draws, 0, 1) < heads ? stake : -stake;
    *reward = *state >= GOAL;
    return *state <= 0 || *state >= GOAL;
}

static void observe(const void *context, const double *state, double *observation) {
    (void)context;
    *observation = *state;
}

static bool is_state(const void *context, const double *state) {
    (void)context;
    return *state >= 1 && *state < GOAL && *state == floor(*state);
}

const EnvKind env_kind_gambler = {
    .id = "Gambler", .state_size = 1, .action = {.n = GOAL / 2 + 1, .size = 1}, .observation = {.n = GOAL + 1, .size = 1},
    .arguments = {{.name = "p_heads", .value = 0.4, .high = 1}},
    .start = start, .step = step, .observe = observe, .is_state = is_state,
};
