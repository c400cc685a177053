/* SPDX-License-Identifier: Apache-2.0 */
/* logprob: limits for the mean log-probability of an answer's tokens under a model: below them it is noise or another language, above them the model
 * knows it by heart. */
#include "data/filter/filter_kinds.h"

enum { LOW, HIGH };
static const OptionSpec options[] = {
    [LOW] = {"min", OPTION_NUMBER, .value = -4, .low = -1e9, .high = 0, .help = "least mean log-probability, nats a token"},
    [HIGH] = {"max", OPTION_NUMBER, .value = 0, .low = -1e9, .high = 0, .help = "largest"},
    {0},
};

static Status filter_logprob_measure(Filter *filter, const FilterRow *rows, size_t n, double *values) {
    TRY(filter_model_losses(filter, rows, n, values, NULL));
    for (size_t i = 0; i < n; i++) values[i] = -values[i];
    return ST_OK;
}

static const char *out_of_range(const Filter *filter, double value) {
    return value < filter_number(filter, LOW)    ? "the model finds the answer too unlikely"
           : value > filter_number(filter, HIGH) ? "the model finds the answer too likely"
                                                 : NULL;
}

const FilterKind filter_kind_logprob = {.name = "logprob",
                                        .help = "answers whose mean log-probability under a model is out of range",
                                        .argument = "X",
                                        .stage = FILTER_ANSWER,
                                        .options = options,
                                        .open = filter_model_open,
                                        .measure = filter_logprob_measure,
                                        .out_of_range = out_of_range};
