/* SPDX-License-Identifier: Apache-2.0 */
/* ifd: instruction-following difficulty (arXiv 2308.12032, equation 4): the answer's mean loss given its prompt, divided by its mean loss without it.
 * Near or above 1 the prompt does not help to predict the answer: they do not belong together. Near 0 there is nothing to learn. With `of:
 * perplexity` it is the ratio of perplexities (arXiv 2402.00530). */
#include "data/filter/filter_kinds.h"

#include <math.h>
#include <string.h>

enum { HIGH, LOW, OF };
static const OptionSpec options[] = {
    [HIGH] = {"max", OPTION_NUMBER, .value = 1, .low = 0, .high = 1e9, .help = "largest ratio that is kept"},
    [LOW] = {"min", OPTION_NUMBER, .value = 0, .low = 0, .high = 1e9, .help = "least ratio that is kept"},
    [OF] = {"of", OPTION_STRING, .text = "loss", .choices = "loss|perplexity", .help = "quantity of the ratio"},
    {0},
};

static Status filter_ifd_measure(Filter *filter, const FilterRow *rows, size_t n, double *values) {
    double alone[FILTER_BLOCK];
    ASSERT(n <= FILTER_BLOCK, "%zu rows", n);
    TRY(filter_model_losses(filter, rows, n, values, alone));
    bool losses = strcmp(filter->options[OF].text, "loss") == 0;
    for (size_t i = 0; i < n; i++) values[i] = losses ? values[i] / alone[i] : exp(values[i] - alone[i]);
    return ST_OK;
}

static const char *out_of_range(const Filter *filter, double value) {
    return value > filter_number(filter, HIGH)  ? "the prompt is of no help to the answer"
           : value < filter_number(filter, LOW) ? "the prompt gives the answer away"
                                                : NULL;
}

const FilterKind filter_kind_ifd = {.name = "ifd",
                                    .help = "answers that their prompt does not make likelier, under a model (instruction-following difficulty)",
                                    .argument = "X",
                                    .stage = FILTER_ANSWER,
                                    .options = options,
                                    .open = filter_model_open,
                                    .measure = filter_ifd_measure,
                                    .out_of_range = out_of_range};
