/* SPDX-License-Identifier: Apache-2.0 */
/* Programs of grammars: built from the end to the beginning, so that each part knows where it goes on, then checked. */
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

enum { NO_END = GRAMMAR_DEPTH + 1 };

Status builder_open(Builder *b, const char *what) {
    *b = (Builder){.what = what, .space = -1, .character = -1, .value = -1};
    b->grammar = calloc(1, sizeof *b->grammar);
    if (!b->grammar) return b->status = status_fail(ST_RESOURCE, "out of memory for the %s", what);
    Grammar *g = b->grammar;
    b->status = array_grow(&g->code, &g->cap, 1, sizeof *g->code, "instructions");
    if (b->status == ST_OK) g->code[g->n++] = (Instr){.kind = INSTR_NONE};
    return b->status;
}

void grammar_free(Grammar *grammar) {
    if (!grammar) return;
    free(grammar->code);
    free(grammar->rules);
    free(grammar->need);
    free(grammar);
}

static int32_t build_instr(Builder *b, Instr instr) {
    Grammar *g = b->grammar;
    if (b->status == ST_OK && g->n == GRAMMAR_STEPS) {
        b->status = status_fail(ST_INPUT, "the %s is too large: it needs more than %d steps", b->what, GRAMMAR_STEPS);
        status_hint(ST_INPUT, "lower maxLength, maxItems and the counts of repetitions, or leave them out");
    }
    if (b->status == ST_OK) b->status = array_grow(&g->code, &g->cap, g->n + 1, sizeof *g->code, "instructions");
    if (b->status != ST_OK) return 0;
    g->code[g->n] = instr;
    return (int32_t)g->n++;
}

int32_t build_bytes(Builder *b, int low, int high, int32_t next) {
    return build_instr(b, (Instr){.kind = INSTR_BYTES, .low = (uint8_t)low, .high = (uint8_t)high, .next = next});
}

int32_t build_split(Builder *b, int32_t next, int32_t other) { return build_instr(b, (Instr){.kind = INSTR_SPLIT, .next = next, .other = other}); }

void build_join(Builder *b, int32_t split, int32_t next) {
    if (b->status == ST_OK) b->grammar->code[split].next = next;
}

int32_t build_return(Builder *b) { return build_instr(b, (Instr){.kind = INSTR_RETURN}); }

int32_t build_rule(Builder *b) {
    Grammar *g = b->grammar;
    if (b->status == ST_OK && g->n_rules == GRAMMAR_RULES)
        b->status = status_fail(ST_INPUT, "the %s is too large: it needs more than %d rules", b->what, GRAMMAR_RULES);
    if (b->status == ST_OK) b->status = array_grow(&g->rules, &g->cap_rules, g->n_rules + 1, sizeof *g->rules, "rules");
    if (b->status != ST_OK) return -1;
    g->rules[g->n_rules] = 0;
    return (int32_t)g->n_rules++;
}

void build_rule_start(Builder *b, int32_t rule, int32_t at) {
    if (b->status == ST_OK) b->grammar->rules[rule] = at;
}

int32_t build_call(Builder *b, int32_t rule, bool deeper, int32_t next) {
    return build_instr(b, (Instr){.kind = INSTR_CALL, .deeper = deeper, .next = next, .other = rule});
}

/* ---- checks ---- */

static int needed(const Grammar *g, const Instr *instr) {
    switch ((InstrKind)instr->kind) {
    case INSTR_BYTES: return g->need[instr->next];
    case INSTR_SPLIT: return MIN(g->need[instr->next], g->need[instr->other]);
    case INSTR_CALL: return MIN(MAX((int)g->need[instr->next], g->need[g->rules[instr->other]] + instr->deeper), NO_END);
    case INSTR_RETURN: return 0;
    case INSTR_NONE: break;
    }
    return NO_END;
}

/* Values only fall, and there are few of them, so this ends soon. */
static Status find_needs(Grammar *g) {
    g->need = malloc(g->n);
    if (!g->need) return status_fail(ST_RESOURCE, "out of memory for %zu instructions", g->n);
    memset(g->need, NO_END, g->n);
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = 0; i < g->n; i++) {
            int need = needed(g, &g->code[i]);
            changed |= need < g->need[i];
            g->need[i] = (uint8_t)need;
        }
    }
    return ST_OK;
}

/* Calls that are made before a byte is matched: `from` a rule, `to` another one. */
typedef struct FirstCall {
    int32_t from, to;
} FirstCall;
typedef struct FirstCalls {
    FirstCall *calls;
    size_t n, cap;
    int32_t *stamps, *todo; /* (n of the program); stamps: the rule from which an instruction was reached */
    bool *empty;            /* by rule: it matches the empty text */
} FirstCalls;

/* Follows a rule to the first bytes. *empty: whether its end was reached without one. */
static Status follow_rule(const Grammar *g, FirstCalls *f, int32_t rule, bool collect, bool *empty) {
    size_t n_todo = 0;
    f->todo[n_todo++] = g->rules[rule];
    f->stamps[g->rules[rule]] = rule;
    while (n_todo > 0) {
        const Instr *instr = &g->code[f->todo[--n_todo]];
        bool call = instr->kind == INSTR_CALL;
        if (instr->kind == INSTR_RETURN) *empty = true;
        if (call && collect) {
            TRY(array_grow(&f->calls, &f->cap, f->n + 1, sizeof *f->calls, "calls of rules"));
            f->calls[f->n++] = (FirstCall){rule, instr->other};
        }
        const int32_t ways[] = {instr->next, instr->other};
        size_t n_ways = instr->kind == INSTR_SPLIT ? 2 : call && f->empty[instr->other] ? 1 : 0;
        for (size_t i = 0; i < n_ways; i++) {
            if (f->stamps[ways[i]] == rule) continue;
            f->stamps[ways[i]] = rule;
            f->todo[n_todo++] = ways[i];
        }
    }
    return ST_OK;
}

static Status find_first_calls(const Grammar *g, FirstCalls *f) {
    f->stamps = malloc(g->n * sizeof *f->stamps);
    f->todo = malloc(g->n * sizeof *f->todo);
    f->empty = calloc(g->n_rules + 1, sizeof *f->empty);
    if (!f->stamps || !f->todo || !f->empty) return status_fail(ST_RESOURCE, "out of memory for %zu instructions", g->n);
    for (bool changed = true; changed;) {
        changed = false;
        memset(f->stamps, 0xFF, g->n * sizeof *f->stamps);
        for (size_t r = 0; r < g->n_rules; r++) {
            bool empty = false;
            if (f->empty[r]) continue;
            TRY(follow_rule(g, f, (int32_t)r, false, &empty));
            changed |= f->empty[r] = empty;
        }
    }
    memset(f->stamps, 0xFF, g->n * sizeof *f->stamps);
    for (size_t r = 0; r < g->n_rules; r++) {
        bool empty = false;
        TRY(follow_rule(g, f, (int32_t)r, true, &empty));
    }
    return ST_OK;
}

/* Rules that call no other rule first are taken away, again and again; what is left calls itself. */
static Status refuse_loops(const Builder *b, FirstCalls *f) {
    const Grammar *g = b->grammar;
    size_t *left = calloc(g->n_rules + 1, sizeof *left);
    if (!left) return status_fail(ST_RESOURCE, "out of memory for %zu rules", g->n_rules);
    for (size_t i = 0; i < f->n; i++) left[f->calls[i].from]++;
    for (size_t before = f->n + 1; f->n < before;) {
        before = f->n;
        size_t kept = 0;
        for (size_t i = 0; i < before; i++) {
            if (left[f->calls[i].to] > 0)
                f->calls[kept++] = f->calls[i];
            else
                left[f->calls[i].from]--;
        }
        f->n = kept;
    }
    free(left);
    return f->n == 0 ? ST_OK : status_fail(ST_INPUT, "a reference of the %s leads back to itself, and nothing is written between", b->what);
}

static Status program_check(const Builder *b) {
    FirstCalls f = {0};
    Status status = find_first_calls(b->grammar, &f);
    if (status == ST_OK) status = refuse_loops(b, &f);
    free(f.calls);
    free(f.stamps);
    free(f.todo);
    free(f.empty);
    TRY(status);
    TRY(find_needs(b->grammar));
    if (b->grammar->need[b->grammar->start] <= GRAMMAR_DEPTH) return ST_OK;
    status_fail(ST_INPUT, "no text fits the %s", b->what);
    return status_hint(ST_INPUT, "look for bounds that exclude each other, and for references without an end");
}

Status builder_finish(Builder *b, int32_t start, Grammar **grammar) {
    *grammar = NULL;
    if (b->status == ST_OK) {
        b->grammar->start = start;
        b->status = program_check(b);
    }
    if (b->status == ST_OK)
        *grammar = b->grammar;
    else
        grammar_free(b->grammar);
    b->grammar = NULL;
    return b->status;
}
