/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of tune mdp, and what they and tune-bench mdp share (mdp_question.c). */
#ifndef TUNE_CMD_MDP_H
#define TUNE_CMD_MDP_H

#include <math.h>

#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "rl/mdp/mdp.h"

#define MDP_COMMAND(name, help) Status cmd_mdp_##name(int argc, char **argv);
#include "cmd/mdp/mdp_commands.def"
#undef MDP_COMMAND

/* FILE|ENV as a recipe's rl.env: `{...}` is what a recipe would say there, anything else a name or file with arguments, borrowed. ST_CONFIG. */
Status mdp_argument(const char *text, Arena *arena, const Yaml **node);

/* What solve and evaluate take alike. */
/* NAN: as the world has it, as is usual; mdp_question_open moves the tolerance into the options */
typedef struct MdpQuestion {
    double gamma, tolerance;
    MdpOptions options;
} MdpQuestion;
#define MDP_QUESTION_NONE \
    { .gamma = (double)NAN, .tolerance = (double)NAN }
#define MDP_QUESTION_OPTIONS(question)                                                                                                  \
    {"--gamma", OPTION_REAL, &(question).gamma, "G", "discount, 0 to 1, instead of the world's own"}, {                                 \
        "--tolerance", OPTION_REAL, &(question).tolerance, "X", "largest certified bound to stop at (1e-12, as far as rounding allows)" \
    }
/* Opens the world and says on stderr which states cannot be reached. ST_USAGE for a gamma or tolerance out of range; see mdp_open. */
Status mdp_question_open(const char *spec, MdpQuestion *question, NamedMdp **world);

#endif
