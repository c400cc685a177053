/* SPDX-License-Identifier: Apache-2.0 */
/* Means and spreads of numbers that come one by one. */
#include "lib/base/tally.h"
#include "tests/support/check.h"

#include <math.h>

TEST(tallies_lose_no_digits) {
    Tally none = {0}, equal = {0}, large = {0}, infinite = {0};
    assert_true(isnan(tally_mean(&none)) && isnan(tally_std(&none)));
    for (int i = 0; i < 7; i++) tally_add(&equal, 0.1);
    assert_true(tally_mean(&equal) == 0.1 && tally_std(&equal) == 0); /* the sum of squares would leave 1e-9 */
    for (int i = 1; i <= 5; i++) tally_add(&large, 1e9 + i);
    for (int i = 0; i < 3; i++) tally_add(&infinite, i == 1 ? (double)INFINITY : 1);
    assert_true(isinf(tally_mean(&infinite)));
    assert_int_equal(large.n, 5);
    assert_true(tally_mean(&large) == 1e9 + 3);
    assert_true(fabs(tally_variance(&large) - 2) < 1e-6 && fabs(tally_std(&large) - sqrt(2)) < 1e-6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tallies_lose_no_digits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
