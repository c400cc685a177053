/* SPDX-License-Identifier: Apache-2.0 */
/* The limit on answers of programs and servers that are in memory at one time. A single answer has its own limit (child.h, http.h); up to 256 of
 * them at once share this one. */
#ifndef TUNE_ANSWERS_H
#define TUNE_ANSWERS_H

#include "lib/base/base.h"

size_t answers_most(void);           /* bytes of all concurrent answers together: 1 GiB */
void answers_set_most(size_t bytes); /* for tests; 0: the default */
/* ST_RESOURCE: the "server" or "program" of this name answers with more than that. */
Status answers_too_much(const char *who, const char *name);

#endif
