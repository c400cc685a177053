/* What the files of a Mdp share among themselves. */
#ifndef TUNE_MDP_PARTS_H
#define TUNE_MDP_PARTS_H

#include "rl/mdp.h"

/* mdp_check; lines: of each outcome in the file it was read from, 0 or NULL for none. */
Status mdp_check_lines(const NamedMdp *world, const int *lines);

#endif
