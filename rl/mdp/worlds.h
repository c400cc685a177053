/* SPDX-License-Identifier: Apache-2.0 */
/* A built-in finite world is a function that fills a builder from its arguments. Each is in a file world_<name>.c and has a line of worlds.def for
 * each id. */
#ifndef TUNE_WORLDS_H
#define TUNE_WORLDS_H

#include "rl/mdp/arguments.h"
#include "rl/mdp/mdp.h"

typedef struct World {
    const char *id;
    double gamma;      /* default of the argument gamma */
    int64_t max_steps; /* limit of an episode; 0: no limit */
    Argument arguments[MAX_ARGUMENTS];
    Status (*build)(const Arguments *arguments, double gamma, NamedMdp **world);
} World;

#define WORLD(name) extern const World world_##name;
#include "rl/mdp/worlds.def"
#undef WORLD

extern const World *const worlds[];
extern const size_t n_worlds;
const World *world_find(const char *id); /* NULL: unknown */
bool mdp_is_file_name(const char *name); /* ends in .yaml, .yml or .json, or has a '/' */

/* How to show a world; everything is copied. */
typedef struct WorldDisplay {
    const char *const *action_names; /* n_actions; NULL: numbers */
    int rows, columns;               /* 0: no grid */
    const char *cells;               /* rows * columns letters, or NULL */
    int64_t start;                   /* the start state; -1: the caller fills world->start, which is all zeros (n_states) */
} WorldDisplay;
/* mdp_builder_finish, then sets the information for people. */
Status world_finish(MdpBuilder *builder, const WorldDisplay *look, NamedMdp **world);
/* Allocates the list of state names, which the caller prints into world->arena; NULL when out of memory. */
const char **world_state_names(NamedMdp *world);

/* Moves on a grid, in the order of most of these worlds; FrozenLake and Taxi have other orders. */
enum { UP, RIGHT, DOWN, LEFT };
extern const char *const four_ways[4];
extern const int row_of_way[4], column_of_way[4]; /* change of row and column of each move */
/* The cell `down` and `right` of `cell`, clamped to the border. */
int32_t grid_clamped(int rows, int columns, int32_t cell, int down, int right);

#endif
