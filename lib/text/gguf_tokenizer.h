/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers and chat templates in the metadata of GGUF files, as the JSON files of a Hugging Face directory. */
#ifndef TUNE_GGUF_TOKENIZER_H
#define TUNE_GGUF_TOKENIZER_H

#include "lib/base/gguf.h"

/* The contents of tokenizer.json for a GGUF file; NULL if it has no tokenizer. A byte-level model keeps its merges. For a SentencePiece model they
 * are made from the scores: all splits of a token into two, by falling score, then by the ids of the parts, as transformers does. The caller calls
 * json_decref. ST_INPUT: no GGUF file; a kind of model or a name of a pre-tokenizer that is not known; lists of different lengths; a token twice. */
Status gguf_tokenizer_json(const char *path, json_t **root);
Status gguf_tokenizer_build(Gguf *gguf, json_t **root); /* the same for an open file */
/* The contents of tokenizer_config.json: bos_token and the like, and chat_template. The caller calls json_decref. */
Status gguf_tokenizer_settings(const char *path, json_t **settings);
bool gguf_tokenizer_in(const char *path); /* also true if the file cannot be read, which the functions above report */

#endif
