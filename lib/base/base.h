/* SPDX-License-Identifier: Apache-2.0 */
/* What every file needs: how a failure is returned, and how a bug ends the program. lib/base has one header for each noun: arena.h (memory),
 * str.h (text), file.h, json.h, yaml.h, regex.h, rng.h (random numbers), log.h (messages), work.h (progress), system.h (clock, signals, the
 * machine), tally.h (mean and spread).
 *
 *     static Status word_count(const char *path, size_t *count) {
 *         Lines lines;
 *         TRY(lines_open(&lines, path));                       // plain, .gz or .zst
 *         Slice line;
 *         *count = 0;
 *         while (lines_next(&lines, &line)) *count += line.len > 0;
 *         return lines_close(&lines);                          // a read error shows here
 *     }
 */
#ifndef TUNE_BASE_H
#define TUNE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define WARN_UNUSED __attribute__((warn_unused_result))
#define NORETURN __attribute__((noreturn))
#else
#define PRINTF_LIKE(fmt, args)
#define WARN_UNUSED
#define NORETURN
#endif
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* ---- status: errors of users and files, and missing resources, are return values ---- */

typedef enum Status {
#define STATUS(name, exit_code, meaning) name,
#include "lib/base/status.def"
#undef STATUS
} Status;

/* Records what went wrong for this thread and returns `code`. Form: lower case, error first, subject in single quotes, no full stop:
 * "cannot read tensor 'lm_head.weight' in 'a.safetensors': shape (512,64), expected (32000,64)". Clears the hint. */
Status status_fail(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* Adds one line of advice to the failure just recorded; returns `code` so that it can end a function. */
Status status_hint(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* Puts "where: " before the recorded text, to add a file or row that only the caller knows. Returns `code`. */
Status status_prefix(Status code, const char *format, ...) PRINTF_LIKE(2, 3);
/* For a failed system call: records "what: reason of error" and returns ST_RESOURCE (with a hint) for a full disk, quota, file size limit,
 * memory or descriptor shortage, else ST_INPUT. */
Status status_errno(int error, const char *format, ...) PRINTF_LIKE(2, 3);
/* The same for a failed write: always ST_RESOURCE, since the disk is at fault and not the input. */
Status status_unwritable(int error, const char *format, ...) PRINTF_LIKE(2, 3);
/* A saved failure with its texts, to be restored later: after a clean-up that may fail as well, or in another thread. Zeroed: none. */
typedef struct Failure {
    Status status;
    char text[4096], hint[1024];
} Failure;
void failure_save(Failure *failure, Status status); /* copies this thread's texts */
Status failure_restore(const Failure *failure);     /* returns its status and sets this thread's texts; ST_OK sets nothing */
const char *status_text(void);                      /* this thread's latest text; "" when none; valid until the next failure */
const char *status_hint_text(void);                 /* the hint, or "" */
int status_exit_code(Status code);
const char *status_meaning(Status code);

/* Returns a failing status from the calling function. */
#define TRY(expr)                                     \
    do {                                              \
        Status try_status_ = (expr);                  \
        if (try_status_ != ST_OK) return try_status_; \
    } while (0)
/* Jumps to `label` on a failing status; the function has a `Status status`, initially ST_OK. */
#define TRY_GOTO(expr, label)            \
    do {                                 \
        status = (expr);                 \
        if (status != ST_OK) goto label; \
    } while (0)

/* For mistakes of the program itself: prints the condition and the values, then aborts. Never for a user's mistake. */
#define ASSERT(condition, ...)                                                        \
    do {                                                                              \
        if (!(condition)) assert_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    } while (0)
NORETURN void assert_failed(const char *file, int line, const char *condition, const char *format, ...) PRINTF_LIKE(4, 5);

#endif
