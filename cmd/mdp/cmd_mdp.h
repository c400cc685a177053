/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of tune mdp, and the options that they share with tune-bench mdp (mdp_question.c). */
#ifndef TUNE_CMD_MDP_H
#define TUNE_CMD_MDP_H

#include <math.h>

#include "cmd/app/commands.h"
#include "cmd/app/options.h"
#include "rl/mdp/mdp.h"

#define MDP_COMMAND(name, help) Status cmd_mdp_##name(int argc, char **argv);
#include "cmd/mdp/mdp_commands.def"
#undef MDP_COMMAND

/* Parses the argument FILE|ENV into the form of a recipe's rl.env, in the arena. Text that begins with '{' is YAML as in a recipe; anything else
 * is a name or file with arguments. Borrows `text`. ST_CONFIG if it is malformed. */
Status mdp_argument(const char *text, Arena *arena, const Yaml **node);

/* The options that solve and evaluate share. gamma NAN: the world's own; tolerance NAN: the default. mdp_question_open copies the tolerance into
 * `options`. */
typedef struct MdpQuestion {
    double gamma, tolerance;
    MdpOptions options;
} MdpQuestion;
#define MDP_QUESTION_NONE \
    { .gamma = (double)NAN, .tolerance = (double)NAN }
#define MDP_QUESTION_OPTIONS(question)                                                                                                   \
    {"--gamma", OPTION_REAL, &(question).gamma, "G", "discount, 0 to 1 (the world's own)"}, {                                            \
        "--tolerance", OPTION_REAL, &(question).tolerance, "X", "stop when the certified bound is X or less (1e-12, if rounding allows)" \
    }
/* Opens the world and notes on stderr which states cannot be reached. ST_USAGE for a gamma or tolerance out of range; else fails as mdp_open does. */
Status mdp_question_open(const char *spec, MdpQuestion *question, NamedMdp **world);

#endif
