/* SPDX-License-Identifier: Apache-2.0 */
/* Functions shared by the drawings of a world. */
#ifndef TUNE_MDP_SHOW_PARTS_H
#define TUNE_MDP_SHOW_PARTS_H

#include "rl/mdp/mdp_show.h"

typedef struct ShowDirection {
    int down, right;
    const char *arrow, *plain;
} ShowDirection;
const ShowDirection *show_direction(const NamedMdp *world, int64_t action); /* NULL: the action's name is not a direction */
bool show_is_chosen(const MdpPicture *picture, int64_t state, int64_t action);
bool show_is_playable(const NamedMdp *world, int64_t state); /* a state with a choice: not an end, hole or wall */
char show_letter(const NamedMdp *world, int64_t state);      /* ' ': nothing special */
typedef struct ShowRange {
    double low, high;
} ShowRange; /* of the values of live states */
ShowRange show_range(const MdpPicture *picture);
double show_share(ShowRange range, double value); /* 0..1 */
void show_value(double value, char out[16]);
void show_append_policy(Str *text, const MdpPicture *picture, int64_t state);

#endif
