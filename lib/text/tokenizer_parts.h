/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a tokenizer; for the files of this folder only.
 *
 * Each section of tokenizer.json becomes a flat array of steps (a Sequence is flattened). Its `_init` function compiles it once; after that it is
 * read-only:
 *
 *     text -> added tokens cut out -> Normalizer -> added tokens of normalised text cut out -> PreTokenizer -> pieces -> TokenModel -> ids
 *     ids -> PostProcessor adds BOS and the like;      ids -> Decoder -> text
 *
 * An Encoder has everything that a call writes to (buffers, match data, the cache of words). A Tokenizer never changes after loading.
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
/* Like utf8_decode, for text that is known to be valid; `bytes` must not be at its end. */
size_t char_next(const char *bytes, uint32_t *c);
/* Length of the last character of valid, non-empty text. Also stores the character. */
size_t char_last(const char *bytes, size_t len, uint32_t *c);
/* Appends bytes. Each maximal part of an incomplete character becomes U+FFFD. */
void str_append_lossy(Str *str, const char *bytes, size_t len);
/* Writes a byte as the printable character that GPT-2 uses for it: at most two bytes of UTF-8. */
size_t byte_char(uint8_t byte, char out[4]);
bool byte_of_char(uint32_t c, uint8_t *byte); /* the inverse; false if c is not the character of a byte */

/* ---- patterns ---- */

/* A plain string, or a regular expression in Oniguruma's dialect, rewritten for PCRE2 where the two differ. */
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
} Matcher; /* {0}; allocated at the first match */
/* Finds the next match at or after `from`; sets *found to false when there is none. ST_RESOURCE when the pattern takes too many steps or too much
 * stack. */
Status pattern_find(const Pattern *pattern, Matcher *matcher, const char *text, size_t len, size_t from, bool *found, size_t *start, size_t *end);
void matcher_release(Matcher *matcher);

/* ---- loading ---- */

typedef struct Loader {
    Tokenizer *tokenizer;
    Arena *arena;
    const char *path;
} Loader;
/* The elements of one section as a flat list. `list_key`: the key of a Sequence's elements. A null section is an empty list. */
Status section_flatten(Loader *loader, const char *section, const json_t *node, const char *list_key, const json_t ***parts, size_t *n);
Status part_unknown(const Loader *loader, const char *section, const char *type);
/* A required string member. */
Status part_string(const Loader *loader, const json_t *part, const char *key, const char **value);
Status part_bool(const Loader *loader, const json_t *part, const char *key, bool missing, bool *value);
/* A required string of exactly one character. */
Status part_char(const Loader *loader, const json_t *part, const char *key, const char **value);
/* Makes a pattern, which the tokenizer frees. ST_INPUT: PCRE2 rejects the expression, or the text is empty. */
Status pattern_new(Loader *loader, const char *regex, Pattern **pattern);
Status pattern_new_literal(Loader *loader, const char *text, Pattern **pattern);
Status pattern_from_json(Loader *loader, const json_t *node, Pattern **pattern); /* {"String": ..} or {"Regex": ..} */

/* ---- vocabulary ---- */

/* Maps strings of the model and of added tokens to ids and back. */
typedef struct Vocabulary {
    Slice *tokens;  /* by id; data NULL: no token */
    int32_t *slots; /* open hash table of ids; -1: a free slot */
    size_t n_slots;
    int32_t size;   /* largest id + 1 */
    uint8_t *added; /* a bit for each id that only an added token has */
} Vocabulary;
Status vocabulary_init(Loader *loader, Vocabulary *vocabulary, const json_t *model, const json_t *added);
int32_t vocabulary_find(const Vocabulary *vocabulary, const char *text, size_t len); /* -1 when missing */
/* Like vocabulary_find among the model's own tokens: an added token has been cut out of the text already, or must not match there (single_word). */
int32_t vocabulary_find_own(const Vocabulary *vocabulary, const char *text, size_t len);
uint64_t bytes_hash(const char *bytes, size_t len);

/* ---- tries ---- */

/* A trie of tokens. Node 0 is the root; an edge leads from a node by a byte to another node. */
typedef struct TrieEdge {
    uint32_t key; /* node << 8 | byte */
    uint32_t to;  /* the next node; 0: a free slot */
} TrieEdge;
typedef struct Trie {
    TrieEdge *edges;
    int32_t *ids; /* id of the token that ends at a node, -1: none */
    size_t n_slots;
} Trie;
typedef struct TrieEntry {
    Slice token;
    int32_t id;
} TrieEntry;
/* Builds the trie and sorts `entries`. Of equal tokens the one with the largest id counts. ST_INPUT when there are more than 2^24 nodes. */
Status trie_init(Loader *loader, Trie *trie, TrieEntry *entries, size_t n);
uint32_t trie_step(const Trie *trie, uint32_t node, uint8_t byte);                 /* 0: no token continues with this byte */
uint32_t trie_walk(const Trie *trie, uint32_t node, const char *text, size_t len); /* several steps */

/* ---- text during encoding, with the bytes of the original that each byte comes from ---- */

typedef struct Origin {
    uint32_t from, to;
} Origin;
typedef struct Text {
    const char *data;
    size_t len;
    const Origin *origins; /* of each byte; NULL: byte i comes from byte base + i */
    size_t base;
} Text;
typedef struct TextBuffer {
    char *data;
    Origin *origins;
    size_t len, cap, origins_cap;
    bool tracked; /* origins are recorded */
    bool full;    /* memory ran out */
} TextBuffer;
typedef struct Span {
    size_t start, end;
} Span;
typedef struct Spans {
    Span *data;
    size_t n, cap;
    bool full;
} Spans;

Origin text_origin(const Text *text, size_t start, size_t end); /* the bytes of the original that bytes start..end-1 of `text` come from */
/* Appending sets `full` when memory runs out, and later calls do nothing. Then buffer_view fails with ST_RESOURCE; a caller that appends spans
 * checks `full` of its list after the last one. buffer_copy appends bytes start..end-1 of `text` with their origins. buffer_view borrows. */
void buffer_put(TextBuffer *buffer, const char *bytes, size_t len, Origin origin);
void buffer_copy(TextBuffer *buffer, const Text *text, size_t start, size_t end);
Status buffer_view(const TextBuffer *buffer, Text *text);
void spans_push(Spans *spans, size_t start, size_t end);

/* ---- the model ---- */

typedef enum ModelKind { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORD_PIECE, MODEL_WORD_LEVEL } ModelKind;
typedef struct Merge {
    uint64_t pair;
    int32_t rank; /* -1: a free slot */
    int32_t id;
} Merge;
typedef struct TokenModel {
    ModelKind kind;
    bool byte_fallback, fuse_unk, ignore_merges, plain; /* plain: no prefix and no suffix */
    Slice prefix, suffix;
    int32_t unk;
    const char *unk_missing; /* an unk_token that is not in the vocabulary: an error as soon as it is needed */
    int32_t byte_ids[256];   /* id of the character that represents a byte */
    int32_t ascii_ids[128];
    int32_t fallback_ids[256];
    Merge *merges;
    size_t n_slots;
    Trie trie;            /* Unigram, WordPiece */
    const double *scores; /* Unigram: log-probability by id */
    double unk_score;     /* Unigram: score of a character without a token */
    uint32_t inner;       /* WordPiece: the trie node at which pieces inside a word begin */
    size_t max_chars;     /* WordPiece: words of more characters are unknown */
    uint8_t *before_mark; /* a bit for each character below U+10000: set if it precedes U+2581 inside some token. NULL: text is not cut into words */
} TokenModel;
/* Checks that the type is supported. Call it before the other parts are loaded, because its message is the most helpful one. */
Status model_check(Loader *loader, TokenModel *model, const json_t *node);
Status model_init(Loader *loader, TokenModel *model, const json_t *node); /* call after the vocabulary and the pre-tokenizer are loaded */
Status bpe_init(Loader *loader, TokenModel *model, const json_t *node);
Status unigram_init(Loader *loader, TokenModel *model, const json_t *node);
Status word_piece_init(Loader *loader, TokenModel *model, const json_t *node);
Status affix_read(Loader *loader, const json_t *node, const char *key, Slice *affix); /* "" when it is missing */
void byte_tables_fill(const Vocabulary *vocabulary, TokenModel *model);

typedef struct WordToken {
    int32_t id;
    uint32_t start, end; /* bytes within the word */
} WordToken;
typedef struct Symbol {
    int32_t id, prev, next, rank, merged;
    uint32_t start, end;
} Symbol;
/* Unigram: the best path to a position. */
typedef struct PathNode {
    double score;
    uint32_t at; /* the other end of its last token */
    int32_t id;
} PathNode;
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
    TextBuffer buffers[2][2]; /* a pair for the normalizer and a pair for the pre-tokenizer: a step reads one buffer of a pair and writes the other */
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
    bool tracked; /* the caller wants origins */
} Encoder;
Encoder *encoder_acquire(const Tokenizer *tokenizer); /* an idle one, else a new one; NULL: out of memory, recorded as ST_RESOURCE */
void encoder_return(const Tokenizer *tokenizer, Encoder *encoder);
enum { PAIR_NORMALIZER, PAIR_PRETOKENIZER };
TextBuffer *encoder_buffer(Encoder *encoder, int pair); /* the buffer of the pair that is not being read, emptied */
void encoder_release(Encoder *encoder);
void encoder_free(Encoder *encoder);
/* Tokenizes one piece, which is raw bytes when the pre-tokenizer's `bytes` is set. The result is valid until the next call. */
Status model_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, const WordToken **tokens, size_t *n);
/* Tokenizes a word without a cache; one function for each kind of model. The encoder has the `n` tokens. */
Status bpe_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status unigram_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status word_piece_tokenize(const Tokenizer *tokenizer, Encoder *encoder, const char *word, size_t len, size_t *n);
Status word_is_token(Encoder *encoder, int32_t id, size_t len, size_t *n);
Status word_is_unknown(const TokenModel *model, Encoder *encoder, const char *word, size_t len, size_t *n);
/* Length of the longest prefix of the word that may be tokenized separately because no token crosses its end. Text without a pre-tokenizer is cut
 * into words this way, so that the cache can find them again. */
size_t model_cut(const Tokenizer *tokenizer, const char *word, size_t len);
void cache_release(WordCache *cache);

/* ---- normalizer ---- */

/* The table of a SentencePiece model ("Precompiled"): strings of one or a few characters and their replacements. */
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
typedef struct PreTokenizer {
    PreStep *steps;
    size_t n;
    bool bytes; /* pieces are raw bytes of a byte-level model */
    bool needs_origins;
} PreTokenizer;
Status pretokenizer_init(Loader *loader, PreTokenizer *pretokenizer, const json_t *node);
/* Cuts `text` (and may replace it by a changed one) into non-empty spans, which belong to the encoder and are valid until its next use. */
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
typedef struct AddedTokens {
    AddedToken *tokens;
    size_t n;
    AddedSet plain, normalized;
    bool *special; /* by id */
    /* by id: what a token decodes to if the normalizer changes it; data NULL: the token itself. NULL: no token changes */
    Slice *decoded;
} AddedTokens;
Status added_tokens_init(Loader *loader, AddedTokens *added, const json_t *node);
typedef struct AddedMatch {
    size_t start, end;
    size_t resume; /* where to continue the search */
    const AddedToken *token;
} AddedMatch;
/* Special tokens to treat as plain text: all of them, or those that begin at one of the guards (byte offsets into the entire text, in order). */
typedef struct Literal {
    bool all;
    const size_t *guards;
    size_t n;
} Literal;
/* Finds the next token in text[from..]. `floor`: where the text that is not yet used begins. Stripping stops there, so start may reach end. A
 * token may begin before `floor`, in spaces that an earlier token stripped: the reference library finds it too. */
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
    bool missing; /* tokens are joined with spaces */
} Decoder;
Status decoder_init(Loader *loader, Decoder *decoder, const json_t *node);
/* Decoding in progress: takes ids and returns text as soon as it can no longer change. */
typedef struct DecodeState DecodeState;
DecodeState *decode_new(const Tokenizer *tokenizer);
void decode_free(DecodeState *state);
Status decode_push(DecodeState *state, int32_t id, bool skip_special, Str *text);
Status decode_finish(DecodeState *state, Str *text); /* after this call the state can only be freed */

struct Tokenizer {
    Arena *arena;
    Vocabulary vocabulary;
    AddedTokens added;
    Normalizer normalizer;
    PreTokenizer pretokenizer;
    TokenModel model;
    Decoder decoder;
    PostProcessor post;
    Pattern *patterns; /* all patterns, for freeing */
    int32_t bos, eos, pad;
    _Atomic(Encoder *) idle[IDLE_ENCODERS];
};

/* `name`: for messages. */
Status tokenizer_from_json(const json_t *root, const char *name, Tokenizer **tokenizer);
/* Converts a directory of vocab.json and merges.txt, or of settings that list characters, to the equivalent tokenizer.json. The caller calls
 * json_decref. */
Status tokenizer_json_from_files(const char *dir, json_t **root);
/* Reads DIR/tokenizer_config.json and adds the special tokens that a tokenizer of characters has but does not name. *config is NULL when there is
 * no file. The caller calls json_decref. */
Status tokenizer_config_read(const char *dir, json_t **config);
bool char_config(const json_t *config); /* whether the settings are those of a tokenizer of characters */
void char_config_complete(json_t *config);
/* Converts these settings to the equivalent tokenizer.json. The caller calls json_decref, also after a failure. */
Status tokenizer_json_from_chars(const char *dir, const json_t *config, json_t **root);
/* Adds the tokens that the directory's other files have and tokenizer.json lacks, without ids, as transformers 5.24 does. */
Status settings_tokens_append(const char *dir, json_t *root);
/* Reads bos, eos and pad from the other files of the tokenizer's directory. */
Status special_tokens_load(Tokenizer *tokenizer, const char *dir);

#endif
