/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/deploy/compress/bias.h"

#include <math.h>
#include <stdlib.h>

static double mean_output(const double *row, const InputSums *sums) {
    double mean = 0;
    for (int64_t i = 0; i < sums->in; i++) mean += row[i] * sums->sum[i];
    return mean / (double)MAX(sums->tokens, 1);
}

void bias_by_mean(const double *weight, const double *rounded, int64_t out, const InputSums *sums, double *bias) {
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < out; o++) bias[o] += mean_output(weight + o * sums->in, sums) - mean_output(rounded + o * sums->in, sums);
}

Status bias_by_variance(const double *weight, const double *rounded, int64_t out, const InputSums *sums, const GramProducts *gram, const double *bias,
                        double *gamma, double *beta) {
    double *squares = malloc((size_t)(2 * out) * sizeof *squares);
    if (!squares) return status_fail(ST_RESOURCE, "no memory for variances of outputs");
    Status status = gram_forms(gram, weight, out, squares);
    if (status == ST_OK) status = gram_forms(gram, rounded, out, squares + out);
    for (int64_t o = 0; o < out && status == ST_OK; o++) {
        const double exact = mean_output(weight + o * sums->in, sums), got = mean_output(rounded + o * sums->in, sums),
                     n = (double)MAX(sums->tokens, 1), wanted = squares[o] / n - exact * exact, has = squares[out + o] / n - got * got;
        gamma[o] = wanted > 0 && has > 0 ? sqrt(wanted / has) : 1;
        beta[o] = bias[o] + exact - gamma[o] * got;
    }
    free(squares);
    return status;
}
