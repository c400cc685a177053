/* SPDX-License-Identifier: Apache-2.0 */
/* The TensorBoard event file, read by a reader of our own: frames, checksums, fields; after a kill and a resume no step is there twice. */
#include "lib/run/events.h"
#include "lib/run/checkpoint.h"
#include "lib/run/run.h"
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a small reader ---- */

typedef struct Scalar {
    double time, value;
    int64_t step;
    char tag[48];
} Scalar;
typedef struct Read {
    Scalar scalars[64];
    size_t n;
    int versions, starts;
    size_t whole;
} Read; /* whole: bytes of whole records */

static uint64_t little_endian(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static void check_masked(const uint8_t *bytes, size_t size, const uint8_t *crc) {
    uint32_t mine = events_crc(bytes, size);
    assert_int_equal((uint32_t)little_endian(crc, 4), (uint32_t)(((mine >> 15) | (mine << 17)) + 0xa282ead8u));
}

/* One field of a message: *number for whole numbers and bits of reals, else *bytes and *number as its length. */
static const uint8_t *next_field(const uint8_t *at, int *field, uint64_t *number, const uint8_t **bytes) {
    uint64_t key = *at++;
    assert_true(key < 0x80);
    *field = (int)(key >> 3);
    *number = 0;
    *bytes = NULL;
    switch (key & 7) {
    case 1: *number = little_endian(at, 8); return at + 8;
    case 5: *number = little_endian(at, 4); return at + 4;
    default:
        for (int shift = 0;; shift += 7) {
            *number |= (uint64_t)(*at & 0x7f) << shift;
            if (!(*at++ & 0x80)) break;
        }
        if ((key & 7) == 0) return at;
        *bytes = at;
        return at + *number;
    }
}

static double real_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_value(const uint8_t *at, const uint8_t *end, Scalar scalar, Read *read) {
    int field;
    uint64_t number;
    const uint8_t *bytes;
    while (at < end) {
        at = next_field(at, &field, &number, &bytes);
        if (field == 1) snprintf(scalar.tag, sizeof scalar.tag, "%.*s", (int)number, (const char *)bytes);
        if (field == 2) {
            uint32_t bits = (uint32_t)number;
            float value;
            memcpy(&value, &bits, sizeof value);
            scalar.value = (double)value;
        }
    }
    assert_ptr_equal(at, end);
    assert_true(read->n < COUNT_OF(read->scalars));
    read->scalars[read->n++] = scalar;
}

static void read_event(const uint8_t *at, const uint8_t *end, Read *read) {
    Scalar scalar = {0};
    int field;
    uint64_t number, length;
    const uint8_t *bytes, *value;
    while (at < end) {
        at = next_field(at, &field, &number, &bytes);
        if (field == 1) scalar.time = real_of(number);
        if (field == 2) scalar.step = (int64_t)number;
        if (field == 3) read->versions += number == strlen("brain.Event:2") && memcmp(bytes, "brain.Event:2", number) == 0;
        if (field == 7) read->starts += number == 2 && bytes[0] == 1 << 3 && bytes[1] == 1;
        for (const uint8_t *in = bytes; field == 5 && in < bytes + number;) {
            int inner;
            in = next_field(in, &inner, &length, &value);
            assert_int_equal(inner, 1);
            read_value(value, value + length, scalar, read);
        }
    }
    assert_ptr_equal(at, end);
}

static void read_events(const char *path, Read *read) {
    Mapping file;
    *read = (Read){0};
    check_ok(file_map(path, &file));
    size_t at = 0;
    while (file.size - at >= 16) {
        uint64_t size = little_endian(file.data + at, 8);
        check_masked(file.data + at, 8, file.data + at + 8);
        if (size + 16 > file.size - at) break;
        check_masked(file.data + at + 12, size, file.data + at + 12 + size);
        read_event(file.data + at + 12, file.data + at + 12 + size, read);
        at += 16 + size;
    }
    read->whole = at;
    file_unmap(&file);
}

/* ---- runs ---- */

static Run *run_of(const char *name, bool resume) {
    char output[400];
    snprintf(output, sizeof output, "output=%s/%s", test_folder, name);
    const char *overrides[] = {output};
    Recipe *recipe;
    Run *run;
    check_ok(recipe_read(NULL, overrides, 1, &recipe));
    check_ok(run_open(recipe, resume, &run));
    recipe_free(recipe);
    return run;
}

/* The one event file of a run. */
static const char *event_file(const Run *run, Arena *arena) {
    char **names;
    size_t n, found = 0;
    const char *path = NULL;
    check_ok(dir_list(run_dir(run), arena, &names, &n));
    for (size_t i = 0; i < n; i++)
        if (strstr(names[i], "tfevents")) {
            path = path_join(arena, run_dir(run), names[i]);
            found++;
        }
    assert_int_equal(found, 1);
    return path;
}

static void events_save(Run *run, int64_t step) {
    json_t *state = json_object();
    check_ok(checkpoint_save(run, step, NULL, 0, state, 2));
    json_decref(state);
}

static void check_scalar(const Read *read, size_t i, const char *tag, int64_t step, double value) {
    assert_true(i < read->n);
    assert_string_equal(read->scalars[i].tag, tag);
    assert_int_equal(read->scalars[i].step, step);
    check_close(read->scalars[i].value, value, 1e-7 * fabs(value));
}

TEST(crc_is_castagnoli) {
    uint8_t zeros[32] = {0}, counted[32];
    for (int i = 0; i < 32; i++) counted[i] = (uint8_t)i;
    assert_int_equal(events_crc("123456789", 9), 0xe3069283u); /* RFC 3720, B.4 */
    assert_int_equal(events_crc(zeros, 32), 0x8a9136aau);
    assert_int_equal(events_crc(counted, 32), 0x46dd794eu);
}

TEST(numbers_of_a_line_are_scalars) {
    Arena *arena = arena_new(0);
    Run *run = run_of("scalars", false);
    Read read;
    check_ok(run_metric(
        run, "{\"step\": 1, \"loss\": 2.5, \"grad_norm\": null, \"learning_rate\": 2e-4, \"tokens\": 300, \"odd\": \"text\", \"seconds\": 1.5}"));
    check_ok(run_metric(run, "{\"step\": 20000000000, \"eval_loss\": -1e-30, \"seconds\": 4.0}"));
    read_events(event_file(run, arena), &read);
    assert_int_equal(read.versions, 1);
    assert_int_equal(read.starts, 0);
    assert_int_equal(read.n, 4);
    check_scalar(&read, 0, "loss", 1, 2.5);
    check_scalar(&read, 1, "learning_rate", 1, 2e-4);
    check_scalar(&read, 2, "tokens", 1, 300);
    check_scalar(&read, 3, "eval_loss", 20000000000, -1e-30);
    check_close(read.scalars[3].time - read.scalars[0].time, 2.5, 1e-5);
    run_close(run);
    arena_free(arena);
}

TEST(resumed_runs_have_no_step_twice) {
    Arena *arena = arena_new(0);
    Run *run = run_of("resumed", false);
    Read read;
    check_ok(run_metric(run, "{\"step\": 1, \"loss\": 3.5, \"seconds\": 10}"));
    check_ok(run_metric(run, "{\"step\": 2, \"loss\": 2.5, \"seconds\": 20}"));
    events_save(run, 2);
    check_ok(run_metric(run, "{\"step\": 3, \"loss\": 99, \"seconds\": 30}"));
    char *before = arena_strdup(arena, path_name(event_file(run, arena)));
    run_close(run); /* as after a kill: an incomplete record, and a leftover temporary file */
    const char *old = arena_printf(arena, "%s/resumed/%s", test_folder, before);
    check_ok(file_append(old, "\x10\0\0", 3));
    check_ok(file_write_all(arena_printf(arena, "%s/resumed/.%s.tmp-1", test_folder, before), "half", 4));
    read_events(old, &read);
    assert_int_equal(read.n, 3);
    run = run_of("resumed", true);
    check_ok(run_metric(run, "{\"step\": 3, \"loss\": 1.5, \"seconds\": 30}"));
    const char *path = event_file(run, arena);
    assert_true(strcmp(path_name(path), before) > 0); /* readers take files in this order */
    read_events(path, &read);
    assert_int_equal(read.versions, 1);
    assert_int_equal(read.starts, 1);
    assert_int_equal(read.n, 3);
    for (int i = 0; i < 3; i++) check_scalar(&read, (size_t)i, "loss", i + 1, 3.5 - i);
    for (int i = 0; i < 2; i++) check_close(read.scalars[i + 1].time - read.scalars[i].time, 10, 1e-5);
    run_close(run);
    arena_free(arena);
}

/* Cut anywhere, what is before the cut reads as before. */
TEST(cut_files_stay_readable) {
    Arena *arena = arena_new(0);
    Run *run = run_of("cut", false);
    check_ok(run_metric(run, "{\"step\": 1, \"loss\": 3.5, \"seconds\": 10}"));
    check_ok(run_metric(run, "{\"step\": 2, \"loss\": 2.5, \"seconds\": 20}"));
    const char *path = event_file(run, arena);
    Mapping file;
    check_ok(file_map(path, &file));
    uint8_t *bytes = arena_alloc(arena, file.size);
    size_t size = file.size;
    memcpy(bytes, file.data, size);
    file_unmap(&file);
    for (size_t n = 0; n <= size; n++) {
        Read read;
        const char *cut = temp_file(test_folder, "cut.bytes");
        check_ok(file_write_all(cut, bytes, n));
        read_events(cut, &read);
        assert_true(read.n <= 2 && read.whole <= n && (n < size || read.n == 2));
    }
    run_close(run);
    arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc_is_castagnoli),
        cmocka_unit_test(numbers_of_a_line_are_scalars),
        cmocka_unit_test(resumed_runs_have_no_step_twice),
        cmocka_unit_test(cut_files_stay_readable),
    };
    return cmocka_run_group_tests_name("events", tests, test_folder_make, test_folder_remove);
}
