/* SPDX-License-Identifier: Apache-2.0 */
/* An answer of a chat, taken apart: text, reasoning, calls of tools. */
#include <stdlib.h>
#include <string.h>

#include "data/formats/conversation.h"
#include "lib/base/memory.h"
#include "lib/serve/serve_parts.h"

void choice_release(Choice *choice) {
    completion_release(&choice->completion);
    reply_free(choice->reply);
    str_release(&choice->text);
    str_release(&choice->reasoning);
    json_decref(choice->calls);
}

bool answer_is_parsed(const Answer *answer) { return answer->calls || answer->splits; }

Status choice_begin(const Job *job, Choice *choice) {
    const Answer *answer = job->answer;
    const Chat *chat = served_chat(job->exchange->server, job->model);
    if (!answer_is_parsed(answer) || choice->reply) return ST_OK;
    return reply_new(chat->template,
                     &(ReplyOptions){.tools = answer->tools,
                                     .prompt = {str_text(&answer->rendered), answer->rendered.len},
                                     .calls = answer->calls,
                                     .split_reasoning = answer->splits},
                     &choice->reply);
}

/* "call_" and characters that no other call of this server has. */
static void call_id(const Job *job, size_t choice, size_t call, Str *id) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t bits = mix64(job->answer->number * 0x9e3779b97f4a7c15u + (choice << 20) + call);
    if (job->answer->call_bytes > 9) str_append(id, "call_");
    for (int i = 0; i < job->answer->call_bytes; i++) {
        if (i % 9 == 8) bits = mix64(bits + (uint64_t)i);
        str_append_char(id, digits[bits % 62]);
        bits /= 62;
    }
}

json_t *call_of_piece(const Job *job, size_t choice, const ReplyPiece *piece) {
    Str id = {0};
    call_id(job, choice, piece->call, &id);
    json_t *call = json_pack("{s:I, s:s, s:s, s:{s:s%, s:s%}}", "index", (json_int_t)piece->call, "id", str_text(&id), "type", "function", "function",
                             "name", piece->name.data, piece->name.len, "arguments", piece->arguments.data, piece->arguments.len);
    str_release(&id);
    return call;
}

/* A piece of an answer that is sent as a whole. */
typedef struct Gathering {
    const Job *job;
    size_t at;
    Choice *choice;
} Gathering;

static Status gather_piece(void *context, const ReplyPiece *piece) {
    Gathering *gathering = context;
    Choice *choice = gathering->choice;
    if (piece->kind == REPLY_CALL) {
        json_t *call = call_of_piece(gathering->job, gathering->at, piece);
        if (!choice->calls) choice->calls = json_array();
        json_object_del(call, "index"); /* only streams have it */
        if (!call || json_array_append_new(choice->calls, call) != 0) return status_fail(ST_RESOURCE, "out of memory for a call");
        choice->n_calls++;
        return ST_OK;
    }
    str_append_n(piece->kind == REPLY_TEXT ? &choice->text : &choice->reasoning, piece->text.data, piece->text.len);
    return memory_check(ST_OK);
}

Status choice_gather(const Job *job, size_t at) {
    Choice *choice = &job->answer->choices[at];
    const Str *text = &choice->completion.text;
    Gathering gathering = {job, at, choice};
    if (!answer_is_parsed(job->answer)) {
        str_append_n(&choice->text, str_text(text), text->len);
        return ST_OK;
    }
    TRY(choice_begin(job, choice));
    TRY(reply_push(choice->reply, str_text(text), text->len, gather_piece, &gathering));
    return reply_finish(choice->reply, gather_piece, &gathering);
}
