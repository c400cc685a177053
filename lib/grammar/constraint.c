/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens that may follow a text: those whose bytes the automaton accepts from the state of the text. All tokens are tried in the order of their
 * bytes, so that a beginning which many of them share is tried once, and once only if it is refused. */
#include "lib/base/arena.h"
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

struct Constraint {
    const TokenBytes *tokens;
    Automaton automaton;
    uint64_t era;
    int32_t *path;   /* (longest + 1): states along the bytes of a token */
    uint64_t *first; /* the mask of a text's first token, where that may not begin with a blank */
};

static size_t mask_words(const Constraint *c) { return ((size_t)c->tokens->vocab + 63) / 64; }

Status constraint_new(const Grammar *grammar, const TokenBytes *tokens, Constraint **constraint) {
    Constraint *c = calloc(1, sizeof *c);
    *constraint = NULL;
    if (!c) return status_fail(ST_RESOURCE, "out of memory for a constraint");
    *c = (Constraint){.tokens = tokens, .era = 1};
    c->path = malloc((tokens->longest + 1) * sizeof *c->path);
    c->first = malloc((mask_words(c) + 1) * sizeof *c->first);
    Status status = c->path && c->first ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a constraint");
    if (status == ST_OK) status = automaton_open(&c->automaton, grammar);
    if (status == ST_OK)
        *constraint = c;
    else
        constraint_free(c);
    return status;
}

void constraint_free(Constraint *c) {
    if (!c) return;
    automaton_release(&c->automaton);
    free(c->path);
    free(c->first);
    free(c);
}

size_t constraints_bytes(const Tokenizer *tokenizer, size_t n) {
    size_t mask = ((size_t)tokenizer_vocab_size(tokenizer) / 64 + 2) * sizeof(uint64_t),
           grammar = (size_t)GRAMMAR_STEPS * (sizeof(Instr) + sizeof(uint8_t)) + (size_t)GRAMMAR_RULES * sizeof(int32_t),
           each = CONSTRAINT_BYTES + automaton_step_bytes() + grammar + mask + UINT16_MAX * sizeof(int32_t);
    return n ? n * each + token_bytes_most(tokenizer) : 0;
}

/* Half of the memory is for what is kept, the other half for what one call adds to it. */
static Status forget_much(Constraint *c) {
    bool whole = c->automaton.n_states > STATE_FIRST; /* not if memory ran out when it was last emptied */
    if (whole && automaton_bytes(&c->automaton) <= CONSTRAINT_BYTES / 2) return ST_OK;
    c->era++;
    return automaton_reset(&c->automaton);
}

static Status constraint_follow(Constraint *c, ConstraintState *state, const int32_t *ids, size_t n) {
    const TokenBytes *t = c->tokens;
    Automaton *a = &c->automaton;
    TRY(forget_much(c));
    if (state->era != c->era || state->n > n) *state = (ConstraintState){c->era, STATE_FIRST, 0};
    int32_t at = (int32_t)state->state;
    for (size_t i = state->n; i < n && at != STATE_DEAD; i++) {
        int32_t place = ids[i] >= 0 && ids[i] < t->vocab ? t->places[ids[i]] : -1;
        uint32_t begin = place < 0 ? 0 : t->begins[place], end = place < 0 ? 0 : t->begins[place + 1];
        if (place < 0) at = STATE_DEAD;
        for (uint32_t k = begin; k < end && at != STATE_DEAD; k++) TRY(automaton_step(a, at, t->bytes[k], &at));
        if (at == STATE_DEAD) return status_fail(ST_INPUT, "token %zu of the text, %d, breaks the constraint", i + 1, ids[i]);
    }
    *state = (ConstraintState){c->era, (uint32_t)at, n};
    return ST_OK;
}

/* Tries all tokens from the state. */
static Status fill_mask(Constraint *c, int32_t state, uint64_t *mask) {
    const TokenBytes *t = c->tokens;
    Automaton *a = &c->automaton;
    size_t passed = 0; /* of the token tried last: length of the beginning that was accepted */
    c->path[0] = state;
    for (size_t i = 0; i < t->n; i++) {
        const uint8_t *bytes = t->bytes + t->begins[i];
        size_t len = t->begins[i + 1] - t->begins[i], k = t->common[i];
        if (k > passed) continue; /* it has the beginning that was refused */
        for (; k < len; k++) {
            int32_t next, from = c->path[k];
            const int32_t *known = a->states[from].next;
            next = known ? known[bytes[k]] : STATE_UNKNOWN;
            if (next == STATE_UNKNOWN) TRY(automaton_step(a, from, bytes[k], &next));
            if (next == STATE_DEAD) break;
            c->path[k + 1] = next;
        }
        passed = k;
        if (k == len) mask[t->ids[i] / 64] |= (uint64_t)1 << t->ids[i] % 64;
        if (k == 0) i = t->firsts[bytes[0] + 1] - 1, passed = 0; /* none with this first byte */
    }
    return ST_OK;
}

static Status find_mask(Constraint *c, int32_t state) {
    Automaton *a = &c->automaton;
    if (a->states[state].mask) return ST_OK;
    uint64_t *mask = arena_zero(a->arena, (mask_words(c) + 1) * sizeof *mask);
    if (!mask) return ST_RESOURCE;
    TRY(fill_mask(c, state, mask));
    a->states[state].mask = mask;
    return ST_OK;
}

/* A blank at the beginning of a text is lost, so the grammar could not count on it. */
static void leave_out_blanks(const Constraint *c, const uint64_t *mask) {
    const TokenBytes *t = c->tokens;
    memcpy(c->first, mask, mask_words(c) * sizeof *mask);
    for (size_t i = t->firsts[' ']; i < t->firsts[' ' + 1]; i++) c->first[t->ids[i] / 64] &= ~((uint64_t)1 << t->ids[i] % 64);
}

static bool mask_empty(const Constraint *c, const uint64_t *mask) {
    for (size_t i = 0; i < mask_words(c); i++)
        if (mask[i]) return false;
    return true;
}

Status constraint_mask(Constraint *c, ConstraintState *state, const int32_t *ids, size_t n, TokenMask *mask) {
    c->automaton.work = 0;
    TRY(constraint_follow(c, state, ids, n));
    TRY(find_mask(c, (int32_t)state->state));
    const AutomatonState *at = &c->automaton.states[state->state];
    bool first = n == 0 && c->tokens->strips;
    if (first) leave_out_blanks(c, at->mask);
    *mask = (TokenMask){.allowed = first ? c->first : at->mask, .may_end = at->accepts};
    mask->must_end = mask_empty(c, mask->allowed);
    if (!mask->must_end || mask->may_end) return ST_OK;
    return status_fail(ST_INPUT, "after %zu tokens no token of the vocabulary follows the constraint", n);
}
