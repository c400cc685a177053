/* SPDX-License-Identifier: Apache-2.0 */
/* Any text: no number, or finite ones; the first and the last exist together, and a text without digits has none. */
#include <math.h>

#include "rl/reward/numbers.h"
#include "tests/support/check.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    static const NumberStyle styles[] = {{',', '.', false}, {'.', ',', true}, {0, '.', true}};
    for (size_t i = 0; i < COUNT_OF(styles); i++) {
        Number first = {0}, last = {0};
        Slice text = {(const char *)bytes, len};
        bool any = numbers_first(text, &styles[i], &first);
        ASSERT(any == numbers_last(text, &styles[i], &last), "first %d, last %d", any, !any);
        ASSERT(isfinite(first.value) && isfinite(last.value), "%g, %g", first.value, last.value);
        bool digits = false;
        for (size_t k = 0; k < len; k++) digits = digits || (bytes[k] >= '0' && bytes[k] <= '9');
        ASSERT(digits || !any, "a number without digits: %g", first.value);
        double off = any ? numbers_distance(&first, &last) : 0, rough = fabs(first.value - last.value);
        double noise = 1e-12 * (fabs(first.value) + fabs(last.value));
        ASSERT(off >= 0 && fabs(off - rough) <= noise, "distance %g of %g and %g", off, first.value, last.value);
    }
    return 0;
}
