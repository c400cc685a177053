/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "rl/core/ratio.h"
#include "rl/text/sampler_correction.h"

static double corrected(SamplerCorrection how, double low, double high, double difference) {
    double ratio = exp(clamp(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT));
    if (how == CORRECT_TOKEN_TRUNCATE || how == CORRECT_SEQUENCE_TRUNCATE) return clamp(ratio, low, high);
    return ratio < low || ratio > high ? 0 : ratio;
}

void sampler_correction(SamplerCorrection how, double low, double high, int64_t n_sequences, const int64_t *begin, const double *old_logprobs,
                        const double *sampler_logprobs, const bool *trained, double *weights) {
    bool per_token = how == CORRECT_TOKEN_TRUNCATE || how == CORRECT_TOKEN_MASK;
    for (int64_t i = 0; i < n_sequences; i++) {
        double sum = 0;
        for (int64_t t = begin[i]; t < begin[i + 1]; t++)
            if (!trained || trained[t]) sum += old_logprobs[t] - sampler_logprobs[t];
        double whole = corrected(how, low, high, sum);
        for (int64_t t = begin[i]; t < begin[i + 1]; t++)
            weights[t] = trained && !trained[t] ? 1 : per_token ? corrected(how, low, high, old_logprobs[t] - sampler_logprobs[t]) : whole;
    }
}
