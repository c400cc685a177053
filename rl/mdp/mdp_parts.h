/* SPDX-License-Identifier: Apache-2.0 */
/* Internal declarations shared by the files of mdp. */
#ifndef TUNE_MDP_PARTS_H
#define TUNE_MDP_PARTS_H

#include "rl/mdp/mdp.h"

#define UNIT_ROUNDOFF 1.1102230246251565e-16 /* 2^-53 */

/* mdp_open_discounted for files. Messages about unknown keys, states and actions suggest the nearest name; errors have the file's line. ST_INPUT,
 * ST_RESOURCE. */
Status mdp_read_file(const char *path, double gamma, NamedMdp **world);
/* mdp_check with file lines; lines: of each outcome, 0 or NULL for none. */
Status mdp_check_lines(const NamedMdp *world, const int *lines);
/* For a world from a file: normalises probabilities that were rounded to a few digits, and warns with counts of these, of transitions of terminal
 * states and of actions that no state has. ST_RESOURCE. */
Status mdp_settle_file(NamedMdp *world, const int *lines);
Status mdp_fail_no_transitions(const NamedMdp *world, int64_t state); /* fails with ST_INPUT naming a live state without transitions */
/* mdp_fill_q: Q of all (s, a), 0 in terminal states, -INFINITY for actions that do not exist. mdp_greedy: the lowest best action of each state, -1 in
 * terminal states. */
void mdp_fill_q(const Mdp *mdp, const double *V, double *Q);
void mdp_greedy(const Mdp *mdp, const double *Q, int32_t *policy);
/* Checks whether solution->policy earns V with gamma 1, and if not, looks for a policy that does, in `arena`. ST_RESOURCE. */
Status mdp_attain(const Mdp *mdp, Arena *arena, MdpSolution *solution);

#endif
