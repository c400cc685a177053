/* SPDX-License-Identifier: Apache-2.0 */
/* Failures in functions that return no Status: memory that ran out (growing texts, lists of ids, JSON, scratch of kernels), and files of which the
 * system cannot say whether they exist. Such a function does a part of its work and records the failure here, for the whole process. Code that is
 * about to store or print a result calls memory_check first, and stores nothing if it fails. */
#ifndef TUNE_MEMORY_H
#define TUNE_MEMORY_H

#include "lib/base/base.h"

void memory_ran_out(size_t bytes); /* reports that `bytes` could not be allocated; from any thread */
/* Returns one of a few blocks of MEMORY_SMALL bytes that were reserved at program start; the caller frees it like any other. NULL when all are used.
 * They let work in progress finish: file names, numbers, words of an error. */
enum { MEMORY_SMALL = 192 };
void *memory_small(void);
/* Records that the system cannot say whether `path` exists; error: the errno. From any thread. */
void memory_no_answer(int error, const char *path);
int memory_error(void);     /* the errno of the recorded failure, ENOMEM for memory; 0: none */
bool memory_is_short(void); /* whether a failure is recorded */
/* Returns `status` if no failure is recorded. Otherwise ST_RESOURCE with a text of its own: another failure may only be its consequence. */
Status memory_check(Status status);
/* Clears the record, for a caller that handles the failure: it abandons its work and keeps the state before it. Results may be stored again. */
void memory_clear_failure(void);

#endif
