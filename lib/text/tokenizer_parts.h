/* SPDX-License-Identifier: Apache-2.0 */
/* What a tokenizer is made of; for the files of this folder only.
 *
 * Each section of tokenizer.json becomes a flat array of steps (a Sequence is flattened), compiled once by its `_init` and then only read:
 *
 *     text -> added tokens cut out -> Normalizer -> added tokens of normalised text cut out -> PreTokenizer -> pieces -> TokenModel -> ids
 *     ids -> PostProcessor adds BOS and the like;      ids -> Decoder -> text
 *
 * What a call needs to write into (buffers, match data, the cache of words) is an Encoder; a Tokenizer itself never changes after loading.
 */
#ifndef TUNE_TOKENIZER_PARTS_H
#define TUNE_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdatomic.h>

#include "lib/base/json.h"
#include "lib/text/text.h"

enum { MAX_SEQUENCE_DEPTH = 16, MAX_TOKEN_ID = (1 << 24) - 1, IDLE_ENCODERS = 16, REPLACEMENT_CHARACTER = 0xFFFD };

/* ---- characters ---- */

bool char_is_space(uint32_t c);       /* Unicode White_Space */
bool char_is_numeric(uint32_t c);     /* Nd, Nl, No */
bool char_is_punctuation(uint32_t c); /* P*, and all ASCII punctuation */
bool char_is_word(uint32_t c);        /* \w of UTS 18: alphabetic, marks, decimal digits, connectors, joiners */
bool char_is_mark(uint32_t c);        /* Mn, Mc, Me */
bool char_is_nonspacing(uint32_t c);  /* Mn */
bool char_is_other(uint32_t c);       /* Cc, Cf, Co */
/* Like utf8_decode, for text that is known to be valid and not at its end. */
size_t char_next(const char *bytes, uint32_t *c);
/* Length of the last character of valid, non-empty text, and the character. */
size_t char_last(const char *bytes, size_t len, uint32_t *c);
/* Appends bytes; each maximal part of a character that is not whole becomes U+FFFD. */
void str_append_lossy(Str *str, const char *bytes, size_t len);
/* GPT-2's way to write a byte as a printable character: two bytes of UTF-8 at most. */
size_t byte_char(uint8_t byte, char out[4]);
bool byte_of_char(uint32_t c, uint8_t *byte); /* its inverse; false when no byte is written as c */

/* ---- patterns ---- */

/* A plain string, or a regular expression in Oniguruma's dialect, which is rewritten for PCRE2 where the two differ. */
typedef struct Pattern Pattern;
struct Pattern {
    Slice literal;
    pcre2_code *code;
    bool jit;
    const char *source;
    Pattern *next;
};
typedef struct Matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} Matcher; /* {0}: made at the first match */
/* The next match at or after `from`; *found false when there is none. ST_RESOURCE when the pattern takes too many steps or too much stack. */
Status pattern_find(const Pattern *pattern, Matcher *matcher, const char *text, size_t len, size_t from, bool *found, size_t *start, size_t *end);
void matcher_release(Matcher *matcher);

/* ---- loading ---- */

typedef struct Loader {
    Tokenizer *tokenizer;
    Arena *arena;
    const char *path;
} Loader;
/* The elements of one section as a flat list. `list_key`: where a Sequence keeps its own. A null section has none. */
Status section_flatten(Loader *loader, const char *section, const json_t *node, const char *list_key, const json_t ***parts, size_t *n);
Status part_unknown(const Loader *loader, const char *section, const char *type);
/* A string member that must be there. */
Status part_string(const Loader *loader, const json_t *part, const char *key, const char **value);
Status part_bool(const Loader *loader, const json_t *part, const char *key, bool missing, bool *value);
/* A string of exactly one character. */
Status part_char(const Loader *loader, const json_t *part, const char *key, const char **value);
/* The pattern lives as long as the tokenizer, which frees it. ST_INPUT: an expression that PCRE2 refuses, an empty text. */
Status pattern_new(Loader *loader, const char *regex, Pattern **pattern);
Status pattern_new_literal(Loader *loader, const char *text, Pattern **pattern);
Status pattern_from_json(Loader *loader, const json_t *node, Pattern **pattern); /* {"String": ..} or {"Regex": ..} */

/* ---- vocabulary ---- */

/* Strings of the model and of added tokens to ids and back. `slots` is an open hash table of ids (-1: free); `added` has a bit for each id that only
 * an added token has. */
typedef struct Vocabulary {
    Slice *tokens;
    int32_t *slots;
    size_t n_slots;
    int32_t size;
    uint8_t *added;
} Vocabulary;
Status vocabulary_init(Loader *loader, Vocabulary *vocabulary, const json_t *model, const json_t *added);
int32_t vocabulary_find(const Vocabulary *vocabulary, const char *text, size_t len); /* -1 when missing */
/* The same among the model's own tokens: an added one is cut out of the text before, or not meant there (single_word). */
int32_t vocabulary_find_own(const Vocabulary *vocabulary, const char *text, size_t len);
uint64_t bytes_hash(const char *bytes, size_t len);

/* ---- tries ---- */

/* Tokens by their beginnings. Node 0 is the root; an edge leads from a node by a byte to another. */
typedef struct TrieEdge {
    uint32_t key, to;
} TrieEdge; /* key: node << 8 | byte; to 0: free */
typedef struct Trie {
    TrieEdge *edges;
    int32_t *ids;
    size_t n_slots;
} Trie; /* ids: of the token that ends at a node, -1: none */
typedef struct TrieEntry {
    Slice token;
    int32_t id;
} TrieEntry;
/* Sorts `entries`. Of equal tokens the one with the largest id counts. ST_INPUT when there are more nodes than 2^24. */
Status trie_init(Loader *loader, Trie *trie, TrieEntry *entries, size_t n);
uint32_t trie_step(const Trie *trie, uint32_t node, uint8_t byte);                 /* 0: no token goes on like this */
uint32_t trie_walk(const Trie *trie, uint32_t node, const char *text, size_t len); /* several steps */

/* ---- text on its way, with the bytes of the original that each byte comes from ---- */

typedef struct Origin {
    uint32_t from, to;
} Origin;
typedef struct Text {
    const char *data;
    size_t len;
    const Origin *origins;
    size_t base;
} Text; /* origins NULL: byte i is byte base + i */
typedef struct TextBuffer {
    char *data;
    Origin *origins;
    size_t len, cap, origins_cap;
    bool tracked, full;
} TextBuffer; /* full: memory ran out */
typedef struct Span {
    size_t start, end;
} Span;
typedef struct Spans {
    Span *data;
    size_t n, cap;
    bool full;
} Spans;

Origin text_origin(const Text *text, size_t start, size_t end); /* of the original: the bytes that start..end-1 of `text` come from */
/* Appending sets `full` where memory runs out, and goes on without effect: buffer_view then fails with ST_RESOURCE, and whoever pushes spans looks at
 * theirs when all are there. buffer_copy: bytes start..end-1 of `text`, with where they come from. buffer_view borrows. */
void buffer_put(TextBuffer *buffer, const char *bytes, size_t len, Origin origin);
void buffer_copy(TextBuffer *buffer, const Text *text, size_t start, size_t end);
Status buffer_view(const TextBuffer *buffer, Text *text);
void spans_push(Spans *spans, size_t start, size_t end);

/* ---- the model ---- */

typedef enum ModelKind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL } ModelKind;
typedef struct Merge {
    uint64_t pair;
    int32_t rank, id;
} Merge; /* rank -1: free */
typedef struct TokenModel {
    ModelKind kind;
    bool byte_fallback, fuse_unk, ignore_merges, plain; /* plain: no prefix and no suffix */
    Slice prefix, suffix;
    int32_t unk;
    const char *unk_missing; /* an unk_token that is not in the vocabulary: an error when it is needed */
    int32_t byte_ids[256];   /* of the character that stands for a byte */
    int32_t ascii_ids[128];
    int32_t fallback_ids[256];
    Merge *merges;
    size_t n_slots;
    Trie trie;            /* Unigram, WordPiece */
    const double *scores; /* Unigram: log-probability by id */
    double unk_score;     /* Unigram: of a character without a token */
    uint32_t inner;       /* WordPiece: the node of the trie where pieces inside a word begin */
    size_t max_chars;     /* WordPiece: longer words are unknown */
    uint8_t *before_mark; /* a bit for each character below U+10000: stands before a mark U+2581 within some token. NULL: words are not cut */
} TokenModel;
Status model_check(Loader *loader, TokenModel *model, const json_t *node); /* the type is one that is supported; comes first, because it says most */
Status model_init(Loader *loader, TokenModel *model, const json_t *node);  /* after the vocabulary and the pre-tokenizer */
Status bpe_init(Loader *loader, TokenModel *model, const json_t *node);
Status unigram_init(Loader *loader, TokenModel *model, const json_t *node);
Status word_piece_init(Loader *loader, TokenModel *model, const json_t *node);
Status affix_read(Loader *loader, const json_t *node, const char *key, Slice *affix); /* "" when it is missing */
void byte_tables_fill(const Vocabulary *vocabulary, TokenModel *model);

typedef struct WordToken {
    int32_t id;
    uint32_t start, end;
} WordToken; /* bytes within the word */
typedef struct Symbol {
    int32_t id, prev, next, rank, merged;
    uint32_t start, end;
} Symbol;
typedef struct PathNode {
    double score;
    uint32_t at;
    int32_t id;
} PathNode; /* Unigram: the best way to a place; `at`: its last token's other end */
typedef struct CachedWord {
    uint64_t hash;
    uint32_t key, len, first, n;
} CachedWord;
typedef struct WordCache {
    CachedWord *words;
    char *keys;
    WordToken *tokens;
    size_t n_words, n_keys, n_tokens;
} WordCache;

typedef struct Encoder {
    Matcher matcher;
    TextBuffer buffers[2][2]; /* a pair for the normalizer, one for the pre-tokenizer: a step reads from one and writes to the other */
    int current[2];
    Spans spans[2], matches;
    Symbol *symbols;
    uint64_t *heap;
    size_t symbols_cap, heap_cap;
    int32_t *code_points;
    size_t code_points_cap;
    WordToken *tokens;
    PathNode *path;
    size_t tokens_cap, path_cap;
    Str scratch;
    WordCache cache;
    bool tracked; /* origins are wanted */
} Encoder;
Encoder *encoder_acquire(const Tokenizer *tokenizer); /* an idle one or a new one; NULL: ST_RESOURCE is recorded */
void encoder_return(const Tokenizer *tokenizer, Encoder *encoder);
enum { PAIR_NORMALIZER, PAIR_PRETOKENIZER };
TextBuffer *encoder_buffer(Encoder *encoder, int pair); /* the one of the pair that is not being read, empty */
void encoder_release(Encoder *encoder);
void encoder_free(Encoder *encoder);
/* Tokens of one piece, which is raw bytes when the pre-tokenizer's `bytes` is set. Valid until the next call. */
Status model_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, const WordToken **tokens, size_t *n);
/* The same without a cache, by each kind of model: `n` tokens in the encoder. */
Status bpe_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status unigram_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status word_piece_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status word_is_token(Encoder *encoder, int32_t id, size_t len, size_t *n);
Status word_is_unknown(const TokenModel *model, Encoder *encoder, const char *word, size_t len, size_t *n);
/* Length of the beginning of the word that may be tokenized by itself, because no token reaches over its end: text without pre-tokenizer is
 * cut into words by this, which the cache then knows. */
size_t model_cut(const Tokenizer *tokenizer, const char *word, size_t len);
void cache_release(WordCache *cache);

/* ---- normalizer ---- */

/* The table of a SentencePiece model ("Precompiled"): texts of one character or a few, and what they become. */
typedef struct Charsmap Charsmap;
Status charsmap_new(Loader *loader, const json_t *node, Charsmap **charsmap);
void charsmap_run(const Charsmap *charsmap, const Text *text, TextBuffer *out);

typedef struct NormStep NormStep;
typedef struct Normalizer {
    NormStep *steps;
    size_t n;
} Normalizer;
Status normalizer_init(Loader *loader, Normalizer *normalizer, const json_t *node);
Status normalizer_run(const Normalizer *normalizer, Encoder *encoder, Text *text);

/* ---- pre-tokenizer ---- */

typedef struct PreStep PreStep;
/* bytes: pieces are raw bytes of a byte-level model */
typedef struct PreTokenizer {
    PreStep *steps;
    size_t n;
    bool bytes, needs_origins;
} PreTokenizer;
Status pretokenizer_init(Loader *loader, PreTokenizer *pretokenizer, const json_t *node);
/* Cuts `text` (which may be replaced by a changed one) into spans, none of them empty; they are the encoder's until its next use. */
Status pretokenizer_run(const PreTokenizer *pretokenizer, Encoder *encoder, Text *text, const Spans **spans);

/* ---- added tokens ---- */

typedef struct AddedToken {
    Slice content, pattern;
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
} AddedToken;
typedef struct AddedSet {
    const AddedToken **tokens;
    size_t n;
    bool first[256];
} AddedSet; /* sorted by pattern */
/* special: by id; decoded: by id likewise, what is decoded in place of a token that the normalizer changes, data NULL: itself; NULL: all are */
typedef struct AddedTokens {
    AddedToken *tokens;
    size_t n;
    AddedSet plain, normalized;
    bool *special;
    Slice *decoded;
} AddedTokens;
Status added_tokens_init(Loader *loader, AddedTokens *added, const json_t *node);
typedef struct AddedMatch {
    size_t start, end, resume;
    const AddedToken *token;
} AddedMatch; /* resume: where the search goes on */
/* Special tokens that are plain text: all, or those that begin at one of the guards (bytes of the whole text, in order). */
typedef struct Literal {
    bool all;
    const size_t *guards;
    size_t n;
} Literal;
/* The next token in text[from..]. `floor`: where the text that is still free begins; stripping stops there, so that start may reach end. A token
 * may lie before it, in spaces that another one has stripped: the reference library finds it all the same. */
bool added_find(const AddedSet *set, const Text *text, size_t from, size_t floor, const Literal *literal, AddedMatch *match);

/* ---- post-processor ---- */

typedef struct PostProcessor {
    Ids before, after;
} PostProcessor;
Status post_processor_init(Loader *loader, PostProcessor *processor, const json_t *node);
void post_processor_release(PostProcessor *processor);

/* ---- decoder ---- */

typedef struct DecodeStep DecodeStep;
typedef struct Decoder {
    DecodeStep *steps;
    size_t n;
    bool missing;
} Decoder; /* missing: tokens are joined by blanks */
Status decoder_init(Loader *loader, Decoder *decoder, const json_t *node);
/* Decoding in progress: ids go in, text comes out as soon as it can no longer change. */
typedef struct DecodeState DecodeState;
DecodeState *decode_new(const Tokenizer *tokenizer);
void decode_free(DecodeState *state);
Status decode_push(DecodeState *state, int32_t id, bool skip_special, Str *text);
Status decode_finish(DecodeState *state, Str *text); /* the state may be freed only, after this */

struct Tokenizer {
    Arena *arena;
    Vocabulary vocabulary;
    AddedTokens added;
    Normalizer normalizer;
    PreTokenizer pretokenizer;
    TokenModel model;
    Decoder decoder;
    PostProcessor post;
    Pattern *patterns; /* all of them, to be freed */
    int32_t bos, eos, pad;
    _Atomic(Encoder *) idle[IDLE_ENCODERS];
};

/* `name`: for messages. */
Status tokenizer_from_json(const json_t *root, const char *name, Tokenizer **tokenizer);
/* A directory of vocab.json and merges.txt, or of settings that list characters, as the tokenizer.json that it stands for. The caller calls
 * json_decref. */
Status tokenizer_json_from_files(const char *dir, json_t **root);
/* DIR/tokenizer_config.json, with the special tokens that a tokenizer of characters has but does not name; NULL when there is none. The caller calls
 * json_decref. */
Status tokenizer_config_read(const char *dir, json_t **config);
bool char_config(const json_t *config); /* is it that of a tokenizer of characters? */
void char_config_complete(json_t *config);
/* The tokenizer.json that such settings stand for. The caller calls json_decref, also after a failure. */
Status tokenizer_json_from_chars(const char *dir, const json_t *config, json_t **root);
/* Adds the tokens that the files beside a tokenizer.json have and it lacks, as transformers 5.24 does: without ids. */
Status settings_tokens_append(const char *dir, json_t *root);
/* bos, eos and pad from the files beside the tokenizer. */
Status special_tokens_load(Tokenizer *tokenizer, const char *dir);

#endif
