/* SPDX-License-Identifier: Apache-2.0 */
/* The table of --profile. */
#ifndef TUNE_PROFILE_H
#define TUNE_PROFILE_H

#include "lib/base/json.h"
#include "lib/tensor/tensor.h"

/* Starts profiling; called when --profile is read. program_run prints the table on stderr, or with --json a last line {"profile": [...]} on
 * stdout, unless the command has stopped the profile before. */
void profile_ask(bool json);
bool profile_asked(void);
void profile_write(JsonWriter *w, const char *key, const ProfileRow *rows, size_t n);
void profile_describe(Str *text, const ProfileRow *rows, size_t n); /* appends the lines of the table, the last one without '\n' */
void profile_end(void);

#endif
