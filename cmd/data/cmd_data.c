/* SPDX-License-Identifier: Apache-2.0 */
/* tune data: checks, filters and makes training data. Each subcommand has a file cmd_data_<name>.c and a line in data_commands.def. */
#include "cmd/app/commands.h"
#include "cmd/data/cmd_data.h"

#include <math.h>
#include <stdlib.h>

#include "rl/reward/reward.h"

static const CommandInfo commands[] = {
#define DATA_COMMAND(name, help) {#name, "data " #name, help, cmd_data_##name, NULL},
#include "cmd/data/data_commands.def"
#undef DATA_COMMAND
};
const CommandGroup group_data = {"data", "Check, filter and synthesize training data.", commands, COUNT_OF(commands)};

Status filter_rewards(void *rewards, const FilterRow *rows, size_t n, double *values) {
    const RewardScores *scores;
    RewardRow *asked = calloc(MAX(n, 1), sizeof *asked);
    if (!asked) return status_fail(ST_RESOURCE, "out of memory for the rewards of %zu rows", n);
    for (size_t i = 0; i < n; i++)
        asked[i] = (RewardRow){.number = (int64_t)i + 1,
                               .prompt = rows[i].instruction,
                               .completion = rows[i].completion,
                               .finish_reason = "stop",
                               .columns = rows[i].json};
    Status status = rewards_score(rewards, asked, n, &scores);
    for (size_t i = 0; status == ST_OK && i < n; i++) values[i] = scores->judged[i] ? scores->sums[i] : (double)NAN;
    free(asked);
    return status;
}
