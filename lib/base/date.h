/* SPDX-License-Identifier: Apache-2.0 */
/* Dates as users write them. */
#ifndef TUNE_DATE_H
#define TUNE_DATE_H

#include <stdbool.h>
#include <time.h>

/* Parses YYYY-MM-DD with or without HH:MM:SS, in the proleptic calendar that strftime uses; false when it is not such a date. */
bool date_read(const char *text, struct tm *out);

#endif
