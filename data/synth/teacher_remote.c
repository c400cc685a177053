/* A teacher behind OpenAI's protocol: /v1/chat/completions, or /v1/completions for plain texts. An answer is handed over as it comes; a reply that
 * cannot be read is asked for again. */
#include "data/synth/teacher.h"
#include "lib/base/http.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICE_TOKENS = 8 }; /* asked for at least; a choice has not more tokens than bytes */
static const double first_pause = 0.5;

typedef struct Remote {
    HttpClient *client[2];   /* of texts, of messages */
    /* the round of questions */
    const TeacherPrompt *prompts;
    size_t n, *places;       /* of what is asked now among the prompts */
    Str *bodies, *replies;
    bool *answered;
    size_t n_answered;
    Str *faults;             /* by place: what was wrong with the last reply, where it could not be read */
    struct Spent { int64_t prompt_tokens, tokens; } *spent; /* by place: what such replies cost by the server's count */
    size_t *answered_before; /* by place: what was answered before its first reply that could not be read */
    bool ever_answered;
    size_t known;            /* the place of a question whose answer could be read; SIZE_MAX: there is none */
    bool probing, probed;    /* it is asked again; and answered again */
    size_t n_given_up;       /* questions of earlier rounds that were given up, with no answer since */
    OnTeacherAnswer *on_answer;
    void *context;
    double tokens_per_minute;
    HttpClient *used;
} Remote;

static Status on_reply(void *context, size_t i, long code);

static void close(Teacher *teacher) {
    Remote *remote = teacher->state;
    if (!remote) return;
    for (size_t i = 0; i < COUNT_OF(remote->client); i++) http_close(remote->client[i]);
    free(remote);
}

static Status find_key(const Teacher *teacher, const char **key) {
    const char *name = teacher->config.api_key_env;
    *key = name && teacher->options.secret ? teacher->options.secret(teacher->options.context, name) : NULL;
    if (!name || (*key && **key)) return ST_OK;
    status_fail(ST_CONFIG, "the environment variable '%s' with the teacher's key is not set", name);
    return status_hint(ST_CONFIG, "export %s=..., or change '%s.api_key_env'", name, teacher->config.key);
}

static Status open(Teacher *teacher) {
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

/* ---- what is asked ---- */

static void write_body(const Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *s, Str *body) {
    JsonWriter w = {0};
    bool choice = prompt->n_choices > 0;
    jw_object(&w, NULL);
    jw_string(&w, "model", teacher->config.model);
    if (prompt->messages) {
        char *messages = json_dumps(prompt->messages, JSON_COMPACT);
        jw_raw(&w, "messages", messages ? messages : "[]");
        free(messages);
    } else jw_string(&w, "prompt", prompt->text);
    jw_int(&w, "max_tokens", choice ? MAX(CHOICE_TOKENS, (int64_t)teacher_choice_bytes(prompt)) : s->max_new_tokens);
    jw_double(&w, "temperature", choice || s->sample.greedy ? 0 : s->sample.temperature);
    jw_double(&w, "top_p", s->sample.top_p);
    /* OpenAI's own servers refuse the ones that they do not know, so they are named only where they do something. */
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

/* ---- what is answered ---- */

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

/* What the server counted; where it does not say, four bytes are taken for a token, so that limits hold there too. */
static int64_t counted(const json_t *usage, const char *name, size_t bytes) {
    const json_t *count = json_object_get(usage, name);
    return teacher_count(json_is_number(count) ? json_number_value(count) : (double)((bytes + 3) / 4));
}

/* A reply that cannot be read may have been paid for. */
static void note_spent(const json_t *root, TeacherAnswer *answer) {
    const json_t *usage = json_object_get(root, "usage");
    answer->prompt_tokens = counted(usage, "prompt_tokens", 0);
    answer->tokens = counted(usage, "completion_tokens", 0);
}

/* The whole of a text with NUL characters, as its JSON has them. */
static void show_nul(const json_t *text, Str *shown) {
    const char *at = json_string_value(text), *end = at + json_string_length(text);
    for (; at < end; at++) {
        if (*at) str_append_char(shown, *at);
        else str_append(shown, "\\u0000");
    }
}

/* False: this is no answer. shown: where its text is put that cannot stay as it is. */
static bool read_answer(const TeacherPrompt *prompt, const Str *reply, const json_t *root, TeacherAnswer *answer, Str *shown, Str *fault) {
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0), *usage = json_object_get(root, "usage");
    const json_t *text = prompt->messages ? json_object_get(json_object_get(choice, "message"), "content") : json_object_get(choice, "text");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (!root) return unreadable(fault, "no JSON", reply);
    bool silent = json_is_null(text) && finish; /* as where the server's own filter took the words away */
    if (!json_is_string(text) && !silent) return unreadable(fault, prompt->messages ? "no choices[0].message.content" : "no choices[0].text", reply);
    bool nul = json_holds_nul(text);
    if (nul) show_nul(text, shown);
    *answer = (TeacherAnswer){
        .text = nul ? str_text(shown) : json_is_string(text) ? json_string_value(text) : "",
        .nul = nul,
        .mean = (double)NAN,
        .cut = finish && strcmp(finish, "length") == 0,
        .refused = silent || nul || (finish && strcmp(finish, "content_filter") == 0),
    };
    answer->prompt_tokens = counted(usage, "prompt_tokens", question_size(prompt));
    answer->tokens = counted(usage, "completion_tokens", strlen(answer->text));
    if (prompt->n_choices && !nul) answer->text = teacher_choice(answer->text, prompt->choices, prompt->n_choices), answer->cut = false;
    return true;
}

/* What it costs is told with the question that it is asked for, the first one without an answer. */
static Status on_probe(Remote *remote, long code) {
    TeacherAnswer answer = {0};
    Str shown = {0}, fault = {0};
    size_t at = 0;
    json_t *root = json_loadb(str_text(&remote->replies[0]), remote->replies[0].len, JSON_ALLOW_NUL, NULL);
    remote->probed = code < 300 && read_answer(&remote->prompts[remote->known], &remote->replies[0], root, &answer, &shown, &fault);
    if (!remote->probed) note_spent(root, &answer);
    while (at + 1 < remote->n && remote->answered[at]) at++;
    remote->spent[at].prompt_tokens += answer.prompt_tokens;
    remote->spent[at].tokens += answer.tokens;
    str_release(&shown);
    str_release(&fault);
    json_decref(root);
    return ST_OK;
}

static Status on_reply(void *context, size_t i, long code) {
    Remote *remote = context;
    if (remote->probing) return on_probe(remote, code);
    size_t at = remote->places[i];
    const TeacherPrompt *prompt = &remote->prompts[at];
    const Str *reply = &remote->replies[i];
    TeacherAnswer answer = {.text = str_text(reply), .refused = true, .mean = (double)NAN};
    Str shown = {0};
    json_t *root = json_loadb(str_text(reply), reply->len, JSON_ALLOW_NUL, NULL);
    bool asked_again = remote->faults[at].len > 0;
    bool good = code >= 300 || read_answer(prompt, reply, root, &answer, &shown, &remote->faults[at]);
    if (!good) note_spent(root, &answer);
    if (!good && !asked_again) remote->answered_before[at] = remote->n_answered;
    int64_t used = answer.prompt_tokens + answer.tokens;
    answer.prompt_tokens = remote->spent[at].prompt_tokens += answer.prompt_tokens;
    answer.tokens = remote->spent[at].tokens += answer.tokens;
    Status status = good ? remote->on_answer(remote->context, at, &answer) : ST_OK;
    if (good && code < 300) remote->known = at;
    if (good) remote->answered[at] = remote->ever_answered = true, remote->n_answered++, remote->n_given_up = 0;
    if (remote->tokens_per_minute > 0) http_slow_down(remote->used, (double)used * 60 / remote->tokens_per_minute);
    str_release(&shown);
    json_decref(root);
    return status;
}

/* ---- asking ---- */

/* One pass over what has no answer yet. */
static Status ask_rest(Teacher *teacher, const TeacherSampling *sampling) {
    Remote *remote = teacher->state;
    size_t n = 0, at;
    for (size_t i = 0; i < remote->n; i++) {
        if (remote->answered[i]) continue;
        remote->places[n] = i;
        str_release(&remote->bodies[n]);
        str_clear(&remote->replies[n]);
        write_body(teacher, &remote->prompts[i], sampling, &remote->bodies[n++]);
    }
    return http_post_all(remote->used, remote->bodies, n, remote->replies, &at);
}

/* Asks once more what was answered before: a server that answers it is there, and what it fails at is the fault of the questions that are left. */
static Status still_answers(Teacher *teacher, const TeacherSampling *sampling, bool *answers) {
    Remote *remote = teacher->state;
    size_t at;
    *answers = false;
    if (remote->known == SIZE_MAX) return ST_OK;
    str_release(&remote->bodies[0]);
    str_clear(&remote->replies[0]);
    write_body(teacher, &remote->prompts[remote->known], sampling, &remote->bodies[0]);
    remote->probing = true;
    remote->probed = false;
    Status status = http_post_all(remote->used, remote->bodies, 1, remote->replies, &at);
    remote->probing = false;
    *answers = status == ST_OK && remote->probed;
    return status == ST_INTERRUPTED ? status : ST_OK;
}

/* Questions that had no answer which can be read, again and again, count as refused where others had one after them. More than one that nothing was
 * read after, or one before anything was ever read, is the server's doing. */
static bool answers_wrongly(Remote *remote) {
    enum { MOST = 1 };
    for (size_t i = 0; i < remote->n; i++) remote->n_given_up += !remote->answered[i] && remote->n_answered == remote->answered_before[i];
    return !remote->ever_answered || remote->n_given_up > MOST;
}

static Status give_up(Teacher *teacher, const TeacherSampling *sampling, int64_t tries) {
    Remote *remote = teacher->state;
    bool wrong = answers_wrongly(remote), answers = false;
    if (wrong) TRY(still_answers(teacher, sampling, &answers));
    if (answers) remote->n_given_up = 0;
    wrong = wrong && !answers;
    for (size_t i = 0; i < remote->n; i++) {
        const char *fault = str_text(&remote->faults[i]);
        if (remote->answered[i]) continue;
        if (wrong) return status_fail(ST_RESOURCE, "server '%s' answers wrongly (%lld tries): %s", http_name(remote->used), (long long)tries, fault);
        const struct Spent *spent = &remote->spent[i];
        TRY(remote->on_answer(
            remote->context, i,
            &(TeacherAnswer){.text = fault, .refused = true, .mean = (double)NAN, .prompt_tokens = spent->prompt_tokens, .tokens = spent->tokens}));
    }
    return ST_OK;
}

static Status ask_all(Teacher *teacher, const TeacherSampling *sampling) {
    Remote *remote = teacher->state;
    int64_t most = teacher->config.retries;
    for (int64_t tries = 0; remote->n_answered < remote->n; tries++) {
        if (tries > most) return give_up(teacher, sampling, tries);
        if (tries > 0) http_slow_down(remote->used, MIN(first_pause * pow(2, (double)tries - 1), 30));
        Failure failure;
        failure_keep(&failure, ask_rest(teacher, sampling));
        if (failure.status != ST_OK && http_in_doubt(remote->used)) {
            bool answers;
            TRY(still_answers(teacher, sampling, &answers));
            if (!answers) return failure_say(&failure);
            http_vouch(remote->used);
            failure_keep(&failure, ask_rest(teacher, sampling));
        }
        TRY(failure_say(&failure));
    }
    return ST_OK;
}

static Status ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                  void *context) {
    Remote *remote = teacher->state;
    remote->used = remote->client[prompts[0].messages != NULL];
    remote->prompts = prompts;
    remote->n = n;
    remote->n_answered = 0;
    remote->known = SIZE_MAX;
    remote->on_answer = on_answer;
    remote->context = context;
    remote->places = calloc(n, sizeof *remote->places);
    remote->bodies = calloc(n, sizeof *remote->bodies);
    remote->replies = calloc(n, sizeof *remote->replies);
    remote->answered = calloc(n, sizeof *remote->answered);
    remote->faults = calloc(n, sizeof *remote->faults);
    remote->spent = calloc(n, sizeof *remote->spent);
    remote->answered_before = calloc(n, sizeof *remote->answered_before);
    Status status =
        remote->places && remote->bodies && remote->replies && remote->answered && remote->faults && remote->spent && remote->answered_before
            ? ask_all(teacher, sampling)
            : status_errno(ENOMEM, "cannot ask the teacher");
    for (size_t i = 0; i < n && remote->bodies && remote->replies; i++) {
        str_release(&remote->bodies[i]);
        str_release(&remote->replies[i]);
    }
    free(remote->places);
    free(remote->bodies);
    free(remote->replies);
    for (size_t i = 0; i < n && remote->faults; i++) str_release(&remote->faults[i]);
    free(remote->answered);
    free(remote->faults);
    free(remote->spent);
    free(remote->answered_before);
    return status;
}

const TeacherKind teacher_kind_remote = {.open = open, .close = close, .ask = ask};
