/* The random walk of Sutton & Barto (example 6.2): places 1..n between two ends, begun in the middle; reward 1 at the right end. There is one action, which does not matter. */
#include "rl/env_kinds.h"

#include <math.h>

#define PLACES 5

static void start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    (void)draws;
    *state = (PLACES + 1) / 2;
}

static bool step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)context;
    (void)action;
    *state += env_below(draws, 2) ? 1 : -1;
    *reward = *state > PLACES;
    return *state < 1 || *state > PLACES;
}

static void observe(const void *context, const double *state, double *observation) {
    (void)context;
    *observation = *state;
}

static bool is_state(const void *context, const double *state) {
    (void)context;
    return *state >= 1 && *state <= PLACES && *state == floor(*state);
}

const EnvKind env_kind_random_walk = {
    .id = "RandomWalk", .state_size = 1, .action = {.n = 1, .size = 1}, .observation = {.n = PLACES + 2, .size = 1},
    .start = start, .step = step, .observe = observe, .is_state = is_state,
};
