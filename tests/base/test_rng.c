/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: known answers, moments, permutations. */
#include "lib/base/rng.h"
#include "tests/support/check.h"

#include <math.h>
#include <string.h>

TEST(philox_gives_the_known_answers) {
    /* Random123 1.14, kat_vectors: philox4x32 10 */
    static const struct {
        uint64_t seed, stream, index;
        uint32_t want[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint32_t out[4];
        rng_block((RngKey){known[i].seed, known[i].stream}, known[i].index, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], known[i].want[j]);
    }
    assert_true(rng_u64(rng_key(1, RNG_INIT, 0), 0) != rng_u64(rng_key(1, RNG_SHUFFLE, 0), 0));
    assert_true(rng_u64(rng_key(1, RNG_INIT, 0), 0) != rng_u64(rng_key(1, RNG_INIT, 1), 0));
}

TEST(numbers_have_their_moments) {
    enum { N = 200000 };
    RngKey key = rng_key(42, RNG_TEST, 7);
    double sum = 0, squares = 0, fourth = 0, uniform = 0;
    for (uint64_t i = 0; i < N; i++) {
        double z = rng_normal(key, i), u = rng_uniform(key, i);
        assert_true(u >= 0 && u < 1);
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
        uniform += u;
    }
    /* five standard errors of each mean */
    check_close(sum / N, 0, 5 / sqrt(N));
    check_close(squares / N, 1, 5 * sqrt(2.0 / N));
    check_close(fourth / N, 3, 5 * sqrt(96.0 / N));
    check_close(uniform / N, 0.5, 5 * sqrt(1.0 / 12 / N));
    size_t counts[7] = {0};
    for (uint64_t i = 0; i < 70000; i++) counts[rng_below(key, i, 7)]++;
    for (int i = 0; i < 7; i++) check_close((double)counts[i], 10000, 5 * sqrt(10000));
    for (uint64_t i = 0; i < 1000; i++) { /* above 2^63 the upper half of the product must be right */
        uint64_t n = UINT64_MAX - i, got = rng_below(key, i, n), from = rng_u64(key, i);
        assert_true(got < n && from - got <= i + 1);
        assert_int_equal(rng_below(key, i, (uint64_t)1 << 40), from >> 24);
    }
}

TEST(permutations_are_bijections) {
    static const uint64_t sizes[] = {1, 2, 3, 7, 64, 65, 100, 1000, 4096, 4097, 30011};
    static uint8_t seen[30011];
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        uint64_t n = sizes[s];
        memset(seen, 0, sizeof seen);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = rng_permute(rng_key(3, RNG_SHUFFLE, s), n, i);
            assert_true(to < n && !seen[to]);
            seen[to] = 1;
        }
    }
    assert_true(rng_permute(rng_key(3, RNG_SHUFFLE, 0), (uint64_t)1 << 50, 12345) < (uint64_t)1 << 50);
    size_t orders[24] = {0}; /* each order of four things comes up equally often: chi square with 23 degrees, 0.999 quantile 49.7 */
    for (uint64_t k = 0; k < 24000; k++) {
        uint64_t p[4];
        for (uint64_t i = 0; i < 4; i++) p[i] = rng_permute(rng_key(k, RNG_SHUFFLE, 1), 4, i);
        size_t rank = 0;
        for (int i = 0; i < 4; i++) {
            size_t smaller = 0;
            for (int j = i + 1; j < 4; j++) smaller += p[j] < p[i];
            rank = rank * (size_t)(4 - i) + smaller;
        }
        orders[rank]++;
    }
    double chi = 0;
    for (int i = 0; i < 24; i++) chi += ((double)orders[i] - 1000) * ((double)orders[i] - 1000) / 1000;
    check_close(chi, 23, 26.7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(numbers_have_their_moments),
        cmocka_unit_test(permutations_are_bijections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
