/* SPDX-License-Identifier: Apache-2.0 */
/* How far a changed model is from the original: on given rows, over the whole vocabulary.
 *
 *     Comparison c;
 *     TRY(models_compare(original, quantised, NULL, rows, n, &c));   // c.kl in nats
 */
#ifndef TUNE_COMPARE_H
#define TUNE_COMPARE_H

#include "lib/model/model.h"

typedef struct IdRow {
    const int32_t *ids;
    size_t n;
} IdRow;
typedef struct Comparison {
    int64_t positions, predicted; /* tokens; those after the first of a row */
    double kl;                    /* mean of KL(original || changed) over positions, nats */
    double top1;                  /* share of positions with the same most likely token */
    double loss_before, loss;     /* mean over predicted tokens: of the original, of the changed model */
} Comparison;
/* Both models have the same vocabulary; rows are computed one by one, and logits of a few tokens at a time. watch: sees the changed model's inputs;
 * NULL: none. ST_INPUT: a row without tokens, an unknown id, another vocabulary; ST_RESOURCE; ST_INTERRUPTED. */
Status models_compare(const Model *original, const Model *changed, const LinearWatch *watch, const IdRow *rows, size_t n_rows,
                      Comparison *comparison);
/* The same for one model: with exact products, and with activations rounded to 8 bits (lib/tensor/activations.h). Products are exact afterwards. */
Status activations_compare(const Model *model, const IdRow *rows, size_t n_rows, Comparison *comparison);
/* KL(p || q) of two rows of logits, and whether both have the same largest one (the first among equals). */
double logits_divergence(const double *p, const double *q, int64_t vocab, bool *same_top);

#endif
