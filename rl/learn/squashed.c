/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/learn/squashed.h"

#define LOG_ROOT_2PI 0.91893853320467274178
#define LOG_2 0.69314718055994530942

/* log (1 - tanh(u)^2) = 2 (log 2 - |u| - log(1 + exp(-2 |u|))) */
static double log_slope(double u) { return 2 * (LOG_2 - fabs(u) - log1p(exp(-2 * fabs(u)))); }

static double squashed_bounded(double log_std) {
    return log_std < SQUASHED_LEAST ? SQUASHED_LEAST : log_std > SQUASHED_MOST ? SQUASHED_MOST : log_std;
}

double squashed_sample(const double *mean, const double *log_std, const double *noise, int64_t n, double *action) {
    double logprob = 0;
    for (int64_t k = 0; k < n; k++) {
        double s = squashed_bounded(log_std[k]), u = mean[k] + exp(s) * noise[k];
        action[k] = tanh(u);
        logprob -= noise[k] * noise[k] / 2 + s + LOG_ROOT_2PI + log_slope(u);
    }
    return logprob;
}

void squashed_grad(const double *mean, const double *log_std, const double *noise, int64_t n, double dlogprob, const double *daction, double *dmean,
                   double *dlog_std) {
    for (int64_t k = 0; k < n; k++) {
        double s = squashed_bounded(log_std[k]), reach = exp(s) * noise[k], u = mean[k] + reach, a = tanh(u);
        double du = dlogprob * 2 * a + daction[k] * exp(log_slope(u));
        dmean[k] = du;
        dlog_std[k] = s == log_std[k] ? du * reach - dlogprob : 0;
    }
}
