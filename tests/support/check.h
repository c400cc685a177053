/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions that say both values, where and how far apart, and what tests share: golden paths, a folder of their own, broken bytes.
 *
 *     TEST(sums_are_right) {
 *         char path[512];
 *         if (!shared_path("golden/ops.json", path, sizeof path)) skip();   // prints why
 *         check_status(json_read_file(path, &root), ST_OK);
 *         check_close_f64("sum", got, want, n, 1e-12, 0);
 *     }
 *     int main(void) {
 *         const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_right)};
 *         return cmocka_run_group_tests(tests, NULL, NULL);
 *     }
 */
#ifndef TUNE_CHECK_H
#define TUNE_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "lib/base/file.h"
#include "lib/base/json.h"

/* A test, as cmocka_unit_test(name) takes it. `state` is there for those that have a fixture. */
#define TEST(name) static void name(__attribute__((unused)) void **state)

/* Sanitizers take address space and pages of their own. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
/* How often a check is repeated that runs the same code on other numbers: under a sanitizer everything takes some ten times longer. */
#ifdef SANITIZED
#define ALL_OR_FEW(all, few) (few)
#else
#define ALL_OR_FEW(all, few) (all)
#endif

/* Each element within `absolute` + `relative` * |want|; NaN equals only NaN. Names `what`, the worst index, both values, the tolerance. */
#define check_close_f64(what, got, want, n, absolute, relative) check_close_f64_at(__FILE__, __LINE__, what, got, want, n, absolute, relative)
#define check_close_f32(what, got, want, n, absolute, relative) check_close_f32_at(__FILE__, __LINE__, what, got, want, n, absolute, relative)
#define check_close(got, want, tolerance) check_near_at(__FILE__, __LINE__, #got, got, want, tolerance)
/* The same ids; names the first index that differs. */
#define check_ids(what, got, n_got, want, n_want) check_ids_at(__FILE__, __LINE__, what, got, n_got, want, n_want)
#define check_status(call, wanted) check_status_at(__FILE__, __LINE__, #call, call, wanted)
#define check_ok(call) check_status(call, ST_OK)
/* The failure recorded last holds `part`. */
#define check_text(part) check_contains_at(__FILE__, __LINE__, status_text(), part)
#define check_contains(text, part) check_contains_at(__FILE__, __LINE__, text, part)

void check_close_f64_at(const char *file, int line, const char *what, const double *got, const double *want, size_t n, double absolute,
                        double relative);
void check_close_f32_at(const char *file, int line, const char *what, const float *got, const float *want, size_t n, double absolute,
                        double relative);
void check_near_at(const char *file, int line, const char *what, double got, double want, double tolerance);
void check_ids_at(const char *file, int line, const char *what, const int32_t *got, size_t n_got, const int32_t *want, size_t n_want);
void check_status_at(const char *file, int line, const char *call, Status got, Status wanted);
void check_contains_at(const char *file, int line, const char *text, const char *part);

/* TEST_LONG=1 (make test-long): all combinations, all seeds; else a share of them. */
bool long_tests(void);
/* Under sanitizers, without TEST_LONG=1, skips a test that looks at what is learned in many steps: shorter ones run the same code. */
void skip_learning_under_sanitizers(void);

/* ---- golden values: JSON of ../shared/golden ---- */

/* golden/NAME for the caller's json_decref; NULL, with the reason printed, when it is not there */
json_t *golden_open(const char *name);
const json_t *golden_at(const json_t *object, const char *key);                /* a missing key fails the test */
double golden_value(const json_t *object, const char *key);                    /* the same of a number */
double golden_number(const json_t *object, const char *key, double otherwise); /* otherwise: missing or null */
bool golden_is(const json_t *object, const char *key, const char *text);       /* object[key] is this text */
/* All numbers below `array` in order, however nested; true is 1. Returns how many; more than `max` fail the test. */
size_t golden_numbers(const json_t *array, double *out, size_t max);
/* Where each of a list of lists begins in that order, and behind the last one: begin[0..n]. Returns n. */
size_t golden_offsets(const json_t *lists, int64_t *begin, size_t max);

/* Path of ../shared/NAME in `out`; false, and one line "skipped: ..." printed, when it is not there. */
bool shared_path(const char *name, char *out, size_t size);
const char *temp_root(void); /* where temporary files and folders are: TMPDIR, or /tmp */
/* A new empty folder, and its removal with all that is in it. */
void temp_dir_make(char *out, size_t size);
void temp_dir_remove(const char *path);
/* The same as set-up and tear-down of a test or a group: the folder is test_folder. */
extern char test_folder[64];
int test_folder_make(void **state);
int test_folder_remove(void **state);
/* "dir/name" for a few paths at a time: the result is valid for the next seven calls. */
const char *temp_file(const char *dir, const char *name);
/* Like temp_file, and writes `text` into it. */
const char *temp_text(const char *dir, const char *name, const char *text);

/* Runs `body` in a process of its own, without its output; returns what waitpid says. */
int in_child(void (*body)(void));

/* Asks to stop after so long, as a signal from the keyboard does; interrupt_clear when it was seen. */
void interrupt_after(int milliseconds);

/* Calls `callback` with `rounds` broken versions of the bytes: flipped, overwritten, doubled, moved, cut, grown numbers. Each version
 * ends where its allocation ends, so that the address sanitizer sees a read behind it. The same versions in every run. */
typedef void MutationCallback(const uint8_t *bytes, size_t len, void *context);
void check_mutations(const void *bytes, size_t len, size_t rounds, MutationCallback *callback, void *context);

#endif
