/* SPDX-License-Identifier: Apache-2.0 */
/* How much of what programs and servers answer is held at one time. One answer has a bound of its own (child.h, http.h); up to 256 of them at once
 * share this one. */
#ifndef TUNE_ANSWERS_H
#define TUNE_ANSWERS_H

#include "lib/base/base.h"

size_t answers_most(void);           /* bytes, of all that are asked together: 1 GiB */
void answers_set_most(size_t bytes); /* for tests; 0: as usual */
/* ST_RESOURCE: it, "server" or "program" of this name, gives more than that. */
Status answers_too_much(const char *who, const char *name);

#endif
