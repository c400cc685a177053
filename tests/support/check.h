/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions that print both values, the place and the difference; and common parts of tests: golden values, temporary folders, broken inputs.
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

/* Defines a test for cmocka_unit_test(name). Tests with a fixture use `state`. */
#define TEST(name) static void name(__attribute__((unused)) void **state)

/* Sanitizers need extra address space and pages. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
/* Whether one instruction set is enough: the thread sanitizer looks at how threads share work, which is the same in all sets. */
#if defined(__SANITIZE_THREAD__)
#define ONE_SET true
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define ONE_SET true
#endif
#endif
#ifndef ONE_SET
#define ONE_SET false
#endif
/* The number of repetitions of a check that runs the same code on other numbers. Fewer under a sanitizer, where everything takes about ten times
 * longer. */
#ifdef SANITIZED
#define ALL_OR_FEW(all, few) (few)
#else
#define ALL_OR_FEW(all, few) (all)
#endif

/* Fails unless each element is within `absolute` + `relative` * |want|. NaN equals only NaN. Prints `what`, the worst index, both values and the
 * tolerance. */
#define check_close_f64(what, got, want, n, absolute, relative) check_close_f64_at(__FILE__, __LINE__, what, got, want, n, absolute, relative)
#define check_close_f32(what, got, want, n, absolute, relative) check_close_f32_at(__FILE__, __LINE__, what, got, want, n, absolute, relative)
#define check_close(got, want, tolerance) check_near_at(__FILE__, __LINE__, #got, got, want, tolerance)
/* Fails unless the ids are equal; prints the first index that differs. */
#define check_ids(what, got, n_got, want, n_want) check_ids_at(__FILE__, __LINE__, what, got, n_got, want, n_want)
#define check_status(call, wanted) check_status_at(__FILE__, __LINE__, #call, call, wanted)
#define check_ok(call) check_status(call, ST_OK)
/* Fails unless the text of the last failure contains `part`. */
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

/* TEST_LONG=1 (make test-long): true for all combinations and all seeds; else tests run some of them. */
bool long_tests(void);
/* Skips a test of learning in many steps under sanitizers, unless TEST_LONG=1: shorter tests run the same code. */
void skip_learning_under_sanitizers(void);

/* ---- golden values: JSON of ../shared/golden ---- */

/* Reads golden/NAME. The caller releases it with json_decref. NULL, after printing the reason, if the file is missing. */
json_t *golden_open(const char *name);
const json_t *golden_at(const json_t *object, const char *key);                /* fails the test if the key is missing */
double golden_value(const json_t *object, const char *key);                    /* the same for a number */
double golden_number(const json_t *object, const char *key, double otherwise); /* `otherwise` if the key is missing or null */
bool golden_is(const json_t *object, const char *key, const char *text);       /* whether object[key] is this text */
/* Copies all numbers in `array` in order, at any nesting; true is 1. Returns their number; fails the test if there are more than `max`. */
size_t golden_numbers(const json_t *array, double *out, size_t max);
/* begin[i]: the index in that order at which list i of a list of lists begins; begin[n]: the total. Returns n. */
size_t golden_offsets(const json_t *lists, int64_t *begin, size_t max);

/* Writes the path of ../shared/NAME into `out`. Returns false, after printing "skipped: ...", if it does not exist. */
bool shared_path(const char *name, char *out, size_t size);
const char *temp_root(void); /* the folder for temporary files: TMPDIR, or /tmp */
/* Make a new empty folder; remove it with its contents. */
void temp_dir_make(char *out, size_t size);
void temp_dir_remove(const char *path);
/* The same as set-up and tear-down of a test or a group. The folder is test_folder. */
extern char test_folder[64];
int test_folder_make(void **state);
int test_folder_remove(void **state);
/* Returns "dir/name". The result is valid until the eighth call after this one. */
const char *temp_file(const char *dir, const char *name);
/* Like temp_file, and writes `text` into the file. */
const char *temp_text(const char *dir, const char *name, const char *text);

/* Runs `body` in a child process without output. Returns its status from waitpid. */
int in_child(void (*body)(void));

/* Requests an interrupt after that time, like Ctrl-C. The test calls interrupt_clear when it has seen it. */
void interrupt_after(int milliseconds);

/* Calls `callback` with `rounds` broken versions of the bytes: bits flipped, bytes overwritten, copied, moved or cut, numbers increased. Each
 * version ends at the end of its allocation, so that the address sanitizer finds a read past it. Every run gives the same versions. */
typedef void MutationCallback(const uint8_t *bytes, size_t len, void *context);
void check_mutations(const void *bytes, size_t len, size_t rounds, MutationCallback *callback, void *context);

#endif
