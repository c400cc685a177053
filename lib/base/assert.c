/* SPDX-License-Identifier: Apache-2.0 */
/* The one file of the library that may print and abort: bugs end here. */
#include "lib/base/base.h"

#include <stdio.h>
#include <stdlib.h>

void assert_failed(const char *file, int line, const char *condition, const char *format, ...) {
    fprintf(stderr, "%s:%d: broken promise '%s': ", file, line, condition);
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fprintf(stderr, "\n");
    abort();
}
