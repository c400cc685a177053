/* SPDX-License-Identifier: Apache-2.0 */
/* CliffWalking of Gymnasium (Sutton & Barto 2018, example 6.6): 4 rows, 12 columns, from (3,0) to (3,11). Between them is a cliff: reward -100 and
 * back to the start. Actions: up, right, down, left; if slippery, the direction and the two perpendicular ones with 1/3 each. Unreachable cells have
 * Gymnasium's outcomes too. */
#include "rl/mdp/worlds.h"

enum { ROWS = 4, COLUMNS = 12, START = 3 * COLUMNS, GOAL = ROWS * COLUMNS - 1 };

static void add_way(MdpBuilder *builder, int32_t cell, int action, int way, double probability) {
    int32_t next = grid_clamped(ROWS, COLUMNS, cell, row_of_way[way], column_of_way[way]);
    bool falls = next > START && next < GOAL;
    mdp_builder_add(builder, cell, action, falls ? START : next, probability, falls ? -100 : -1, next == GOAL);
}

static Status world_cliff_walking_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    MdpBuilder *builder = mdp_builder_new((int64_t)ROWS * COLUMNS, 4, gamma);
    if (!builder) return ST_RESOURCE;
    bool slippery = arguments->number[0] > 0;
    for (int32_t cell = 0; cell < ROWS * COLUMNS; cell++) {
        for (int action = 0; action < 4; action++) {
            if (!slippery) add_way(builder, cell, action, action, 1);
            for (int turn = 3; slippery && turn <= 5; turn++) add_way(builder, cell, action, (action + turn) % 4, 1.0 / 3.0);
        }
    }
    static const char cells[] = "....................................SCCCCCCCCCCG";
    return world_finish(builder, &(WorldDisplay){four_ways, ROWS, COLUMNS, cells, START}, world);
}

const World world_cliff_walking = {
    .id = "CliffWalking-v1", .gamma = 1, .arguments = {{.name = "is_slippery", .is_bool = true}}, .build = world_cliff_walking_build};
const World world_cliff_walking_slippery = {.id = "CliffWalkingSlippery-v1",
                                            .gamma = 1,
                                            .arguments = {{.name = "is_slippery", .value = 1, .is_bool = true}},
                                            .build = world_cliff_walking_build};
