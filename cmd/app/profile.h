/* SPDX-License-Identifier: Apache-2.0 */
/* What --profile prints. */
#ifndef TUNE_PROFILE_H
#define TUNE_PROFILE_H

#include "lib/base/json.h"
#include "lib/tensor/tensor.h"

/* --profile. The clock starts when options are read; program_run prints the table on stderr, or with --json a last line {"profile": [...]} on stdout,
 * unless the command has stopped the profile. */
void profile_ask(bool json);
bool profile_asked(void);
void profile_write(JsonWriter *w, const char *key, const ProfileRow *rows, size_t n);
void profile_describe(Str *text, const ProfileRow *rows, size_t n); /* lines of a table, the last one without its end */
void profile_end(void);

#endif
