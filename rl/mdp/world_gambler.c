/* SPDX-License-Identifier: Apache-2.0 */
/* The gambler's problem of Sutton & Barto (2018, example 4.3): capital 1..99, action a stakes a + 1 on heads, reward 1 for reaching 100. A larger
 * stake than min(capital, 100 - capital) counts as that. There is no stake of 0: it would be as good as the best action and never end. */
#include "rl/mdp/worlds.h"

#include <stdio.h>

enum { GOAL = 100, STAKES = GOAL / 2 };

static Status world_gambler_build(const Arguments *arguments, double gamma, NamedMdp **world) {
    double heads = arguments->number[0];
    MdpBuilder *builder = mdp_builder_new(GOAL + 1, STAKES, gamma);
    if (!builder) return ST_RESOURCE;
    for (int32_t capital = 1; capital < GOAL; capital++) {
        for (int32_t a = 0; a < STAKES; a++) {
            int32_t stake = MIN(a + 1, MIN(capital, GOAL - capital)), more = capital + stake, less = capital - stake;
            if (heads > 0) mdp_builder_add(builder, capital, a, more, heads, more == GOAL, more == GOAL);
            if (heads < 1) mdp_builder_add(builder, capital, a, less, 1 - heads, 0, less == 0);
        }
    }
    mdp_builder_terminal(builder, 0);
    mdp_builder_terminal(builder, GOAL);
    char stakes[STAKES][12];
    const char *names[STAKES];
    for (int a = 0; a < STAKES; a++) {
        snprintf(stakes[a], sizeof stakes[a], "%d", a + 1);
        names[a] = stakes[a];
    }
    TRY(world_finish(builder, &(WorldDisplay){.action_names = names, .start = -1}, world));
    for (int capital = 1; capital < GOAL; capital++) (*world)->start[capital] = 1.0 / (GOAL - 1);
    return ST_OK;
}

const World world_gambler = {.id = "Gambler", .gamma = 1, .arguments = {{.name = "p_heads", .value = 0.4, .high = 1}}, .build = world_gambler_build};
