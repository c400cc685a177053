/* The base layer: memory, text, files, random numbers, JSON, YAML. */
#include "lib/base/log.h"
#include "lib/base/rng.h"
#include "lib/base/system.h"
#include "lib/base/tally.h"
#include "lib/base/yaml.h"
#include "tests/support/check.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#ifdef __linux__
#include <sched.h>
#include <sys/mount.h>
#endif

static char dir[64]; /* this program's own folder */

/* ---- status ---- */

static Status forwards(Status inner) {
    TRY(inner);
    return status_fail(ST_CONFIG, "reached the end");
}

TEST(failures_keep_text_and_hint) {
    assert_int_equal(status_fail(ST_INPUT, "cannot read '%s': line %d", "a", 3), ST_INPUT);
    assert_string_equal(status_text(), "cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "");
    assert_int_equal(status_hint(ST_INPUT, "try %d", 4), ST_INPUT);
    assert_int_equal(status_prefix(ST_INPUT, "rows.jsonl"), ST_INPUT);
    assert_string_equal(status_text(), "rows.jsonl: cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "try 4");
    status_fail(ST_INPUT, "again: %s", status_text()); /* the old text as an argument */
    assert_string_equal(status_text(), "again: rows.jsonl: cannot read 'a': line 3");
    assert_string_equal(status_hint_text(), "");
    assert_int_equal(forwards(ST_NUMERIC), ST_NUMERIC);
    assert_int_equal(forwards(ST_OK), ST_CONFIG);
    assert_int_equal(status_errno(EROFS, "cannot write 'a'"), ST_RESOURCE); /* the disk refuses; a missing file is the user's fault */
    assert_int_equal(status_errno(ENOENT, "cannot open 'a'"), ST_INPUT);
    assert_int_equal(status_exit_code(ST_RESOURCE), 5);
    assert_int_equal(status_exit_code(ST_INTERRUPTED), 130);
    assert_string_equal(status_meaning(ST_OK), "ok");
    status_fail(ST_INPUT, "'%s'", "a\nb\033[31m\177\303\244");
    assert_string_equal(status_text(), "'a b?[31m?\303\244'");
    status_prefix(ST_INPUT, "c\033");
    assert_string_equal(status_text(), "c?: 'a b?[31m?\303\244'");
}

/* Runs `body` in a process of its own, without its output; returns what waitpid says. */
static int in_child(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || !freopen("/dev/null", "w", stdout)) _exit(99);
        body();
        _exit(0);
    }
    int result = 0;
    assert_int_equal(waitpid(child, &result, 0), child);
    return result;
}

static void break_a_promise(void) { ASSERT(dir[0] == '?', "%s", dir); }

TEST(always_fails) {
    double got[] = {1, 2}, want[] = {1, 2.5};
    check_close_f64("values", got, want, 2, 0.4, 0);
}

static void run_a_failing_group(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(always_fails)};
    _exit(cmocka_run_group_tests(tests, NULL, NULL));
}

TEST(asserts_abort_and_failing_tests_show) {
    int result = in_child(break_a_promise);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    result = in_child(run_a_failing_group);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 1);
}

/* ---- memory ---- */

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

/* In use already, by blocks of several sizes, the last of which is too small. */
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
    arena_expect(arena, SIZE_MAX); /* cannot be had: as it was */
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

/* ---- text ---- */

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

TEST(strings_grow) {
    Str str = {0};
    assert_string_equal(str_text(&str), "");
    str_append(&str, "ab");
    str_append_char(&str, 'c');
    str_append_n(&str, "def", 2);
    str_printf(&str, "-%03d", 7);
    assert_string_equal(str_text(&str), "abcde-007");
    assert_int_equal(str.len, 9);
    for (int i = 0; i < 1000; i++) str_append(&str, "0123456789");
    assert_int_equal(strlen(str_text(&str)), 10009);
    assert_false(str_reserve(&str, SIZE_MAX - 10));
    str_clear(&str);
    assert_string_equal(str_text(&str), "");
    str_release(&str);
    assert_true(slice_is((Slice){"abc", 2}, "ab") && !slice_is((Slice){"abc", 3}, "ab") && slice_is((Slice){NULL, 0}, ""));
    assert_true(text_starts_with("model.layers", "model.") && !text_starts_with("mo", "model"));
    assert_true(text_ends_with("a.gz", ".gz") && !text_ends_with("gz", ".gz"));
}

TEST(doubles_are_short_and_exact) {
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1, "1"},
                 {-0.0, "-0"},
                 {2e-4, "0.0002"},
                 {1e300, "1e+300"},
                 {5e-324, "5e-324"},
                 {1.0 / 3, "0.3333333333333333"},
                 {DBL_MAX, "1.7976931348623157e+308"},
                 {0.1 + 0.2, "0.30000000000000004"}};
    Str str = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        str_clear(&str);
        str_append_double(&str, cases[i].value);
        assert_string_equal(str_text(&str), cases[i].text);
    }
    for (uint64_t i = 0; i < 20000; i++) { /* any bits that make a number */
        uint64_t bits = rng_u64(rng_key(1, RNG_TEST, 0), i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (!isfinite(value)) continue;
        str_clear(&str);
        str_append_double(&str, value);
        assert_true(strtod(str_text(&str), NULL) == value);
    }
    str_release(&str);
}

TEST(utf8_is_strict) {
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        char bytes[4];
        size_t len = utf8_encode(c, bytes);
        uint32_t again = 0;
        if (utf8_decode(bytes, 4, &again) != len || again != c) fail_msg("U+%04X", (unsigned)c);
        for (size_t cut = 1; cut < len; cut++) {
            if (utf8_decode(bytes, cut, &again) != 0 || utf8_whole_prefix(bytes, cut) != 0) fail_msg("U+%04X cut to %zu", (unsigned)c, cut);
        }
        if (utf8_whole_prefix(bytes, len) != len) fail_msg("U+%04X whole", (unsigned)c);
    }
    static const char *const wrong[] = {"\x80",         "\xC0\x80",         "\xC1\xBF",         "\xE0\x80\x80",     "\xE0\x9F\xBF",
                                        "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
                                        "\xC3(",        "\xE2\x82("};
    uint32_t c;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_int_equal(utf8_decode(wrong[i], strlen(wrong[i]), &c), 0);
        assert_int_equal(utf8_whole_prefix(wrong[i], strlen(wrong[i])), strlen(wrong[i])); /* no byte more would mend it */
    }
    assert_int_equal(utf8_decode("", 0, &c), 0);
    assert_int_equal(utf8_whole_prefix("", 0), 0);
    assert_int_equal(utf8_whole_prefix("ab\xE2\x82", 4), 2);
    assert_int_equal(utf8_whole_prefix("\x80\x80\x80\x80", 4), 4);
    assert_int_equal(utf8_whole_prefix("a\xE0\x80", 3), 3);
}

TEST(json_strings_are_quoted) {
    Str str = {0};
    static const char text[] = "a\"\\\n\x01\x7f\xff\xe2\x80\xa8é\0z";
    str_append_json(&str, text, sizeof text - 1);
    assert_string_equal(str_text(&str), "\"a\\\"\\\\\\n\\u0001\\u007f\xEF\xBF\xBD\\u2028é\\u0000z\"");
    str_release(&str);
}

TEST(messages_find_words) {
    static const char *const keys[] = {"learning_rate", "max_steps", "rank", "alpha", "lora"};
    assert_string_equal(text_nearest("learning_rte", keys, COUNT_OF(keys)), "learning_rate");
    assert_string_equal(text_nearest("max_step", keys, COUNT_OF(keys)), "max_steps");
    assert_string_equal(text_nearest("rnak", keys, COUNT_OF(keys)), "rank");
    assert_null(text_nearest("temperature", keys, COUNT_OF(keys)));
    assert_null(text_nearest("", keys, COUNT_OF(keys)));
    static const char *const short_names[] = {"B", "A"};
    assert_null(text_nearest("x", short_names, 2));
    char out[32], longest[200];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(text_nearest(longest, keys, COUNT_OF(keys)));
    assert_string_equal(format_bytes(0, out), "0 B");
    assert_string_equal(format_bytes(1023, out), "1023 B");
    assert_string_equal(format_bytes(1.4 * 1024 * 1024 * 1024, out), "1.4 GiB");
    assert_string_equal(format_bytes(1048575, out), "1.0 MiB");
    static const struct {
        const char *text;
        size_t bytes;
    } sizes[] = {{"1", 1},
                 {"4GiB", (size_t)4 << 30},
                 {"1500 MB", 1500000000},
                 {"2.5G", (size_t)5 << 29},
                 {"10k", 10240},
                 {"3 tb", 3000000000000},
                 {"0.5B", 0},
                 {"0", 0},
                 {"-1GB", 0},
                 {"4 GiB!", 0},
                 {"GiB", 0},
                 {"", 0},
                 {"1e30", 0},
                 {"nan", 0}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        size_t bytes = 0;
        bool is_size = bytes_from_text(sizes[i].text, &bytes);
        if (is_size != (sizes[i].bytes > 0) || bytes != sizes[i].bytes) fail_msg("'%s' is %zu bytes, not %zu", sizes[i].text, bytes, sizes[i].bytes);
    }
    assert_string_equal(format_seconds(0.25, out), "0.2 s");
    assert_string_equal(format_seconds(59.4, out), "59 s");
    assert_string_equal(format_seconds(200, out), "3 min 20 s");
    assert_string_equal(format_seconds(7260, out), "2 h 1 min");
    assert_string_equal(format_seconds((double)NAN, out), "a long time");
    assert_string_equal(plural(1), "");
    assert_true(*plural(0) == 's' && *plural(2) == 's' && *plural(-1) == 's');
}

TEST(a_shell_reads_back_the_word) {
    static const struct {
        const char *word, *quoted;
    } words[] = {
        {"runs/a-1_b.c", "runs/a-1_b.c"},
        {"train.betas=[0.9]", "'train.betas=[0.9]'"},
        {"a b", "'a b'"},
        {"it's", "'it'\\''s'"},
        {"", "''"},
        {"~/x", "'~/x'"},
        {"50%", "50%"},
        {"a\nb", "'a\nb'"},
    };
    Str str = {0};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        str_clear(&str);
        str_append_shell(&str, "%s", words[i].word);
        assert_string_equal(str_text(&str), words[i].quoted);
    }
    str_release(&str);
}

/* ---- files ---- */

static void write_gz(const char *path, const char *bytes, size_t len) {
    gzFile gz = gzopen(path, "wb");
    assert_non_null(gz);
    assert_int_equal(gzwrite(gz, bytes, (unsigned)len), len);
    assert_int_equal(gzclose(gz), Z_OK);
}

/* Another program cuts a file that is mapped here. */
TEST(mapped_files_may_be_cut) {
    enum { SIZE = 3 << 16 };
    static char bytes[SIZE];
    memset(bytes, 'x', sizeof bytes);
    const char *path = temp_file(dir, "cut.bin");
    file_catch_cuts();
    for (int round = 0; round < 2; round++) {
        Mapping mapping;
        check_ok(file_write_all(path, bytes, SIZE));
        check_ok(file_map(path, &mapping));
        check_ok(file_check_cuts());
        assert_int_equal(truncate(path, SIZE / 3), 0);
        assert_int_equal(mapping.data[SIZE / 3 - 1], 'x');
        check_ok(file_check_cuts()); /* what is gone was not looked for */
        assert_int_equal(mapping.data[SIZE / 2], 0);
        assert_int_equal(mapping.data[SIZE - 1], 0);
        check_status(file_check_cuts(), ST_INPUT);
        check_text("cut.bin' was cut by another program while it was in use");
        if (round == 0) {
            assert_true(file_forgive_cut(&mapping) && !file_forgive_cut(&mapping));
            check_ok(file_check_cuts());
        }
        file_unmap(&mapping);
    }
    check_status(file_check_cuts(), ST_INPUT); /* the second one, after it was unmapped */
}

static void note(void *context, LogLevel level, const char *text) { str_printf(context, "%d %s;", (int)level, text); }

/* It writes other bytes of the same number into one, or puts a new file in the place of one. */
TEST(mapped_files_may_be_written_to) {
    const char *path = temp_text(dir, "watched.bin", "before");
    Mapping mapping, other;
    check_ok(file_map(path, &mapping));
    check_ok(file_map(temp_text(dir, "replaced.bin", "before"), &other));
    file_watch(&mapping);
    file_watch(&other);
    Str words = {0};
    log_set_sink(note, &words, LOG_WARNING);
    check_ok(file_write_all(temp_file(dir, "replaced.bin"), "after", 5)); /* renamed over it: what is mapped stays */
    check_ok(file_check_cuts());
    assert_int_equal(words.len, 0);
    struct timespec later[2] = {{.tv_sec = 4000000000}, {.tv_sec = 4000000000}};
    int fd = open(path, O_WRONLY);
    assert_int_equal(write(fd, "behind", 6), 6);
    assert_int_equal(futimens(fd, later), 0); /* a coarse clock may not have moved on */
    close(fd);
    for (int asked = 0; asked < 2; asked++) {
        check_ok(file_check_cuts());
        assert_non_null(strstr(str_text(&words), "watched.bin' was written to by another program"));
    }
    log_set_sink(NULL, NULL, LOG_WARNING);
    const char *last = strstr(str_text(&words), "written to");
    assert_null(strstr(last + 1, "written to")); /* said once */
    str_release(&words);
    file_unmap(&mapping);
    file_unmap(&other);
}

TEST(files_are_mapped_and_read) {
    Mapping mapping;
    check_ok(file_map(temp_text(dir, "a.txt", "hello"), &mapping));
    assert_int_equal(mapping.size, 5);
    assert_memory_equal(mapping.data, "hello", 5);
    file_unmap(&mapping);
    check_ok(file_map(temp_text(dir, "empty", ""), &mapping));
    assert_true(mapping.size == 0 && !mapping.data);
    file_unmap(&mapping);
    check_status(file_map(temp_file(dir, "missing"), &mapping), ST_INPUT);
    check_text("missing': No such file");
    check_status(file_map(dir, &mapping), ST_INPUT);
    assert_int_equal(mkfifo(temp_file(dir, "pipe"), 0600), 0);
    check_status(file_map(temp_file(dir, "pipe"), &mapping), ST_INPUT); /* at once, and nobody writes to it */
    check_text("not a regular file");
    assert_true(file_exists(temp_file(dir, "a.txt")) && !file_exists(dir) && dir_exists(dir) && !dir_exists(temp_file(dir, "a.txt")));
    Str text = {0};
    check_ok(file_read(temp_file(dir, "a.txt"), 5, &text));
    assert_string_equal(str_text(&text), "hello");
    check_status(file_read(temp_file(dir, "a.txt"), 4, &text), ST_INPUT);
    check_text("longer than 4 B");
    write_gz(temp_file(dir, "a.gz"), "packed", 6);
    check_ok(file_read(temp_file(dir, "a.gz"), 100, &text));
    assert_string_equal(str_text(&text), "packed");
    check_ok(file_read(temp_file(dir, "empty"), 100, &text));
    assert_int_equal(text.len, 0);
    check_status(file_read(dir, 100, &text), ST_INPUT);
    check_status(file_read(temp_file(dir, "missing"), 100, &text), ST_INPUT);
    str_release(&text);
    char out[512];
    assert_false(shared_path("no such thing", out, sizeof out));
}

TEST(lines_of_every_length) {
    Str text = {0};
    static const size_t lengths[] = {0, 1, 5, 300000, 0, 262143, 262144, 1000000, 3};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        for (size_t j = 0; j < lengths[i]; j++) str_append_char(&text, (char)('a' + (i + j) % 26));
        str_append(&text, i % 2 ? "\r\n" : "\n");
    }
    str_append(&text, "last");
    check_ok(file_write_all(temp_file(dir, "lines"), text.data, text.len));
    write_gz(temp_file(dir, "lines.gz"), text.data, text.len);
    for (int packed = 0; packed < 2; packed++) {
        Lines lines;
        Slice line;
        check_ok(lines_open(&lines, temp_file(dir, packed ? "lines.gz" : "lines")));
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            assert_true(lines_next(&lines, &line));
            assert_int_equal(line.len, lengths[i]);
            assert_int_equal(lines.number, i + 1);
            for (size_t j = 0; j < line.len; j++) assert_int_equal(line.data[j], 'a' + (i + j) % 26);
        }
        assert_true(lines_next(&lines, &line) && slice_is(line, "last"));
        assert_false(lines_next(&lines, &line));
        assert_false(lines_next(&lines, &line));
        check_ok(lines_close(&lines));
    }
    Mapping packed;
    check_ok(file_map(temp_file(dir, "lines.gz"), &packed));
    check_ok(file_write_all(temp_file(dir, "cut.gz"), packed.data, packed.size - 20));
    file_unmap(&packed);
    Lines lines;
    Slice line;
    check_ok(lines_open(&lines, temp_file(dir, "cut.gz")));
    while (lines_next(&lines, &line)) assert_true(lines.number < COUNT_OF(lengths) + 1);
    check_status(lines_close(&lines), ST_INPUT);
    check_text("cut.gz' after line");
    Str out = {0};
    check_status(file_read(temp_file(dir, "cut.gz"), 1 << 30, &out), ST_INPUT);
    check_status(lines_open(&lines, temp_file(dir, "missing")), ST_INPUT);
    check_ok(lines_close(&lines));
    check_status(lines_open(&lines, dir), ST_INPUT);
    check_ok(lines_open(&lines, temp_text(dir, "empty", "")));
    assert_false(lines_next(&lines, &line));
    check_ok(lines_close(&lines));
    str_release(&out);
    str_release(&text);
}

static size_t count_names(const char *path) {
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_ok(dir_list(path, arena, &names, &count));
    arena_free(arena);
    return count;
}

TEST(written_files_appear_whole) {
    const char *folder = temp_file(dir, "w"), *path = temp_file(dir, "w/out.bin");
    check_ok(dir_make(folder));
    FileWriter writer;
    check_ok(writer_open(&writer, path));
    static uint8_t big[700000];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (uint8_t)(i * 7);
    writer_write(&writer, big, 100);
    writer_write(&writer, big + 100, sizeof big - 100);
    writer_printf(&writer, "%s=%d", "x", 5);
    assert_int_equal(writer.written, sizeof big + 3);
    assert_int_equal(writer.crc, crc32(crc32(0, big, sizeof big), (const uint8_t *)"x=5", 3));
    assert_false(file_exists(path));
    check_contains(writer.temporary, "/w/.out.bin.tmp-");
    check_ok(writer_commit(&writer));
    writer_abandon(&writer);
    Mapping mapping;
    check_ok(file_map(path, &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    assert_memory_equal(mapping.data, big, sizeof big);
    file_unmap(&mapping);
    check_ok(writer_open(&writer, path)); /* a change of mind leaves the old one */
    writer_write(&writer, "new", 3);
    FileWriter second; /* the same file by another name */
    check_status(writer_open(&second, temp_file(dir, "w/./out.bin")), ST_CONFIG);
    check_text("is to hold two results");
    writer_abandon(&second);
    assert_true(file_exists(writer.temporary));
    writer_abandon(&writer);
    check_ok(file_map(path, &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    file_unmap(&mapping);
    assert_int_equal(count_names(folder), 1);
    check_status(writer_open(&writer, folder), ST_INPUT);
    check_text("it is a folder");
    check_status(writer_open(&writer, "/dev/null"), ST_INPUT);
    check_status(file_write_all(temp_file(dir, "missing/x"), "x", 1), ST_INPUT);
    check_status(writer_commit(&writer), ST_INPUT);
    check_ok(file_copy(path, temp_file(folder, "copy")));
    check_ok(file_map(temp_file(folder, "copy"), &mapping));
    assert_int_equal(mapping.size, sizeof big + 3);
    file_unmap(&mapping);
    check_status(file_copy(temp_file(dir, "missing"), path), ST_INPUT);
    check_status(file_copy(path, folder), ST_INPUT);
}

TEST(files_grow_and_shrink) {
    const char *path = temp_file(dir, "metrics");
    check_ok(file_append(path, "one\n", 4));
    check_ok(file_append(path, "two\n", 4));
    check_status(file_truncate(path, 9), ST_INPUT);
    check_ok(file_truncate(path, 4));
    Str text = {0};
    check_ok(file_read(path, 100, &text));
    assert_string_equal(str_text(&text), "one\n");
    str_release(&text);
    check_status(file_truncate(temp_file(dir, "missing"), 0), ST_INPUT);
    check_status(file_append(dir, "x", 1), ST_RESOURCE);
}

/* A file size limit stands for a full disk: the same road through the code, without a disk of our own. */
static void with_a_full_disk(void) {
    struct rlimit limit = {100000, 100000};
    signal(SIGXFSZ, SIG_IGN);
    const char *path = temp_file(dir, "full/model"), *log = temp_file(dir, "full/log");
    static char big[300000];
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(1);
    if (file_write_all(path, big, sizeof big) != ST_RESOURCE || !strstr(status_text(), "model") || !status_hint_text()[0]) _exit(2);
    FileWriter writer;
    if (writer_open(&writer, path) != ST_OK) _exit(3);
    for (int i = 0; i < 3000; i++) writer_write(&writer, big, 100);
    (void)status_fail(ST_INPUT, "something else");
    if (writer_commit(&writer) != ST_RESOURCE || !strstr(status_text(), "model")) _exit(4);
    if (file_append(log, big, sizeof big) != ST_RESOURCE) _exit(5);
    if (file_copy(temp_file(dir, "full/large"), path) != ST_RESOURCE) _exit(6);
}

TEST(a_full_disk_loses_nothing) {
    static const char large[200000];
    check_ok(dir_make(temp_file(dir, "full")));
    temp_text(dir, "full/model", "old");
    temp_text(dir, "full/log", "old\n");
    check_ok(file_write_all(temp_file(dir, "full/large"), large, sizeof large));
    int result = in_child(with_a_full_disk);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    Str text = {0};
    check_ok(file_read(temp_file(dir, "full/model"), 100, &text));
    assert_string_equal(str_text(&text), "old");
    check_ok(file_read(temp_file(dir, "full/log"), 100, &text));
    assert_string_equal(str_text(&text), "old\n");
    assert_int_equal(count_names(temp_file(dir, "full")), 3);
    str_release(&text);
}

#ifdef __linux__
/* A file system of 128 KiB that only the child sees. Exit code 77: this user may not mount one. */
static void on_a_tiny_disk(void) {
    static char big[300000];
    const char *disk = temp_file(dir, "disk"), *path = temp_file(dir, "disk/model"), *log = temp_file(dir, "disk/log");
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(77);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=128k") != 0) _exit(77);
    if (file_write_all(path, "old", 3) != ST_OK || file_append(log, "old\n", 4) != ST_OK) _exit(1);
    if (file_write_all(path, big, sizeof big) != ST_RESOURCE || !strstr(status_text(), "No space left")) _exit(2);
    if (file_append(log, big, sizeof big) != ST_RESOURCE) _exit(3);
    Mapping kept;
    if (file_map(path, &kept) != ST_OK || kept.size != 3) _exit(4);
    file_unmap(&kept);
    if (file_map(log, &kept) != ST_OK || kept.size != 4) _exit(5);
    file_unmap(&kept);
    if (count_names(disk) != 2) _exit(6);
}

TEST(a_tiny_disk_loses_nothing) {
    check_ok(dir_make(temp_file(dir, "disk")));
    int result = in_child(on_a_tiny_disk);
    assert_true(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77) skip();
    assert_int_equal(WEXITSTATUS(result), 0);
}
#endif

TEST(dirs_are_made_listed_and_removed) {
    Arena *arena = arena_new(0);
    check_ok(dir_make(temp_file(dir, "p/q/r/")));
    check_ok(dir_make(temp_file(dir, "p/q/r")));
    temp_text(dir, "p/q/b", "b");
    temp_text(dir, "p/q/.hidden", "h");
    temp_text(dir, "p/q/a", "a");
    temp_text(dir, "outside", "stays");
    assert_int_equal(symlink(temp_file(dir, "outside"), temp_file(dir, "p/q/link")), 0);
    assert_int_equal(symlink(dir, temp_file(dir, "p/q/dirlink")), 0);
    char **names;
    size_t count;
    check_ok(dir_list(temp_file(dir, "p/q"), arena, &names, &count));
    static const char *const want[] = {".hidden", "a", "b", "dirlink", "link", "r"};
    assert_int_equal(count, COUNT_OF(want));
    for (size_t i = 0; i < count; i++) assert_string_equal(names[i], want[i]);
    check_ok(dir_list(temp_file(dir, "p/q/r"), arena, &names, &count));
    assert_int_equal(count, 0);
    check_status(dir_list(temp_file(dir, "none"), arena, &names, &count), ST_INPUT);
    check_status(dir_make(temp_file(dir, "outside/x")), ST_RESOURCE);
    check_status(dir_make(temp_file(dir, "outside")), ST_RESOURCE);
    check_status(dir_could_make(temp_file(dir, "outside/x/y")), ST_RESOURCE);
    check_ok(dir_could_make(temp_file(dir, "not/yet/there")));
    check_ok(dir_could_make("not-yet-there"));
    check_ok(dir_rename(temp_file(dir, "p/q"), temp_file(dir, "p/s")));
    assert_true(dir_exists(temp_file(dir, "p/s/r")) && !dir_exists(temp_file(dir, "p/q")));
    check_status(dir_rename(temp_file(dir, "none"), temp_file(dir, "p/t")), ST_INPUT);
    check_ok(dir_sync(dir));
    check_ok(dir_remove(temp_file(dir, "p")));
    assert_false(dir_exists(temp_file(dir, "p")));
    assert_true(file_exists(temp_file(dir, "outside"))); /* links are removed, not followed */
    check_ok(dir_remove(temp_file(dir, "p")));
    check_status(dir_remove(temp_file(dir, "outside")), ST_INPUT);
    assert_string_equal(path_join(arena, "a", "b"), "a/b");
    assert_string_equal(path_join(arena, "a/", "b"), "a/b");
    assert_string_equal(path_join(arena, "", "b"), "b");
    assert_string_equal(path_join(arena, "a", "/b"), "/b");
    assert_null(path_join(arena, NULL, "b"));
    assert_null(path_join(arena, "a", NULL));
    assert_string_equal(path_name("a/b/c.txt"), "c.txt");
    assert_string_equal(path_name("c.txt"), "c.txt");
    arena_free(arena);
}

static Status fill_folder(void *context, const char *made) {
    const char *text = context;
    temp_text(made, "text", text);
    return strcmp(text, "broken") ? ST_OK : status_hint(status_fail(ST_NUMERIC, "it does not fit"), "make room");
}

TEST(folders_are_built_whole_or_not_at_all) {
    char built[600];
    snprintf(built, sizeof built, "%s/built/folder", dir);
    Arena *arena = arena_new(0);
    char **names;
    size_t count;
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    assert_false(dir_exists(built));
    check_ok(dir_build(temp_file(dir, "built/folder//"), fill_folder, "first"));
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    check_text("it does not fit");
    assert_string_equal(status_hint_text(), "make room");
    Str text = {0};
    check_ok(file_read(temp_file(dir, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "first");
    check_ok(dir_build(built, fill_folder, "second"));
    str_clear(&text);
    check_ok(file_read(temp_file(dir, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "second");
    check_ok(dir_list(temp_file(dir, "built"), arena, &names, &count));
    assert_int_equal(count, 1); /* nothing stays beside it */
    assert_int_equal(symlink("built/folder", temp_file(dir, "built_link")), 0);
    check_ok(dir_build(temp_file(dir, "built_link"), fill_folder, "third"));
    str_clear(&text);
    check_ok(file_read(temp_file(dir, "built/folder/text"), 100, &text)); /* what the link leads to is replaced */
    assert_string_equal(str_text(&text), "third");
    assert_int_equal(unlink(temp_file(dir, "built_link")), 0);
    check_ok(dir_rename(built, temp_file(dir, "built/.folder.tune-old"))); /* a process was killed between its two renames */
    check_status(dir_build(built, fill_folder, "broken"), ST_NUMERIC);
    str_clear(&text);
    check_ok(file_read(temp_file(dir, "built/folder/text"), 100, &text));
    assert_string_equal(str_text(&text), "third");
    assert_int_equal(symlink("nowhere", temp_file(dir, "dangling")), 0);
    check_status(dir_build(temp_file(dir, "dangling"), fill_folder, "fourth"), ST_INPUT);
    check_text("a link that leads nowhere");
    check_status(dir_build(temp_file(dir, "built/folder/text"), fill_folder, "over a file"), ST_RESOURCE);
    assert_true(file_exists(temp_file(dir, "built/folder/text")));
    check_status(dir_build(NULL, fill_folder, "nowhere"), ST_RESOURCE);
    str_release(&text);
    arena_free(arena);
}

/* ---- random numbers ---- */

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

/* ---- JSON ---- */

TEST(json_errors_say_where) {
    static const struct {
        const char *text, *part;
    } wrong[] = {{"{\"a\": 1,\n \"b\" 2}", "'f.json': line 2"},
                 {"{\"a\": 1, \"a\": 2}", "duplicate"},
                 {"{\"a\": 1} x", "end of file"},
                 {"", "line 1"},
                 {"{\"a\": \"\xff\"}", "byte 0xff"},
                 {"[NaN]", "line 1"},
                 {"[1e999]", "overflow"},
                 {"[99999999999999999999]", "too big"},
                 {"{\"a\": tru}", "line 1"},
                 {"[1", "line 1"}};
    json_t *root;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        check_status(json_read_text(wrong[i].text, strlen(wrong[i].text), "f.json", &root), ST_INPUT);
        assert_null(root);
        check_text(wrong[i].part);
    }
    Str deep = {0};
    for (int i = 0; i < 100000; i++) str_append_char(&deep, '[');
    check_status(json_read_text(deep.data, deep.len, "deep", &root), ST_INPUT);
    str_release(&deep);
    check_status(json_read_file(temp_file(dir, "missing.json"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(dir, "empty.json", ""), &root), ST_INPUT);
    check_ok(json_read_file(temp_text(dir, "ok.json", "{\"a\": [1, 2]}"), &root));
    assert_int_equal(json_array_size(json_object_get(root, "a")), 2);
    json_decref(root);
}

/* model_max_length of tokenizers without one, as transformers writes it; what stands in strings, and other integers, stay as they are. */
TEST(json_files_may_hold_huge_integers) {
    json_t *root;
    int64_t whole;
    double number;
    const char *string;
    check_ok(json_read_file(
        temp_text(
            dir, "huge.json",
            "{\"m\": 1000000000000000019884624838656, \"n\": -12345678901234567890, \"i\": 7, \"s\": \"a\\\\\\\" 99999999999999999999\", \"r\": 1.25e2}"),
        &root));
    check_ok(json_get_double(root, "huge.json", "m", &number));
    check_close(number, 1e30, 0);
    check_ok(json_get_double(root, "huge.json", "n", &number));
    check_close(number, -12345678901234567890.0, 0);
    check_ok(json_get_int(root, "huge.json", "i", &whole));
    check_ok(json_get_string(root, "huge.json", "s", &string));
    assert_string_equal(string, "a\\\" 99999999999999999999");
    check_ok(json_get_double(root, "huge.json", "r", &number));
    check_close(number, 125, 0);
    json_decref(root);
    check_status(json_read_file(temp_text(dir, "huge.json", "[99999999999999999999, \"open"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(dir, "huge.json", "[99999999999999999999, \"open\\"), &root), ST_INPUT);
    check_status(json_read_file(temp_text(dir, "huge.json", "[1e999]"), &root), ST_INPUT);
}

TEST(rows_may_hold_what_nobody_uses) {
    static const char text[] =
        "{\"big\": 18446744073709551615, \"less\": -99999999999999999999, \"far\": [1e999, -1E+400], \"nul\": {\"a\": [\"x\\u0000y\"]}, \"i\": -7, \"most\": 9223372036854775807, \"s\": \"18446744073709551615 1e999\"}";
    json_error_t error;
    json_t *row = json_load_row(text, strlen(text), true, &error);
    assert_non_null(row);
    check_close(json_real_value(json_object_get(row, "big")), 18446744073709551615.0, 0);
    check_close(json_real_value(json_object_get(row, "less")), -99999999999999999999.0, 0);
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "far"), 0)), "1e999");
    assert_string_equal(json_string_value(json_array_get(json_object_get(row, "far"), 1)), "-1E+400");
    assert_int_equal(json_integer_value(json_object_get(row, "i")), -7);
    assert_true(json_integer_value(json_object_get(row, "most")) == INT64_MAX);
    assert_string_equal(json_string_value(json_object_get(row, "s")), "18446744073709551615 1e999");
    assert_true(json_holds_nul(row));
    json_object_del(row, "nul");
    assert_false(json_holds_nul(row) || json_holds_nul(NULL));
    json_decref(row);
    assert_null(json_load_row(text, strlen(text), false, &error));
    assert_null(json_load_row("{\"a\": 1e999, \"b\": 01}", 21, true, &error));
    assert_null(json_load_row("{\"a\": 1, \"a\": 2}", 16, true, &error));
}

TEST(json_members_have_types) {
    static const char text[] = "{\"i\": 5, \"d\": 0.5, \"b\": true, \"s\": \"x\", \"n\": null}";
    json_t *root;
    int64_t whole = -1;
    double number = -1;
    bool truth = false;
    const char *string = "old";
    check_ok(json_read_text(text, sizeof text - 1, "t", &root));
    check_ok(json_get_int(root, "t", "i", &whole));
    assert_int_equal(whole, 5);
    check_ok(json_get_double(root, "t", "i", &number));
    assert_true(number == 5);
    check_ok(json_get_double(root, "t", "d", &number));
    assert_true(number == 0.5);
    check_ok(json_get_bool(root, "t", "b", &truth));
    assert_true(truth);
    check_ok(json_get_string(root, "t", "n", &string));
    check_ok(json_get_string(root, "t", "missing", &string));
    assert_string_equal(string, "old");
    check_ok(json_get_string(root, "t", "s", &string));
    assert_string_equal(string, "x");
    check_status(json_get_int(root, "config.json", "d", &whole), ST_INPUT);
    check_text("wrong type of 'd' in 'config.json': expected an integer, got a number");
    check_status(json_get_double(root, "t", "s", &number), ST_INPUT);
    check_status(json_get_bool(root, "t", "i", &truth), ST_INPUT);
    check_status(json_get_string(root, "t", "b", &string), ST_INPUT);
    assert_int_equal(whole, 5);
    json_decref(root);
}

static void write_sample(JsonWriter *w) {
    jw_object(w, NULL);
    jw_string(w, "a", "x\"");
    jw_array(w, "list");
    jw_int(w, NULL, INT64_MIN);
    jw_double(w, NULL, 0.1);
    jw_double(w, NULL, 2);
    jw_double(w, NULL, (double)NAN);
    jw_object(w, NULL);
    jw_end_object(w);
    jw_end_array(w);
    jw_array(w, "none");
    jw_end_array(w);
    jw_bool(w, "yes", true);
    jw_string(w, "no", NULL);
    jw_raw(w, "raw", "[1]");
    jw_end_object(w);
}

TEST(json_is_written) {
    JsonWriter w = {0};
    write_sample(&w);
    assert_string_equal(
        str_text(&w.text),
        "{\"a\": \"x\\\"\", \"list\": [-9223372036854775808, 0.1, 2.0, null, {}], \"none\": [], \"yes\": true, \"no\": null, \"raw\": [1]}");
    jw_release(&w);
    w = (JsonWriter){.pretty = true};
    write_sample(&w);
    check_contains(str_text(&w.text), "{\n  \"a\": \"x\\\"\",\n  \"list\": [\n    -9223372036854775808,\n    0.1,");
    check_contains(str_text(&w.text), "\n    {}\n  ],\n  \"none\": [],\n");
    json_t *root;
    check_ok(json_read_text(w.text.data, w.text.len, "written", &root));
    json_decref(root);
    jw_release(&w);
}

/* ---- YAML ---- */

TEST(yaml_becomes_a_tree) {
    Arena *arena = arena_new(0);
    Yaml *root;
    static const char text[] = "# head\nmodel: m\nlora:\n  rank: 16\n  list: [a, 'b', 3]\nlr: 2e-4\nnone: ~\nstring: \"12\"\nempty: {}\n";
    check_ok(yaml_read_text(text, sizeof text - 1, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_MAP);
    assert_int_equal(root->n, 6);
    const Yaml *lora = yaml_get(root, "lora"), *list = yaml_get(lora, "list");
    assert_int_equal(yaml_get(lora, "rank")->line, 4);
    assert_int_equal(root->key_lines[1], 3);
    assert_int_equal(list->kind, YAML_LIST);
    assert_int_equal(list->n, 3);
    assert_string_equal(list->items[1]->text, "b");
    assert_true(list->items[1]->quoted && !list->items[0]->quoted);
    int64_t whole = 0;
    double number = 0;
    bool truth = true;
    assert_true(yaml_as_int(yaml_get(lora, "rank"), &whole) && whole == 16);
    assert_true(yaml_as_double(yaml_get(root, "lr"), &number) && number == 2e-4);
    assert_false(yaml_as_int(yaml_get(root, "lr"), &whole));
    assert_false(yaml_as_int(yaml_get(root, "string"), &whole));
    assert_int_equal(yaml_get(root, "none")->kind, YAML_NULL);
    assert_int_equal(yaml_get(root, "empty")->kind, YAML_MAP);
    assert_null(yaml_get(root, "missing"));
    assert_null(yaml_get(list, "a"));
    assert_false(yaml_as_bool(list, &truth) || yaml_as_int(NULL, &whole));
    check_ok(yaml_read_text("", 0, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_NULL);
    check_ok(yaml_read_file(temp_text(dir, "r.yaml", "a: 1\n"), arena, &root));
    assert_int_equal(root->n, 1);
    check_ok(yaml_read_file(temp_text(dir, "r.yaml",
                                      "\xEF\xBB\xBF"
                                      "a: 1\r\nb: 2\r\n"),
                            arena, &root));
    assert_true(yaml_as_int(yaml_get(root, "b"), &whole) && whole == 2 && yaml_get(root, "b")->line == 2);
    check_ok(yaml_read_text("\xEF\xBB\xBF", 3, "r.yaml", arena, &root));
    assert_int_equal(root->kind, YAML_NULL);
    check_status(yaml_read_file(temp_file(dir, "missing.yaml"), arena, &root), ST_CONFIG);
    arena_free(arena);
}

TEST(yaml_scalars_have_types) {
    static const struct {
        const char *text;
        bool is_int, is_double;
        int is_bool;
        double value;
    } cases[] = {
        {"1", true, true, 0, 1},        {"-7", true, true, 0, -7},    {"+7", true, true, 0, 7},      {"2e-4", false, true, 0, 2e-4},
        {".5", false, true, 0, 0.5},    {"1.", false, true, 0, 1},    {"1e400", false, false, 0, 0}, {"99999999999999999999", false, true, 0, 1e20},
        {"1x", false, false, 0, 0},     {"-", false, false, 0, 0},    {".", false, false, 0, 0},     {"0x10", false, false, 0, 0},
        {"nan", false, false, 0, 0},    {".inf", false, false, 0, 0}, {"true", false, false, 1, 0},  {"Off", false, false, 2, 0},
        {"YES", false, false, 1, 0},    {"no", false, false, 2, 0},   {"on", false, false, 1, 0},    {"False", false, false, 2, 0},
        {"truely", false, false, 0, 0}, {"1 2", false, false, 0, 0}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        Yaml node = {.kind = YAML_SCALAR, .text = cases[i].text};
        int64_t whole = 0;
        double number = 0;
        bool truth = false;
        if (yaml_as_int(&node, &whole) != cases[i].is_int || yaml_as_double(&node, &number) != cases[i].is_double) fail_msg("'%s'", cases[i].text);
        if (cases[i].is_int) assert_int_equal(whole, (int64_t)cases[i].value);
        if (cases[i].is_double) assert_true(number == cases[i].value);
        if (yaml_as_bool(&node, &truth) != (cases[i].is_bool > 0)) fail_msg("'%s'", cases[i].text);
        if (cases[i].is_bool) assert_int_equal(truth, cases[i].is_bool == 1);
    }
}

TEST(yaml_errors_say_where) {
    static const struct {
        const char *text, *part;
    } wrong[] = {{"a: 1\nb: [1, 2\nc: 3\n", "'r.yaml': line 3"},
                 {"a: 1\nb: 2\na: 3\n", "line 3: key 'a' stands already on line 1"},
                 {"a: &x 1\n", "line 1: anchors"},
                 {"a: 1\nb: *x\n", "line 2: aliases"},
                 {"a: !!str 1\n", "line 1: tags"},
                 {"a: 1\n---\nb: 2\n", "second document"},
                 {"a: 1\n? [x]\n: 2\n", "line 2: a key must be"},
                 {"a: \"x\\0y\"\n", "NUL"},
                 {"a:\n\t- 1\n", "line 2"},
                 {"a: b: c\n", "line 1"},
                 {"a: 1\nb: \xff\xff\n", "'r.yaml': line"},
                 {"'unclosed", "line"},
                 {"*x : 1\n", "aliases"}};
    Arena *arena = arena_new(0);
    Yaml *root;
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        check_status(yaml_read_text(wrong[i].text, strlen(wrong[i].text), "r.yaml", arena, &root), ST_CONFIG);
        assert_null(root);
        check_text(wrong[i].part);
    }
    Str text = {0};
    for (int i = 0; i < 40; i++) str_append(&text, "[");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("nested too deep");
    str_clear(&text);
    for (int i = 0; i < 100001; i++) str_append(&text, "- 1\n");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("too many values");
    str_clear(&text);
    for (int i = 0; i < 200000; i++) str_append(&text, "# long\n");
    check_status(yaml_read_text(text.data, text.len, "r.yaml", arena, &root), ST_CONFIG);
    check_text("1 MiB");
    str_release(&text);
    for (long n = 1; n < 12; n++) { /* each allocation in turn fails */
        arena_fail_at(n);
        Status status = yaml_read_text("a: [1, {b: c}]\n", 15, "r.yaml", arena, &root);
        assert_true(status == ST_RESOURCE ? !root : status == ST_OK && root);
        if (n == 1) assert_int_equal(status, ST_RESOURCE);
    }
    arena_fail_at(0);
    arena_free(arena);
}

TEST(yaml_is_written_so_that_it_reads_back) {
    static const char *const texts[] = {"plain",    "with space",    "12",    "1e5", "true", "null",        "",      "~",  "a: b", "# no", "it's",
                                        "\"q\"",    "line\nbreak",   "é",     "- x", "[1]",  "path/to/x.y", "../up", ".5", "no",   "y",    "\x7f",
                                        "\xC2\x85", "\xEF\xBB\xBFx", "tab\t", "<<",  "a#b",  "@x"};
    Arena *arena = arena_new(0);
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        Str str = {0};
        Yaml *root;
        str_append(&str, "key: ");
        str_append_yaml(&str, texts[i]);
        check_ok(yaml_read_text(str.data, str.len, "written", arena, &root));
        const Yaml *value = yaml_get(root, "key");
        assert_int_equal(value->kind, YAML_SCALAR);
        assert_string_equal(value->text, texts[i]);
        double number;
        bool truth;
        assert_false(yaml_as_double(value, &number) || yaml_as_bool(value, &truth));
        str_release(&str);
    }
    Str str = {0};
    str_append_yaml(&str, "models/llama-3.gguf");
    assert_string_equal(str_text(&str), "models/llama-3.gguf");
    str_release(&str);
    arena_free(arena);
}

/* ---- messages, machine ---- */

TEST(messages_reach_the_sink) {
    Str str = {0};
    log_message(LOG_WARNING, "nobody listens");
    assert_false(log_wants(LOG_WARNING));
    log_set_sink(note, &str, LOG_WARNING);
    log_message(LOG_INFO, "too fine");
    log_set_sink(note, &str, LOG_INFO);
    log_message(LOG_WARNING, "w%d", 1);
    log_message(LOG_INFO, "i");
    assert_string_equal(str_text(&str), "0 w1;1 i;");
    log_set_sink(NULL, NULL, LOG_WARNING);
    str_clear(&str);
    log_set_record(note, &str);
    log_message(LOG_WARNING, "kept where nobody listens");
    log_message(LOG_INFO, "i");
    log_set_record(NULL, NULL);
    log_message(LOG_WARNING, "gone");
    assert_string_equal(str_text(&str), "0 kept where nobody listens;");
    str_release(&str);
}

#ifndef SANITIZED
static void limit_the_address_space(void) {
    const uint64_t bytes = (uint64_t)4 << 30;
    struct rlimit limit = {bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0 || memory_available() == 0 || memory_available() >= bytes) _exit(1);
    limit.rlim_cur = 1;
    if (setrlimit(RLIMIT_AS, &limit) != 0 || memory_available() != 0) _exit(2);
}
#endif

#if !defined(SANITIZED) && defined(__linux__)
static void read_without_memory(void) {
    Lines lines;
    Slice line;
    FILE *file = fopen(temp_file(dir, "endless"), "w"); /* a line of 1 GiB, most of it a hole */
    if (!file || fputs("short\n", file) < 0 || ftruncate(fileno(file), (off_t)1 << 30) != 0 || fclose(file) != 0) _exit(1);
    unsigned long pages = 0;
    FILE *mapped = fopen("/proc/self/statm", "r");
    if (!mapped || fscanf(mapped, "%lu", &pages) != 1 || fclose(mapped) != 0) _exit(1);
    struct rlimit limit = {0};
    limit.rlim_cur = limit.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)1 << 28);
    if (lines_open(&lines, temp_file(dir, "endless")) != ST_OK || setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    if (!lines_next(&lines, &line) || lines_next(&lines, &line)) _exit(3);
    if (lines_close(&lines) != ST_RESOURCE || !strstr(status_text(), "out of memory for line 2 of")) _exit(4);
}

TEST(a_line_without_memory_is_no_fault_of_the_file) {
    int result = in_child(read_without_memory);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}
#endif

TEST(the_machine_is_known) {
    assert_true(memory_available() > (uint64_t)16 << 20 && memory_available() < (uint64_t)1 << 50);
    assert_true(cores_available() >= 1);
#ifdef __linux__
    cpu_set_t all, one;
    int core = 0;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    while (!CPU_ISSET(core, &all)) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cores_available(), 1);
    assert_int_equal(cores_physical(NULL), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
#endif
    assert_in_range(cores_physical(NULL), 1, cores_available());
    assert_true(memory_peak() > 1 << 20 && memory_peak() < (uint64_t)1 << 45);
    assert_true(memory_resident() > 1 << 20 && memory_resident() < (uint64_t)1 << 45);
#ifndef SANITIZED
    int result = in_child(limit_the_address_space);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
#endif
    double before = clock_seconds();
    assert_true(before > 0 && clock_seconds() >= before);
}

static void ask_to_stop(void) {
    if (interrupt_requested()) _exit(1);
    interrupt_request();
    if (!interrupt_requested()) _exit(2);
}

/* Lines of usual lengths are read to their end: what is written after an interrupt needs them. */
static void stop_within_a_line(void) {
    Lines lines;
    Slice line;
    interrupt_request();
    if (lines_open(&lines, temp_file(dir, "a_long_line")) != ST_OK || !lines_next(&lines, &line) || line.len != 5) _exit(1);
    if (lines_next(&lines, &line)) _exit(2);
    if (lines_close(&lines) != ST_INTERRUPTED) _exit(3);
}

TEST(interrupts_are_seen) {
    int result = in_child(ask_to_stop);
    assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
    Str text = {0};
    str_append(&text, "short\n");
    for (int i = 0; i < 1 << 20; i++) str_append_char(&text, 'x');
    temp_text(dir, "a_long_line", str_text(&text));
    str_release(&text);
    result = in_child(stop_within_a_line);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
}

/* ---- the mutation helper itself ---- */

static void tally(const uint8_t *bytes, size_t len, void *context) {
    uint64_t *sum = context;
    for (size_t i = 0; i < len; i++) *sum = *sum * 31 + bytes[i];
    *sum = *sum * 31 + len;
}

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

TEST(mutations_are_the_same_in_every_run) {
    uint64_t first = 0, second = 0, other = 0;
    check_mutations("{\"a\": 12}", 9, 500, tally, &first);
    check_mutations("{\"a\": 12}", 9, 500, tally, &second);
    check_mutations("{\"b\": 12}", 9, 500, tally, &other);
    assert_true(first == second && first != other);
    check_mutations("", 0, 20, tally, &other);
}

#ifdef __linux__
/* What the system says of the cores of all processors that the process may use: `format` gets a processor's number. */
static void say_siblings(const char *folder, const cpu_set_t *set, const char *format) {
    for (int i = 0; i < CPU_SETSIZE; i++) {
        char name[64], text[64];
        if (!CPU_ISSET(i, set)) continue;
        snprintf(name, sizeof name, "cpu%d", i);
        mkdir(temp_file(folder, name), 0700);
        snprintf(name, sizeof name, "cpu%d/topology", i);
        mkdir(temp_file(folder, name), 0700);
        snprintf(name, sizeof name, "cpu%d/topology/thread_siblings_list", i);
        snprintf(text, sizeof text, format, i, i);
        temp_text(folder, name, text);
    }
}

TEST(threads_of_a_core_count_once) {
    cpu_set_t all;
    char cpus[sizeof dir + 8];
    snprintf(cpus, sizeof cpus, "%s/cpus", dir);
    check_ok(dir_make(cpus));
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    int free_of_quota = CPU_COUNT(&all) == cores_available();
    assert_int_equal(cores_physical(cpus), cores_available()); /* nothing is known */
    say_siblings(cpus, &all, "%d\n");
    assert_int_equal(cores_physical(cpus), cores_available());
    say_siblings(cpus, &all, "0-1023\n");
    assert_int_equal(cores_physical(cpus), 1);
    say_siblings(cpus, &all, "0,%d,1023\n");
    if (free_of_quota) assert_int_equal(cores_physical(cpus), CPU_ISSET(0, &all) ? 1 : CPU_COUNT(&all));
    say_siblings(cpus, &all, "garbage\n");
    assert_int_equal(cores_physical(cpus), cores_available());
}
#endif

static int make_dir(void **state) {
    (void)state;
    temp_dir_make(dir, sizeof dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    temp_dir_remove(dir);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failures_keep_text_and_hint),
        cmocka_unit_test(asserts_abort_and_failing_tests_show),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(cleared_memory_is_zero),
        cmocka_unit_test(arena_gives_aligned_separate_pieces),
        cmocka_unit_test(arena_counts_and_reuses),
        cmocka_unit_test(arena_reserves_one_block),
        cmocka_unit_test(arena_expects_what_fills_one_block),
        cmocka_unit_test(arena_rewinds_to_a_mark),
        cmocka_unit_test(arena_refuses_past_its_limit),
        cmocka_unit_test(arena_fails_when_told_to),
        cmocka_unit_test(arrays_grow),
        cmocka_unit_test(strings_grow),
        cmocka_unit_test(doubles_are_short_and_exact),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(json_strings_are_quoted),
        cmocka_unit_test(messages_find_words),
        cmocka_unit_test(a_shell_reads_back_the_word),
        cmocka_unit_test(files_are_mapped_and_read),
        cmocka_unit_test(mapped_files_may_be_written_to),
        cmocka_unit_test(lines_of_every_length),
#if !defined(SANITIZED) && defined(__linux__)
        cmocka_unit_test(a_line_without_memory_is_no_fault_of_the_file),
#endif
        cmocka_unit_test(written_files_appear_whole),
        cmocka_unit_test(files_grow_and_shrink),
        cmocka_unit_test(a_full_disk_loses_nothing),
#ifdef __linux__
        cmocka_unit_test(a_tiny_disk_loses_nothing),
#endif
        cmocka_unit_test(dirs_are_made_listed_and_removed),
        cmocka_unit_test(folders_are_built_whole_or_not_at_all),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(numbers_have_their_moments),
        cmocka_unit_test(permutations_are_bijections),
        cmocka_unit_test(json_errors_say_where),
        cmocka_unit_test(json_files_may_hold_huge_integers),
        cmocka_unit_test(rows_may_hold_what_nobody_uses),
        cmocka_unit_test(json_members_have_types),
        cmocka_unit_test(json_is_written),
        cmocka_unit_test(yaml_becomes_a_tree),
        cmocka_unit_test(yaml_scalars_have_types),
        cmocka_unit_test(yaml_errors_say_where),
        cmocka_unit_test(yaml_is_written_so_that_it_reads_back),
        cmocka_unit_test(messages_reach_the_sink),
        cmocka_unit_test(the_machine_is_known),
#ifdef __linux__
        cmocka_unit_test(threads_of_a_core_count_once),
#endif
        cmocka_unit_test(interrupts_are_seen),
        cmocka_unit_test(mutations_are_the_same_in_every_run),
        cmocka_unit_test(tallies_lose_no_digits),
        cmocka_unit_test(mapped_files_may_be_cut), /* last: this program trusts its files no more */
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
