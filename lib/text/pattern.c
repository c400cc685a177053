/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions of tokenizers. They are written for Oniguruma's Ruby dialect. PCRE2 runs them after a rewrite of the few constructs that
 * mean something else there. An expression that cannot be rewritten is an error. */
#include <string.h>

#include "lib/text/tokenizer_parts.h"

/* PCRE2 counts U+180E as a space and has fewer word characters, so both classes are listed explicitly. */
#define SPACE_SET "\\x09-\\x0d \\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NO_SPACE_SET                                                                                                                              \
    "\\x00-\\x08\\x0e-\\x1f!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}" \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
/* Outside brackets also the superscript digits and fractions of Latin-1, which Oniguruma's table of that block includes */
#define WORD_SET WORD_IN_CLASS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define WORD_IN_CLASS "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define HEX_SET "0-9a-fA-F"

enum { MAX_GROUPS = 64 };
/* `atom`: position in `out` of the expression that a following quantifier repeats. */
typedef struct Rewriter {
    const char *in;
    Str out;
    size_t atom, groups[MAX_GROUPS], depth;
    bool in_class;
    const char *refused;
} Rewriter;

static void put_set(Rewriter *r, const char *set, bool negated) {
    if (r->in_class && negated) {
        r->refused = "a negated class inside a class";
        return;
    }
    if (!r->in_class) str_append(&r->out, negated ? "[^" : "[");
    str_append(&r->out, set);
    if (!r->in_class) str_append(&r->out, "]");
}

/* Since 10.40 a bare script name means "script extensions" in PCRE2; in Oniguruma it means the script itself. */
static const char *script_prefix(const char *name, size_t len) {
#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40
    static const char *const scripts[] = {"Han",      "Hiragana", "Katakana",   "Hangul", "Latin",   "Cyrillic", "Greek",
                                          "Arabic",   "Hebrew",   "Devanagari", "Thai",   "Bengali", "Tamil",    "Telugu",
                                          "Armenian", "Georgian", "Ethiopic",   "Khmer",  "Lao",     "Myanmar",  "Tibetan"};
    for (size_t i = 0; i < COUNT_OF(scripts); i++)
        if (slice_is((Slice){name, len}, scripts[i])) return "sc:";
#else
    (void)name, (void)len;
#endif
    return "";
}

static void rewrite_property(Rewriter *r) {
    const char *start = r->in, *name = r->in + 3, *close = strchr(name, '}');
    if (r->in[2] != '{' || !close) {
        r->refused = "a property without braces";
        return;
    }
    bool negated = *name == '^';
    name += negated;
    str_append_n(&r->out, start, (size_t)(name - start));
    str_append(&r->out, script_prefix(name, (size_t)(close - name)));
    str_append_n(&r->out, name, (size_t)(close - name) + 1);
    r->in = close + 1;
}

static void rewrite_escape(Rewriter *r) {
    char c = r->in[1];
    switch (c) {
    case 's': put_set(r, SPACE_SET, false); break;
    case 'S': put_set(r, r->in_class ? NO_SPACE_SET : SPACE_SET, !r->in_class); break;
    case 'w': put_set(r, r->in_class ? WORD_IN_CLASS : WORD_SET, false); break;
    case 'W': put_set(r, WORD_SET, true); break;
    case 'b': /* a backspace in brackets, for both */
        str_append(&r->out, r->in_class ? "\\b" : "(?:(?<=[" WORD_SET "])(?![" WORD_SET "])|(?<![" WORD_SET "])(?=[" WORD_SET "]))");
        break;
    case 'B': str_append(&r->out, "(?:(?<=[" WORD_SET "])(?=[" WORD_SET "])|(?<![" WORD_SET "])(?![" WORD_SET "]))"); break;
    case 'h': put_set(r, HEX_SET, false); break;
    case 'H': put_set(r, HEX_SET, true); break;
    case 'v': str_append(&r->out, "\\x0b"); break;
    case 'u': {
        if (strspn(r->in + 2, "0123456789abcdefABCDEF") < 4) {
            r->refused = "\\u without four hexadecimal digits";
            return;
        }
        str_printf(&r->out, "\\x{%.4s}", r->in + 2);
        r->in += 6;
        return;
    }
    case 'p':
    case 'P': rewrite_property(r); return;
    case 'Q':
    case 'E':
    case 'O':
    case '\0': r->refused = "an escape that PCRE2 reads otherwise"; return;
    default: str_append_n(&r->out, r->in, 2); break;
    }
    r->in += 2;
}

/* Class names in brackets, [:alpha:]. PCRE2 and Oniguruma differ in most of them; those that are copied agree on 40000 characters. */
static const char *named_set(Slice name) {
    static const struct {
        const char *name, *set;
    } sets[] = {
        {"punct", "\\p{P}\\p{S}"},
        {"space", SPACE_SET},
        {"blank", "\\t\\p{Zs}"},
        {"word", WORD_IN_CLASS},
        {"digit", "[:digit:]"},
        {"cntrl", "[:cntrl:]"},
        {"xdigit", "[:xdigit:]"},
#if PCRE2_MAJOR > 10 || PCRE2_MINOR >= 40
        {"alpha", "\\p{Alphabetic}"},
        {"alnum", "\\p{Alphabetic}\\p{Nd}"},
        {"upper", "\\p{Uppercase}"},
        {"lower", "\\p{Lowercase}"},
#endif
    };
    for (size_t i = 0; i < COUNT_OF(sets); i++)
        if (slice_is(name, sets[i].name)) return sets[i].set;
    return NULL;
}

static void rewrite_in_class(Rewriter *r) {
    if (*r->in == '\\') {
        rewrite_escape(r);
    } else if (*r->in == '[') {
        const char *close = r->in[1] == ':' ? strstr(r->in + 2, ":]") : NULL;
        if (!close) {
            r->refused = "a class inside a class";
            return;
        }
        const char *set = named_set((Slice){r->in + 2, (size_t)(close - r->in) - 2});
        if (!set) {
            r->refused = "a named class that PCRE2 reads otherwise";
            return;
        }
        str_append(&r->out, set);
        r->in = close + 2;
    } else if (r->in[0] == '&' && r->in[1] == '&') {
        r->refused = "an intersection of classes (&&)";
    } else {
        r->in_class = *r->in != ']';
        str_append_char(&r->out, *r->in++);
    }
}

/* "(?m" is PCRE2's "(?s"; the other options agree. */
static void rewrite_group(Rewriter *r) {
    r->groups[r->depth++] = r->out.len;
    str_append_char(&r->out, *r->in++);
    if (*r->in != '?') return;
    str_append_char(&r->out, *r->in++);
    size_t options = strspn(r->in, "imx-");
    if (r->in[options] != ':' && r->in[options] != ')') return;
    for (; options > 0; options--, r->in++) str_append_char(&r->out, *r->in == 'm' ? 's' : *r->in);
}

/* After an interval, "+" or "?" makes it possessive or lazy in PCRE2, but in Ruby it repeats the interval: a{1,3}+ is (?:a{1,3})+. */
static bool rewrite_interval(Rewriter *r) {
    const char *in = r->in + 1;
    size_t low = strspn(in, "0123456789"), comma = in[low] == ',', high = comma ? strspn(in + low + 1, "0123456789") : 0, len = low + comma + high;
    if (in[len] != '}' || (low == 0 && high == 0)) return false;
    char sign = in[len + 1];
    bool repeated = sign == '+' || (sign == '?' && !comma);
    if (repeated) {
        Str atom = {0};
        str_append_n(&atom, r->out.data + r->atom, r->out.len - r->atom);
        r->out.len = r->atom;
        str_printf(&r->out, "(?:%s", str_text(&atom));
        str_release(&atom);
    }
    str_printf(&r->out, "{%s%.*s}", low ? "" : "0", (int)len, in);
    if (repeated) str_printf(&r->out, ")%c", sign);
    r->in = in + len + 1 + repeated;
    return true;
}

static void rewrite_next(Rewriter *r) {
    if (r->in_class) {
        rewrite_in_class(r);
        return;
    }
    if (*r->in == '{' && r->out.len > 0 && rewrite_interval(r)) return;
    if (!strchr("*+?", *r->in) && *r->in != ')') r->atom = r->out.len;
    if (*r->in == '\\') {
        rewrite_escape(r);
    } else if (*r->in == '[') {
        r->in_class = true;
        str_append_char(&r->out, *r->in++);
        if (*r->in == '^') str_append_char(&r->out, *r->in++);
        if (*r->in == ']') str_append_char(&r->out, *r->in++);
    } else if (*r->in == '(') {
        if (r->depth == MAX_GROUPS)
            r->refused = "too many nested groups";
        else
            rewrite_group(r);
    } else {
        if (*r->in == ')' && r->depth > 0) r->atom = r->groups[--r->depth];
        do str_append_char(&r->out, *r->in++);
        while (((uint8_t)*r->in & 0xC0) == 0x80);
    }
}

static Status pattern_compile(Loader *loader, Pattern *pattern, const char *regex) {
    Rewriter r = {.in = regex};
    while (*r.in && !r.refused) rewrite_next(&r);
    Status status = ST_OK;
    if (r.refused) {
        status = status_fail(ST_INPUT, "cannot use the pattern '%s' in '%s': %s is not supported", regex, loader->path, r.refused);
        goto done;
    }
    int error;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (context) pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pattern->code = pcre2_compile((PCRE2_SPTR)str_text(&r.out), r.out.len, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                  &at, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        char message[256];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)message, sizeof message);
        Status code = error == PCRE2_ERROR_HEAP_FAILED ? ST_RESOURCE : ST_INPUT;
        status = status_fail(code, "cannot use the pattern '%s' in '%s': %s", regex, loader->path, message);
        goto done;
    }
    pattern->jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
done:
    str_release(&r.out);
    return status;
}

static Status pattern_alloc(Loader *loader, const char *source, Pattern **pattern) {
    *pattern = arena_zero(loader->arena, sizeof **pattern);
    if (!*pattern || !((*pattern)->source = arena_strdup(loader->arena, source))) return ST_RESOURCE;
    (*pattern)->next = loader->tokenizer->patterns;
    loader->tokenizer->patterns = *pattern;
    return ST_OK;
}

Status pattern_new(Loader *loader, const char *regex, Pattern **pattern) {
    TRY(pattern_alloc(loader, regex, pattern));
    return pattern_compile(loader, *pattern, (*pattern)->source);
}

Status pattern_new_literal(Loader *loader, const char *text, Pattern **pattern) {
    if (!*text) return status_fail(ST_INPUT, "empty pattern in '%s'", loader->path);
    TRY(pattern_alloc(loader, text, pattern));
    (*pattern)->literal = (Slice){(*pattern)->source, strlen(text)};
    return ST_OK;
}

Status pattern_from_json(Loader *loader, const json_t *node, Pattern **pattern) {
    const char *text = NULL;
    if (!json_is_object(node)) return status_fail(ST_INPUT, "wrong 'pattern' in '%s': expected {\"String\": ..} or {\"Regex\": ..}", loader->path);
    TRY(json_get_string(node, loader->path, "String", &text));
    if (text) return pattern_new_literal(loader, text, pattern);
    TRY(json_get_string(node, loader->path, "Regex", &text));
    if (text) return pattern_new(loader, text, pattern);
    return status_fail(ST_INPUT, "unknown kind of 'pattern' in '%s': expected 'String' or 'Regex'", loader->path);
}

/* The step limit grows with the text: a match may scan many megabytes, but (a+)+$ must not take seconds on thirty letters. */
static uint32_t steps_for(size_t len) {
    const size_t least = (size_t)1 << 24, most = (size_t)1 << 30, for_each_byte = (size_t)1 << 12;
    return (uint32_t)MIN(least + for_each_byte * MIN(len, most / for_each_byte), most);
}

static Status matcher_init(Matcher *matcher) {
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (!matcher->data || !matcher->context) return status_fail(ST_RESOURCE, "no memory for matching patterns");
    if (matcher->stack) pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return ST_OK;
}

void matcher_release(Matcher *matcher) {
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (Matcher){0};
}

static bool literal_find(Slice literal, const char *text, size_t len, size_t from, size_t *start, size_t *end) {
    const char *hit =
        literal.len == 1 ? memchr(text + from, literal.data[0], len - from) : memmem(text + from, len - from, literal.data, literal.len);
    if (!hit) return false;
    *start = (size_t)(hit - text);
    *end = *start + literal.len;
    return true;
}

Status pattern_find(const Pattern *pattern, Matcher *matcher, const char *text, size_t len, size_t from, bool *found, size_t *start, size_t *end) {
    if (!pattern->code) {
        *found = from < len && literal_find(pattern->literal, text, len, from, start, end);
        return ST_OK;
    }
    if (!matcher->data) TRY(matcher_init(matcher));
    pcre2_set_match_limit(matcher->context, steps_for(len));
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    int code = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->jit) code = pcre2_jit_match(pattern->code, subject, len, from, 0, matcher->data, matcher->context);
    if (code == PCRE2_ERROR_JIT_STACKLIMIT || code == PCRE2_ERROR_JIT_BADOPTION) /* BADOPTION: the pattern itself says (*NO_JIT) */
        code = pcre2_match(pattern->code, subject, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
    *found = code >= 0;
    if (*found) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(matcher->data);
        *start = MIN(ends[0], ends[1]); /* \K in a lookahead can swap them */
        *end = ends[1];
    } else if (code != PCRE2_ERROR_NOMATCH) {
        char message[256];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return status_fail(code == PCRE2_ERROR_NOMEMORY ? ST_RESOURCE : ST_INPUT, "cannot match the pattern '%s' of the tokenizer: %s",
                           pattern->source, message);
    }
    return ST_OK;
}
