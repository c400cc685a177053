/* SPDX-License-Identifier: Apache-2.0 */
/* Trains byte-level BPE (Sennrich et al. 2016, arXiv 1508.07909): merges the most frequent pair of neighbours into a token, repeatedly.
 *
 * The pre-tokenizer that the resulting tokenizer will use cuts the texts; distinct words are stored once with their counts. All words together are
 * one array of linked symbols. A pair knows its count and its positions; a merge visits only those and changes the counts of the pairs around them.
 * The heap may contain counts that are too large by now: when such an entry comes up, it is pushed again with its current count. */
#include <stdlib.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/base/work.h"
#include "lib/text/tokenizer_parts.h"

enum { CHUNK = 1 << 20, N_BYTES = 256 };

typedef struct Word {
    uint64_t hash;
    size_t start, len;
    int64_t count;
} Word;
typedef struct Token {
    size_t start, len;
} Token; /* the token's bytes */
typedef struct Place {
    uint32_t at, next;
} Place; /* next: index of the next position + 1, 0: none */
typedef struct Pair {
    int32_t left, right;
    int64_t count;
    uint32_t places;
    bool touched;
} Pair;
typedef struct Linked {
    int32_t id, prev, next;
    uint32_t word;
} Linked; /* id -1: merged into the symbol before it */
typedef struct Candidate {
    int64_t count;
    uint32_t pair;
} Candidate;
typedef struct Rule {
    int32_t left, right, id;
} Rule;

struct BpeTrainer {
    size_t vocab_size, n_special;
    const char *const *special;
    const char *bos;   /* a special token to put before every text; NULL: none */
    Tokenizer *cutter; /* a tokenizer of special tokens and bytes, without merges */
    Encoder *encoder;
    Word *words; /* open hash table; count 0: a free slot */
    char *bytes; /* bytes of all words */
    Linked *symbols;
    Pair *pairs;
    uint32_t *pair_slots; /* hash table of pair indices + 1 */
    Place *places;
    Candidate *heap;
    Token *tokens; /* tokens with ids from n_special on */
    char *token_bytes;
    int32_t *token_slots; /* hash table of token indices */
    Rule *rules;
    uint32_t *sites, *touched;
    size_t n_words, n_word_slots, n_bytes, bytes_cap, symbols_cap, n_pairs, pairs_cap, n_pair_slots, n_places, places_cap, n_heap, heap_cap;
    size_t n_tokens, tokens_cap, n_token_bytes, token_bytes_cap, n_token_slots, n_rules, rules_cap, sites_cap, n_touched, touched_cap;
};

/* ---- words ---- */

static Word *word_slot(const BpeTrainer *t, uint64_t hash, const char *word, size_t len) {
    size_t slot = hash & (t->n_word_slots - 1);
    for (;; slot = (slot + 1) & (t->n_word_slots - 1)) {
        Word *entry = &t->words[slot];
        if (entry->count == 0 || (entry->hash == hash && entry->len == len && memcmp(t->bytes + entry->start, word, len) == 0)) return entry;
    }
}

static Status words_grow(BpeTrainer *t) {
    Word *old = t->words;
    size_t n_old = t->n_word_slots;
    Word *words = calloc(MAX(2 * n_old, (size_t)1 << 12), sizeof *words);
    if (!words) return status_fail(ST_RESOURCE, "no memory for %zu different words", t->n_words);
    t->words = words;
    t->n_word_slots = MAX(2 * n_old, (size_t)1 << 12);
    for (size_t i = 0; i < n_old; i++)
        if (old[i].count > 0) *word_slot(t, old[i].hash, t->bytes + old[i].start, old[i].len) = old[i];
    free(old);
    return ST_OK;
}

static Status word_count(BpeTrainer *t, const char *word, size_t len) {
    if (2 * t->n_words >= t->n_word_slots) TRY(words_grow(t));
    uint64_t hash = bytes_hash(word, len);
    Word *entry = word_slot(t, hash, word, len);
    if (entry->count == 0) {
        if (t->n_bytes + len > INT32_MAX) return status_fail(ST_RESOURCE, "the different words of the corpus are more than %d bytes", INT32_MAX);
        TRY(array_grow(&t->bytes, &t->bytes_cap, t->n_bytes + len, 1, "bytes of words"));
        memcpy(t->bytes + t->n_bytes, word, len);
        *entry = (Word){.hash = hash, .start = t->n_bytes, .len = len};
        t->n_bytes += len;
        t->n_words++;
    }
    entry->count++;
    return ST_OK;
}

static bool ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* GPT-2's pattern never joins a space with anything before it, so a text may be cut there. */
static size_t chunk_end(const char *text, size_t len, size_t start) {
    if (len - start <= CHUNK) return len;
    for (size_t i = start + CHUNK; i < len; i++)
        if (ascii_space(text[i]) && (uint8_t)text[i - 1] < 0x80 && !ascii_space(text[i - 1])) return i;
    return len;
}

static Status count_plain(BpeTrainer *t, const char *text, size_t len) {
    for (size_t start = 0, end; start < len; start = end) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        work_at_bytes("counting words", start, len);
        end = chunk_end(text, len, start);
        Text part = {text + start, end - start, NULL, 0};
        const Spans *spans;
        TRY(pretokenizer_run(&t->cutter->pretokenizer, t->encoder, &part, &spans));
        for (size_t i = 0; i < spans->n; i++) TRY(word_count(t, part.data + spans->data[i].start, spans->data[i].end - spans->data[i].start));
    }
    return ST_OK;
}

Status bpe_trainer_add(BpeTrainer *t, const char *text, size_t len) {
    size_t bad = utf8_fault(text, len), done = 0, from = 0;
    const Text whole = {text, len, NULL, 0};
    AddedMatch match;
    if (bad < len) return status_fail(ST_INPUT, "byte %zu is not UTF-8 (0x%02X)", bad, (unsigned)(uint8_t)text[bad]);
    while (added_find(&t->cutter->added.plain, &whole, from, done, &(Literal){0}, &match)) {
        TRY(count_plain(t, text + done, match.start - done));
        done = match.end;
        from = match.resume;
    }
    return count_plain(t, text + done, len - done);
}

/* ---- tokens ---- */

static int32_t *token_slot(const BpeTrainer *t, const char *bytes, size_t len) {
    size_t slot = bytes_hash(bytes, len) & (t->n_token_slots - 1);
    for (;; slot = (slot + 1) & (t->n_token_slots - 1)) {
        int32_t index = t->token_slots[slot];
        if (index < 0 || (t->tokens[index].len == len && memcmp(t->token_bytes + t->tokens[index].start, bytes, len) == 0))
            return &t->token_slots[slot];
    }
}

/* Finds or adds the token of the `len` bytes that follow those of the last token; a new token keeps them. Two different pairs can have the same
 * bytes. */
static Status token_add(BpeTrainer *t, size_t len, int32_t *index) {
    int32_t *slot = token_slot(t, t->token_bytes + t->n_token_bytes, len);
    if ((*index = *slot) >= 0) return ST_OK;
    TRY(array_grow(&t->tokens, &t->tokens_cap, t->n_tokens + 1, sizeof *t->tokens, "tokens"));
    *index = *slot = (int32_t)t->n_tokens;
    t->tokens[t->n_tokens++] = (Token){t->n_token_bytes, len};
    t->n_token_bytes += len;
    return ST_OK;
}

static Status token_join(BpeTrainer *t, int32_t left, int32_t right, int32_t *index) {
    size_t len[2] = {t->tokens[left].len, t->tokens[right].len};
    TRY(array_grow(&t->token_bytes, &t->token_bytes_cap, t->n_token_bytes + len[0] + len[1], 1, "bytes of tokens"));
    memcpy(t->token_bytes + t->n_token_bytes, t->token_bytes + t->tokens[left].start, len[0]);
    memcpy(t->token_bytes + t->n_token_bytes + len[0], t->token_bytes + t->tokens[right].start, len[1]);
    return token_add(t, len[0] + len[1], index);
}

/* Orders bytes by the characters that represent them, as in GPT-2's vocabulary. */
static size_t bytes_in_order(uint8_t bytes[N_BYTES]) {
    size_t n = 0;
    for (uint32_t c = 0; c < 0x200; c++)
        if (n < N_BYTES && byte_of_char(c, &bytes[n])) n++;
    return n;
}

/* ---- pairs ---- */

static size_t pair_slot(const BpeTrainer *t, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> 20 & (t->n_pair_slots - 1);
    for (; t->pair_slots[slot]; slot = (slot + 1) & (t->n_pair_slots - 1)) {
        const Pair *pair = &t->pairs[t->pair_slots[slot] - 1];
        if (pair->left == left && pair->right == right) break;
    }
    return slot;
}

static Status pairs_grow(BpeTrainer *t) {
    size_t n = MAX(2 * t->n_pair_slots, (size_t)1 << 12);
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots) return status_fail(ST_RESOURCE, "no memory for %zu pairs", t->n_pairs);
    free(t->pair_slots);
    t->pair_slots = slots;
    t->n_pair_slots = n;
    for (size_t i = 0; i < t->n_pairs; i++) t->pair_slots[pair_slot(t, t->pairs[i].left, t->pairs[i].right)] = (uint32_t)i + 1;
    return ST_OK;
}

/* Records a pair at a position in a word that occurs `count` times. */
static Status pair_appears(BpeTrainer *t, int32_t left, int32_t right, uint32_t at, int64_t count) {
    if (2 * t->n_pairs >= t->n_pair_slots) TRY(pairs_grow(t));
    size_t slot = pair_slot(t, left, right);
    if (!t->pair_slots[slot]) {
        TRY(array_grow(&t->pairs, &t->pairs_cap, t->n_pairs + 1, sizeof *t->pairs, "pairs of tokens"));
        t->pairs[t->n_pairs++] = (Pair){.left = left, .right = right};
        t->pair_slots[slot] = (uint32_t)t->n_pairs;
    }
    uint32_t index = t->pair_slots[slot] - 1;
    Pair *pair = &t->pairs[index];
    if (t->n_places >= UINT32_MAX) return status_fail(ST_RESOURCE, "the corpus has too many different words");
    TRY(array_grow(&t->places, &t->places_cap, t->n_places + 1, sizeof *t->places, "places of pairs"));
    t->places[t->n_places++] = (Place){at, pair->places};
    pair->places = (uint32_t)t->n_places;
    pair->count += count;
    if (pair->touched) return ST_OK;
    TRY(array_grow(&t->touched, &t->touched_cap, t->n_touched + 1, sizeof *t->touched, "pairs of tokens"));
    t->touched[t->n_touched++] = index;
    pair->touched = true;
    return ST_OK;
}

static void pair_vanishes(BpeTrainer *t, int32_t left, int32_t right, int64_t count) {
    t->pairs[t->pair_slots[pair_slot(t, left, right)] - 1].count -= count;
}

/* ---- the heap: the largest count first, then the pair whose bytes come last in the alphabet ---- */

static int token_order(const BpeTrainer *t, int32_t a, int32_t b) {
    Token x = t->tokens[a], y = t->tokens[b];
    int order = memcmp(t->token_bytes + x.start, t->token_bytes + y.start, MIN(x.len, y.len));
    return order ? order : (x.len > y.len) - (x.len < y.len);
}

static bool comes_first(const BpeTrainer *t, Candidate a, Candidate b) {
    if (a.count != b.count) return a.count > b.count;
    const Pair *x = &t->pairs[a.pair], *y = &t->pairs[b.pair];
    int order = token_order(t, x->left, y->left);
    return (order ? order : token_order(t, x->right, y->right)) > 0;
}

static Status heap_push(BpeTrainer *t, Candidate candidate) {
    TRY(array_grow(&t->heap, &t->heap_cap, t->n_heap + 1, sizeof *t->heap, "pairs of tokens"));
    size_t i = t->n_heap++;
    for (size_t parent; i > 0 && comes_first(t, candidate, t->heap[parent = (i - 1) / 2]); i = parent) t->heap[i] = t->heap[parent];
    t->heap[i] = candidate;
    return ST_OK;
}

static Candidate heap_pop(BpeTrainer *t) {
    Candidate top = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->n_heap; i = child) {
        if (child + 1 < t->n_heap && comes_first(t, t->heap[child + 1], t->heap[child])) child++;
        if (!comes_first(t, t->heap[child], last)) break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = last;
    return top;
}

static Status touched_push(BpeTrainer *t) {
    for (size_t i = 0; i < t->n_touched; i++) {
        t->pairs[t->touched[i]].touched = false;
        TRY(heap_push(t, (Candidate){t->pairs[t->touched[i]].count, t->touched[i]}));
    }
    t->n_touched = 0;
    return ST_OK;
}

/* ---- merging ---- */

/* Makes the array of symbols from the distinct words, one after the other. */
static Status symbols_init(BpeTrainer *t) {
    int32_t of_byte[N_BYTES];
    uint8_t bytes[N_BYTES];
    size_t n_in_order = bytes_in_order(bytes), n = 0;
    ASSERT(n_in_order == N_BYTES, "%zu bytes have characters", n_in_order);
    for (int32_t i = 0; i < N_BYTES; i++) of_byte[bytes[i]] = i;
    TRY(array_grow(&t->symbols, &t->symbols_cap, t->n_bytes, sizeof *t->symbols, "symbols of words"));
    for (size_t w = 0; w < t->n_word_slots; w++) {
        const Word *word = &t->words[w];
        for (size_t i = 0; word->count > 0 && i < word->len; i++, n++)
            t->symbols[n] = (Linked){of_byte[(uint8_t)t->bytes[word->start + i]], i > 0 ? (int32_t)n - 1 : -1,
                                     i + 1 < word->len ? (int32_t)n + 1 : -1, (uint32_t)w};
    }
    for (size_t i = 0; i < n; i++)
        if (t->symbols[i].next >= 0) TRY(pair_appears(t, t->symbols[i].id, t->symbols[i + 1].id, (uint32_t)i, t->words[t->symbols[i].word].count));
    return touched_push(t);
}

static int site_order(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static Status site_merge(BpeTrainer *t, uint32_t at, Pair pair, int32_t id) {
    Linked *left = &t->symbols[at];
    if (left->id != pair.left || left->next < 0 || t->symbols[left->next].id != pair.right) return ST_OK; /* an earlier merge removed the pair here */
    Linked *right = &t->symbols[left->next];
    int64_t count = t->words[left->word].count;
    right->id = -1;
    left->id = id;
    left->next = right->next;
    if (left->prev >= 0) {
        int32_t before = t->symbols[left->prev].id;
        pair_vanishes(t, before, pair.left, count);
        TRY(pair_appears(t, before, id, (uint32_t)left->prev, count));
    }
    if (left->next >= 0) {
        int32_t after = t->symbols[left->next].id;
        t->symbols[left->next].prev = (int32_t)at;
        pair_vanishes(t, pair.right, after, count);
        TRY(pair_appears(t, id, after, at, count));
    }
    return ST_OK;
}

/* Merges all positions of a pair from left to right, so that in "aaa" the first two are merged. */
static Status pair_merge(BpeTrainer *t, uint32_t index, int32_t id) {
    size_t n = 0;
    Pair pair = t->pairs[index];
    t->pairs[index].places = 0;
    for (uint32_t place = pair.places; place; place = t->places[place - 1].next) {
        TRY(array_grow(&t->sites, &t->sites_cap, n + 1, sizeof *t->sites, "places of pairs"));
        t->sites[n++] = t->places[place - 1].at;
    }
    qsort(t->sites, n, sizeof *t->sites, site_order);
    for (size_t i = 0; i < n; i++) TRY(site_merge(t, t->sites[i], pair, id));
    t->pairs[index].count = 0;
    return touched_push(t);
}

static void token_spell(const BpeTrainer *t, int32_t token, Str *text) {
    for (size_t i = 0; i < t->tokens[token].len; i++) {
        char spelled[4];
        str_append_n(text, spelled, byte_char((uint8_t)t->token_bytes[t->tokens[token].start + i], spelled));
    }
}

/* Whether the token has the text of a special token: such a merge is skipped. */
static bool is_special_text(const BpeTrainer *t, int32_t token) {
    Str text = {0};
    token_spell(t, token, &text);
    int32_t id = vocabulary_find(&t->cutter->vocabulary, str_text(&text), text.len);
    str_release(&text);
    return id >= 0 && (size_t)id < t->n_special;
}

static Status merges_find(BpeTrainer *t) {
    while (t->n_special + t->n_tokens < t->vocab_size && t->n_heap > 0) {
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
        work_at("merging pairs, tokens", t->n_special + t->n_tokens, t->vocab_size);
        Candidate best = heap_pop(t);
        Pair pair = t->pairs[best.pair];
        if (pair.count <= 0) continue;
        if (pair.count < best.count) {
            TRY(heap_push(t, (Candidate){pair.count, best.pair}));
            continue;
        }
        int32_t id;
        size_t n_before = t->n_tokens;
        TRY(token_join(t, pair.left, pair.right, &id));
        if (t->n_tokens > n_before && is_special_text(t, id)) {
            *token_slot(t, t->token_bytes + t->tokens[id].start, t->tokens[id].len) = -1;
            t->n_tokens--;
            t->pairs[best.pair].count = 0;
            continue;
        }
        TRY(array_grow(&t->rules, &t->rules_cap, t->n_rules + 1, sizeof *t->rules, "merges"));
        t->rules[t->n_rules++] = (Rule){pair.left, pair.right, id};
        TRY(pair_merge(t, best.pair, id));
    }
    return ST_OK;
}

/* ---- the file ---- */

static void specials_write(JsonWriter *w, const char *const *special, size_t n) {
    jw_array(w, "added_tokens");
    for (size_t i = 0; i < n; i++) {
        jw_object(w, NULL);
        jw_int(w, "id", (int64_t)i);
        jw_string(w, "content", special[i]);
        static const char *const flags[] = {"single_word", "lstrip", "rstrip", "normalized"};
        for (size_t k = 0; k < COUNT_OF(flags); k++) jw_bool(w, flags[k], false);
        jw_bool(w, "special", true);
        jw_end_object(w);
    }
    jw_end_array(w);
}

static void byte_level_write(JsonWriter *w, const char *section) {
    jw_object(w, section);
    jw_string(w, "type", "ByteLevel");
    jw_bool(w, "add_prefix_space", false);
    jw_bool(w, "trim_offsets", true);
    jw_bool(w, "use_regex", true);
    jw_end_object(w);
}

static void model_write(const BpeTrainer *t, JsonWriter *w) {
    Str text = {0};
    jw_object(w, "model");
    jw_string(w, "type", "BPE");
    static const char *const none[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < COUNT_OF(none); i++) jw_null(w, none[i]);
    static const char *const flags[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    for (size_t i = 0; i < COUNT_OF(flags); i++) jw_bool(w, flags[i], false);
    jw_object(w, "vocab");
    for (size_t i = 0; i < t->n_special; i++) jw_int(w, t->special[i], (int64_t)i);
    for (size_t i = 0; i < t->n_tokens; i++) {
        str_clear(&text);
        token_spell(t, (int32_t)i, &text);
        jw_int(w, str_text(&text), (int64_t)(t->n_special + i));
    }
    jw_end_object(w);
    jw_array(w, "merges");
    for (size_t i = 0; i < t->n_rules; i++) {
        str_clear(&text);
        token_spell(t, t->rules[i].left, &text);
        str_append_char(&text, ' ');
        token_spell(t, t->rules[i].right, &text);
        jw_string(w, NULL, str_text(&text));
    }
    jw_end_array(w);
    jw_end_object(w);
    str_release(&text);
}

static void piece_write(JsonWriter *w, const char *kind, const char *id, int64_t type_id) {
    jw_object(w, NULL);
    jw_object(w, kind);
    jw_string(w, "id", id);
    jw_int(w, "type_id", type_id);
    jw_end_object(w);
    jw_end_object(w);
}

/* The post-processor that puts BOS before a text. */
static void template_write(const BpeTrainer *t, JsonWriter *w) {
    int64_t id = 0;
    while (strcmp(t->special[id], t->bos) != 0) id++;
    jw_object(w, "post_processor");
    jw_string(w, "type", "TemplateProcessing");
    for (int pair = 0; pair < 2; pair++) {
        jw_array(w, pair ? "pair" : "single");
        piece_write(w, "SpecialToken", t->bos, 0);
        piece_write(w, "Sequence", "A", 0);
        if (pair) piece_write(w, "Sequence", "B", 1);
        jw_end_array(w);
    }
    jw_object(w, "special_tokens");
    jw_object(w, t->bos);
    jw_string(w, "id", t->bos);
    jw_array(w, "ids");
    jw_int(w, NULL, id);
    jw_end_array(w);
    jw_array(w, "tokens");
    jw_string(w, NULL, t->bos);
    jw_end_array(w);
    jw_end_object(w);
    jw_end_object(w);
    jw_end_object(w);
}

static void tokenizer_write(const BpeTrainer *t, JsonWriter *w) {
    jw_object(w, NULL);
    jw_string(w, "version", "1.0");
    jw_null(w, "truncation");
    jw_null(w, "padding");
    specials_write(w, t->special, t->n_special);
    jw_null(w, "normalizer");
    byte_level_write(w, "pre_tokenizer");
    if (t->bos)
        template_write(t, w);
    else
        jw_null(w, "post_processor");
    byte_level_write(w, "decoder");
    model_write(t, w);
    jw_end_object(w);
}

/* ---- the public calls ---- */

static Status bytes_init(BpeTrainer *t) {
    uint8_t bytes[N_BYTES];
    bytes_in_order(bytes);
    for (t->n_token_slots = 1 << 10; t->n_token_slots < 2 * t->vocab_size;) t->n_token_slots *= 2;
    t->token_slots = malloc(t->n_token_slots * sizeof *t->token_slots);
    if (!t->token_slots) return status_fail(ST_RESOURCE, "no memory for %zu tokens", t->vocab_size);
    memset(t->token_slots, 0xFF, t->n_token_slots * sizeof *t->token_slots);
    TRY(array_grow(&t->token_bytes, &t->token_bytes_cap, N_BYTES, 1, "bytes of tokens"));
    for (size_t i = 0; i < N_BYTES; i++) {
        int32_t index;
        t->token_bytes[t->n_token_bytes] = (char)bytes[i];
        TRY(token_add(t, 1, &index));
    }
    return ST_OK;
}

static Status cutter_new(BpeTrainer *t) {
    JsonWriter w = {0};
    json_t *root;
    tokenizer_write(t, &w);
    Status status = json_read_text(str_text(&w.text), w.text.len, "the new tokenizer", &root);
    jw_release(&w);
    TRY(status);
    status = tokenizer_from_json(root, "the new tokenizer", &t->cutter);
    json_decref(root);
    return status;
}

static Status special_check(const char *const *special, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint8_t byte;
        uint32_t c;
        size_t len = strlen(special[i]);
        if (!*special[i]) return status_fail(ST_USAGE, "a special token can't be empty");
        if (utf8_fault(special[i], len) < len) return status_fail(ST_USAGE, "special token %zu is not UTF-8", i + 1);
        if (char_next(special[i], &c) == len && byte_of_char(c, &byte))
            return status_fail(ST_USAGE, "'%s' can't be a special token: it represents a byte", special[i]);
        for (size_t k = 0; k < i; k++)
            if (strcmp(special[i], special[k]) == 0) return status_fail(ST_USAGE, "special token '%s' is given twice", special[i]);
    }
    return ST_OK;
}

Status bpe_trainer_new(size_t vocab_size, const char *const *special, size_t n_special, BpeTrainer **trainer) {
    *trainer = NULL;
    TRY(special_check(special, n_special));
    if (vocab_size < N_BYTES + n_special)
        return status_fail(ST_USAGE, "a vocabulary of %zu is too small: %d bytes and %zu special tokens need %zu", vocab_size, N_BYTES, n_special,
                           N_BYTES + n_special);
    if (vocab_size > MAX_TOKEN_ID) return status_fail(ST_USAGE, "a vocabulary of %zu is too large: at most %d", vocab_size, MAX_TOKEN_ID);
    BpeTrainer *t = calloc(1, sizeof *t);
    if (!t) return status_fail(ST_RESOURCE, "no memory for training");
    t->vocab_size = vocab_size;
    t->n_special = n_special;
    t->special = special;
    Status status = bytes_init(t);
    if (status == ST_OK) status = cutter_new(t);
    if (status == ST_OK && !(t->encoder = encoder_acquire(t->cutter))) status = ST_RESOURCE;
    if (status == ST_OK)
        *trainer = t;
    else
        bpe_trainer_free(t);
    return status;
}

Status bpe_trainer_finish(BpeTrainer *t, BpeTrained *result) {
    TRY(symbols_init(t));
    TRY(merges_find(t));
    work_end("merging pairs, tokens");
    JsonWriter w = {.pretty = true};
    tokenizer_write(t, &w);
    *result = (BpeTrained){.json = w.text, .vocab_size = t->n_special + t->n_tokens, .n_words = t->n_words};
    return ST_OK;
}

void bpe_trainer_free(BpeTrainer *t) {
    if (!t) return;
    encoder_free(t->encoder);
    tokenizer_free(t->cutter);
    void *const parts[] = {t->words,  t->bytes,       t->symbols,     t->pairs, t->pair_slots, t->places, t->heap,
                           t->tokens, t->token_bytes, t->token_slots, t->rules, t->sites,      t->touched};
    for (size_t i = 0; i < COUNT_OF(parts); i++) free(parts[i]);
    free(t);
}

Status bpe_trainer_bos(BpeTrainer *t, const char *token) {
    for (size_t i = 0; i < t->n_special; i++)
        if (strcmp(t->special[i], token) == 0) {
            t->bos = t->special[i];
            return ST_OK;
        }
    return status_fail(ST_USAGE, "'%s' is none of the special tokens", token);
}
