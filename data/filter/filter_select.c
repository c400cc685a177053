/* SPDX-License-Identifier: Apache-2.0 */
/* Selects the best and most diverse rows of a given number: greedy, with lazy evaluation, since a gain never grows (Minoux 1978): only gains that may
 * still be the largest are recomputed. */
#include "data/filter/filter_kinds.h"
#include "lib/base/work.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct Term {
    uint32_t term;
    float weight;
} Term;
typedef struct Candidate {
    double gain;
    size_t row, seen;
} Candidate; /* seen: number of chosen rows that its gain accounts for */
typedef struct TypeRoom {
    const char *name;
    size_t rows, room;
    bool fixed;
} TypeRoom;

typedef struct Selection {
    const SelectRow *rows;
    size_t n;
    uint64_t *slots;   /* hash of a word; 0: empty slot */
    uint32_t *numbers; /* its term */
    size_t cap_slots;
    uint32_t *documents; /* by term: number of rows that contain it */
    size_t n_terms, cap_terms;
    Term *terms; /* total over all rows */
    size_t n_all, cap_all, *begins;
    TypeRoom *types;
    size_t n_types;
    bool pooled; /* types without a quota share the rest */
    size_t pool;
    uint32_t *type_of; /* by row */
    double *likeness;  /* by row: largest cosine with a chosen one so far */
    float *dense;      /* by term: the current row */
    Candidate *heap;
    size_t n_heap;
} Selection;

static Status no_memory(void) { return status_errno(ENOMEM, "cannot select rows"); }

/* ---- TF-IDF ---- */

static size_t find_slot(const uint64_t *slots, size_t cap, uint64_t hash) {
    size_t at = hash & (cap - 1);
    while (slots[at] && slots[at] != hash) at = (at + 1) & (cap - 1);
    return at;
}

static bool widen(Selection *s) {
    size_t cap = s->cap_slots ? s->cap_slots * 2 : 4096;
    uint64_t *slots = calloc(cap, sizeof *slots);
    uint32_t *numbers = malloc(cap * sizeof *numbers);
    for (size_t i = 0; slots && numbers && i < s->cap_slots; i++) {
        if (!s->slots[i]) continue;
        size_t at = find_slot(slots, cap, s->slots[i]);
        slots[at] = s->slots[i];
        numbers[at] = s->numbers[i];
    }
    if (!slots || !numbers) {
        free(slots);
        free(numbers);
        return false;
    }
    free(s->slots);
    free(s->numbers);
    s->slots = slots;
    s->numbers = numbers;
    s->cap_slots = cap;
    return true;
}

static bool term_number(Selection *s, Slice word, uint32_t *number) {
    uint64_t hash = XXH3_64bits(word.data, word.len) | 1;
    if (2 * (s->n_terms + 1) > s->cap_slots && !widen(s)) return false;
    size_t at = find_slot(s->slots, s->cap_slots, hash);
    if (!s->slots[at]) {
        if (s->n_terms >= UINT32_MAX || array_grow(&s->documents, &s->cap_terms, s->n_terms + 1, sizeof *s->documents, "words") != ST_OK)
            return false;
        s->slots[at] = hash;
        s->documents[s->n_terms] = 0;
        s->numbers[at] = (uint32_t)s->n_terms++;
    }
    *number = s->numbers[at];
    return true;
}

static int by_term(const void *a, const void *b) {
    const Term *x = a, *y = b;
    return (x->term > y->term) - (x->term < y->term);
}

/* The words of a row, each once with its count. */
static bool count_words(Selection *s, Slice text, Str *folded) {
    size_t begin = s->n_all, end = begin;
    Slice word;
    text_fold(text, folded);
    for (size_t at = 0; text_word((Slice){str_text(folded), folded->len}, &at, &word);) {
        uint32_t number;
        if (!term_number(s, word, &number) || array_grow(&s->terms, &s->cap_all, s->n_all + 1, sizeof *s->terms, "words") != ST_OK) return false;
        s->terms[s->n_all++] = (Term){number, 1};
    }
    if (s->n_all > begin) qsort(s->terms + begin, s->n_all - begin, sizeof *s->terms, by_term);
    for (size_t i = begin; i < s->n_all; i++) {
        if (end > begin && s->terms[end - 1].term == s->terms[i].term)
            s->terms[end - 1].weight += 1;
        else
            s->terms[end++] = s->terms[i];
    }
    s->n_all = end;
    for (size_t i = begin; i < end; i++) s->documents[s->terms[i].term]++;
    return true;
}

/* (1 + ln tf) (1 + ln((1 + N) / (1 + df))), each row of length 1. */
static void weigh(Selection *s, size_t row) {
    double sum = 0;
    for (size_t i = s->begins[row]; i < s->begins[row + 1]; i++) {
        double weight = (1 + log((double)s->terms[i].weight)) * (1 + log((1 + (double)s->n) / (1 + (double)s->documents[s->terms[i].term])));
        s->terms[i].weight = (float)weight;
        sum += weight * weight;
    }
    for (size_t i = s->begins[row]; i < s->begins[row + 1]; i++) s->terms[i].weight = (float)((double)s->terms[i].weight / sqrt(sum));
}

static Status make_vectors(Selection *s) {
    Str folded = {0};
    bool room = true;
    for (size_t r = 0; room && r < s->n; r++) {
        work_at("counting the words of rows", r, s->n);
        room = count_words(s, s->rows[r].text, &folded);
        s->begins[r + 1] = s->n_all;
    }
    str_release(&folded);
    if (!room || !(s->dense = calloc(s->n_terms + 1, sizeof *s->dense))) return no_memory();
    for (size_t r = 0; r < s->n; r++) weigh(s, r);
    return ST_OK;
}

/* The row's largest cosine with chosen[from..to). */
static double likest(Selection *s, size_t row, const size_t *chosen, size_t from, size_t to) {
    double largest = s->likeness[row];
    for (size_t i = s->begins[row]; i < s->begins[row + 1]; i++) s->dense[s->terms[i].term] = s->terms[i].weight;
    for (size_t k = from; k < to; k++) {
        double sum = 0;
        for (size_t i = s->begins[chosen[k]]; i < s->begins[chosen[k] + 1]; i++)
            sum += (double)s->terms[i].weight * (double)s->dense[s->terms[i].term];
        largest = MAX(largest, sum);
    }
    for (size_t i = s->begins[row]; i < s->begins[row + 1]; i++) s->dense[s->terms[i].term] = 0;
    return MIN(largest, 1);
}

/* ---- quotas ---- */

static size_t type_number(Selection *s, const char *name) {
    for (size_t i = 0; i < s->n_types; i++)
        if (strcmp(s->types[i].name, name) == 0) return i;
    s->types[s->n_types] = (TypeRoom){.name = name};
    return s->n_types++;
}

/* Deals rows to the types in turn: types with fewer rows leave theirs to the others. */
static void share_evenly(Selection *s, size_t left) {
    for (bool any = true; left > 0 && any;) {
        any = false;
        for (size_t i = 0; i < s->n_types && left > 0; i++) {
            TypeRoom *type = &s->types[i];
            if (type->fixed || type->room >= type->rows) continue;
            type->room++;
            left--;
            any = true;
        }
    }
}

/* By largest remainders; the first type of equals. */
static void share_proportionally(Selection *s, size_t left) {
    size_t all = 0, given = 0;
    for (size_t i = 0; i < s->n_types; i++) all += s->types[i].fixed ? 0 : s->types[i].rows;
    left = MIN(left, all);
    for (size_t i = 0; i < s->n_types; i++)
        if (!s->types[i].fixed) given += s->types[i].room = (size_t)((double)left * (double)s->types[i].rows / (double)all);
    for (; given < left; given++) {
        TypeRoom *most = NULL;
        double largest = -1;
        for (size_t i = 0; i < s->n_types; i++) {
            double lacks = (double)left * (double)s->types[i].rows / (double)all - (double)s->types[i].room;
            if (!s->types[i].fixed && s->types[i].room < s->types[i].rows && lacks > largest) largest = lacks, most = &s->types[i];
        }
        if (!most) return;
        most->room++;
    }
}

static Status share_rooms(Selection *s, const SelectConfig *config) {
    size_t left = (size_t)config->n;
    const char *share = config->share ? config->share : "even";
    for (size_t r = 0; r < s->n; r++) {
        s->type_of[r] = (uint32_t)type_number(s, s->rows[r].task_type ? s->rows[r].task_type : "");
        s->types[s->type_of[r]].rows++;
    }
    for (size_t q = 0; q < config->n_quotas; q++) {
        size_t known = s->n_types, type = type_number(s, config->quotas[q].task_type);
        if (s->n_types > known) return status_fail(ST_USAGE, "no row has the task type '%s'", config->quotas[q].task_type);
        if (config->quotas[q].rows < 0 || (size_t)config->quotas[q].rows > left)
            return status_fail(ST_USAGE, "the quota of '%s' is more than what is left of %lld rows", config->quotas[q].task_type,
                               (long long)config->n);
        if (s->types[type].fixed) return status_fail(ST_USAGE, "the task type '%s' has two quotas", config->quotas[q].task_type);
        s->types[type].fixed = true;
        s->types[type].room = (size_t)config->quotas[q].rows;
        left -= (size_t)config->quotas[q].rows;
    }
    if (strcmp(share, "even") == 0)
        share_evenly(s, left);
    else if (strcmp(share, "proportional") == 0)
        share_proportionally(s, left);
    else
        s->pooled = true, s->pool = left;
    return ST_OK;
}

/* ---- choosing ---- */

static bool is_before(const Candidate *a, const Candidate *b) { return a->gain > b->gain || (a->gain == b->gain && a->row < b->row); }

static void sift_down(Selection *s, size_t i) {
    Candidate moved = s->heap[i];
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && is_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!is_before(&s->heap[child], &moved)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = moved;
}

static size_t *room_of(Selection *s, size_t row) {
    TypeRoom *type = &s->types[s->type_of[row]];
    return s->pooled && !type->fixed ? &s->pool : &type->room;
}

static void filter_select_choose(Selection *s, size_t n, size_t *chosen, size_t *n_chosen) {
    for (size_t r = 0; r < s->n; r++) s->heap[r] = (Candidate){s->rows[r].quality, r, 0};
    s->n_heap = s->n;
    for (size_t i = s->n / 2; i-- > 0;) sift_down(s, i);
    *n_chosen = 0;
    while (s->n_heap > 0 && *n_chosen < n) {
        Candidate *top = &s->heap[0];
        work_at("choosing rows", *n_chosen, n);
        size_t *room = room_of(s, top->row);
        if (*room > 0 && top->seen < *n_chosen) {
            s->likeness[top->row] = likest(s, top->row, chosen, top->seen, *n_chosen);
            top->gain = s->rows[top->row].quality * (1 - s->likeness[top->row]);
            top->seen = *n_chosen;
        } else {
            if (*room > 0) {
                (*room)--;
                chosen[(*n_chosen)++] = top->row;
            }
            *top = s->heap[--s->n_heap];
        }
        if (s->n_heap > 0) sift_down(s, 0);
    }
    work_end("choosing rows");
}

static Status filter_select_check(const SelectConfig *config, const SelectRow *rows, size_t n) {
    const char *share = config->share;
    if (config->n < 1) return status_fail(ST_USAGE, "the number of rows to select is %lld, not 1 or more", (long long)config->n);
    if (share && strcmp(share, "even") != 0 && strcmp(share, "proportional") != 0 && strcmp(share, "none") != 0)
        return status_fail(ST_USAGE, "rows are shared 'even', 'proportional' or 'none', not '%s'", share);
    for (size_t r = 0; r < n; r++)
        if (!(rows[r].quality >= 0)) return status_fail(ST_USAGE, "the quality of row %zu is %g, not 0 or more", r + 1, rows[r].quality);
    return ST_OK;
}

Status rows_select(const SelectConfig *config, const SelectRow *rows, size_t n, size_t *chosen, size_t *n_chosen) {
    TRY(filter_select_check(config, rows, n));
    Selection s = {.rows = rows, .n = n};
    s.begins = calloc(n + 1, sizeof *s.begins);
    s.types = calloc(n + 1, sizeof *s.types);
    s.type_of = malloc((n + 1) * sizeof *s.type_of);
    s.likeness = calloc(n + 1, sizeof *s.likeness);
    s.heap = malloc((n + 1) * sizeof *s.heap);
    Status status = s.begins && s.types && s.type_of && s.likeness && s.heap ? make_vectors(&s) : no_memory();
    if (status == ST_OK) status = share_rooms(&s, config);
    if (status == ST_OK) filter_select_choose(&s, MIN((size_t)config->n, n), chosen, n_chosen);
    free(s.slots);
    free(s.numbers);
    free(s.documents);
    free(s.terms);
    free(s.begins);
    free(s.types);
    free(s.type_of);
    free(s.likeness);
    free(s.dense);
    free(s.heap);
    return status;
}
