/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions: PCRE2 with limits, and with its results distinguished. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "lib/base/memory.h"
#include "lib/base/regex.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEAP_KIB = 256 << 10 }; /* the most that the interpreter may take for one match */

struct Regex {
    pcre2_code *code;
    pcre2_match_context *context;
};

static pcre2_code *compile(const char *pattern, int options, RegexFault *fault) {
    uint32_t flags = (options & REGEX_UNICODE ? PCRE2_UTF | PCRE2_UCP : 0) | (options & REGEX_WHOLE ? PCRE2_ANCHORED | PCRE2_ENDANCHORED : 0) |
                     (options & REGEX_ANY_CASE ? PCRE2_CASELESS : 0);
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, flags, &error, &at, NULL);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED) memory_ran_out(strlen(pattern));
    if (!code && fault) {
        fault->at = at;
        pcre2_get_error_message(error, (PCRE2_UCHAR *)fault->reason, sizeof fault->reason);
    }
    if (code && !(options & REGEX_ONCE)) pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without a JIT it is interpreted */
    return code;
}

Regex *regex_new(const char *pattern, int options, uint32_t steps, RegexFault *fault) {
    Regex *regex = calloc(1, sizeof *regex);
    if (regex) regex->context = pcre2_match_context_create(NULL);
    if (!regex || !regex->context) {
        memory_ran_out(sizeof *regex);
        if (fault) *fault = (RegexFault){.reason = "no memory"};
        free(regex);
        return NULL;
    }
    if (steps > 0) pcre2_set_match_limit(regex->context, steps);
    pcre2_set_heap_limit(regex->context, HEAP_KIB);
    regex->code = compile(pattern, options, fault);
    if (regex->code) return regex;
    regex_free(regex);
    return NULL;
}

void regex_free(Regex *regex) {
    if (!regex) return;
    pcre2_code_free(regex->code);
    pcre2_match_context_free(regex->context);
    free(regex);
}

uint32_t regex_groups(const Regex *regex) {
    uint32_t n = 0;
    pcre2_pattern_info(regex->code, PCRE2_INFO_CAPTURECOUNT, &n);
    return n;
}

/* \K in a lookahead can swap beginning and end. */
static RegexMatch found(Slice text, const PCRE2_SIZE *ends, const PCRE2_SIZE *group) {
    RegexMatch match = {.begin = MIN(ends[0], ends[1]), .end = ends[1]};
    if (group[0] != PCRE2_UNSET) match.group = (Slice){text.data + group[0], group[1] > group[0] ? group[1] - group[0] : 0};
    return match;
}

RegexResult regex_find(const Regex *regex, Slice text, size_t from, uint32_t group, RegexMatch *match) {
    if (!text.data) text = (Slice){"", 0};
    PCRE2_SPTR subject = (PCRE2_SPTR)text.data;
    pcre2_match_data *data = pcre2_match_data_create(match ? group + 1 : 1, NULL);
    uint32_t known = from > 0 ? PCRE2_NO_UTF_CHECK : 0; /* the first match has checked the whole text */
    int n = data ? pcre2_match(regex->code, subject, text.len, from, known, data, regex->context) : PCRE2_ERROR_NOMEMORY;
    /* The compiled form has its own small stack; the interpreter takes as much as it needs. */
    if (n == PCRE2_ERROR_JIT_STACKLIMIT) n = pcre2_match(regex->code, subject, text.len, from, known | PCRE2_NO_JIT, data, regex->context);
    if (n == PCRE2_ERROR_NOMEMORY) memory_ran_out(text.len);
    if (n >= 0 && match) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(data);
        *match = found(text, ends, ends + 2 * (size_t)group);
    }
    pcre2_match_data_free(data);
    return n >= 0 ? REGEX_FOUND : n == PCRE2_ERROR_NOMATCH ? REGEX_NONE : REGEX_UNDECIDED;
}
