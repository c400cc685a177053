/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions in PCRE2's dialect, for texts from elsewhere. The steps of a match are limited; a match that would take more, or lacks
 * memory, is undecided: that does not mean "not found", and the caller must report it.
 *
 *     Regex *regex = regex_new("^\\d+$", REGEX_UNICODE, 0, &fault);
 *     if (regex_find(regex, text, 0, 0, NULL) == REGEX_UNDECIDED) n_undecided++;
 */
#ifndef TUNE_REGEX_H
#define TUNE_REGEX_H

#include "lib/base/str.h"

typedef struct Regex Regex;
/* REGEX_WHOLE: the match must be the whole text. REGEX_ONCE: for one or two texts, so that compiling machine code takes longer than it saves. */
enum { REGEX_UNICODE = 1, REGEX_WHOLE = 2, REGEX_ANY_CASE = 4, REGEX_ONCE = 8 };
typedef struct RegexFault {
    size_t at; /* byte of the expression */
    char reason[200];
} RegexFault;
/* Compiles an expression; the caller calls regex_free. NULL: not an expression, or no memory; `fault` (NULL: not wanted) says which. steps: the
 * most that one match may take; 0 = PCRE2's 10 million. */
Regex *regex_new(const char *pattern, int options, uint32_t steps, RegexFault *fault);
void regex_free(Regex *regex); /* NULL is fine */
uint32_t regex_groups(const Regex *regex);

typedef enum RegexResult { REGEX_NONE, REGEX_FOUND, REGEX_UNDECIDED } RegexResult;
typedef struct RegexMatch {
    size_t begin, end; /* bytes of the text */
    Slice group;       /* data NULL: the group did not take part */
} RegexMatch;
/* Searches from byte `from` on, which is 0 or the end of a match in the same text; from any thread. group: the group that `match` (NULL: not
 * wanted) returns. REGEX_UNDECIDED: too many steps, a text that is not UTF-8 with REGEX_UNICODE, or no memory, which memory_check reports too. */
RegexResult regex_find(const Regex *regex, Slice text, size_t from, uint32_t group, RegexMatch *match);

#endif
