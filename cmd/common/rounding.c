/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cmd/app/terminal.h"
#include "cmd/common/rounding.h"
#include "lib/infer/compare.h"
#include "lib/tensor/activations.h"

/* Prose, numbers and code, of more tokens than are used. */
static const char sample[] =
    "A measurement compares an unknown quantity with a known one. The length of a table, the weight of a stone and the time of a fall are numbers with "
    "units, and each of them has an error. In 1799 the metre was the ten-millionth part of the way from the north pole to the equator; since 1983 it "
    "follows from the speed of light, 299,792,458 metres per second. A physicist who repeats an experiment ten times gets ten numbers, and their mean "
    "is better than a single one:\n\ndef mean(values):\n    return sum(values) / len(values)\n\nThe error of the mean is the error of one value divided by "
    "the square root of their number, if the errors are independent.";

/* Enough tokens for two digits of the mean. Up to about 0.6 G weights they take less than a second on two cores; larger models run LEAST,
 * which takes longer. */
static int64_t tokens_for(const Model *model) {
    enum { LEAST = 16, MOST = 128 };
    const double work = 1e10;
    double weights = 1;
    for (size_t i = 0; i < model->params.n; i++) weights += (double)tensor_count(model->params.items[i].tensor);
    int64_t tokens = (int64_t)MIN(work / weights, (double)MOST), longest = model->config.max_position_embeddings;
    return MIN(MAX(tokens, (int64_t)LEAST), longest > 0 ? longest : (int64_t)MOST);
}

/* Tokens of the sample; without a tokenizer tokens from all over the vocabulary. */
static Status sample_ids(const OpenedModel *opened, int64_t most, Ids *ids) {
    enum { STRIDE = 7919 }; /* a prime number */
    if (opened->tokenizer) return tokenizer_encode(opened->tokenizer, sample, sizeof sample - 1, TOKENIZE_SPECIAL, ids);
    for (int64_t i = 0; i < most; i++) ids_push(ids, (int32_t)((i + 1) * STRIDE % opened->model->config.vocab_size));
    return ST_OK;
}

static Status rounding_measure(const OpenedModel *opened, Rounding *rounding) {
    const int64_t most = tokens_for(opened->model);
    Ids ids = {0};
    Comparison comparison = {0};
    Status status = sample_ids(opened, most, &ids);
    const IdRow row = {ids.data, MIN(ids.n, (size_t)most)};
    if (status == ST_OK) status = activations_compare(opened->model, &row, 1, &comparison);
    ids_release(&ids);
    rounding->tokens = comparison.positions;
    rounding->kl = comparison.kl;
    return status;
}

Status rounding_choose(const Command *command, const OpenedModel *opened, bool needed, Rounding *rounding) {
    const Model *model = opened->model;
    size_t n = 0;
    cpu_round_activations(false);
    if (!rounding->text || strcmp(rounding->text, "exact") == 0) return ST_OK;
    for (size_t i = 0; i < model->params.n; i++) n += dtype_is_quantised(model->params.items[i].tensor->dtype);
    if (n == 0)
        return status_hint(status_fail(ST_USAGE, "--activations int8 does nothing: no weight of '%s' is quantised", model->dir), "leave it out");
    if (needed || !command->quiet) TRY(rounding_measure(opened, rounding));
    show_line("activations rounded to 8 bits: KL %.2g nats a token, measured on %lld tokens of %s", rounding->kl, (long long)rounding->tokens,
              opened->tokenizer ? "a built-in text" : "the vocabulary");
    cpu_round_activations(true);
    rounding->on = true;
    return ST_OK;
}

void rounding_write(JsonWriter *w, const Rounding *rounding) {
    if (rounding->tokens > 0) jw_double(w, "activations_kl", rounding->kl);
}
