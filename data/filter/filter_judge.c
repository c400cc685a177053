/* SPDX-License-Identifier: Apache-2.0 */
/* judge: a score from 1 to 10 that a judge gives by a rubric. Without a judge the row's own number `judge` is used. */
#include "data/filter/filter_kinds.h"

#include <math.h>

enum { LEAST, RUBRIC };
static const OptionSpec options[] = {
    [LEAST] = {"min", OPTION_NUMBER, .value = 7, .low = 1, .high = 10, .help = "least score that is kept"},
    [RUBRIC] = {"rubric", OPTION_STRING, .text = "accuracy 0-3, relevance 0-2, clarity 0-2, usefulness 0-3",
                .help = "the text that the judge rates"}, /* the criteria of synthetic-data-kit */
    {0},
};

static Status filter_judge_measure(Filter *filter, const FilterRow *rows, size_t n, double *values) {
    const FilterScorer *judge = &filter->config->judge;
    if (judge->score) return judge->score(judge->context, rows, n, values);
    for (size_t i = 0; i < n; i++) {
        values[i] = rows[i].judge;
        if (isnan(values[i]))
            return status_hint(status_fail(ST_INPUT, "filter 'judge': row '%s' has no number 'judge'", rows[i].id ? rows[i].id : "?"),
                               "it is read from a column 'judge', from 'scores' or from 'provenance'");
    }
    return ST_OK;
}

static const char *out_of_range(const Filter *filter, double value) {
    return value < filter_number(filter, LEAST) ? "the judge's score is too low" : NULL;
}

const FilterKind filter_kind_judge = {.name = "judge",
                                      .help = "answers that a judge scores too low, from 1 to 10",
                                      .argument = "N",
                                      .stage = FILTER_ANSWER,
                                      .options = options,
                                      .measure = filter_judge_measure,
                                      .out_of_range = out_of_range};
