/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ran out in a place that returns no Status: growing texts, lists of ids, JSON that is built, scratch of kernels. Such a call does
 * less than it was asked, and says so here for the whole process. So does a look at a file that the system does not answer. Whoever stores or tells a
 * result asks first, and stores nothing. */
#ifndef TUNE_MEMORY_H
#define TUNE_MEMORY_H

#include "lib/base/base.h"

void memory_ran_out(size_t bytes); /* reports that `bytes` could not be allocated; from any thread */
/* Returns one of a few blocks of MEMORY_SMALL bytes that were reserved at program start; the caller frees it like any other. NULL when all are used.
 * They let work in progress finish: file names, numbers, words of an error. */
enum { MEMORY_SMALL = 192 };
void *memory_small(void);
/* The system did not say whether `path` is there, for the reason errno `error`; any thread. */
void memory_no_answer(int error, const char *path);
int memory_error(void);     /* ENOMEM, the errno of such an answer, or 0: neither has happened */
bool memory_is_short(void); /* whether one of them has */
/* `status`, or ST_RESOURCE with words of its own where one of them has happened and `status` says something else: that may only follow from it. */
Status memory_check(Status status);
/* Clears the report, for a caller that handles it: it abandons its work and keeps what it had before. Results are stored again from now on. */
void memory_clear_failure(void);

#endif
