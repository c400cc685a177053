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
/* Of a world from a file: probabilities cut to a few digits become ones that sum to 1; these, transitions of terminal states and actions that no
 * state has are counted in warnings. ST_RESOURCE. */
Status mdp_settle_file(NamedMdp *world, const int *lines);
Status mdp_fail_no_transitions(const NamedMdp *world, int64_t state); /* ST_INPUT that names a live state without transitions */
/* Q of all (s, a), 0 in terminal states, -INFINITY where there is no such action; the lowest of the best actions of each state, -1
 * in terminal ones. */
void mdp_fill_q(const Mdp *mdp, const double *V, double *Q);
void mdp_greedy(const Mdp *mdp, const double *Q, int32_t *policy);
/* Whether solution->policy earns V with gamma 1, and if not, a policy in `arena` that does. ST_RESOURCE. */
Status mdp_attain(const Mdp *mdp, Arena *arena, MdpSolution *solution);

#endif
