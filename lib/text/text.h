/* SPDX-License-Identifier: Apache-2.0 */
/* Text to token ids and back: tokenizer.json is run as it is written.
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
    TOKENIZE_PLAIN = 0,   /* nothing added; special tokens in the text are recognised (as `add_special_tokens=false`) */
    TOKENIZE_SPECIAL = 1, /* the post-processor runs: BOS and the like are added */
    TOKENIZE_LITERAL = 2, /* nothing added and special tokens in the text are plain text */
} TokenizeFlags;

/* `path`: a model directory (tokenizer.json, else vocab.json + merges.txt, else settings with "char_ords"), or one of these files. Reads
 * tokenizer_config.json and special_tokens_map.json beside it for bos/eos/pad/unk. Fails with ST_INPUT: missing file; malformed JSON; a normaliser,
 * pre-tokeniser, model, decoder or post-processor that is not known (named), ids that collide or merges whose parts are not in the vocabulary. */
Status tokenizer_load(const char *path, Tokenizer **tokenizer);
bool tokenizer_in(const char *dir);                                   /* has the directory one? */
Status tokenizer_load_if_any(const char *dir, Tokenizer **tokenizer); /* *tokenizer NULL when the directory has none */
void tokenizer_free(Tokenizer *tokenizer);

/* Appends the ids of `text` (UTF-8; invalid bytes are ST_INPUT). `offsets`, if not NULL, gets two entries for each id: first byte and end byte in
 * `text`. A token of a part of a character has just its bytes; where a normalizer changed the text, the whole that was changed; ids of the
 * post-processor have 0,0. */
Status tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids);
Status tokenizer_encode_offsets(const Tokenizer *tokenizer, const char *text, size_t len, TokenizeFlags flags, Ids *ids, Ids *offsets);
/* Appends the text of the ids. As in the reference library, an id outside the vocabulary is nothing, and bytes that make no whole character become
 * U+FFFD. */
/* The same, where special tokens that begin at one of the guards (bytes of the text, in order) are plain text. offsets may be NULL. */
Status tokenizer_encode_guarded(const Tokenizer *tokenizer, const char *text, size_t len, const size_t *guards, size_t n, Ids *ids, Ids *offsets);
/* The first special token in text[from..]; false: there is none. */
bool tokenizer_find_special(const Tokenizer *tokenizer, const char *text, size_t len, size_t from, size_t *begin, size_t *end);
/* Appends the text of the ids. ST_INPUT for an id outside the vocabulary. Bytes that make no whole character become U+FFFD, as in the reference
 * library. */
Status tokenizer_decode(const Tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special, Str *text);

/* Decoding while ids still arrive: what `stream_push` appends is never half a character, and all pieces together equal tokenizer_decode of all ids.
 */
typedef struct TextStream {
    const Tokenizer *tokenizer;
    struct DecodeState *state;
    bool skip_special;
} TextStream;
void stream_init(TextStream *stream, const Tokenizer *tokenizer, bool skip_special);
Status stream_push(TextStream *stream, int32_t id, Str *text);
Status stream_finish(TextStream *stream, Str *text); /* what was held back */
void stream_release(TextStream *stream);

int32_t tokenizer_vocab_size(const Tokenizer *tokenizer);            /* largest id + 1 */
int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token); /* -1 when missing */
const char *tokenizer_token(const Tokenizer *tokenizer, int32_t id); /* as stored in the vocabulary; NULL when there is none */
bool tokenizer_is_special(const Tokenizer *tokenizer, int32_t id);
int32_t tokenizer_bos(const Tokenizer *tokenizer); /* from tokenizer_config.json / special_tokens_map.json; -1 when there is none */
int32_t tokenizer_eos(const Tokenizer *tokenizer);
int32_t tokenizer_pad(const Tokenizer *tokenizer);   /* for tests: read to be checked, used by nothing */
bool tokenizer_adds_bos(const Tokenizer *tokenizer); /* the post-processor (or add_bos_token) puts BOS before a text */

/* Byte-level BPE from texts, with GPT-2's pattern. Ids: special tokens, the 256 bytes, then merges by frequency; of equally frequent pairs the one
 * whose bytes come last in the alphabet is first, so the result depends on nothing but the texts' words and counts. */
typedef struct BpeTrainer BpeTrainer;
/* `special`: found in texts as they are, and never part of a word; the strings stay the caller's and must outlive the trainer. ST_USAGE: a vocabulary
 * that does not even hold bytes and special tokens; a special token that is empty, given twice or one byte's character. */
Status bpe_trainer_new(size_t vocab_size, const char *const *special, size_t n_special, BpeTrainer **trainer);
/* a special token that the tokenizer puts before every text; ST_USAGE when it is none */
Status bpe_trainer_bos(BpeTrainer *trainer, const char *token);
Status bpe_trainer_add(BpeTrainer *trainer, const char *text, size_t len); /* one document; ST_INPUT when it is not UTF-8 */
/* json: a tokenizer.json, the caller's; vocab_size: less than asked for when no pair was left; n_words: different ones */
typedef struct BpeTrained {
    Str json;
    size_t vocab_size, n_words;
} BpeTrained;
Status bpe_trainer_finish(BpeTrainer *trainer, BpeTrained *result); /* once, after all texts */
void bpe_trainer_free(BpeTrainer *trainer);

#endif
