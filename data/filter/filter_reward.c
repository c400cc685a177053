/* SPDX-License-Identifier: Apache-2.0 */
/* reward: the rewards of an answer; the program passes in those of `tune rl`. Without them the row's own number `reward` is used. */
#include "data/filter/filter_kinds.h"

#include <math.h>

enum { LEAST };
static const OptionSpec options[] = {
    [LEAST] = {"min", OPTION_NUMBER, .value = 0, .help = "least reward that is kept"},
    {0},
};

static Status filter_reward_measure(Filter *filter, const FilterRow *rows, size_t n, double *values) {
    const FilterScorer *reward = &filter->config->reward;
    if (reward->score) return reward->score(reward->context, rows, n, values);
    for (size_t i = 0; i < n; i++) {
        values[i] = rows[i].reward;
        if (isnan(values[i]))
            return status_hint(status_fail(ST_INPUT, "filter 'reward': row '%s' has no number 'reward'", rows[i].id ? rows[i].id : "?"),
                               "it is read from a column 'reward', from 'scores' or from 'provenance'");
    }
    return ST_OK;
}

static const char *out_of_range(const Filter *filter, double value) { return value < filter_number(filter, LEAST) ? "the reward is too low" : NULL; }

const FilterKind filter_kind_reward = {.name = "reward",
                                       .help = "answers with too low a reward",
                                       .argument = "X",
                                       .stage = FILTER_ANSWER,
                                       .options = options,
                                       .measure = filter_reward_measure,
                                       .out_of_range = out_of_range};
