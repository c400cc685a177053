/* SPDX-License-Identifier: Apache-2.0 */
/* ROUGE-L; see rouge.h. */
#include "data/filter/rouge.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- words ---- */

/* The letter or digit that a character is in lower case; 0: it separates words. The only other characters whose lower case is (or begins with) an
 * ASCII letter are KELVIN SIGN and I WITH DOT ABOVE. */
static char word_letter(const char *text, size_t len, size_t *used) {
    uint8_t c = (uint8_t)text[0];
    *used = 1;
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9')) return (char)c;
    if (c >= 'A' && c <= 'Z') return (char)(c + 'a' - 'A');
    if (c == 0xE2 && len >= 3 && memcmp(text, "\xE2\x84\xAA", 3) == 0) return *used = 3, 'k';
    if (c == 0xC4 && len >= 2 && (uint8_t)text[1] == 0xB0) return *used = 2, 'i';
    return 0;
}

/* The next word of text[*at..], in lower case, into `word`; false at the end. I WITH DOT ABOVE ends its word: its lower case is an i and a mark. */
static bool next_word(Slice text, size_t *at, Str *word) {
    str_clear(word);
    while (*at < text.len) {
        size_t used;
        char c = word_letter(text.data + *at, text.len - *at, &used);
        if (c == 0 && word->len > 0) return true;
        *at += used;
        if (c == 0) continue;
        str_append_char(word, c);
        if (used == 2) return true;
    }
    return word->len > 0;
}

/* ---- F ---- */

/* In the package's order of operations, so that the result is the same to the bit. */
static double f_measure(size_t lcs, size_t n, size_t m) {
    if (lcs == 0) return 0;
    double precision = (double)lcs / (double)n, recall = (double)lcs / (double)m;
    return 2 * precision * recall / (precision + recall);
}

static void plain_words(Slice text, Str *words, Ids *begins) {
    Str word = {0};
    for (size_t at = 0; next_word(text, &at, &word);) {
        ids_push(begins, (int32_t)words->len);
        str_append_n(words, word.data, word.len + 1);
    }
    str_release(&word);
}

Status rouge_l(Slice a, Slice b, double *f) {
    Str words[2] = {{0}, {0}};
    Ids begins[2] = {{0}, {0}};
    plain_words(a, &words[0], &begins[0]);
    plain_words(b, &words[1], &begins[1]);
    size_t n = begins[0].n, m = begins[1].n, *row = calloc(m + 1, sizeof *row);
    for (size_t i = 0; row && i < n; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < m; j++) {
            size_t above = row[j + 1];
            bool same = strcmp(words[0].data + begins[0].data[i], words[1].data + begins[1].data[j]) == 0;
            row[j + 1] = same ? diagonal + 1 : MAX(above, row[j]);
            diagonal = above;
        }
    }
    if (row) *f = f_measure(row[m], n, m);
    for (int k = 0; k < 2; k++) {
        str_release(&words[k]);
        ids_release(&begins[k]);
    }
    free(row);
    return row ? ST_OK : status_fail(ST_RESOURCE, "out of memory to compare texts of %zu and %zu words", n, m);
}

/* ---- the index ---- A repeated word of a text counts as another word: a "mark" is a word and its occurrence number, so the number of common words
 * is the number of common marks. Each mark has the list of texts that contain it. */

typedef struct List {
    uint32_t *texts;
    uint32_t n, cap;
} List;
typedef struct Slot {
    uint64_t key;
    uint32_t value;
} Slot; /* value: number + 1; 0: empty slot */
typedef struct Table {
    Slot *slots;
    size_t n, cap;
} Table;

struct RougeIndex {
    Table words, marks;    /* words: by the hash of their letters, which are compared; marks: by word and occurrence */
    Str letters;           /* of all words, each ended by NUL */
    size_t *letters_begin; /* by word */
    size_t n_words, cap_words;
    List *lists; /* by mark */
    size_t n_marks, cap_marks;
    int32_t *all;        /* the words of the texts */
    uint32_t *all_marks; /* and their marks */
    size_t n_all, cap_all;
    size_t *begins; /* n_texts + 1 */
    size_t n_texts, cap_texts;
    uint32_t *times; /* by word: occurrences in the current text so far */
    Str word;
};

static Status no_memory(void) { return status_errno(ENOMEM, "cannot keep the words of all rows"); }

/* Makes space for another of n items of `size` bytes. */
static bool rouge_grow(void *array, size_t *cap, size_t n, size_t size) {
    return n < *cap || array_grow(array, cap, n + 1, size, "words of all rows") == ST_OK;
}

static bool table_double(Table *table) {
    if (2 * (table->n + 1) <= table->cap) return true;
    size_t cap = table->cap ? table->cap * 2 : 1024;
    Slot *slots = calloc(cap, sizeof *slots);
    if (!slots) return false;
    for (size_t i = 0; i < table->cap; i++) {
        if (table->slots[i].value == 0) continue;
        size_t at = table->slots[i].key & (cap - 1);
        while (slots[at].value) at = (at + 1) & (cap - 1);
        slots[at] = table->slots[i];
    }
    free(table->slots);
    table->slots = slots;
    table->cap = cap;
    return true;
}

/* The number of a word; SIZE_MAX if out of memory. */
static size_t word_number(RougeIndex *index, const Str *word) {
    uint64_t key = XXH3_64bits(word->data, word->len);
    if (!table_double(&index->words)) return SIZE_MAX;
    size_t at = key & (index->words.cap - 1), n = index->n_words;
    for (Slot *slot; (slot = &index->words.slots[at])->value; at = (at + 1) & (index->words.cap - 1))
        if (slot->key == key && strcmp(index->letters.data + index->letters_begin[slot->value - 1], word->data) == 0) return slot->value - 1;
    size_t cap = index->cap_words;
    if (n >= INT32_MAX || !rouge_grow(&index->letters_begin, &cap, n, sizeof *index->letters_begin) ||
        !rouge_grow(&index->times, &index->cap_words, n, sizeof *index->times))
        return SIZE_MAX;
    index->letters_begin[n] = index->letters.len;
    str_append_n(&index->letters, word->data, word->len + 1);
    index->times[n] = 0;
    index->words.slots[at] = (Slot){key, (uint32_t)n + 1};
    index->words.n++;
    return index->n_words++;
}

/* The number of an existing mark; UINT32_MAX if no text has it. */
static uint32_t mark_find(const RougeIndex *index, int32_t word, uint32_t time) {
    uint64_t key = mix64((uint64_t)(uint32_t)word << 32 | time); /* a bijection: equal keys are equal marks */
    if (index->marks.cap == 0) return UINT32_MAX;
    for (size_t at = key & (index->marks.cap - 1); index->marks.slots[at].value; at = (at + 1) & (index->marks.cap - 1))
        if (index->marks.slots[at].key == key) return index->marks.slots[at].value - 1;
    return UINT32_MAX;
}

static uint32_t mark_number(RougeIndex *index, int32_t word, uint32_t time) {
    uint32_t found = mark_find(index, word, time);
    if (found != UINT32_MAX) return found;
    if (index->n_marks >= UINT32_MAX - 1 || !table_double(&index->marks) ||
        !rouge_grow(&index->lists, &index->cap_marks, index->n_marks, sizeof *index->lists))
        return UINT32_MAX;
    uint64_t key = mix64((uint64_t)(uint32_t)word << 32 | time);
    size_t at = key & (index->marks.cap - 1);
    while (index->marks.slots[at].value) at = (at + 1) & (index->marks.cap - 1);
    index->marks.slots[at] = (Slot){key, (uint32_t)index->n_marks + 1};
    index->marks.n++;
    index->lists[index->n_marks] = (List){0};
    return (uint32_t)index->n_marks++;
}

Status rouge_index_new(RougeIndex **out) {
    RougeIndex *index = calloc(1, sizeof *index);
    *out = index;
    if (!index || !rouge_grow(&index->begins, &index->cap_texts, 0, sizeof *index->begins)) {
        rouge_index_free(index);
        *out = NULL;
        return no_memory();
    }
    index->begins[0] = 0;
    return ST_OK;
}

void rouge_index_free(RougeIndex *index) {
    if (!index) return;
    for (size_t i = 0; i < index->n_marks; i++) free(index->lists[i].texts);
    free(index->lists);
    free(index->words.slots);
    free(index->marks.slots);
    free(index->letters_begin);
    free(index->times);
    free(index->all);
    free(index->all_marks);
    free(index->begins);
    str_release(&index->letters);
    str_release(&index->word);
    free(index);
}

void rouge_text_release(RougeText *text) {
    ids_release(&text->words);
    text->distinct = 0;
}

Status rouge_index_words(RougeIndex *index, Slice slice, RougeText *text) {
    Ids *words = &text->words;
    Status status = ST_OK;
    ids_clear(words);
    text->distinct = 0;
    for (size_t at = 0; status == ST_OK && next_word(slice, &at, &index->word);) {
        size_t number = word_number(index, &index->word);
        if (number == SIZE_MAX) {
            status = no_memory();
        } else {
            ids_push(words, (int32_t)number);
            text->distinct += index->times[number]++ == 0;
        }
    }
    for (size_t i = 0; i < words->n; i++) index->times[words->data[i]] = 0;
    return status;
}

static bool list_push(List *list, uint32_t text) {
    size_t cap = list->cap;
    if (!rouge_grow(&list->texts, &cap, list->n, sizeof *list->texts)) return false;
    list->cap = (uint32_t)cap;
    list->texts[list->n++] = text;
    return true;
}

static bool add_word(RougeIndex *index, int32_t word) {
    size_t cap = index->cap_all;
    if (!rouge_grow(&index->all, &cap, index->n_all, sizeof *index->all) ||
        !rouge_grow(&index->all_marks, &index->cap_all, index->n_all, sizeof *index->all_marks))
        return false;
    uint32_t mark = mark_number(index, word, index->times[word]++);
    if (mark == UINT32_MAX || !list_push(&index->lists[mark], (uint32_t)index->n_texts)) return false;
    index->all_marks[index->n_all] = mark;
    index->all[index->n_all++] = word;
    return true;
}

Status rouge_index_add(RougeIndex *index, const RougeText *text) {
    const Ids *words = &text->words;
    bool room = index->n_texts < UINT32_MAX && rouge_grow(&index->begins, &index->cap_texts, index->n_texts + 1, sizeof *index->begins);
    for (size_t i = 0; room && i < words->n; i++) room = add_word(index, words->data[i]);
    for (size_t i = 0; i < words->n; i++) index->times[words->data[i]] = 0;
    if (!room) return no_memory();
    index->begins[++index->n_texts] = index->n_all;
    return ST_OK;
}

size_t rouge_index_size(const RougeIndex *index) { return index->n_texts; }

/* ---- a search ---- */

typedef struct Mark {
    uint32_t mark, n_texts;
} Mark;
struct RougeWorker {
    uint32_t *rows;  /* by word: index + 1 of the row of bits with the word's positions in the searched text; 0: not in the text */
    uint32_t *times; /* by word */
    size_t cap_words;
    uint16_t *common;  /* by text: number of common marks so far */
    uint32_t *touched; /* texts with a count above 0 */
    size_t cap_texts, n_touched;
    uint64_t *bits, *rest; /* a row of bits for each different word of the text; the state of the LCS */
    Mark *marks;
    size_t cap_bits, longest;
};

Status rouge_worker_new(RougeWorker **worker) { return (*worker = calloc(1, sizeof **worker)) ? ST_OK : no_memory(); }

void rouge_worker_free(RougeWorker *worker) {
    if (!worker) return;
    free(worker->rows);
    free(worker->times);
    free(worker->common);
    free(worker->touched);
    free(worker->bits);
    free(worker->rest);
    free(worker->marks);
    free(worker);
}

static bool zeroed(void *pointer, size_t n, size_t size) {
    free(*(void **)pointer);
    return (*(void **)pointer = calloc(MAX(n, (size_t)1), size)) != NULL;
}

Status rouge_worker_fit(RougeWorker *worker, const RougeIndex *index, const RougeText *text, size_t more) {
    size_t n = text->words.n, n_bits = 0;
    bool room = size_mul(text->distinct, (n + 63) / 64, &n_bits);
    if (room && index->n_words > worker->cap_words) {
        worker->cap_words = index->n_words * 2;
        room = zeroed(&worker->rows, worker->cap_words, sizeof *worker->rows) && zeroed(&worker->times, worker->cap_words, sizeof *worker->times);
    }
    if (room && index->n_texts + more > worker->cap_texts) {
        worker->cap_texts = (index->n_texts + more) * 2;
        room = zeroed(&worker->common, worker->cap_texts, sizeof *worker->common) &&
               zeroed(&worker->touched, worker->cap_texts, sizeof *worker->touched);
    }
    if (room && n_bits > worker->cap_bits) {
        worker->cap_bits = n_bits;
        room = zeroed(&worker->bits, n_bits, sizeof *worker->bits);
    }
    if (room && n > worker->longest) {
        worker->longest = n;
        room = zeroed(&worker->rest, (n + 63) / 64, sizeof *worker->rest) && zeroed(&worker->marks, n, sizeof *worker->marks);
    }
    return room ? ST_OK : no_memory();
}

/* Longest common subsequence of the text in the bit rows (n words, w machine words of bits each) and another one. */
static size_t lcs_one(const RougeWorker *worker, size_t n, const int32_t *other, size_t m) {
    uint64_t rest = ~(uint64_t)0;
    for (size_t i = 0; i < m; i++) {
        uint32_t row = worker->rows[other[i]];
        if (row == 0) continue;
        uint64_t hit = rest & worker->bits[row - 1];
        rest = (rest + hit) | (rest - hit);
    }
    return (size_t)__builtin_popcountll(~rest & (~(uint64_t)0 >> (64 - n)));
}

static size_t lcs_many(RougeWorker *worker, size_t n, const int32_t *other, size_t m) {
    size_t w = (n + 63) / 64, lcs = 0;
    uint64_t *rest = worker->rest;
    memset(rest, 0xff, w * sizeof *rest);
    for (size_t i = 0; i < m; i++) {
        uint32_t row = worker->rows[other[i]];
        if (row == 0) continue;
        const uint64_t *bits = worker->bits + (row - 1) * w;
        uint64_t carry = 0;
        for (size_t k = 0; k < w; k++) {
            uint64_t hit = rest[k] & bits[k], sum = rest[k] + hit, more = sum + carry;
            carry = (sum < hit) | (more < sum);
            rest[k] = more | (rest[k] - hit);
        }
    }
    for (size_t k = 0; k < w; k++)
        lcs += (size_t)__builtin_popcountll(~rest[k] & (k + 1 < w || n % 64 == 0 ? ~(uint64_t)0 : ~(uint64_t)0 >> (64 - n % 64)));
    return lcs;
}

/* Sets the bits for the positions of each word. */
static void lay_out(RougeWorker *worker, const int32_t *words, size_t n) {
    size_t w = (n + 63) / 64;
    uint32_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        if (worker->rows[words[i]] == 0) {
            worker->rows[words[i]] = ++rows;
            memset(worker->bits + (rows - 1) * w, 0, w * sizeof *worker->bits);
        }
        worker->bits[(worker->rows[words[i]] - 1) * w + i / 64] |= (uint64_t)1 << (i % 64);
    }
}

static int rarest_first(const void *a, const void *b) {
    const Mark *x = a, *y = b;
    return x->n_texts != y->n_texts ? (x->n_texts > y->n_texts) - (x->n_texts < y->n_texts) : (x->mark > y->mark) - (x->mark < y->mark);
}

/* The text's marks that any text of the index has, rarest first. */
static size_t list_marks(const RougeIndex *index, RougeWorker *worker, const int32_t *words, size_t n) {
    size_t n_marks = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t mark = mark_find(index, words[i], worker->times[words[i]]++);
        if (mark != UINT32_MAX) worker->marks[n_marks++] = (Mark){mark, index->lists[mark].n};
    }
    for (size_t i = 0; i < n; i++) worker->times[words[i]] = 0;
    qsort(worker->marks, n_marks, sizeof *worker->marks, rarest_first);
    return n_marks;
}

/* Whether a text of m words with at most `common` common words can be better than the best. The margin is far above rounding errors; equal ones are
 * compared. */
static bool may_be_better(const RougeBest *best, size_t common, size_t n, size_t m) {
    return 2 * (double)common >= best->f * (double)(n + m) * (1 - 1e-12);
}

static void try_text(const RougeIndex *index, RougeWorker *worker, size_t n, size_t text, RougeBest *best) {
    const int32_t *other = index->all + index->begins[text];
    size_t m = index->begins[text + 1] - index->begins[text];
    double f = f_measure(n <= 64 ? lcs_one(worker, n, other, m) : lcs_many(worker, n, other, m), n, m);
    if (f > best->f || (f == best->f && f > 0 && text < best->text)) *best = (RougeBest){f, text};
}

/* Counts texts that have a mark; returns the one with the most marks so far. */
static size_t count_mark(RougeWorker *worker, const List *list, size_t leader) {
    for (uint32_t i = 0; i < list->n; i++) {
        uint32_t text = list->texts[i];
        if (worker->common[text] == 0) worker->touched[worker->n_touched++] = text;
        worker->common[text]++;
        if (leader == ROUGE_NONE || worker->common[text] > worker->common[leader]) leader = text;
    }
    return leader;
}

/* Goes through the text's marks, rarest first, until no text without any of them can be better; then compares the texts that have one. The leading
 * text is compared on the way, since a good match found early ends the search early. */
static void search_all(const RougeIndex *index, RougeWorker *worker, const int32_t *words, size_t n, RougeBest *best) {
    size_t n_marks = list_marks(index, worker, words, n), done = 0, leader = ROUGE_NONE, tried = ROUGE_NONE;
    worker->n_touched = 0;
    for (; done < n_marks; done++) {
        /* upper bound for a text with none of the marks so far, which has at least as many words as the marks that remain */
        size_t left = n_marks - done;
        if (!may_be_better(best, left, n, left)) break;
        leader = count_mark(worker, &index->lists[worker->marks[done].mark], leader);
        if (leader == tried || leader == ROUGE_NONE) continue;
        try_text(index, worker, n, leader, best);
        tried = leader;
    }
    for (size_t i = 0; i < worker->n_touched; i++) {
        size_t text = worker->touched[i], m = index->begins[text + 1] - index->begins[text], common = worker->common[text] + n_marks - done;
        worker->common[text] = 0;
        if (may_be_better(best, MIN(common, MIN(n, m)), n, m)) try_text(index, worker, n, text, best);
    }
}

/* With few texts, all are compared. */
static void search_some(const RougeIndex *index, RougeWorker *worker, size_t n, size_t from, RougeBest *best) {
    for (size_t text = from; text < index->n_texts; text++) {
        size_t m = index->begins[text + 1] - index->begins[text];
        if (may_be_better(best, MIN(n, m), n, m)) try_text(index, worker, n, text, best);
    }
}

void rouge_index_best(const RougeIndex *index, RougeWorker *worker, const RougeText *text, size_t from, RougeBest *best) {
    enum { FEW = 64, MOST_COUNTED = UINT16_MAX };
    const int32_t *words = text->words.data;
    size_t n = text->words.n;
    if (n == 0) return;
    ASSERT(n <= worker->longest && index->n_texts <= worker->cap_texts && index->n_words <= worker->cap_words,
           "out of memory for %zu words, %zu texts", n, index->n_texts);
    lay_out(worker, words, n);
    bool few = from > 0 || index->n_texts <= FEW || n > MOST_COUNTED;
    if (few)
        search_some(index, worker, n, from, best);
    else
        search_all(index, worker, words, n, best);
    for (size_t i = 0; i < n; i++) worker->rows[words[i]] = 0;
}
