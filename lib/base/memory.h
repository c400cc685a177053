/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ran out in a place that returns no Status: growing texts, lists of ids, JSON that is built, scratch of kernels. Such a call does
 * less than it was asked, and says so here for the whole process. Whoever stores or tells a result asks first, and stores nothing. */
#ifndef TUNE_MEMORY_H
#define TUNE_MEMORY_H

#include "lib/base/base.h"

void memory_ran_out(size_t bytes); /* so many were wanted; any thread */
bool memory_is_short(void);        /* whether that has happened */
/* `status`, or ST_RESOURCE with words of its own where memory ran out and `status` says something else: that may only follow from it. */
Status memory_check(Status status);
/* What was said is known to the caller, who gives up what he was doing and keeps what he had before: from now on results are stored again. */
void memory_forgive(void);

#endif
