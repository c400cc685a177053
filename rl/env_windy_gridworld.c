/* The windy gridworld of Sutton & Barto (example 6.5): 7 rows, 10 columns, from (3,0) to (3,7), reward -1 a step;
 * columns blow upward. Actions: up, right, down, left. State: row x 10 + column. */
#include "rl/env_kinds.h"

#include <math.h>

enum { ROWS = 7, COLUMNS = 10, START = 3 * COLUMNS, GOAL = 3 * COLUMNS + 7 };

static void start(const void *context, EnvDraws *draws, double *state) {
    (void)context;
    (void)draws;
    *state = START;
}

static bool step(const void *context, EnvDraws *draws, const double *action, double *state, double *reward) {
    (void)context;
    (void)draws;
    static const int wind[COLUMNS] = {0, 0, 0, 1, 1, 1, 2, 2, 1, 0}, down[4] = {-1, 0, 1, 0}, right[4] = {0, 1, 0, -1};
    int at = (int)*state, to = (int)*action, row = at / COLUMNS + down[to] - wind[at % COLUMNS], column = at % COLUMNS + right[to];
    row = MIN(MAX(row, 0), ROWS - 1);
    column = MIN(MAX(column, 0), COLUMNS - 1);
    *state = row * COLUMNS + column;
    *reward = -1;
    return row * COLUMNS + column == GOAL;
}

static void observe(const void *context, const double *state, double *observation) {
    (void)context;
    *observation = *state;
}

static bool is_state(const void *context, const double *state) {
    (void)context;
    return *state >= 0 && *state < ROWS * COLUMNS && *state == floor(*state);
}

const EnvKind env_kind_windy_gridworld = {
    .id = "WindyGridworld", .state_size = 1, .action = {.n = 4, .size = 1}, .observation = {.n = ROWS * COLUMNS, .size = 1},
    .start = start, .step = step, .observe = observe, .is_state = is_state,
};
