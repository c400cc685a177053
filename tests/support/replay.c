/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target without a fuzzer: on every file of tests/fuzz/NAME/ (seeds, and inputs that once caused a fault), then on broken versions of
 * each. `make fuzz NAME=json` searches further, with clang -fsanitize=fuzzer on the same tests/fuzz/fuzz_NAME.c. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const char *folder;

static void run_one(const uint8_t *bytes, size_t len, void *context) {
    (void)context;
    assert_int_equal(LLVMFuzzerTestOneInput(bytes, len), 0);
}

TEST(saved_inputs_and_broken_ones) {
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_ok(dir_list(folder, arena, &names, &count));
    assert_true(count > 0);
    for (size_t i = 0; i < count; i++) {
        Mapping input;
        check_ok(file_map(path_join(arena, folder, names[i]), &input));
        uint8_t *exact = malloc(MAX(input.size, 1)); /* an exact allocation, since a mapping would end at the end of its page */
        assert_non_null(exact);
        if (input.size > 0) memcpy(exact, input.data, input.size);
        run_one(exact, input.size, NULL);
        check_mutations(exact, input.size, ALL_OR_FEW(3000, 1000), run_one, NULL);
        free(exact);
        file_unmap(&input);
    }
    arena_free(arena);
}

int main(int argc, char **argv) {
    char path[256];
    (void)argc;
    snprintf(path, sizeof path, "tests/fuzz/%s", path_name(argv[0]) + strlen("fuzz_"));
    folder = path;
    const struct CMUnitTest tests[] = {cmocka_unit_test(saved_inputs_and_broken_ones)};
    return cmocka_run_group_tests_name(path, tests, NULL, NULL);
}
