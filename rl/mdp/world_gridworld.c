/* SPDX-License-Identifier: Apache-2.0 */
/* The two gridworlds of Sutton & Barto (2018). Example 3.5: 5x5, every move from A = (0,1) leads to (4,1) with reward 10, every move from B = (0,3)
 * to (2,3) with 5, running into the border costs 1. Example 4.1: 4x4, two terminal corners, every move costs 1. Actions: up, right, down, left. */
#include "rl/mdp/worlds.h"

enum { A = 1, A_TO = 21, B = 3, B_TO = 13 };

static Status build_5x5(const Arguments *arguments, double gamma, NamedMdp **world) {
    (void)arguments;
    enum { SIDE = 5 };
    MdpBuilder *builder = mdp_builder_new((int64_t)SIDE * SIDE, 4, gamma);
    if (!builder) return ST_RESOURCE;
    for (int32_t cell = 0; cell < SIDE * SIDE; cell++) {
        for (int way = 0; way < 4; way++) {
            int32_t next = grid_clamped(SIDE, SIDE, cell, row_of_way[way], column_of_way[way]);
            if (cell == A)
                mdp_builder_add(builder, cell, way, A_TO, 1, 10, false);
            else if (cell == B)
                mdp_builder_add(builder, cell, way, B_TO, 1, 5, false);
            else
                mdp_builder_add(builder, cell, way, next, 1, next == cell ? -1 : 0, false);
        }
    }
    TRY(world_finish(builder, &(WorldDisplay){four_ways, SIDE, SIDE, ".A.B.....................", -1}, world));
    for (int cell = 0; cell < SIDE * SIDE; cell++) (*world)->start[cell] = 1.0 / (SIDE * SIDE);
    return ST_OK;
}

static Status build_4x4(const Arguments *arguments, double gamma, NamedMdp **world) {
    (void)arguments;
    enum { SIDE = 4, LAST = SIDE * SIDE - 1 };
    MdpBuilder *builder = mdp_builder_new((int64_t)SIDE * SIDE, 4, gamma);
    if (!builder) return ST_RESOURCE;
    for (int32_t cell = 1; cell < LAST; cell++)
        for (int way = 0; way < 4; way++)
            mdp_builder_add(builder, cell, way, grid_clamped(SIDE, SIDE, cell, row_of_way[way], column_of_way[way]), 1, -1, false);
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, LAST);
    TRY(world_finish(builder, &(WorldDisplay){four_ways, SIDE, SIDE, "G..............G", -1}, world));
    for (int cell = 1; cell < LAST; cell++) (*world)->start[cell] = 1.0 / (LAST - 1);
    return ST_OK;
}

const World world_gridworld_5x5 = {.id = "Gridworld5x5", .gamma = 0.9, .build = build_5x5};
const World world_gridworld_4x4 = {.id = "Gridworld4x4", .gamma = 1, .build = build_4x4};
