/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program on bytes. A state is the set of all places where the program can be, each with its stack; equal sets are one state, so that what
 * was found out about a state is found again. Stacks share their lower frames, and equal ones are one. */
#include "lib/base/arena.h"
#include "lib/grammar/grammar_parts.h"

#include <stdlib.h>
#include <string.h>

/* MOST_WORK: places that are followed for one token; about half a second. */
enum { FREE_SLOT = UINT32_MAX, MOST_THREADS = 1 << 14, MOST_SEEN = 8 * MOST_THREADS, MOST_WORK = 1 << 24, FIRST_SLOTS = 64 };

static uint64_t hash_pair(uint64_t a, uint64_t b) { return mix64(a * 0x9E3779B97F4A7C15u + b); }

static Status too_large(void) {
    status_fail(ST_RESOURCE, "the constraint needs more than %d MiB for the places where its text can be", CONSTRAINT_BYTES >> 20);
    return status_hint(ST_RESOURCE, "make patterns shorter, and the alternatives of anyOf differ earlier");
}

/* ---- tables ---- */

static Status slots_new(uint32_t **slots, size_t n) {
    TRY(array_resize(slots, n, sizeof **slots, "states"));
    memset(*slots, 0xFF, n * sizeof **slots);
    return ST_OK;
}

/* A table has twice as many slots as entries. Returns in *grown whether the entries have to be put in anew. */
static Status slots_grow(uint32_t **slots, size_t *n_slots, size_t n, bool *grown) {
    *grown = 2 * (n + 1) > *n_slots;
    if (!*grown) return ST_OK;
    size_t wanted = *n_slots;
    while (2 * (n + 1) > wanted) wanted *= 2;
    TRY(slots_new(slots, wanted));
    *n_slots = wanted;
    return ST_OK;
}

static uint64_t frame_hash(const Frame *f) { return hash_pair((uint64_t)(uint32_t)f->at << 32 | f->parent, f->depth); }

static uint32_t *frame_slot(const Automaton *a, const Frame *f) {
    size_t i = frame_hash(f) & (a->n_frame_slots - 1);
    for (; a->frame_slots[i] != FREE_SLOT; i = (i + 1) & (a->n_frame_slots - 1)) {
        const Frame *other = &a->frames[a->frame_slots[i]];
        if (other->at == f->at && other->parent == f->parent && other->depth == f->depth) break;
    }
    return &a->frame_slots[i];
}

static Status frame_find(Automaton *a, Frame frame, uint32_t *index) {
    bool grown;
    uint32_t *slot = frame_slot(a, &frame);
    if (*slot != FREE_SLOT) {
        *index = *slot;
        return ST_OK;
    }
    if (automaton_bytes(a) > CONSTRAINT_BYTES) return too_large();
    TRY(array_grow(&a->frames, &a->cap_frames, a->n_frames + 1, sizeof *a->frames, "frames"));
    TRY(slots_grow(&a->frame_slots, &a->n_frame_slots, a->n_frames, &grown));
    for (uint32_t i = 0; grown && i < a->n_frames; i++) *frame_slot(a, &a->frames[i]) = i;
    a->frames[a->n_frames] = frame;
    *frame_slot(a, &frame) = *index = (uint32_t)a->n_frames++;
    return ST_OK;
}

static uint64_t threads_hash(const Thread *threads, size_t n, bool accepts) {
    uint64_t hash = accepts;
    for (size_t i = 0; i < n; i++) hash = hash_pair(hash, (uint64_t)(uint32_t)threads[i].at << 32 | threads[i].frame);
    return hash;
}

static uint32_t *state_slot(const Automaton *a, const Thread *threads, size_t n, bool accepts) {
    size_t i = threads_hash(threads, n, accepts) & (a->n_state_slots - 1);
    for (; a->state_slots[i] != FREE_SLOT; i = (i + 1) & (a->n_state_slots - 1)) {
        const AutomatonState *s = &a->states[a->state_slots[i]];
        if (s->n == n && s->accepts == accepts && (n == 0 || memcmp(a->threads + s->first, threads, n * sizeof *threads) == 0)) break;
    }
    return &a->state_slots[i];
}

/* The state of the threads found, which are in order. */
static Status state_find(Automaton *a, bool accepts, int32_t *state) {
    bool grown;
    uint32_t *slot = state_slot(a, a->found, a->n_found, accepts);
    if (*slot != FREE_SLOT) {
        *state = (int32_t)*slot;
        return ST_OK;
    }
    if (automaton_bytes(a) > CONSTRAINT_BYTES) return too_large();
    TRY(array_grow(&a->states, &a->cap_states, a->n_states + 1, sizeof *a->states, "states"));
    TRY(array_grow(&a->threads, &a->cap_threads, a->n_threads + a->n_found, sizeof *a->threads, "places of a constraint"));
    TRY(slots_grow(&a->state_slots, &a->n_state_slots, a->n_states, &grown));
    for (uint32_t i = 0; grown && i < a->n_states; i++) {
        const AutomatonState *s = &a->states[i];
        *state_slot(a, a->threads + s->first, s->n, s->accepts) = i;
    }
    if (a->n_found) memcpy(a->threads + a->n_threads, a->found, a->n_found * sizeof *a->found);
    a->states[a->n_states] = (AutomatonState){.first = a->n_threads, .n = a->n_found, .accepts = accepts};
    a->n_threads += a->n_found;
    *state_slot(a, a->found, a->n_found, accepts) = (uint32_t)a->n_states;
    *state = (int32_t)a->n_states++;
    return ST_OK;
}

/* ---- a step ---- */

/* Marks a place as met; *met: it was so already. The table is emptied by its count for each step. */
static Status place_meet(Automaton *a, Thread place, bool *met) {
    if (2 * (a->n_seen + 1) > a->n_seen_slots) {
        size_t old = a->n_seen_slots, n = MAX(2 * old, (size_t)FIRST_SLOTS);
        Thread *before = a->seen;
        a->seen = NULL;
        Status status = array_resize(&a->seen, n, sizeof *a->seen, "places of a constraint");
        if (status != ST_OK) {
            a->seen = before;
            return status;
        }
        a->n_seen_slots = n;
        a->n_seen = 0;
        memset(a->seen, 0xFF, n * sizeof *a->seen);
        for (size_t i = 0; i < old && status == ST_OK; i++)
            if (before[i].at >= 0) status = place_meet(a, before[i], met);
        free(before);
        TRY(status);
    }
    size_t i = hash_pair((uint64_t)(uint32_t)place.at, place.frame) & (a->n_seen_slots - 1);
    for (; a->seen[i].at >= 0; i = (i + 1) & (a->n_seen_slots - 1)) {
        *met = a->seen[i].at == place.at && a->seen[i].frame == place.frame;
        if (*met) return ST_OK;
    }
    a->seen[i] = place;
    a->n_seen++;
    *met = false;
    return ST_OK;
}

/* A place from which no end can be reached is left out, so that a state has threads only if a text can go on. */
static Status place_push(Automaton *a, int32_t at, uint32_t frame) {
    bool met;
    if (a->grammar->need[at] + a->frames[frame].depth > GRAMMAR_DEPTH) return ST_OK;
    TRY(place_meet(a, (Thread){at, frame}, &met));
    if (met) return ST_OK;
    if (a->n_seen > MOST_SEEN) return status_fail(ST_INPUT, "the text can be at more than %d places of the constraint at once", MOST_THREADS);
    if (++a->work > MOST_WORK) {
        status_fail(ST_INPUT, "the constraint is too large: the tokens that may come next take more than %d steps", MOST_WORK);
        return status_hint(ST_INPUT, "lower the counts of repetitions in patterns, and the number of alternatives that begin alike");
    }
    TRY(array_grow(&a->todo, &a->cap_todo, a->n_todo + 1, sizeof *a->todo, "places of a constraint"));
    a->todo[a->n_todo++] = (Thread){at, frame};
    return ST_OK;
}

/* Follows an instruction that matches no byte. */
static Status place_follow(Automaton *a, Thread place, bool *accepts) {
    const Grammar *g = a->grammar;
    const Instr *instr = &g->code[place.at];
    Frame frame = a->frames[place.frame];
    uint32_t inner;
    switch ((InstrKind)instr->kind) {
    case INSTR_SPLIT: TRY(place_push(a, instr->next, place.frame)); return place_push(a, instr->other, place.frame);
    case INSTR_CALL: /* where nothing follows it, its frame would say nothing: so a list that calls itself at its end can be long */
        if (g->code[instr->next].kind == INSTR_RETURN) return place_push(a, g->rules[instr->other], place.frame);
        TRY(frame_find(a, (Frame){instr->next, place.frame, frame.depth + instr->deeper}, &inner));
        return place_push(a, g->rules[instr->other], inner);
    case INSTR_RETURN:
        if (frame.at) return place_push(a, frame.at, frame.parent);
        *accepts = true;
        return ST_OK;
    case INSTR_BYTES:
        if (a->n_found == MOST_THREADS)
            return status_fail(ST_INPUT, "the text can be at more than %d places of the constraint at once", MOST_THREADS);
        TRY(array_grow(&a->found, &a->cap_found, a->n_found + 1, sizeof *a->found, "places of a constraint"));
        a->found[a->n_found++] = place;
        return ST_OK;
    case INSTR_NONE: break;
    }
    return ST_OK;
}

static int thread_order(const void *x, const void *y) {
    const Thread *a = x, *b = y;
    return a->at != b->at ? (a->at < b->at ? -1 : 1) : (a->frame > b->frame) - (a->frame < b->frame);
}

static void places_forget(Automaton *a) {
    if (a->n_seen) memset(a->seen, 0xFF, a->n_seen_slots * sizeof *a->seen);
    a->n_todo = a->n_seen = a->n_found = 0;
}

/* The state of the places to follow. */
static Status places_state(Automaton *a, int32_t *state) {
    bool accepts = false;
    while (a->n_todo > 0) TRY(place_follow(a, a->todo[--a->n_todo], &accepts));
    if (a->n_found > 1) qsort(a->found, a->n_found, sizeof *a->found, thread_order);
    return state_find(a, accepts, state);
}

Status automaton_step(Automaton *a, int32_t state, uint8_t byte, int32_t *next) {
    AutomatonState *from = &a->states[state];
    if (!from->next) {
        if (automaton_bytes(a) > CONSTRAINT_BYTES) return too_large();
        from->next = arena_alloc(a->arena, 256 * sizeof *from->next);
        if (!from->next) return ST_RESOURCE;
        for (int i = 0; i < 256; i++) from->next[i] = STATE_UNKNOWN;
    }
    *next = from->next[byte];
    if (*next != STATE_UNKNOWN) return ST_OK;
    places_forget(a);
    for (size_t i = 0; i < from->n; i++) {
        Thread thread = a->threads[from->first + i];
        const Instr *instr = &a->grammar->code[thread.at];
        if (instr->low <= byte && byte <= instr->high) TRY(place_push(a, instr->next, thread.frame));
    }
    TRY(places_state(a, next));
    a->states[state].next[byte] = *next;
    return ST_OK;
}

/* ---- life ---- */

size_t automaton_bytes(const Automaton *a) {
    return arena_used(a->arena) + a->n_states * sizeof *a->states + a->n_threads * sizeof *a->threads + a->n_frames * sizeof *a->frames +
           (a->n_state_slots + a->n_frame_slots) * sizeof *a->state_slots;
}

/* `seen` has up to four slots for each place, `todo` one, `found` one for each thread. */
size_t automaton_step_bytes(void) { return (5 * (size_t)MOST_SEEN + MOST_THREADS) * sizeof(Thread); }

Status automaton_reset(Automaton *a) {
    uint32_t bottom;
    int32_t state;
    arena_reset(a->arena);
    a->n_states = a->n_threads = a->n_frames = 0;
    a->n_state_slots = a->n_frame_slots = FIRST_SLOTS;
    TRY(slots_new(&a->state_slots, FIRST_SLOTS));
    TRY(slots_new(&a->frame_slots, FIRST_SLOTS));
    places_forget(a);
    TRY(frame_find(a, (Frame){0, 0, 0}, &bottom));
    TRY(state_find(a, false, &state));
    ASSERT(state == STATE_DEAD, "the first state is %d", state);
    TRY(place_push(a, a->grammar->start, bottom));
    TRY(places_state(a, &state));
    ASSERT(state == STATE_FIRST, "the second state is %d", state);
    return ST_OK;
}

Status automaton_open(Automaton *a, const Grammar *grammar) {
    *a = (Automaton){.grammar = grammar, .arena = arena_new(0)};
    return a->arena ? automaton_reset(a) : ST_RESOURCE;
}

void automaton_release(Automaton *a) {
    arena_free(a->arena);
    free(a->states);
    free(a->threads);
    free(a->frames);
    free(a->state_slots);
    free(a->frame_slots);
    free(a->todo);
    free(a->seen);
    free(a->found);
}

bool grammar_accepts(const Grammar *grammar, const char *text, size_t len) {
    Automaton a;
    int32_t state = STATE_FIRST;
    Status status = automaton_open(&a, grammar);
    for (size_t i = 0; i < len && status == ST_OK && state != STATE_DEAD; i++, a.work = 0)
        status = automaton_step(&a, state, (uint8_t)text[i], &state);
    bool accepts = status == ST_OK && a.states[state].accepts;
    automaton_release(&a);
    return accepts;
}
