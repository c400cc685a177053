/* SPDX-License-Identifier: Apache-2.0 */
/* Answers from a server with OpenAI's chat completions, piece by piece. */
#ifndef TUNE_CHAT_URL_H
#define TUNE_CHAT_URL_H

#include "lib/base/json.h"
#include "lib/infer/infer.h"

typedef struct ChatUrl ChatUrl;
/* url: up to the version, "http://127.0.0.1:8000/v1"; "/v1" is added to one without a path. model, key: NULL: none is sent. ST_CONFIG: no url. */
Status chat_url_open(const char *url, const char *model, const char *key, ChatUrl **remote);
void chat_url_close(ChatUrl *remote); /* NULL is fine */
typedef void ChatPiece(void *context, const char *text, size_t len);
/* The answer to the messages; system: NULL: none. Of config, the length, the seed, the stop texts and those settings of sampling are sent that differ
 * from doing nothing. *cut: the answer ended at its longest length. Fails as http_post_stream does, or with ST_RESOURCE and the server's words. */
Status chat_url_answer(ChatUrl *remote, const json_t *messages, const char *system, const GenerateConfig *config, ChatPiece *on_piece, void *context,
                       bool *cut);

#endif
