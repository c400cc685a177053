/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ran out in a place that returns no Status: growing texts, lists of ids, JSON that is built, scratch of kernels. Such a call does
 * less than it was asked, and says so here for the whole process. So does a look at a file that the system does not answer. Whoever stores or tells a
 * result asks first, and stores nothing. */
#ifndef TUNE_MEMORY_H
#define TUNE_MEMORY_H

#include "lib/base/base.h"

void memory_ran_out(size_t bytes); /* so many were wanted; any thread */
/* One of a few blocks of MEMORY_SMALL bytes that were put aside when the program began, to be freed like any other; NULL when all are gone. What is
 * under way ends with them: names of files, numbers, words of an error. */
enum { MEMORY_SMALL = 192 };
void *memory_small(void);
/* The system did not say whether `path` is there, for the reason errno `error`; any thread. */
void memory_no_answer(int error, const char *path);
int memory_error(void);     /* ENOMEM, the errno of such an answer, or 0: neither has happened */
bool memory_is_short(void); /* whether one of them has */
/* `status`, or ST_RESOURCE with words of its own where one of them has happened and `status` says something else: that may only follow from it. */
Status memory_check(Status status);
/* What was said is known to the caller, who gives up what he was doing and keeps what he had before: from now on results are stored again. */
void memory_clear_failure(void);

#endif
