/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions in PCRE2's dialect, looked for in texts of others. A match may take only so many steps; one that would take more, or lacks
 * memory, is not decided: that is no "not found", and the caller says so.
 *
 *     Regex *regex = regex_new("^\\d+$", REGEX_UNICODE, 0, &fault);
 *     if (regex_find(regex, text, 0, 0, NULL) == REGEX_UNDECIDED) n_undecided++;
 */
#ifndef TUNE_REGEX_H
#define TUNE_REGEX_H

#include "lib/base/str.h"

typedef struct Regex Regex;
/* WHOLE: it describes the whole text. ONCE: for a text or two, so that making machine code of it takes longer than it saves */
enum { REGEX_UNICODE = 1, REGEX_WHOLE = 2, REGEX_ANY_CASE = 4, REGEX_ONCE = 8 };
typedef struct RegexFault {
    size_t at; /* byte of the expression */
    char reason[200];
} RegexFault;
/* NULL for what is no expression, or without memory: `fault` (NULL: not wanted) says which. steps: that a match may take; 0: PCRE2's 10 million. */
Regex *regex_new(const char *pattern, int options, uint32_t steps, RegexFault *fault);
void regex_free(Regex *regex); /* NULL is fine */
uint32_t regex_groups(const Regex *regex);

typedef enum RegexResult { REGEX_NONE, REGEX_FOUND, REGEX_UNDECIDED } RegexResult;
typedef struct RegexMatch {
    size_t begin, end; /* bytes of the text */
    Slice group;       /* data NULL where it took no part */
} RegexMatch;
/* Looks from byte `from` on, 0 or behind a match in the same text; any thread. group: which one `match` (NULL: not wanted) is to have. Undecided: too
 * many steps, a text that is not UTF-8 under REGEX_UNICODE, or no memory, which memory_check tells as well. */
RegexResult regex_find(const Regex *regex, Slice text, size_t from, uint32_t group, RegexMatch *match);

#endif
