/* SPDX-License-Identifier: Apache-2.0 */
/* The windy gridworld of Sutton & Barto (2018, example 6.5): 7 rows, 10 columns, from (3,0) to (3,7), reward -1 a step; columns blow upward. Actions:
 * up, right, down, left. king_moves (exercise 6.9) adds the four diagonal moves; with stochastic (exercise 6.10) the wind of a column with wind is
 * unchanged, one stronger or one weaker, with 1/3 each. */
#include "rl/mdp/worlds.h"

enum { ROWS = 7, COLUMNS = 10, START = 3 * COLUMNS, GOAL = 3 * COLUMNS + 7 };
enum { KING_MOVES, STOCHASTIC };

static const char *const ways[8] = {"up", "right", "down", "left", "up right", "down right", "down left", "up left"};
static const int ways_down[8] = {-1, 0, 1, 0, -1, 1, 1, -1}, ways_right[8] = {0, 1, 0, -1, 1, 1, -1, -1};
static const int wind_of_column[COLUMNS] = {0, 0, 0, 1, 1, 1, 2, 2, 1, 0};

static void add_way(MdpBuilder *builder, int32_t cell, int way, int wind, double probability) {
    int32_t next = grid_clamped(ROWS, COLUMNS, cell, ways_down[way] - wind, ways_right[way]);
    mdp_builder_add(builder, cell, way, next, probability, -1, next == GOAL);
}

static Status world_windy_gridworld_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    int n_ways = arguments->number[KING_MOVES] > 0 ? 8 : 4;
    MdpBuilder *builder = mdp_builder_new((int64_t)ROWS * COLUMNS, n_ways, gamma);
    if (!builder) return ST_RESOURCE;
    for (int32_t cell = 0; cell < ROWS * COLUMNS; cell++) {
        int wind = wind_of_column[cell % COLUMNS];
        bool varies = wind > 0 && arguments->number[STOCHASTIC] > 0;
        if (cell == GOAL) continue;
        for (int way = 0; way < n_ways; way++) {
            if (!varies) add_way(builder, cell, way, wind, 1);
            for (int more = -1; varies && more <= 1; more++) add_way(builder, cell, way, wind + more, 1.0 / 3.0);
        }
    }
    mdp_builder_terminal(builder, GOAL);
    static const char cells[] = "..............................S......G................................";
    return world_finish(builder, &(WorldDisplay){ways, ROWS, COLUMNS, cells, START}, world);
}

const World world_windy_gridworld = {
    .id = "WindyGridworld",
    .gamma = 1,
    .build = world_windy_gridworld_build,
    .arguments = {[KING_MOVES] = {.name = "king_moves", .is_bool = true}, [STOCHASTIC] = {.name = "stochastic", .is_bool = true}},
};
