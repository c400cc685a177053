/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: sizes that do not overflow, arenas, arrays that grow. */
#include "lib/base/arena.h"
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

TEST(sizes_do_not_wrap) {
    size_t result = 7;
    assert_true(size_mul(SIZE_MAX / 3, 3, &result) && result == SIZE_MAX / 3 * 3);
    assert_false(size_mul(SIZE_MAX / 3 + 1, 3, &result));
    assert_true(size_mul(0, SIZE_MAX, &result) && result == 0);
    assert_true(size_mul(SIZE_MAX, 0, &result) && result == 0);
    assert_true(size_add(SIZE_MAX - 1, 1, &result) && result == SIZE_MAX);
    assert_false(size_add(SIZE_MAX, 1, &result));
}

/* New pages are zero as they come; those that were used before are cleared. */
TEST(cleared_memory_is_zero) {
    enum { LARGE = 3 << 20 };
    Arena *arena = arena_new(0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            unsigned char *bytes = arena_zero(arena, LARGE);
            assert_non_null(bytes);
            assert_true(bytes[0] == 0 && memcmp(bytes, bytes + 1, LARGE - 1) == 0);
            memset(bytes, 0xAB, LARGE);
        }
        arena_reset(arena);
    }
    arena_free(arena);
}

TEST(arena_gives_aligned_separate_pieces) {
    Arena *arena = arena_new(0);
    static const size_t sizes[] = {1, 63, 64, 65, 0, 1000, 100000, 3 << 20, 17, 5 << 20};
    uint8_t *pieces[COUNT_OF(sizes)];
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        pieces[i] = arena_alloc(arena, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 64, 0);
        memset(pieces[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(pieces[i][j], i + 1);
    }
    uint8_t *zeros = arena_zero(arena, 777);
    for (size_t j = 0; j < 777; j++) assert_int_equal(zeros[j], 0);
    assert_string_equal(arena_printf(arena, "%s-%d", "x", 5), "x-5");
    assert_string_equal(arena_strndup(arena, "abcdef", 3), "abc");
    assert_string_equal(arena_strdup(arena, ""), "");
    arena_free(arena);
    arena_free(NULL);
}

static long page_faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
}

TEST(arena_counts_and_reuses) {
    Arena *arena = arena_new(0);
    uint8_t *first = NULL;
    long before = 0;
    for (int round = 0; round < 4; round++) {
        if (round == 3) before = page_faults();
        for (int i = 0; i < 10; i++) {
            uint8_t *bytes = arena_alloc(arena, 1 << 20);
            assert_non_null(bytes);
            memset(bytes, round, 1 << 20);
            if (i > 0) continue;
            if (round == 2) first = bytes; /* the rounds after the first use the same block */
            if (round == 3) assert_ptr_equal(bytes, first);
        }
        assert_int_equal(arena_used(arena), 10 << 20);
        arena_reset(arena);
        assert_int_equal(arena_used(arena), 0);
    }
    assert_int_equal(arena_peak(arena), 10 << 20);
    assert_true(arena_resident(arena) >= 10 << 20 && arena_resident(arena) <= 14 << 20); /* the pages that were touched, of more that is mapped */
#ifndef SANITIZED
    assert_true(page_faults() - before < 10);
#else
    (void)before;
#endif
    arena_free(arena);
}

TEST(arena_reserves_one_block) {
    Arena *arena = arena_new(0);
    for (int i = 0; i < 5; i++) assert_non_null(arena_alloc(arena, 3 << 20)); /* blocks of several sizes */
    arena_reset(arena);
    arena_reserve(arena, 40 << 20);
    assert_int_equal(arena_used(arena), 0);
    assert_int_equal(arena_resident(arena), 0);
    uint8_t *first = arena_alloc(arena, 25 << 20);
    assert_ptr_equal(arena_alloc(arena, 15 << 20), first + (25 << 20));
    assert_int_equal(arena_resident(arena), arena_pages(40 << 20));
    assert_non_null(arena_alloc(arena, 1 << 20)); /* and more than was said */
    arena_reset(arena);
    arena_reserve(arena, 1000); /* what is there already */
    assert_non_null(arena_alloc(arena, 25 << 20));
    arena_free(arena);
}

/* An arena in use, with blocks of several sizes; the last one is too small. */
TEST(arena_expects_what_fills_one_block) {
    const size_t each = (5 << 20) + 1000, n = 7;
    Arena *arena = arena_new(0);
    assert_non_null(arena_alloc(arena, 3 << 20));
    assert_non_null(arena_alloc(arena, 100));
    size_t before = arena_resident(arena);
    arena_expect(arena, n * arena_rounded(each));
    assert_int_equal(arena_resident(arena), before);
    uint8_t *first = arena_alloc(arena, each);
    for (size_t i = 1; i < n; i++) assert_ptr_equal(arena_alloc(arena, each), first + i * arena_rounded(each));
    assert_int_equal(arena_resident(arena), before + arena_pages(n * arena_rounded(each)));
    arena_expect(arena, 0);
    arena_expect(arena, SIZE_MAX); /* impossible: changes nothing */
    assert_non_null(arena_alloc(arena, 1 << 20));
    assert_int_equal(arena_rounded(SIZE_MAX), SIZE_MAX);
    arena_free(arena);
}

TEST(arena_rewinds_to_a_mark) {
    Arena *arena = arena_new(0);
    char *kept = arena_strdup(arena, "kept");
    ArenaMark mark = arena_mark(arena);
    size_t used = arena_used(arena);
    void *first = arena_alloc(arena, 100);
    for (int i = 0; i < 5; i++) assert_non_null(arena_alloc(arena, 1 << 20));
    size_t peak = arena_used(arena);
    arena_rewind(arena, mark);
    assert_int_equal(arena_used(arena), used);
    assert_int_equal(arena_peak(arena), peak);
    assert_ptr_equal(arena_alloc(arena, 100), first);
    for (int i = 0; i < 5; i++) assert_non_null(arena_alloc(arena, 1 << 20));
    assert_int_equal(arena_used(arena), peak);
    assert_string_equal(kept, "kept");
    arena_free(arena);
}

/* Memory that nobody may read or write, so that a touch ends the test. */
static int blocks_taken;

static void *pages_take(const BlockSource *source, size_t size) {
    (void)source;
    void *pages = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    blocks_taken++;
    return pages == MAP_FAILED ? NULL : pages;
}

static void pages_give_back(const BlockSource *source, void *block, size_t size) {
    (void)source;
    munmap(block, size);
    blocks_taken--;
}

TEST(memory_of_a_source_goes_with_the_arena) {
    static const BlockSource source = {pages_take, pages_give_back};
    Arena *arena = arena_new(0), *limited = arena_new(100000);
    size_t used = arena_used(arena);
    ArenaMark mark = arena_mark(arena);
    char *first = arena_alloc_from(arena, &source, 100), *second = arena_alloc_from(arena, &source, 100);
    assert_non_null(first);
    assert_true((uintptr_t)first % 64 == 0 && second - first == 128);
    assert_non_null(arena_alloc_from(arena, &source, 5 << 20));
    assert_int_equal(blocks_taken, 2);
    assert_int_equal(arena_used(arena), used + 256 + (5 << 20));
    assert_int_equal(arena_peak(arena), arena_used(arena));
    arena_rewind(arena, mark);
    assert_int_equal(arena_used(arena), used);
    assert_ptr_equal(arena_alloc_from(arena, &source, 100), first);
    mark = arena_mark(arena);
    assert_ptr_equal(arena_alloc_from(arena, &source, 100), second);
    arena_rewind(arena, mark);
    assert_ptr_equal(arena_alloc_from(arena, &source, 100), second);
    arena_reset(arena);
    assert_int_equal(arena_used(arena), 0);
    assert_int_equal(blocks_taken, 2);
    arena_reserve_from(arena, &source, 9 << 20);
    assert_int_equal(blocks_taken, 1);
    arena_free(arena);
    assert_int_equal(blocks_taken, 0);
    assert_non_null(arena_alloc(limited, 60000));
    assert_null(arena_alloc_from(limited, &source, 60000));
    check_contains(status_text(), "do not fit");
    assert_non_null(arena_alloc_from(limited, &source, 30000));
    assert_null(arena_alloc(limited, 30000));
    arena_free(limited);
    assert_int_equal(blocks_taken, 0);
}

TEST(arena_refuses_past_its_limit) {
    Arena *arena = arena_new(10000);
    assert_non_null(arena_alloc(arena, 9000));
    assert_null(arena_alloc(arena, 2000));
    check_contains(status_text(), "out of memory: 2.0 KiB more do not fit");
    assert_true(status_hint_text()[0]);
    assert_non_null(arena_alloc(arena, 900));
    assert_null(arena_alloc(arena, SIZE_MAX));
    assert_null(arena_alloc(arena, SIZE_MAX - 70));
    assert_null(arena_strndup(arena, "", SIZE_MAX));
    arena_reset(arena);
    assert_non_null(arena_alloc(arena, 9900));
    arena_free(arena);
    arena = arena_new(0);
    assert_null(arena_alloc(arena, SIZE_MAX / 2));
    check_text("out of memory");
    assert_non_null(arena_alloc(arena, 10));
    arena_free(arena);
}

TEST(arena_fails_when_told_to) {
    Arena *arena = arena_new(0);
    arena_fail_at(3);
    assert_non_null(arena_alloc(arena, 1));
    assert_non_null(arena_zero(arena, 1));
    assert_null(arena_strdup(arena, "x"));
    assert_non_null(arena_alloc(arena, 1));
    arena_fail_at(0);
    arena_free(arena);
}

TEST(arrays_grow) {
    double *numbers = NULL;
    size_t cap = 0, moves = 0;
    for (size_t n = 0; n < 1000; n++) {
        size_t before = cap;
        check_ok(array_grow(&numbers, &cap, n + 1, sizeof *numbers, "numbers"));
        assert_true(cap > n);
        moves += cap != before;
        numbers[n] = (double)n;
    }
    assert_int_equal(moves, 5); /* 64, 128, ... 1024 */
    check_ok(array_resize(&numbers, 3, sizeof *numbers, "numbers"));
    double *before = numbers;
    cap = 3;
    check_status(array_grow(&numbers, &cap, SIZE_MAX / 4, sizeof *numbers, "numbers"), ST_RESOURCE); /* too many to count */
    check_text("out of memory for 4611686018427387903 numbers");
#ifndef SANITIZED /* which end a program that asks for so much */
    check_status(array_resize(&numbers, SIZE_MAX / 2 / sizeof *numbers, sizeof *numbers, "numbers"), ST_RESOURCE); /* too many to have */
#endif
    assert_true(numbers == before && cap == 3 && numbers[2] == 2);
    check_ok(array_resize(&numbers, 0, sizeof *numbers, "numbers"));
    assert_non_null(numbers);
    free(numbers);

    Arena *arena = arena_new(1 << 16);
    int32_t *ids = NULL;
    cap = 0;
    for (int32_t n = 0; n < 1000; n++) {
        check_ok(arena_array_grow(arena, &ids, &cap, (size_t)n + 1, sizeof *ids));
        ids[n] = n;
    }
    for (int32_t n = 0; n < 1000; n++) assert_int_equal(ids[n], n);
    int32_t *kept = ids;
    check_status(arena_array_grow(arena, &ids, &cap, 1 << 20, sizeof *ids), ST_RESOURCE);
    check_status(arena_array_grow(arena, &ids, &cap, SIZE_MAX / 2, sizeof *ids), ST_RESOURCE);
    assert_true(ids == kept && cap == 1024);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(cleared_memory_is_zero),
        cmocka_unit_test(arena_gives_aligned_separate_pieces),
        cmocka_unit_test(arena_counts_and_reuses),
        cmocka_unit_test(arena_reserves_one_block),
        cmocka_unit_test(arena_expects_what_fills_one_block),
        cmocka_unit_test(arena_rewinds_to_a_mark),
        cmocka_unit_test(memory_of_a_source_goes_with_the_arena),
        cmocka_unit_test(arena_refuses_past_its_limit),
        cmocka_unit_test(arena_fails_when_told_to),
        cmocka_unit_test(arrays_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
