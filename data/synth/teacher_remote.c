/* SPDX-License-Identifier: Apache-2.0 */
/* A teacher on a server with OpenAI's protocol: /v1/chat/completions, or /v1/completions for plain texts. An answer is delivered on arrival; after an
 * unreadable reply the question is sent again. */
#include "data/synth/teacher.h"
#include "lib/http/http.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICE_TOKENS = 8 }; /* smallest limit to request; a choice has no more tokens than bytes */
static const double first_pause = 0.5;

/* The state of a question. */
typedef struct Question {
    bool answered;
    Str fault;                     /* what was wrong with its last reply, if that was unreadable */
    int64_t prompt_tokens, tokens; /* cost of such replies by the server's count */
    size_t answered_before;        /* number of other questions answered before its first unreadable reply */
} Question;

/* An answered question to send again. body empty: there is none; size: see question_size. */
typedef struct Known {
    Str body;
    bool chat;
    size_t size;
} Known;

typedef struct Remote {
    HttpClient *client[2]; /* of texts, of messages */
    /* the current questions */
    const TeacherPrompt *prompts;
    Question *questions;
    size_t n, n_answered, *places; /* places: indices of the questions in the current pass */
    Str *bodies, *replies;
    bool ever_answered;
    Known known; /* the last question with a readable answer */
    Str known_reply;
    bool probing, probed; /* it is being sent again; and was answered again */
    size_t n_given_up;    /* questions of earlier rounds that were given up, without an answer since then */
    OnTeacherAnswer *on_answer;
    void *context;
    double tokens_per_minute;
    HttpClient *used;
} Remote;

static Status on_reply(void *context, size_t i, long code);
static Status still_reachable(void *context, bool refusals, bool *there);

static void teacher_remote_close(Teacher *teacher) {
    Remote *remote = teacher->state;
    if (!remote) return;
    for (size_t i = 0; i < COUNT_OF(remote->client); i++) http_close(remote->client[i]);
    str_release(&remote->known.body);
    str_release(&remote->known_reply);
    free(remote);
}

static Status find_key(const Teacher *teacher, const char **key) {
    const char *name = teacher->config.api_key_env;
    *key = name && teacher->options.secret ? teacher->options.secret(teacher->options.context, name) : NULL;
    if (!name || (*key && **key)) return ST_OK;
    status_fail(ST_CONFIG, "the environment variable '%s' with the teacher's key is not set", name);
    return status_hint(ST_CONFIG, "export %s=..., or change '%s.api_key_env'", name, teacher->config.key);
}

static Status teacher_remote_open(Teacher *teacher) {
    static const char *const ends[] = {"completions", "chat/completions"};
    const TeacherConfig *c = &teacher->config;
    Remote *remote = teacher->state = calloc(1, sizeof *remote);
    const char *key;
    if (!remote) return status_errno(ENOMEM, "cannot open the teacher");
    TRY(find_key(teacher, &key));
    if (c->ca_file && !file_exists(c->ca_file)) return status_fail(ST_INPUT, "cannot find the certificates '%s' of '%s.ca_file'", c->ca_file, c->key);
    remote->tokens_per_minute = c->tokens_per_minute;
    teacher->width = (size_t)c->concurrency;
    teacher->chats = strcmp(c->api, "chat") == 0 && !c->base;
    for (size_t i = 0; i < COUNT_OF(remote->client); i++) {
        Str url = {0};
        str_printf(&url, "%s%s%s", c->url, text_ends_with(c->url, "/") ? "" : "/", ends[i]);
        HttpOptions http = {
            .url = str_text(&url),
            .key = key,
            .ca_file = c->ca_file,
            .concurrency = (size_t)c->concurrency,
            .retries = (size_t)c->retries,
            .timeout = c->timeout,
            .per_second = c->requests_per_second,
            .first_pause = first_pause,
            .on_reply = on_reply,
            .still_reachable = still_reachable,
            .context = remote,
            .takes_refusals = true,
        };
        Status status = http_open(&http, &remote->client[i]);
        str_release(&url);
        if (status == ST_CONFIG) return status_prefix(status, "'%s.url'", c->key);
        TRY(status);
    }
    return ST_OK;
}

/* ---- requests ---- */

/* Uses the name of vLLM and SGLang. */
static void write_kwargs(const TeacherConfig *config, JsonWriter *w) {
    json_t *values = teacher_kwargs(config);
    char *text = values ? json_text(values, JSON_COMPACT) : NULL;
    if (text) jw_raw(w, "chat_template_kwargs", text);
    free(text);
    json_decref(values);
}

static void write_body(const Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *s, Str *body) {
    JsonWriter w = {0};
    bool choice = prompt->n_choices > 0;
    jw_object(&w, NULL);
    jw_string(&w, "model", teacher->config.model);
    if (prompt->messages) {
        char *messages = json_text(prompt->messages, JSON_COMPACT);
        jw_raw(&w, "messages", messages ? messages : "[]");
        free(messages);
        write_kwargs(&teacher->config, &w);
    } else
        jw_string(&w, "prompt", prompt->text);
    jw_int(&w, "max_tokens", choice ? MAX(CHOICE_TOKENS, (int64_t)teacher_choice_bytes(prompt)) : s->max_new_tokens);
    jw_double(&w, "temperature", choice || s->sample.greedy ? 0 : s->sample.temperature);
    jw_double(&w, "top_p", s->sample.top_p);
    /* OpenAI's own servers refuse unknown keys, so these are sent only if they have an effect. */
    if (s->sample.top_k > 0) jw_int(&w, "top_k", s->sample.top_k);
    if (s->sample.min_p > 0) jw_double(&w, "min_p", s->sample.min_p);
    if (s->sample.repetition_penalty != 1) jw_double(&w, "repetition_penalty", s->sample.repetition_penalty);
    if (s->sample.presence_penalty != 0) jw_double(&w, "presence_penalty", s->sample.presence_penalty);
    if (s->sample.frequency_penalty != 0) jw_double(&w, "frequency_penalty", s->sample.frequency_penalty);
    if (s->stop.n && !choice) {
        jw_array(&w, "stop");
        for (size_t i = 0; i < s->stop.n; i++) jw_string(&w, NULL, s->stop.items[i]);
        jw_end_array(&w);
    }
    jw_int(&w, "seed", (int64_t)(rng_u64(rng_key(teacher->options.seed, RNG_SAMPLE, prompt->number), 0) >> 33));
    jw_end_object(&w);
    *body = w.text;
}

/* ---- replies ---- */

static bool unreadable(Str *fault, const char *problem, const Str *reply) {
    str_clear(fault);
    str_printf(fault, "%s: '%.*s%s'", problem, (int)MIN(reply->len, 200), str_text(reply), reply->len > 200 ? "..." : "");
    return false;
}

static size_t question_size(const TeacherPrompt *prompt) {
    size_t size = prompt->messages ? 0 : strlen(prompt->text), i;
    const json_t *message;
    json_array_foreach((json_t *)prompt->messages, i, message) size += json_string_length(json_object_get(message, "content"));
    return size;
}

/* The server's count, or four bytes a token if it gives none, so that limits apply there, too. */
static int64_t counted(const json_t *usage, const char *name, size_t bytes) {
    const json_t *count = json_object_get(usage, name);
    return teacher_count(json_is_number(count) ? json_number_value(count) : (double)((bytes + 3) / 4));
}

/* Takes ownership of the body, and gives back the previous one. */
static void keep_known(Remote *remote, Str *body, const TeacherPrompt *prompt) {
    Str before = remote->known.body;
    remote->known = (Known){*body, prompt->messages != NULL, question_size(prompt)};
    *body = before;
}

/* An unreadable reply may have been charged. */
static void note_spent(const json_t *root, TeacherAnswer *answer) {
    const json_t *usage = json_object_get(root, "usage");
    answer->prompt_tokens = counted(usage, "prompt_tokens", 0);
    answer->tokens = counted(usage, "completion_tokens", 0);
}

/* The full text with NUL characters escaped as in JSON. */
static void show_nul(const json_t *text, Str *shown) {
    const char *at = json_string_value(text), *end = at + json_string_length(text);
    for (; at < end; at++) {
        if (*at)
            str_append_char(shown, *at);
        else
            str_append(shown, "\\u0000");
    }
}

/* False: this is no answer. size: of the question; shown: receives a text that cannot be used unchanged. */
static bool read_answer(bool chat, size_t size, const Str *reply, const json_t *root, TeacherAnswer *answer, Str *shown, Str *fault) {
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *usage = json_object_get(root, "usage");
    const json_t *text = chat ? json_object_get(json_object_get(choice, "message"), "content") : json_object_get(choice, "text");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (!root) return unreadable(fault, "no JSON", reply);
    bool silent = json_is_null(text) && finish; /* for example when the server's own filter removed the words */
    if (!json_is_string(text) && !silent) return unreadable(fault, chat ? "no choices[0].message.content" : "no choices[0].text", reply);
    bool nul = json_contains_nul(text);
    if (nul) show_nul(text, shown);
    *answer = (TeacherAnswer){
        .text = nul                    ? str_text(shown)
                : json_is_string(text) ? json_string_value(text)
                                       : "",
        .nul = nul,
        .mean = (double)NAN,
        .cut = finish && strcmp(finish, "length") == 0,
        .refused = silent || nul || (finish && strcmp(finish, "content_filter") == 0),
    };
    answer->prompt_tokens = counted(usage, "prompt_tokens", size);
    answer->tokens = counted(usage, "completion_tokens", strlen(answer->text));
    return true;
}

/* The cost of the repeated question is reported with the first question without an answer, which caused the repetition. */
static Status on_probe(Remote *remote, long code) {
    TeacherAnswer answer = {0};
    Str shown = {0}, fault = {0};
    const Str *reply = &remote->known_reply;
    size_t at = 0;
    json_t *root = json_parse(str_text(reply), reply->len, JSON_ALLOW_NUL, NULL);
    remote->probed = code < 300 && read_answer(remote->known.chat, remote->known.size, reply, root, &answer, &shown, &fault);
    if (!remote->probed) note_spent(root, &answer);
    while (at + 1 < remote->n && remote->questions[at].answered) at++;
    remote->questions[at].prompt_tokens += answer.prompt_tokens;
    remote->questions[at].tokens += answer.tokens;
    str_release(&shown);
    str_release(&fault);
    json_decref(root);
    return ST_OK;
}

static Status on_reply(void *context, size_t i, long code) {
    Remote *remote = context;
    if (remote->probing) return on_probe(remote, code);
    size_t at = remote->places[i];
    Question *question = &remote->questions[at];
    const TeacherPrompt *prompt = &remote->prompts[at];
    const Str *reply = &remote->replies[i];
    TeacherAnswer answer = {.text = str_text(reply), .refused = true, .mean = (double)NAN};
    Str shown = {0};
    bool chat = prompt->messages != NULL, asked_again = question->fault.len > 0, refused = code >= 300;
    json_t *root = json_parse(str_text(reply), reply->len, JSON_ALLOW_NUL, NULL);
    bool read = !refused && read_answer(chat, question_size(prompt), reply, root, &answer, &shown, &question->fault), good = refused || read;
    if (!good) note_spent(root, &answer);
    if (!good && !asked_again) question->answered_before = remote->n_answered;
    if (read && prompt->n_choices && !answer.nul) answer.text = teacher_choice(answer.text, prompt->choices, prompt->n_choices), answer.cut = false;
    int64_t used = answer.prompt_tokens + answer.tokens;
    answer.prompt_tokens = question->prompt_tokens += answer.prompt_tokens;
    answer.tokens = question->tokens += answer.tokens;
    Status status = good ? remote->on_answer(remote->context, at, &answer) : ST_OK;
    if (read) keep_known(remote, &remote->bodies[i], prompt);
    if (good) question->answered = remote->ever_answered = true, remote->n_answered++, remote->n_given_up = 0;
    if (remote->tokens_per_minute > 0) http_slow_down(remote->used, (double)used * 60 / remote->tokens_per_minute);
    str_release(&shown);
    json_decref(root);
    return status;
}

/* ---- sending ---- */

/* One pass over the questions without an answer. */
static Status ask_rest(Teacher *teacher, const TeacherSampling *sampling) {
    Remote *remote = teacher->state;
    size_t n = 0, at;
    for (size_t i = 0; i < remote->n; i++) {
        if (remote->questions[i].answered) continue;
        remote->places[n] = i;
        str_release(&remote->bodies[n]);
        str_clear(&remote->replies[n]);
        write_body(teacher, &remote->prompts[i], sampling, &remote->bodies[n++]);
    }
    return http_post_all(remote->used, remote->bodies, n, remote->replies, &at);
}

/* Repeats an answered question: if the server answers it, the server works, and the remaining questions are at fault. If no question was answered
 * before, the server's refusals are taken literally. */
static Status still_reachable(void *context, bool refusals, bool *there) {
    Remote *remote = context;
    size_t at;
    *there = refusals && remote->known.body.len == 0;
    if (remote->probing || remote->known.body.len == 0) return ST_OK;
    str_clear(&remote->known_reply);
    remote->probing = true;
    remote->probed = false;
    Status status = http_post_all(remote->client[remote->known.chat], &remote->known.body, 1, &remote->known_reply, &at);
    remote->probing = false;
    *there = status == ST_OK && remote->probed;
    return status == ST_INTERRUPTED ? status : ST_OK;
}

/* Questions that repeatedly got no readable answer count as refused if others were answered after them. If nothing was read after several of them, or
 * nothing was ever read before one of them, the server is at fault. */
static bool answers_wrongly(Remote *remote) {
    enum { MOST = 1 };
    for (size_t i = 0; i < remote->n; i++) {
        const Question *question = &remote->questions[i];
        remote->n_given_up += !question->answered && remote->n_answered == question->answered_before;
    }
    return !remote->ever_answered || remote->n_given_up > MOST;
}

static Status give_up(Teacher *teacher, int64_t tries) {
    Remote *remote = teacher->state;
    bool wrong = answers_wrongly(remote), answers = false;
    if (wrong) TRY(still_reachable(remote, false, &answers));
    if (answers) remote->n_given_up = 0;
    wrong = wrong && !answers;
    for (size_t i = 0; i < remote->n; i++) {
        Question *question = &remote->questions[i];
        const char *fault = str_text(&question->fault);
        if (question->answered) continue;
        if (wrong) return status_fail(ST_RESOURCE, "server '%s' answers wrongly (%lld tries): %s", http_name(remote->used), (long long)tries, fault);
        TRY(remote->on_answer(
            remote->context, i,
            &(TeacherAnswer){
                .text = fault, .refused = true, .mean = (double)NAN, .prompt_tokens = question->prompt_tokens, .tokens = question->tokens}));
        question->answered = true;
    }
    return ST_OK;
}

static Status ask_all(Teacher *teacher, const TeacherSampling *sampling) {
    Remote *remote = teacher->state;
    int64_t most = teacher->config.retries;
    for (int64_t tries = 0; remote->n_answered < remote->n; tries++) {
        if (tries > most) return give_up(teacher, tries);
        if (tries > 0) http_slow_down(remote->used, MIN(first_pause * pow(2, (double)tries - 1), 30));
        TRY(ask_rest(teacher, sampling));
    }
    return ST_OK;
}

/* The cost of unreadable replies is also reported when a run ends because of them, so that limits apply across resumed runs. */
static void tell_spent(const Remote *remote) {
    for (size_t i = 0; i < remote->n; i++) {
        const Question *question = &remote->questions[i];
        TeacherAnswer spent = {.text = "", .unread = true, .mean = (double)NAN, .prompt_tokens = question->prompt_tokens, .tokens = question->tokens};
        if (!question->answered && spent.prompt_tokens + spent.tokens > 0 && remote->on_answer(remote->context, i, &spent) != ST_OK) return;
    }
}

static Status teacher_remote_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling,
                                 OnTeacherAnswer *on_answer, void *context) {
    Remote *remote = teacher->state;
    remote->used = remote->client[prompts[0].messages != NULL];
    remote->prompts = prompts;
    remote->n = n;
    remote->n_answered = 0;
    remote->on_answer = on_answer;
    remote->context = context;
    remote->questions = calloc(n, sizeof *remote->questions);
    remote->places = calloc(n, sizeof *remote->places);
    remote->bodies = calloc(n, sizeof *remote->bodies);
    remote->replies = calloc(n, sizeof *remote->replies);
    bool good = remote->questions && remote->places && remote->bodies && remote->replies;
    Status status = good ? ask_all(teacher, sampling) : status_errno(ENOMEM, "cannot ask the teacher");
    if (status != ST_OK && good) {
        Failure failure;
        failure_save(&failure, status);
        tell_spent(remote);
        failure_restore(&failure);
    }
    for (size_t i = 0; i < n && good; i++) {
        str_release(&remote->questions[i].fault);
        str_release(&remote->bodies[i]);
        str_release(&remote->replies[i]);
    }
    free(remote->questions);
    free(remote->places);
    free(remote->bodies);
    free(remote->replies);
    return status;
}

/* A question that the log answers counts as answered now. */
static void note_known(Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *sampling) {
    Remote *remote = teacher->state;
    Str body;
    if (remote->known.body.len > 0) return;
    write_body(teacher, prompt, sampling, &body);
    keep_known(remote, &body, prompt);
    str_release(&body);
}

const TeacherKind teacher_kind_remote = {
    .open = teacher_remote_open, .close = teacher_remote_close, .ask = teacher_remote_ask, .note_known = note_known};
