/* SPDX-License-Identifier: Apache-2.0 */
/* The random walk of Sutton & Barto (2018, example 6.2): states 1..n between two terminal states 0 and n + 1, starting in the middle; rewards only at
 * the ends. There is a single action. Example 7.1: states=19,left=-1. */
#include "rl/mdp/worlds.h"

enum { PLACES, LEFT_REWARD, RIGHT_REWARD };

static Status world_random_walk_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    static const char *const names[] = {"walk"};
    int32_t places = (int32_t)arguments->number[PLACES], end = places + 1;
    MdpBuilder *builder = mdp_builder_new((int64_t)end + 1, 1, gamma);
    if (!builder) return ST_RESOURCE;
    for (int32_t s = 1; s < end; s++) {
        mdp_builder_add(builder, s, 0, s - 1, 0.5, s == 1 ? arguments->number[LEFT_REWARD] : 0, s == 1);
        mdp_builder_add(builder, s, 0, s + 1, 0.5, s == places ? arguments->number[RIGHT_REWARD] : 0, s == places);
    }
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, end);
    return world_finish(builder, &(WorldDisplay){.action_names = names, .start = end / 2}, world);
}

const World world_random_walk = {
    .id = "RandomWalk",
    .gamma = 1,
    .build = world_random_walk_build,
    .arguments =
        {
            [PLACES] = {.name = "states", .value = 5, .is_whole = true, .low = 1, .high = 1e7},
            [LEFT_REWARD] = {.name = "left", .value = 0},
            [RIGHT_REWARD] = {.name = "right", .value = 1},
        },
};
