/* The parts of tokenizer.json, one file each: added tokens cut the text, the normaliser rewrites it, the pre-tokeniser cuts it into words, the model (BPE) turns words into
 * ids, the post-processor adds special tokens, the decoder goes back. Private to lib/text. */
#ifndef TUNE_TOKENIZER_PARTS_H
#define TUNE_TOKENIZER_PARTS_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "lib/text/text.h"

/* ---- text on its way: bytes, and for each byte where it came from when somebody asked for offsets ---- */

typedef struct Range { size_t begin, end; } Range;
typedef struct Passage {
    Str bytes;
    bool tracked;
    Range *origin; /* one per byte if tracked; freed by passage_release */
    size_t cap_origin;
} Passage;
typedef struct Ranges { Range *items; size_t n, cap; } Ranges;
void ranges_push(Ranges *ranges, size_t begin, size_t end); /* empty ranges are left out */
void passage_add(Passage *passage, const char *bytes, size_t n, Range origin); /* all of them from the same place */
void passage_copy(Passage *to, const Passage *from, Range range);              /* bytes with their origins */
Range passage_origin(const Passage *passage, Range range);                     /* where a piece came from */
void passage_clear(Passage *passage);
void passage_release(Passage *passage);

/* ---- patterns ---- */

typedef struct Pattern { pcre2_code *code; pcre2_match_data *match; char *literal; size_t literal_len; } Pattern; /* a regex, or a literal text */
/* `json` is {"Regex": ...}, {"String": ...} or a plain string. */
Status pattern_read(const json_t *json, const char *where, Pattern *pattern);
Status pattern_compile(const char *regex, const char *where, Pattern *pattern);
/* The first match at or behind `from`. *found false when there is none. ST_INPUT when the pattern gives up. */
Status pattern_find(const Pattern *pattern, const char *text, size_t len, size_t from, Range *match, bool *found);
void pattern_release(Pattern *pattern);

/* ---- vocabulary ---- */

typedef struct Vocab {
    Arena *arena;
    const char **tokens;   /* by id; NULL where there is none */
    uint32_t *lengths;
    int32_t n;             /* largest id + 1 */
    uint64_t mask;         /* of the open-addressing table */
    int32_t *slots;        /* ids, -1 = free */
} Vocab;
Status vocab_init(Vocab *vocab, Arena *arena, size_t n_tokens, int32_t largest_id);
Status vocab_add(Vocab *vocab, const char *token, size_t len, int32_t id, const char *where); /* ST_INPUT when the id is taken by another token */
int32_t vocab_find(const Vocab *vocab, const char *token, size_t len);                        /* -1 = none */

/* ---- bytes as characters: GPT-2's table ---- */

size_t byte_to_char(uint8_t byte, char out[4]); /* the printable character that stands for a byte, in UTF-8 */
int char_to_byte(uint32_t code_point);          /* -1 when it stands for none */

/* ---- the parts ---- */

typedef struct AddedToken { const char *content; size_t len; int32_t id; bool single_word, lstrip, rstrip, normalized, special; } AddedToken;
typedef struct AddedTokens { AddedToken *items; size_t n; bool starts[256]; } AddedTokens;
typedef struct AddedMatch { Range range; int32_t id; } AddedMatch; /* id -1: plain text */
typedef struct AddedMatches { AddedMatch *items; size_t n, cap; } AddedMatches;
/* Cuts text[range] at the added tokens of the wanted kind. */
void added_tokens_split(const AddedTokens *added, bool normalized, bool literal, const char *text, Range range, AddedMatches *matches);

typedef enum NormalizerKind { NORMALIZE_PREPEND, NORMALIZE_REPLACE, NORMALIZE_UNICODE, NORMALIZE_LOWERCASE, NORMALIZE_STRIP } NormalizerKind;
typedef struct Normalizer { NormalizerKind kind; const char *content; Pattern pattern; int unicode_options; bool left, right; } Normalizer;
typedef struct Normalizers { Normalizer *items; size_t n; } Normalizers;
Status normalizers_read(const json_t *json, const char *where, Arena *arena, Normalizers *normalizers);
Status normalizers_run(const Normalizers *normalizers, Passage *passage); /* in place */
void normalizers_release(Normalizers *normalizers);

typedef enum SplitBehavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT, SPLIT_CONTIGUOUS } SplitBehavior;
typedef enum PreTokenizerKind { PRE_BYTE_LEVEL, PRE_SPLIT, PRE_DIGITS, PRE_PUNCTUATION, PRE_WHITESPACE, PRE_METASPACE, PRE_DELIMITER } PreTokenizerKind;
typedef enum PrependScheme { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } PrependScheme;
typedef struct PreTokenizer {
    PreTokenizerKind kind;
    Pattern pattern;
    SplitBehavior behavior;
    bool invert, split, add_prefix_space;
    PrependScheme prepend;
    const char *replacement;
} PreTokenizer;
typedef struct PreTokenizers { PreTokenizer *items; size_t n; bool byte_level; } PreTokenizers;
Status pre_tokenizers_read(const json_t *json, const char *where, Arena *arena, PreTokenizers *pre);
/* Cuts the passage into words (rewriting it where a step says so). first: it begins the text. */
Status pre_tokenizers_run(const PreTokenizers *pre, bool first, Passage *passage, Ranges *words);
void pre_tokenizers_release(PreTokenizers *pre);
bool prepend_scheme_read(const json_t *json, PrependScheme *scheme); /* also of the older add_prefix_space */

typedef struct Merge { uint64_t pair; int32_t rank, id; } Merge; /* pair: left id in the high half */
typedef struct CachedWord { uint8_t len, n; char bytes[22]; int32_t ids[10]; } CachedWord;
typedef struct Bpe {
    const Vocab *vocab;
    Merge *merges;         /* open addressing, rank -1 = free */
    uint64_t mask;
    bool byte_level, byte_fallback, fuse_unk, ignore_merges;
    int32_t unk;           /* -1 = none */
    const char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; "" = none */
    int32_t bytes[256];    /* ids of single bytes: the byte-level characters, or <0xNN> */
    CachedWord *cache;     /* direct mapped; words seen before */
    struct Symbol *symbols;/* work space, kept between words */
    size_t cap_symbols;
    uint64_t *heap;
    size_t cap_heap, n_heap;
    Str mapped;
} Bpe;
Status bpe_read(const json_t *model, const char *where, Arena *arena, Vocab *vocab, bool byte_level, Bpe *bpe);
/* Ids of one word. ends, if not NULL, gets for each id the number of the word's bytes up to its end. */
Status bpe_encode(Bpe *bpe, const char *word, size_t len, Ids *ids, Ids *ends);
void bpe_release(Bpe *bpe);

typedef struct PostProcessor { Ids before, after; } PostProcessor; /* special ids around a text */
Status post_processor_read(const json_t *json, const char *where, const Vocab *vocab, PostProcessor *post);
void post_processor_release(PostProcessor *post);

typedef enum DecoderKind { DECODE_BYTE_LEVEL, DECODE_REPLACE, DECODE_BYTE_FALLBACK, DECODE_FUSE, DECODE_STRIP, DECODE_METASPACE, DECODE_BPE } DecoderKind;
typedef struct Decoder { DecoderKind kind; Pattern pattern; const char *content; int64_t start, stop; bool drop_first; } Decoder;
typedef struct Decoders { Decoder *items; size_t n; bool none; } Decoders;
Status decoders_read(const json_t *json, const char *where, Arena *arena, Decoders *decoders);
Status decoders_run(const Decoders *decoders, const Slice *tokens, size_t n, Str *text);
void decoders_release(Decoders *decoders);

/* White space and word characters as the reference library's regexes see them. */
bool is_white_space(uint32_t code_point);
bool is_word_char(uint32_t code_point);
Status unknown_part(const char *where, const char *part, const char *type); /* ST_INPUT naming an element that is not known */
/* "type" of a part, or "" */
const char *part_type(const json_t *json);

#endif
