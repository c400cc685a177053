/* SPDX-License-Identifier: Apache-2.0 */
/* The limits of a row: vocabulary, length, positions. */
#include "data/data.h"

Status ids_check(const Ids *ids, int64_t vocab_size) {
    for (size_t i = 0; i < ids->n; i++)
        if (ids->data[i] < 0 || (vocab_size > 0 && ids->data[i] >= vocab_size)) {
            status_fail(ST_INPUT, "token id %d at position %zu is outside of the model's vocabulary of %lld", (int)ids->data[i], i,
                        (long long)vocab_size);
            return status_hint(ST_INPUT, "the row was made with another tokenizer");
        }
    return ST_OK;
}

Status row_too_long(const char *what, size_t n, int64_t max_length) {
    status_fail(ST_INPUT, "the %s has %zu tokens, more than the %lld of 'data.max_length'", what, n, (long long)max_length);
    return status_hint(ST_INPUT, "raise data.max_length, or choose data.truncation: drop, keep_start or keep_end");
}

Status positions_check(size_t n, int64_t positions) {
    if (positions <= 0 || n <= (size_t)positions) return ST_OK;
    status_fail(ST_INPUT, "the row has %zu tokens, more than the %lld that the model has positions for", n, (long long)positions);
    return status_hint(ST_INPUT, "lower data.max_length to that, with data.truncation: drop, keep_start or keep_end");
}
