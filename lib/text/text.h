/* SPDX-License-Identifier: Apache-2.0 */
/* Text to token ids and back. A tokenizer.json runs as written.
 *
 *     Tokenizer *tokenizer;
 *     TRY(tokenizer_load("model-dir", &tokenizer));
 *     Ids ids = {0};
 *     TRY(tokenizer_encode(tokenizer, "Hello", 5, TOKENIZE_SPECIAL, &ids));
 *     Str text = {0};
 *     TRY(tokenizer_decode(tokenizer, ids.data, ids.n, false, &text));
 *     ids_release(&ids); str_release(&text); tokenizer_free(tokenizer);
 */
#ifndef TUNE_TEXT_H
#define TUNE_TEXT_H

#include "lib/base/file.h"

typedef struct Ids {
    int32_t *data;
    size_t n, cap;
} Ids; /* {0} is empty */
void ids_push(Ids *ids, int32_t id);
void ids_append(Ids *ids, const int32_t *data, size_t n);
void ids_clear(Ids *ids);
void ids_release(Ids *ids);

typedef struct Tokenizer Tokenizer;
typedef enum TokenizeFlags {
    TOKENIZE_PLAIN = 0,   /* adds no tokens; recognises special tokens in the text (as `add_special_tokens=false`) */
    TOKENIZE_SPECIAL = 1, /* also runs the post-processor, which adds BOS and the like */
    TOKENIZE_LITERAL = 2, /* adds no tokens; treats special tokens in the text as plain text */
} TokenizeFlags;

/* Loads the tokenizer at `path`: a model directory (tokenizer.json, else vocab.json + merges.txt, else settings with "char_ords"), one of these files,
 * or a GGUF file. Takes bos/eos/pad/unk from tokenizer_config.json and special_tokens_map.json in the same directory. The caller frees *tokenizer.
 * ST_INPUT: missing file; malformed JSON; an unknown normaliser, pre-tokeniser, model, decoder or post-processor (the message names it); colliding
 * ids; merges with parts that are not in the vocabulary. */
Status tokenizer_load(const char *path, Tokenizer **tokenizer);
bool tokenizer_in(const char *dir);                                   /* whether the directory has a tokenizer */
Status tokenizer_load_if_any(const char *dir, Tokenizer **tokenizer); /* sets *tokenizer to NULL when the directory has none */
void tokenizer_free(Tokenizer *tokenizer);

/* Appends the ids of `text` (UTF-8; invalid bytes are ST_INPUT). If `offsets` is not NULL, appends two entries for each id to it: the first byte
 * and the end byte of the token in `text`. A token for a part of a character has the offsets of just those bytes; a token of text that a
 * normalizer changed has the offsets of the entire changed part; ids that the post-processor adds have 0,0. */
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids);
Status tokenizer_encode_offsets(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids, Ids *offsets);
/* Like tokenizer_encode, but special tokens that begin at one of the guards (byte offsets into the text, in order) are plain text. offsets may be
 * NULL. */
Status tokenizer_encode_guarded(const Tokenizer *tokenizer, const char *text, size_t len, const size_t *guards, size_t n, Ids *ids, Ids *offsets);
/* Finds the first special token in text[from..]; false: there is none. */
bool tokenizer_find_special(const Tokenizer *tokenizer, const char *text, size_t len, size_t from, size_t *begin, size_t *end);
/* Appends the text of the ids. As in the reference library, an id outside the vocabulary adds nothing, and bytes that do not form a complete
 * character become U+FFFD. */
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special, Str *text);

/* Decodes ids as they arrive. stream_push never appends a part of a character, and all pieces together equal tokenizer_decode of all ids. */
typedef struct TextStream {
    const Tokenizer *tokenizer;
    struct DecodeState *state;
    bool skip_special;
} TextStream;
void stream_init(TextStream *stream, const Tokenizer *tokenizer, bool skip_special);
Status stream_push(TextStream *stream, int32_t id, Str *text);
Status stream_finish(TextStream *stream, Str *text); /* appends the rest */
void stream_release(TextStream *stream);

/* NULL if each token adds bytes of its own to a text, whatever is around it; else the part of the decoder because of which it does not. *strips:
 * the first token of a text loses a blank at its beginning. */
const char *tokenizer_joins(const Tokenizer *tokenizer, bool *strips);
/* Appends the bytes that the token adds to a text, where tokenizer_joins is NULL; they may be a part of a character. Nothing for an id without a
 * token. */
void tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t id, Str *bytes);

int32_t tokenizer_vocab_size(const Tokenizer *tokenizer);            /* largest id + 1 */
int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token); /* -1 when missing */
const char *tokenizer_token(const Tokenizer *tokenizer, int32_t id); /* as stored in the vocabulary; NULL for an id without a token */
/* The first id that both have and that is another token in each, or a token in only one of them; -1: there is none. */
int32_t tokenizer_difference(const Tokenizer *a, const Tokenizer *b);
bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t id);
int32_t tokenizer_bos(const Tokenizer *tokenizer); /* from tokenizer_config.json / special_tokens_map.json; -1 when there is none */
int32_t tokenizer_eos(const Tokenizer *tokenizer);
int32_t tokenizer_pad(const Tokenizer *tokenizer);   /* for tests: the loader checks it, and nothing else uses it */
bool tokenizer_adds_bos(const Tokenizer *tokenizer); /* the post-processor (or add_bos_token) puts BOS before a text */

/* Trains a byte-level BPE tokenizer with GPT-2's pattern. Ids: special tokens, the 256 bytes, then merges by frequency. Of equally frequent pairs
 * the one whose bytes come last in the alphabet is merged first, so that the result depends only on the words of the texts and their counts. */
typedef struct BpeTrainer BpeTrainer;
/* `special`: tokens that are found in texts verbatim and are never part of a word; the strings are borrowed and must outlive the trainer.
 * ST_USAGE: a vocab_size too small for the bytes and special tokens; a special token that is empty, listed twice or the character of a single
 * byte. */
Status bpe_trainer_new(size_t vocab_size, const char *const *special, size_t n_special, BpeTrainer **trainer);
/* Makes the tokenizer put `token` before every text. ST_USAGE when it is not one of the special tokens. */
Status bpe_trainer_bos(BpeTrainer *trainer, const char *token);
Status bpe_trainer_add(BpeTrainer *trainer, const char *text, size_t len); /* one document; ST_INPUT when it is not UTF-8 */
typedef struct BpeTrained {
    Str json;          /* a tokenizer.json that the caller owns */
    size_t vocab_size; /* smaller than requested when no pair was left to merge */
    size_t n_words;    /* number of distinct words */
} BpeTrained;
Status bpe_trainer_finish(BpeTrainer *trainer, BpeTrained *result); /* call once, after all texts */
void bpe_trainer_free(BpeTrainer *trainer);

#endif
