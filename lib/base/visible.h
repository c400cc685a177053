/* SPDX-License-Identifier: Apache-2.0 */
/* Text of others on a terminal: characters that would steer it are shown instead. Control characters are shown as ^[ and ^?, those of C1 as \u{9B},
 * embeddings, overrides and isolates of the direction as \u{202E}, and bytes of an 8-bit terminal's C1 that are no UTF-8 as \x{9B}. All else stays.
 *
 *     Visible rest = {0};
 *     visible_append(&out, &rest, text, len);     // pieces may end within a character
 *     visible_end(&out, &rest);
 */
#ifndef TUNE_VISIBLE_H
#define TUNE_VISIBLE_H

#include "lib/base/str.h"

typedef struct Visible {
    char bytes[4]; /* of a character that is not whole yet */
    size_t n;
} Visible;
void visible_append(Str *out, Visible *rest, const char *text, size_t len); /* ends of lines and tabs stay */
void visible_end(Str *out, Visible *rest);
void visible_text(Str *out, const char *text); /* both in one */

#endif
