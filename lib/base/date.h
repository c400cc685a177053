/* SPDX-License-Identifier: Apache-2.0 */
/* Dates as users write them. */
#ifndef TUNE_DATE_H
#define TUNE_DATE_H

#include <stdbool.h>
#include <time.h>

/* YYYY-MM-DD with or without HH:MM:SS, by the proleptic calendar that strftime knows; false: it is none. */
bool date_read(const char *text, struct tm *out);

#endif
