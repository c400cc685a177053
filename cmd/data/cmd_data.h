/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands of tune data. */
#ifndef TUNE_CMD_DATA_H
#define TUNE_CMD_DATA_H

#include "cmd/app/commands.h"
#include "data/filter/filter.h"

#define DATA_COMMAND(name, help) Status cmd_data_##name(int argc, char **argv);
#include "cmd/data/data_commands.def"
#undef DATA_COMMAND

/* A FilterScore whose context is a RewardSet: values[i] is the sum of the recipe's rewards for rows[i]. */
Status filter_rewards(void *rewards, const FilterRow *rows, size_t n, double *values);

#endif
