/* SPDX-License-Identifier: Apache-2.0 */
/* Escapes characters that would control a terminal, in text from elsewhere. Control characters become ^[ and ^?, C1 controls \u{9B},
 * direction embeddings, overrides and isolates \u{202E}, and bytes of an 8-bit terminal's C1 that are not UTF-8 \x{9B}. All else stays.
 *
 *     Visible rest = {0};
 *     visible_append(&out, &rest, text, len);     // pieces may end within a character
 *     visible_end(&out, &rest);
 */
#ifndef TUNE_VISIBLE_H
#define TUNE_VISIBLE_H

#include "lib/base/str.h"

typedef struct Visible {
    char bytes[4]; /* an incomplete character */
    size_t n;
} Visible;
void visible_append(Str *out, Visible *rest, const char *text, size_t len); /* line ends and tabs stay */
void visible_end(Str *out, Visible *rest);
void visible_text(Str *out, const char *text); /* both calls in one */

#endif
