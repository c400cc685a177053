/* SPDX-License-Identifier: Apache-2.0 */
/* The log of an earlier run as the teacher: every question must be in that log. */
#include "data/synth/synth_journal.h"
#include "data/synth/teacher.h"

#include <math.h>
#include <string.h>

static void teacher_replay_close(Teacher *teacher) { journal_close(teacher->state); }

static Status teacher_replay_open(Teacher *teacher) {
    Journal *journal;
    json_t *first;
    TRY(journal_open(teacher->config.replay, true, &journal));
    teacher->state = journal;
    TRY(journal_first(journal, &first));
    teacher->chats = !json_is_false(json_object_get(first, "chat")); /* the teacher of that run took messages */
    teacher->compares = json_is_true(json_object_get(first, "compares"));
    json_decref(first);
    return ST_OK;
}

Status teacher_answer_read(const json_t *line, TeacherAnswer *answer) {
    static const char where[] = "the log of requests";
    *answer = (TeacherAnswer){.mean = (double)NAN};
    const char *finish = "";
    TRY(json_get_string(line, where, "answer", &answer->text));
    TRY(json_get_string(line, where, "finish_reason", &finish));
    TRY(json_get_double(line, where, "margin", &answer->margin));
    TRY(json_get_double(line, where, "mean", &answer->mean));
    TRY(json_get_int(line, where, "prompt_tokens", &answer->prompt_tokens));
    TRY(json_get_int(line, where, "tokens", &answer->tokens));
    answer->prompt_tokens = teacher_count((double)answer->prompt_tokens);
    answer->tokens = teacher_count((double)answer->tokens);
    answer->cut = strcmp(finish, "length") == 0;
    answer->too_long = strcmp(finish, "too_long") == 0;
    answer->nul = strcmp(finish, "nul") == 0;
    answer->refused = answer->too_long || answer->nul || strcmp(finish, "refused") == 0;
    return answer->text ? ST_OK : status_fail(ST_INPUT, "%s: a line lacks 'answer'", where);
}

void teacher_answer_write(const TeacherAnswer *answer, JsonWriter *w) {
    jw_string(w, "answer", answer->text);
    jw_string(w, "finish_reason",
              answer->too_long  ? "too_long"
              : answer->nul     ? "nul"
              : answer->unread  ? "unread"
              : answer->refused ? "refused"
              : answer->cut     ? "length"
                                : "stop");
    if (answer->margin != 0) jw_double(w, "margin", answer->margin);
    if (!isnan(answer->mean)) jw_double(w, "mean", answer->mean);
    jw_int(w, "prompt_tokens", answer->prompt_tokens);
    jw_int(w, "tokens", answer->tokens);
}

static Status teacher_replay_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling,
                                 OnTeacherAnswer *on_answer, void *context) {
    (void)sampling;
    for (size_t i = 0; i < n; i++) {
        json_t *line;
        TeacherAnswer answer;
        TRY(journal_find(teacher->state, prompts[i].key, &line));
        if (!line) {
            status_fail(ST_INPUT, "request %llu is not in '%s'", (unsigned long long)prompts[i].number, teacher->config.replay);
            return status_hint(ST_INPUT, "a log only answers the requests of the same recipe: seeds, prompts, sampling and seed must be those "
                                         "of the run that wrote it");
        }
        Status status = teacher_answer_read(line, &answer);
        if (status == ST_OK) status = on_answer(context, i, &answer);
        json_decref(line);
        TRY(status);
    }
    return ST_OK;
}

const TeacherKind teacher_kind_replay = {.open = teacher_replay_open, .close = teacher_replay_close, .ask = teacher_replay_ask};
