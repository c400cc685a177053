/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of a Mdp share among themselves. */
#ifndef TUNE_MDP_PARTS_H
#define TUNE_MDP_PARTS_H

#include "rl/mdp/mdp.h"

#define UNIT_ROUNDOFF 1.1102230246251565e-16 /* 2^-53 */

/* The file half of mdp_open_discounted. Unknown keys, states and actions are named with the nearest; faults have the file's line. ST_INPUT,
 * ST_RESOURCE. */
Status mdp_read_file(const char *path, double gamma, NamedMdp **world);
/* mdp_check; lines: of each outcome in the file it was read from, 0 or NULL for none. */
Status mdp_check_lines(const NamedMdp *world, const int *lines);
/* Q of all (s, a), 0 in terminal states; the lowest of the best actions of each state, -1 in terminal ones. */
void mdp_fill_q(const Mdp *mdp, const double *V, double *Q);
void mdp_greedy(const Mdp *mdp, const double *Q, int32_t *policy);
/* Whether solution->policy earns V with gamma 1, and if not, a policy in `arena` that does. ST_RESOURCE. */
Status mdp_attain(const Mdp *mdp, Arena *arena, MdpSolution *solution);

#endif
