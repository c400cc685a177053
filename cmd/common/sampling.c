/* SPDX-License-Identifier: Apache-2.0 */
#include "cmd/common/sampling.h"

#include <errno.h>
#include <stdlib.h>

Status read_biases(const TextList *texts, Arena *arena, SampleConfig *sample) {
    TokenBias *biases = arena_alloc(arena, (texts->n + 1) * sizeof *biases);
    if (!biases) return ST_RESOURCE;
    for (size_t i = 0; i < texts->n; i++) {
        const char *text = texts->items[i];
        char *end, *last;
        errno = 0;
        long long id = strtoll(text, &end, 10);
        double bias = *end == '=' ? strtod(end + 1, &last) : 0;
        if (end == text || *end != '=' || last == end + 1 || *last || errno || id < 0 || id > INT32_MAX)
            return status_fail(ST_USAGE, "--logit-bias must be ID=X, such as 42=-100, not '%s'", text);
        if (!(bias >= -100 && bias <= 100)) return status_fail(ST_USAGE, "--logit-bias must be -100 to 100, not %g for token %lld", bias, id);
        biases[i] = (TokenBias){(int32_t)id, bias};
    }
    sample->bias = biases;
    sample->n_bias = texts->n;
    return ST_OK;
}

Status check_sampling(const GenerateConfig *c) {
    if (c->max_new_tokens < 1 || c->max_new_tokens > 1 << 20)
        return status_fail(ST_USAGE, "--max-new-tokens must be 1 to 1048576, not %lld", (long long)c->max_new_tokens);
    if (c->n_top < 0 || c->n_top > 20) return status_fail(ST_USAGE, "--top-logprobs must be 0 to 20, not %lld", (long long)c->n_top);
    if (!(c->sample.temperature >= 0)) return status_fail(ST_USAGE, "--temperature must be 0 or more, not %g", c->sample.temperature);
    if (!(c->sample.top_p > 0 && c->sample.top_p <= 1))
        return status_fail(ST_USAGE, "--top-p must be above 0 and at most 1, not %g", c->sample.top_p);
    if (!(c->sample.min_p >= 0 && c->sample.min_p <= 1)) return status_fail(ST_USAGE, "--min-p must be 0 to 1, not %g", c->sample.min_p);
    if (!(c->sample.typical_p > 0 && c->sample.typical_p <= 1))
        return status_fail(ST_USAGE, "--typical-p must be above 0 and at most 1, not %g", c->sample.typical_p);
    if (!(c->sample.epsilon_cutoff >= 0 && c->sample.epsilon_cutoff < 1))
        return status_fail(ST_USAGE, "--epsilon-cutoff must be 0 to below 1, not %g", c->sample.epsilon_cutoff);
    if (!(c->sample.eta_cutoff >= 0 && c->sample.eta_cutoff < 1))
        return status_fail(ST_USAGE, "--eta-cutoff must be 0 to below 1, not %g", c->sample.eta_cutoff);
    if (c->sample.no_repeat_ngram_size < 0)
        return status_fail(ST_USAGE, "--no-repeat-ngram-size must be 0 or more, not %lld", (long long)c->sample.no_repeat_ngram_size);
    if (c->sample.top_k < 0) return status_fail(ST_USAGE, "--top-k must be 0 or more, not %lld", (long long)c->sample.top_k);
    if (!(c->sample.repetition_penalty > 0))
        return status_fail(ST_USAGE, "--repetition-penalty must be above 0, not %g", c->sample.repetition_penalty);
    return ST_OK;
}
