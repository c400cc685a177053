/* The base layer: memory, text, files, random numbers, JSON, YAML. */
#include "tests/check.h"

#include <math.h>
#include <string.h>

static void philox_gives_the_known_answers(void **state) {
    (void)state; /* Random123 1.14, kat_vectors: philox4x32 10 */
    static const struct { uint64_t seed, stream, index; uint32_t want[4]; } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < COUNT_OF(known); i++) {
        uint32_t out[4];
        rng_block((RngKey){known[i].seed, known[i].stream}, known[i].index, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], known[i].want[j]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
