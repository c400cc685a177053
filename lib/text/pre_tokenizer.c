/* Pre-tokenisers: the text is cut into words that the model never merges across. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "lib/text/tokenizer_parts.h"

/* GPT-2's published pattern. */
static const char gpt2_pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static Status read_behavior(const json_t *json, const char *where, SplitBehavior *behavior) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    TRY(json_get_string(json, where, "behavior", &name));
    for (size_t i = 0; name && i < COUNT_OF(names); i++)
        if (!strcmp(name, names[i])) {
            *behavior = (SplitBehavior)i;
            return ST_OK;
        }
    return unknown_part(where, "split behavior", name ? name : "");
}

bool prepend_scheme_read(const json_t *json, PrependScheme *scheme) {
    const char *name = json_string_value(json_object_get(json, "prepend_scheme"));
    const json_t *older = json_object_get(json, "add_prefix_space");
    *scheme = PREPEND_ALWAYS;
    if (!name) {
        if (json_is_false(older)) *scheme = PREPEND_NEVER;
        return true;
    }
    if (!strcmp(name, "first")) *scheme = PREPEND_FIRST;
    else if (!strcmp(name, "never")) *scheme = PREPEND_NEVER;
    else return !strcmp(name, "always");
    return true;
}

static Status read_one(const json_t *json, const char *where, Arena *arena, PreTokenizer *pre) {
    const char *type = part_type(json), *text = NULL;
    pre->behavior = SPLIT_ISOLATED;
    pre->split = true;
    if (!strcmp(type, "ByteLevel")) {
        bool use_regex = true;
        pre->kind = PRE_BYTE_LEVEL;
        pre->add_prefix_space = true;
        TRY(json_get_bool(json, where, "add_prefix_space", &pre->add_prefix_space));
        TRY(json_get_bool(json, where, "use_regex", &use_regex));
        return use_regex ? pattern_compile(gpt2_pattern, where, &pre->pattern) : ST_OK;
    }
    if (!strcmp(type, "Split")) {
        pre->kind = PRE_SPLIT;
        TRY(read_behavior(json, where, &pre->behavior));
        TRY(json_get_bool(json, where, "invert", &pre->invert));
        return pattern_read(json_object_get(json, "pattern"), where, &pre->pattern);
    }
    if (!strcmp(type, "Digits")) {
        bool individual = false;
        pre->kind = PRE_DIGITS;
        TRY(json_get_bool(json, where, "individual_digits", &individual));
        if (!individual) pre->behavior = SPLIT_CONTIGUOUS;
        return ST_OK;
    }
    if (!strcmp(type, "Punctuation")) {
        pre->kind = PRE_PUNCTUATION;
        return json_object_get(json, "behavior") ? read_behavior(json, where, &pre->behavior) : ST_OK;
    }
    if (!strcmp(type, "WhitespaceSplit")) {
        pre->kind = PRE_WHITESPACE;
        pre->behavior = SPLIT_REMOVED;
        return ST_OK;
    }
    if (!strcmp(type, "Whitespace")) { /* runs of word characters, runs of other visible ones */
        pre->kind = PRE_SPLIT;
        pre->behavior = SPLIT_REMOVED;
        pre->invert = true;
        static const char word[] = "\\p{L}\\p{Nl}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
        Str regex = {0};
        str_printf(&regex, "[%s]+|[^%s\\s]+", word, word);
        Status status = pattern_compile(str_text(&regex), where, &pre->pattern);
        str_release(&regex);
        return status;
    }
    if (!strcmp(type, "Metaspace")) {
        pre->kind = PRE_METASPACE;
        pre->behavior = SPLIT_MERGED_WITH_NEXT;
        text = "\xe2\x96\x81";
        TRY(json_get_string(json, where, "replacement", &text));
        TRY(json_get_bool(json, where, "split", &pre->split));
        if (!prepend_scheme_read(json, &pre->prepend)) return unknown_part(where, "prepend scheme", json_string_value(json_object_get(json, "prepend_scheme")));
    } else if (!strcmp(type, "CharDelimiterSplit")) {
        pre->kind = PRE_DELIMITER;
        pre->behavior = SPLIT_REMOVED;
        TRY(json_get_string(json, where, "delimiter", &text));
    } else {
        return unknown_part(where, "pre-tokenizer", type);
    }
    if (!text || !*text) return status_fail(ST_INPUT, "the pre-tokenizer '%s' of '%s' lacks its text", type, where);
    pre->replacement = arena_strdup(arena, text);
    json_t *literal = json_string(text);
    Status status = literal ? pattern_read(literal, where, &pre->pattern) : ST_RESOURCE;
    json_decref(literal);
    return pre->replacement ? status : ST_RESOURCE;
}

/* Sequences may nest; their steps are run one after the other. */
static Status read_into(const json_t *json, const char *where, Arena *arena, PreTokenizers *pre, size_t cap, int depth) {
    if (strcmp(part_type(json), "Sequence") != 0) {
        if (pre->n == cap) return status_fail(ST_INPUT, "more than %zu pre-tokenizers in '%s'", cap, where);
        PreTokenizer *step = &pre->items[pre->n++];
        TRY(read_one(json, where, arena, step));
        pre->byte_level |= step->kind == PRE_BYTE_LEVEL;
        return ST_OK;
    }
    const json_t *list = json_object_get(json, "pretokenizers");
    if (!json_is_array(list) || depth > 4) return status_fail(ST_INPUT, "the pre-tokenizer sequence of '%s' has no list or is nested too deeply", where);
    for (size_t i = 0; i < json_array_size(list); i++) TRY(read_into(json_array_get(list, i), where, arena, pre, cap, depth + 1));
    return ST_OK;
}

Status pre_tokenizers_read(const json_t *json, const char *where, Arena *arena, PreTokenizers *pre) {
    enum { MAX_STEPS = 64 };
    if (!json || json_is_null(json)) return ST_OK;
    pre->items = arena_zero(arena, MAX_STEPS * sizeof *pre->items);
    return pre->items ? read_into(json, where, arena, pre, MAX_STEPS, 0) : ST_RESOURCE;
}

void pre_tokenizers_release(PreTokenizers *pre) {
    for (size_t i = 0; i < pre->n; i++) pattern_release(&pre->items[i].pattern);
}

/* ---- cutting ---- */

typedef struct Cut { size_t begin, end; bool match; } Cut;

/* Cuts of a word come in order, matches and what is between; `words` gets what the behaviour makes of them. */
typedef struct Cutter { const PreTokenizer *pre; Ranges *words; Cut *cuts; size_t n, cap; } Cutter;

static void cut(Cutter *cutter, size_t begin, size_t end, bool match) {
    if (cutter->pre->invert) match = !match;
    if (begin >= end && cutter->pre->behavior != SPLIT_MERGED_WITH_PREVIOUS && cutter->pre->behavior != SPLIT_MERGED_WITH_NEXT) return;
    if (cutter->pre->behavior == SPLIT_REMOVED || cutter->pre->behavior == SPLIT_ISOLATED) {
        if (cutter->pre->behavior == SPLIT_ISOLATED || !match) ranges_push(cutter->words, begin, end);
        return;
    }
    if (cutter->n == cutter->cap) {
        size_t cap = cutter->cap ? cutter->cap * 2 : 64;
        Cut *grown = realloc(cutter->cuts, cap * sizeof *grown);
        ASSERT(grown, "out of memory for %zu cuts", cap);
        cutter->cuts = grown;
        cutter->cap = cap;
    }
    cutter->cuts[cutter->n++] = (Cut){begin, end, match};
}

static void finish_word(Cutter *cutter) {
    const Cut *cuts = cutter->cuts;
    size_t n = cutter->n;
    cutter->n = 0;
    for (size_t i = 0; i < n;) {
        size_t last = i;
        switch (cutter->pre->behavior) {
        case SPLIT_CONTIGUOUS:
            while (last + 1 < n && cuts[last + 1].match == cuts[i].match) last++;
            break;
        case SPLIT_MERGED_WITH_PREVIOUS: /* a match joins what is before it, unless that is a match too */
            if (!cuts[i].match && last + 1 < n && cuts[last + 1].match) last++;
            break;
        default: /* a match joins what is behind it, unless that is a match too */
            if (cuts[i].match && last + 1 < n && !cuts[last + 1].match) last++;
            break;
        }
        ranges_push(cutter->words, cuts[i].begin, cuts[last].end);
        i = last + 1;
    }
}

static Status cut_by_pattern(Cutter *cutter, const char *text, Range word) {
    size_t at = word.begin, from = word.begin;
    while (from < word.end) {
        Range match;
        bool found;
        /* A word is a text of its own: nothing before it may be seen by the pattern. */
        TRY(pattern_find(&cutter->pre->pattern, text + word.begin, word.end - word.begin, from - word.begin, &match, &found));
        if (!found) break;
        match.begin += word.begin, match.end += word.begin;
        if (match.begin == match.end) {
            uint32_t c;
            from = match.end + MAX(utf8_decode(text + match.end, word.end - match.end, &c), 1);
            continue;
        }
        if (match.begin > at) cut(cutter, at, match.begin, false);
        cut(cutter, match.begin, match.end, true);
        at = from = match.end;
    }
    if (at < word.end) cut(cutter, at, word.end, false);
    return ST_OK;
}

static bool char_matches(PreTokenizerKind kind, uint32_t c) {
    if (kind == PRE_WHITESPACE) return is_white_space(c);
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (kind == PRE_DIGITS) return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_NO;
    if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

static void cut_by_char(Cutter *cutter, const char *text, Range word) {
    size_t plain = word.begin;
    for (size_t at = word.begin; at < word.end;) {
        uint32_t c;
        size_t n = MAX(utf8_decode(text + at, word.end - at, &c), 1);
        if (char_matches(cutter->pre->kind, c)) {
            if (plain < at) cut(cutter, plain, at, false);
            cut(cutter, at, at + n, true);
            plain = at + n;
        }
        at += n;
    }
    if (plain < word.end) cut(cutter, plain, word.end, false);
}

/* Steps that put something before words or exchange spaces make a new passage; `words` are the same words in it. */
static void rewrite(const PreTokenizer *pre, bool first, Passage *passage, Ranges *words) {
    Passage out = {.tracked = passage->tracked};
    for (size_t w = 0; w < words->n; w++) {
        Range word = words->items[w], origin = passage_origin(passage, (Range){word.begin, word.begin + 1});
        const char *text = passage->bytes.data;
        size_t begin = out.bytes.len, len = word.end - word.begin;
        if (pre->kind == PRE_BYTE_LEVEL) {
            if (text[word.begin] != ' ') passage_add(&out, " ", 1, (Range){origin.begin, origin.begin});
            passage_copy(&out, passage, word);
        } else {
            size_t n = strlen(pre->replacement);
            bool wanted = pre->prepend == PREPEND_ALWAYS || (pre->prepend == PREPEND_FIRST && first && w == 0);
            bool there = text[word.begin] == ' ' || (len >= n && !memcmp(text + word.begin, pre->replacement, n));
            if (wanted && !there) passage_add(&out, pre->replacement, n, (Range){origin.begin, origin.begin});
            size_t plain = word.begin;
            for (size_t at = word.begin; at < word.end; at++) {
                if (text[at] != ' ') continue;
                passage_copy(&out, passage, (Range){plain, at});
                passage_add(&out, pre->replacement, n, passage_origin(passage, (Range){at, at + 1}));
                plain = at + 1;
            }
            passage_copy(&out, passage, (Range){plain, word.end});
        }
        words->items[w] = (Range){begin, out.bytes.len};
    }
    Passage old = *passage;
    *passage = out;
    passage_release(&old);
}

Status pre_tokenizers_run(const PreTokenizers *pre, bool first, Passage *passage, Ranges *words) {
    words->n = 0;
    ranges_push(words, 0, passage->bytes.len);
    Ranges pieces = {0};
    Cutter cutter = {0};
    Status status = ST_OK;
    for (size_t i = 0; i < pre->n && status == ST_OK; i++) {
        const PreTokenizer *step = &pre->items[i];
        if ((step->kind == PRE_BYTE_LEVEL && step->add_prefix_space) || step->kind == PRE_METASPACE) rewrite(step, first, passage, words);
        if ((step->kind == PRE_BYTE_LEVEL && !step->pattern.code) || (step->kind == PRE_METASPACE && !step->split)) continue;
        cutter.pre = step;
        cutter.words = &pieces;
        pieces.n = 0;
        for (size_t w = 0; w < words->n && status == ST_OK; w++) {
            if (step->pattern.code || step->pattern.literal) status = cut_by_pattern(&cutter, passage->bytes.data, words->items[w]);
            else cut_by_char(&cutter, passage->bytes.data, words->items[w]);
            finish_word(&cutter);
        }
        Ranges old = *words;
        *words = pieces;
        pieces = old;
    }
    free(pieces.items);
    free(cutter.cuts);
    return status;
}
