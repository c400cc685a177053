/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/base/date.h"

#include <stdio.h>

bool date_read(const char *text, struct tm *out) {
    struct tm t = {.tm_isdst = -1};
    int n = 0;
    if (sscanf(text, "%d-%d-%d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &n) != 3) return false;
    const char *rest = text + n;
    if (*rest && (sscanf(rest, "%*1[ T]%d:%d:%d%n", &t.tm_hour, &t.tm_min, &t.tm_sec, &n) != 3 || rest[n])) return false;
    if (t.tm_year < 1 || t.tm_year > 9999 || t.tm_mon < 1 || t.tm_mon > 12 || t.tm_mday < 1 || t.tm_mday > 31 || t.tm_hour < 0 || t.tm_hour > 23 ||
        t.tm_min < 0 || t.tm_min > 59 || t.tm_sec < 0 || t.tm_sec > 60)
        return false;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    *out = t;
    return timegm(&t) != -1 && (out->tm_wday = t.tm_wday, out->tm_yday = t.tm_yday, t.tm_mday == out->tm_mday);
}
