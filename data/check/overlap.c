/* SPDX-License-Identifier: Apache-2.0 */
/* Searches training rows for runs of words of evaluation rows; see overlap.h. */
#include "data/check/overlap.h"

#include <stdlib.h>
#include <string.h>

#include "data/branches.h"
#include "data/filter/filter_kinds.h"
#include "data/filter/word_grams.h"
#include "lib/base/system.h"
#include "lib/base/work.h"

enum { BLOCK = 256, COMMON = 3, SHOWN = 5 };

/* A run of words of an evaluation row. asked: its last word is not trained; n, first, last: training rows that contain it. */
typedef struct Gram {
    uint64_t hash;
    uint32_t row, n, first, last;
    bool asked;
} Gram;

/* The words of one row, which of them are trained, and the runs found for it. */
typedef struct Worker {
    Str text, folded;
    Words words;
    bool *trained, *mask; /* mask: of tokens */
    size_t cap_trained, cap_mask;
    size_t *found, n_found, cap_found; /* indices of grams */
    Status status;
} Worker;

typedef struct Overlap {
    const RecipeRows *rows;
    Gram *grams;
    size_t n, cap;
    uint64_t *filter; /* one bit for each stored hash, so that most other hashes are rejected at once */
    size_t filter_mask;
    Worker workers[BLOCK];
} Overlap;

uint64_t hash_ids(const int32_t *ids, int32_t n) {
    uint64_t hash = 0;
    for (int32_t i = 0; i < n; i++) hash = mix64(hash ^ (uint32_t)ids[i]) + 0x9e3779b97f4a7c15u;
    return hash;
}

/* ---- the words of a row ---- */

static Status add_words(const Tokenizer *tokenizer, const int32_t *ids, int32_t n, bool trained, Worker *w) {
    str_clear(&w->text);
    TRY(tokenizer_decode(tokenizer, ids, (size_t)n, true, &w->text));
    text_fold((Slice){str_text(&w->text), w->text.len}, &w->folded);
    size_t before = w->words.n;
    if (!words_add((Slice){str_text(&w->folded), w->folded.len}, &w->words)) return ST_RESOURCE;
    TRY(array_grow(&w->trained, &w->cap_trained, w->words.n + 1, sizeof *w->trained, "words"));
    for (size_t i = before; i < w->words.n; i++) w->trained[i] = trained;
    return ST_OK;
}

/* Special tokens, and the borders of trained parts, end a word. */
static Status read_words(const Tokenizer *tokenizer, const int32_t *ids, int32_t n, Worker *w) {
    for (int32_t begin = 0, end; begin < n; begin = end) {
        end = begin + 1;
        if (tokenizer_is_special(tokenizer, ids[begin])) continue;
        while (end < n && !tokenizer_is_special(tokenizer, ids[end]) && w->mask[end] == w->mask[begin]) end++;
        TRY(add_words(tokenizer, ids + begin, end - begin, w->mask[begin], w));
    }
    return ST_OK;
}

/* Without a tokenizer, tokens count as words. */
static Status read_ids(const int32_t *ids, int32_t n, Worker *w) {
    TRY(array_grow(&w->words.hashes, &w->words.cap, (size_t)n + 1, sizeof *w->words.hashes, "tokens"));
    TRY(array_grow(&w->trained, &w->cap_trained, (size_t)n + 1, sizeof *w->trained, "tokens"));
    for (int32_t t = 0; t < n; t++) {
        w->words.hashes[t] = hash_ids(ids + t, 1);
        w->trained[t] = w->mask[t];
    }
    w->words.n = (size_t)n;
    return ST_OK;
}

typedef struct Grams {
    Overlap *overlap;
    Worker *worker;
    size_t last; /* first word of the current run */
    uint32_t row;
    bool (*take)(struct Grams *grams, uint64_t hash, bool asked);
} Grams;

static bool each(void *context, uint64_t hash) {
    Grams *grams = context;
    bool asked = !grams->worker->trained[grams->last++];
    return (asked && !grams->overlap->rows->tokenizer) || grams->take(grams, hash, asked);
}

/* A text with fewer words is one run. */
static Status each_gram_of(Grams *grams, const Ids *ids, const Ids *labels) {
    Worker *w = grams->worker;
    const RecipeRows *rows = grams->overlap->rows;
    int32_t n_tokens = (int32_t)ids->n;
    bool trains = false;
    w->words.n = 0;
    TRY(array_grow(&w->mask, &w->cap_mask, ids->n + 1, sizeof *w->mask, "tokens"));
    for (size_t t = 0; t < ids->n; t++) trains |= w->mask[t] = labels->data[t] != LABEL_NONE;
    TRY(rows->tokenizer ? read_words(rows->tokenizer, ids->data, n_tokens, w) : read_ids(ids->data, n_tokens, w));
    if (w->words.n == 0 || (!trains && !rows->prompts)) return ST_OK;
    size_t n = MIN(w->words.n, (size_t)OVERLAP_RUN);
    if (n < OVERLAP_RUN) w->trained[n - 1] = true; /* a full row is never boilerplate */
    grams->last = n - 1;
    return words_each_gram(w->words.hashes, w->words.n, n, each, grams) ? ST_OK : ST_RESOURCE;
}

/* Visits each text of a row, with the words that it shares with the others. */
static Status each_gram(Grams *grams, const Example *example) {
    Status status = ST_OK;
    for (int32_t k = 0; k < example_texts(example) && status == ST_OK; k++) {
        Ids ids = {0}, labels = {0};
        example_text(example, k, &ids, &labels);
        status = each_gram_of(grams, &ids, &labels);
        ids_release(&ids);
        ids_release(&labels);
    }
    return status;
}

/* ---- evaluation ---- */

static bool add_gram(Grams *grams, uint64_t hash, bool asked) {
    Overlap *overlap = grams->overlap;
    if (array_grow(&overlap->grams, &overlap->cap, overlap->n + 1, sizeof *overlap->grams, "runs of words") != ST_OK) return false;
    overlap->grams[overlap->n++] = (Gram){.hash = hash, .row = grams->row, .asked = asked};
    return true;
}

static int by_hash(const void *a, const void *b) {
    const Gram *x = a, *y = b;
    return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash) : (x->row > y->row) - (x->row < y->row);
}

/* Drops runs that many evaluation rows share; of a run that a row has twice, one is kept. */
static void drop_common(Overlap *overlap) {
    size_t kept = 0, common = MAX((size_t)COMMON, overlap->rows->eval->n / 10);
    for (size_t i = 0, end; i < overlap->n; i = end) {
        size_t n_rows = 0;
        for (end = i; end < overlap->n && overlap->grams[end].hash == overlap->grams[i].hash; end++)
            n_rows += end == i || overlap->grams[end].row != overlap->grams[end - 1].row;
        if (n_rows >= common) continue;
        for (size_t k = i; k < end; k++)
            if (k == i || overlap->grams[k].row != overlap->grams[k - 1].row) overlap->grams[kept++] = overlap->grams[k];
    }
    overlap->n = kept;
}

static Status read_eval(Overlap *overlap) {
    const Dataset *eval = overlap->rows->eval;
    for (size_t i = 0; i < eval->n; i++) {
        const Example example = dataset_example(eval, i);
        work_at("reading rows for evaluation", i, eval->n);
        TRY(each_gram(&(Grams){.overlap = overlap, .worker = &overlap->workers[0], .row = (uint32_t)i, .take = add_gram}, &example));
    }
    qsort(overlap->grams, overlap->n, sizeof *overlap->grams, by_hash);
    drop_common(overlap);
    size_t bits = 64;
    while (bits < 16 * overlap->n) bits *= 2;
    overlap->filter = calloc(bits / 64, sizeof *overlap->filter);
    if (!overlap->filter) return status_fail(ST_RESOURCE, "out of memory to compare training and evaluation");
    overlap->filter_mask = bits - 1;
    for (size_t i = 0; i < overlap->n; i++) {
        uint64_t bit = overlap->grams[i].hash & overlap->filter_mask;
        overlap->filter[bit / 64] |= (uint64_t)1 << bit % 64;
    }
    return ST_OK;
}

/* ---- training ---- */

static bool find_gram(Grams *grams, uint64_t hash, bool asked) {
    Overlap *overlap = grams->overlap;
    Worker *w = grams->worker;
    uint64_t bit = hash & overlap->filter_mask;
    size_t low = 0, high = overlap->n;
    (void)asked;
    if (!(overlap->filter[bit / 64] >> bit % 64 & 1)) return true;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (overlap->grams[middle].hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < overlap->n && overlap->grams[low].hash == hash; low++) {
        if (array_grow(&w->found, &w->cap_found, w->n_found + 1, sizeof *w->found, "runs of words") != ST_OK) return false;
        w->found[w->n_found++] = low;
    }
    return true;
}

static void find_in_row(Overlap *overlap, size_t row, Worker *w) {
    const Example example = dataset_example(overlap->rows->train, row);
    w->n_found = 0;
    w->status = each_gram(&(Grams){.overlap = overlap, .worker = w, .row = (uint32_t)row, .take = find_gram}, &example);
}

static void note_row(Overlap *overlap, uint32_t row, const Worker *w) {
    for (size_t k = 0; k < w->n_found; k++) {
        Gram *gram = &overlap->grams[w->found[k]];
        if (gram->n > 0 && gram->last == row) continue; /* the row contains it twice */
        if (gram->n++ == 0) gram->first = row;
        gram->last = row;
    }
}

static Status search_training(Overlap *overlap) {
    size_t n_rows = overlap->rows->train->n;
    for (size_t begin = 0; begin < n_rows; begin += BLOCK) {
        int n = (int)MIN(n_rows - begin, (size_t)BLOCK);
        work_at("comparing training rows with those for evaluation", begin, n_rows);
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
#pragma omp parallel for schedule(dynamic, 4)
        for (int i = 0; i < n; i++) find_in_row(overlap, begin + (size_t)i, &overlap->workers[i]);
        for (int i = 0; i < n; i++) {
            if (overlap->workers[i].status != ST_OK) return status_fail(ST_RESOURCE, "out of memory to compare training and evaluation");
            note_row(overlap, (uint32_t)(begin + (size_t)i), &overlap->workers[i]);
        }
    }
    return ST_OK;
}

/* ---- the result ---- */

/* A prompt that many training rows begin with is boilerplate, too. */
static bool counts(const Overlap *overlap, const Gram *gram) {
    return gram->n > 0 && !(gram->asked && gram->n >= MAX((size_t)COMMON, overlap->rows->train->n / 10));
}

static Status overlap_report(const Overlap *overlap, int64_t *n, Str *where) {
    const Dataset *eval = overlap->rows->eval, *train = overlap->rows->train;
    uint32_t *hit = calloc(eval->n + 1, sizeof *hit); /* the first training row, from 1 */
    if (!hit) return status_fail(ST_RESOURCE, "out of memory to compare training and evaluation");
    for (size_t i = 0; i < overlap->n; i++) {
        const Gram *gram = &overlap->grams[i];
        if (counts(overlap, gram) && (!hit[gram->row] || gram->first + 1 < hit[gram->row])) hit[gram->row] = gram->first + 1;
    }
    for (size_t i = 0; i < eval->n; i++) {
        if (!hit[i]) continue;
        if (++*n > SHOWN) continue;
        if (*n > 1) str_append(where, ", ");
        dataset_where(eval, i, where);
        str_append(where, " (");
        dataset_where(train, hit[i] - 1, where);
        str_append(where, ")");
    }
    if (*n > SHOWN) str_append(where, ", ...");
    free(hit);
    return ST_OK;
}

Status overlap_find(const RecipeRows *rows, int64_t *n, Str *where) {
    *n = 0;
    Overlap *overlap = calloc(1, sizeof *overlap);
    if (!overlap) return status_fail(ST_RESOURCE, "out of memory to compare training and evaluation");
    overlap->rows = rows;
    Status status = read_eval(overlap);
    if (status == ST_OK && overlap->n > 0) status = search_training(overlap);
    work_end("comparing training rows with those for evaluation");
    if (status == ST_OK) status = overlap_report(overlap, n, where);
    for (size_t i = 0; i < BLOCK; i++) {
        Worker *w = &overlap->workers[i];
        str_release(&w->text);
        str_release(&w->folded);
        words_release(&w->words);
        free(w->trained);
        free(w->mask);
        free(w->found);
    }
    free(overlap->grams);
    free(overlap->filter);
    free(overlap);
    return status;
}
