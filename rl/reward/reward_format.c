/* SPDX-License-Identifier: Apache-2.0 */
/* format: 1 if the completion matches the template, else 0. "..." in the template matches any text; everything else must occur exactly once and in
 * this order; white space between tags is optional: "<think>...</think><answer>...</answer>". With `partial`: the fraction of the tags that occur
 * exactly once and in order. */
#include "rl/reward/reward_kinds.h"

#include <ctype.h>
#include <string.h>

enum { TEMPLATE, PARTIAL, EMPTY, MAX_PIECES = 64 };
static const OptionSpec options[] = {
    [TEMPLATE] = {.name = "template", .kind = OPTION_STRING, .text = "<think>...</think><answer>...</answer>"},
    [PARTIAL] = {.name = "partial", .kind = OPTION_BOOL},
    [EMPTY] = {.name = "allow_empty", .kind = OPTION_BOOL}, /* "..." may match white space only */
    {0},
};

/* The template's tags and other literal texts, each with whether "..." precedes it; `open_end`: "..." at the end. */
typedef struct Piece {
    const char *text;
    bool hole_before;
} Piece;
typedef struct Form {
    Piece pieces[MAX_PIECES];
    size_t n;
    bool open_end;
} Form;

/* Length of the literal at `at`: a tag <...>, or the text up to the next tag or "...". */
static size_t literal_length(const char *at) {
    if (*at == '<' && strchr(at, '>')) return (size_t)(strchr(at, '>') - at) + 1;
    size_t len = 1;
    while (at[len] && at[len] != '<' && strncmp(at + len, "...", 3) != 0) len++;
    return len;
}

static Status reward_format_open(Reward *reward) {
    Form *form = reward->state = arena_zero(reward->arena, sizeof *form);
    if (!form) return ST_RESOURCE;
    const Yaml *node = reward->options[TEMPLATE].node;
    bool hole = false;
    for (const char *at = reward->options[TEMPLATE].text; *at;) {
        if (isspace((unsigned char)*at)) {
            at++;
        } else if (strncmp(at, "...", 3) == 0) {
            hole = true;
            at += 3;
        } else {
            if (form->n == MAX_PIECES) return reward_refuse(reward, node, "the template has more than %d parts", MAX_PIECES);
            Slice piece = slice_trim((Slice){at, literal_length(at)});
            const char *text = arena_strndup(reward->arena, piece.data, piece.len);
            if (!text) return ST_RESOURCE;
            form->pieces[form->n++] = (Piece){text, hole};
            at += literal_length(at);
            hole = false;
        }
    }
    form->open_end = hole;
    return form->n > 0 ? ST_OK : reward_refuse(reward, node, "the template has no tag");
}

static const char *reward_format_find(const char *at, const char *end, const char *part) {
    size_t len = strlen(part);
    for (; at + len <= end; at++)
        if (memcmp(at, part, len) == 0) return at;
    return NULL;
}

static size_t times(Slice text, const char *part) {
    size_t n = 0;
    for (const char *at = text.data; n < SIZE_MAX && at && (at = reward_format_find(at, text.data + text.len, part)); at += strlen(part)) n++;
    return n;
}

static size_t times_in_form(const Form *form, const char *part) {
    size_t n = 0;
    for (size_t i = 0; i < form->n; i++)
        n += times((Slice){form->pieces[i].text, strlen(form->pieces[i].text)}, part); /* "Answer:" is part of "Final Answer:" */
    return n;
}

static bool is_blank(const char *from, const char *to) { return slice_trim((Slice){from, (size_t)(to - from)}).len == 0; }

/* Whether the text between two literals (or at an end) matches the template. */
static bool gap_fits(bool hole, bool allow_empty, const char *from, const char *to) { return is_blank(from, to) ? !hole || allow_empty : hole; }

static bool reward_format_fits(const Form *form, Slice text, bool allow_empty) {
    const char *at = text.data, *end = at + text.len;
    for (size_t i = 0; i < form->n; i++) {
        const Piece *piece = &form->pieces[i];
        const char *found = reward_format_find(at, end, piece->text);
        if (!found || !gap_fits(piece->hole_before, allow_empty, at, found) || times(text, piece->text) != times_in_form(form, piece->text))
            return false;
        at = found + strlen(piece->text);
    }
    return gap_fits(form->open_end, allow_empty, at, end);
}

static double share(const Form *form, Slice text) {
    const char *at = text.data, *end = at + text.len;
    size_t good = 0;
    for (size_t i = 0; i < form->n; i++) {
        const char *part = form->pieces[i].text, *found = times(text, part) == times_in_form(form, part) ? reward_format_find(at, end, part) : NULL;
        if (!found) continue;
        good++;
        at = found + strlen(part);
    }
    return (double)good / (double)form->n;
}

static Status reward_format_score(Reward *reward, const RewardRow *row, double *value) {
    const Form *form = reward->state;
    Slice text = row->completion.len ? row->completion : (Slice){"", 0};
    *value = reward->options[PARTIAL].number != 0 ? share(form, text) : reward_format_fits(form, text, reward->options[EMPTY].number != 0);
    return ST_OK;
}

const RewardKind reward_kind_format = {"format", options, .open = reward_format_open, .score = reward_format_score};
