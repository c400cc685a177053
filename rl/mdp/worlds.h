/* SPDX-License-Identifier: Apache-2.0 */
/* What a built-in finite world is: a function that fills a builder from its arguments. One file world_<name>.c, and one line of worlds.def for each
 * id. */
#ifndef TUNE_WORLDS_H
#define TUNE_WORLDS_H

#include "rl/mdp/arguments.h"
#include "rl/mdp/mdp.h"

typedef struct World {
    const char *id;
    double gamma;      /* unless gamma= says another */
    int64_t max_steps; /* of an episode; 0: no limit */
    Argument arguments[MAX_ARGUMENTS];
    Status (*build)(const Arguments *arguments, double gamma, NamedMdp **world);
} World;

#define WORLD(name) extern const World world_##name;
#include "rl/mdp/worlds.def"
#undef WORLD

extern const World *const worlds[];
extern const size_t n_worlds;
const World *world_find(const char *id); /* NULL: no such */
bool mdp_is_file_name(const char *name); /* ends in .yaml, .yml or .json, or has a '/' */

/* How a world is shown; all of it is copied. */
typedef struct WorldDisplay {
    const char *const *action_names; /* n_actions; NULL: numbers */
    int rows, columns;               /* 0: no grid */
    const char *cells;               /* rows * columns letters, or NULL */
    int64_t start;                   /* the state in which episodes begin; -1: the caller fills world->start, n_states zeros */
} WorldDisplay;
/* mdp_builder_finish, and what people know about the world. */
Status world_finish(MdpBuilder *builder, const WorldDisplay *look, NamedMdp **world);
/* Names of states, printed by the caller into world->arena; NULL where memory is full. */
const char **world_state_names(NamedMdp *world);

/* Moves on a grid, in the order of most of the worlds here; FrozenLake and Taxi have their own. */
enum { UP, RIGHT, DOWN, LEFT };
extern const char *const four_ways[4];
extern const int row_of_way[4], column_of_way[4]; /* what a move adds */
/* The cell that lies `down` and `right` of `cell`, or as far as the border lets. */
int32_t grid_clamped(int rows, int columns, int32_t cell, int down, int right);

#endif
