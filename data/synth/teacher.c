/* SPDX-License-Identifier: Apache-2.0 */
/* Teachers: their settings in a recipe, and the common interface of all kinds. */
#include "data/synth/teacher.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/recipe/option.h"

/* ---- options ---- */

enum { MAX_NEW_TOKENS, TEMPERATURE, GREEDY, TOP_K, TOP_P, MIN_P, REPETITION_PENALTY, PRESENCE_PENALTY, FREQUENCY_PENALTY, STOP, SAMPLING_OPTIONS };
#define OPTIONS_OF_SAMPLING                                                                                                                          \
    [MAX_NEW_TOKENS] = {"max_new_tokens", OPTION_WHOLE, .low = 1, .high = 1 << 20},                                                                  \
    [TEMPERATURE] = {"temperature", OPTION_NUMBER, .low = 0, .high = 100}, [GREEDY] = {"greedy", .kind = OPTION_BOOL},                               \
    [TOP_K] = {"top_k", OPTION_WHOLE, .low = 0, .high = 1e9}, [TOP_P] = {"top_p", OPTION_NUMBER, .low = 0, .high = 1},                               \
    [MIN_P] = {"min_p", OPTION_NUMBER, .low = 0, .high = 1}, [REPETITION_PENALTY] = {"repetition_penalty", OPTION_NUMBER, .low = 0.01, .high = 100}, \
    [PRESENCE_PENALTY] = {"presence_penalty", OPTION_NUMBER, .low = -100, .high = 100},                                                              \
    [FREQUENCY_PENALTY] = {"frequency_penalty", OPTION_NUMBER, .low = -100, .high = 100}, [STOP] = {"stop", .kind = OPTION_STRINGS}
static const OptionSpec sampling_options[] = {OPTIONS_OF_SAMPLING, {0}};

/* A teacher's own keys are in the same map as its sampling. */
enum {
    MODEL = SAMPLING_OPTIONS,
    ADAPTER,
    CHAT_TEMPLATE,
    TEMPLATE_KWARGS,
    COMPUTE,
    BASE,
    MAX_BATCH,
    URL,
    API,
    API_KEY_ENV,
    CA_FILE,
    CONCURRENCY,
    RETRIES,
    TIMEOUT,
    REQUESTS_PER_SECOND,
    TOKENS_PER_MINUTE,
    PRICE_IN,
    PRICE_OUT,
    REPLAY
};
static const OptionSpec teacher_options[] = {
    OPTIONS_OF_SAMPLING,
    [MODEL] = {"model", .kind = OPTION_STRING},
    [ADAPTER] = {"adapter", .kind = OPTION_STRING},
    [CHAT_TEMPLATE] = {"chat_template", .kind = OPTION_STRING},
    [TEMPLATE_KWARGS] = {"template_kwargs", .kind = OPTION_YAML},
    [COMPUTE] = {"compute", OPTION_STRING, .choices = "auto|f32|bf16"},
    [BASE] = {"base", .kind = OPTION_BOOL},
    [MAX_BATCH] = {"max_batch", OPTION_WHOLE, .low = 0, .high = 1 << 16},
    [URL] = {"url", .kind = OPTION_STRING},
    [API] = {"api", OPTION_STRING, .text = "chat", .choices = "chat|completions"},
    [API_KEY_ENV] = {"api_key_env", .kind = OPTION_STRING},
    [CA_FILE] = {"ca_file", .kind = OPTION_STRING},
    [CONCURRENCY] = {"concurrency", OPTION_WHOLE, .value = 8, .low = 1, .high = 256},
    [RETRIES] = {"retries", OPTION_WHOLE, .value = 5, .low = 0, .high = 100},
    [TIMEOUT] = {"timeout", OPTION_NUMBER, .value = 120, .low = 0.01, .high = 86400},
    [REQUESTS_PER_SECOND] = {"requests_per_second", OPTION_NUMBER, .low = 0, .high = 1e6},
    [TOKENS_PER_MINUTE] = {"tokens_per_minute", OPTION_NUMBER, .low = 0, .high = 1e12},
    [PRICE_IN] = {"price_in", OPTION_NUMBER, .low = 0, .high = 1e9},
    [PRICE_OUT] = {"price_out", OPTION_NUMBER, .low = 0, .high = 1e9},
    [REPLAY] = {"replay", .kind = OPTION_STRING},
    {0},
};

static OptionOwner owner_of(const char *key, const char *file) { return (OptionOwner){"key", key, file}; }

/* ---- sampling ---- */

TeacherSampling teacher_sampling(void) {
    return (TeacherSampling){.sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 256};
}

/* Missing keys stay unchanged. */
static Status read_sampling(const Yaml *map, const char *key, const char *file, const OptionSpec *options, Arena *arena, TeacherSampling *sampling) {
    OptionOwner owner = owner_of(key, file);
    OptionValue v[OPTIONS_MOST];
    SampleConfig *sample = &sampling->sample;
    TRY(options_read(&owner, options, map, arena, v));
    if (v[MAX_NEW_TOKENS].node) sampling->max_new_tokens = (int64_t)v[MAX_NEW_TOKENS].number;
    if (v[TEMPERATURE].node) sample->temperature = v[TEMPERATURE].number;
    if (v[GREEDY].node) sample->greedy = v[GREEDY].number != 0;
    if (v[TOP_K].node) sample->top_k = (int64_t)v[TOP_K].number;
    if (v[TOP_P].node) sample->top_p = v[TOP_P].number;
    if (v[MIN_P].node) sample->min_p = v[MIN_P].number;
    if (v[REPETITION_PENALTY].node) sample->repetition_penalty = v[REPETITION_PENALTY].number;
    if (v[PRESENCE_PENALTY].node) sample->presence_penalty = v[PRESENCE_PENALTY].number;
    if (v[FREQUENCY_PENALTY].node) sample->frequency_penalty = v[FREQUENCY_PENALTY].number;
    if (v[STOP].node) sampling->stop = (TextList){v[STOP].n, v[STOP].list};
    return ST_OK;
}

Status teacher_sampling_read(const Yaml *map, const char *key, const char *file, Arena *arena, TeacherSampling *sampling) {
    return read_sampling(map, key, file, sampling_options, arena, sampling);
}

void teacher_sampling_write(const TeacherSampling *s, JsonWriter *w, const char *key) {
    jw_object(w, key);
    jw_int(w, "max_new_tokens", s->max_new_tokens);
    jw_double(w, "temperature", s->sample.greedy ? 0 : s->sample.temperature);
    if (s->sample.top_k > 0) jw_int(w, "top_k", s->sample.top_k);
    jw_double(w, "top_p", s->sample.top_p);
    if (s->sample.min_p > 0) jw_double(w, "min_p", s->sample.min_p);
    if (s->sample.repetition_penalty != 1) jw_double(w, "repetition_penalty", s->sample.repetition_penalty);
    if (s->sample.presence_penalty != 0) jw_double(w, "presence_penalty", s->sample.presence_penalty);
    if (s->sample.frequency_penalty != 0) jw_double(w, "frequency_penalty", s->sample.frequency_penalty);
    if (s->stop.n) {
        jw_array(w, "stop");
        for (size_t i = 0; i < s->stop.n; i++) jw_string(w, NULL, s->stop.items[i]);
        jw_end_array(w);
    }
    jw_end_object(w);
}

/* ---- the teacher of a recipe ---- */

static Status teacher_refuse(const TeacherConfig *config, const char *problem, const char *hint) {
    OptionOwner owner = owner_of(config->key, config->file);
    option_refuse(&owner, config->node->line, problem);
    return status_hint(ST_CONFIG, "%s", hint);
}

static Status check_texts(const TeacherConfig *config, const OptionValue *values) {
    char problem[128];
    for (size_t i = 0; teacher_options[i].name; i++)
        if (values[i].text && !values[i].text[0]) {
            snprintf(problem, sizeof problem, "'%s' is empty", teacher_options[i].name);
            return teacher_refuse(config, problem, "leave it out");
        }
    return ST_OK;
}

/* A key that only another kind of teacher uses. */
static Status check_belongs(const TeacherConfig *config, const char *const *names, const char *where) {
    char problem[128];
    for (; *names; names++)
        if (yaml_get(config->node, *names)) {
            snprintf(problem, sizeof problem, "it has '%s', which belongs to %s", *names, where);
            return teacher_refuse(config, problem, "leave it out");
        }
    return ST_OK;
}

/* The recipe is written to the run directory, so it must not contain secrets. The message does not repeat the url. */
static Status check_url(const TeacherConfig *config) {
    const char *host = strstr(config->url, "://"), *at;
    host = host ? host + 3 : config->url;
    at = strchr(host, '@');
    if (at && at < host + strcspn(host, "/?#"))
        return teacher_refuse(config, "its 'url' has a user or a password, which would be stored in the run directory",
                              "leave it out of the url; api_key_env: VARIABLE names an environment variable with the key");
    if (host[strcspn(host, "?#")])
        return teacher_refuse(config, "it has a 'url' with '?' or '#', and paths are added to its end",
                              "end it with the version, as https://host/v1; api_key_env: VARIABLE names an environment variable with the key");
    return ST_OK;
}

static Status read_config(const Yaml *node, const char *key, const char *file, Arena *arena, TeacherConfig *config) {
    OptionOwner owner = owner_of(key, file);
    OptionValue v[OPTIONS_MOST];
    TRY(options_read(&owner, teacher_options, node, arena, v));
    *config = (TeacherConfig){
        .model = v[MODEL].text,
        .adapter = v[ADAPTER].text,
        .chat_template = v[CHAT_TEMPLATE].text,
        .template_kwargs = v[TEMPLATE_KWARGS].node,
        .compute = v[COMPUTE].text,
        .base = v[BASE].number != 0,
        .max_batch = (int64_t)v[MAX_BATCH].number,
        .url = v[URL].text,
        .api = v[API].text,
        .api_key_env = v[API_KEY_ENV].text,
        .ca_file = v[CA_FILE].text,
        .concurrency = (int64_t)v[CONCURRENCY].number,
        .retries = (int64_t)v[RETRIES].number,
        .timeout = v[TIMEOUT].number,
        .requests_per_second = v[REQUESTS_PER_SECOND].number,
        .tokens_per_minute = v[TOKENS_PER_MINUTE].number,
        .price_in = v[PRICE_IN].number,
        .price_out = v[PRICE_OUT].number,
        .replay = v[REPLAY].text,
        .node = node,
        .key = key,
        .file = file,
    };
    return check_texts(config, v);
}

/* Values for a chat template, which needs a template that is rendered. */
static Status check_kwargs(const TeacherConfig *config) {
    const Yaml *values = config->template_kwargs;
    if (!values || values->kind == YAML_NULL) return ST_OK;
    if (values->kind != YAML_MAP)
        return teacher_refuse(config, "its 'template_kwargs' is not a map", "such as template_kwargs: {enable_thinking: false}");
    if (config->base)
        return teacher_refuse(config, "'template_kwargs' does nothing with 'base: true'", "texts are continued without a chat template");
    if (config->url && strcmp(config->api, "completions") == 0)
        return teacher_refuse(config, "'template_kwargs' does nothing with 'api: completions'", "the server only renders conversations: api: chat");
    return ST_OK;
}

json_t *teacher_kwargs(const TeacherConfig *config) {
    const Yaml *values = config->template_kwargs;
    return values && values->n > 0 ? yaml_to_json(values) : NULL;
}

Status teacher_config(const Yaml *node, const char *key, const char *file, Arena *arena, TeacherConfig *config) {
    static const char *const of_servers[] = {"api",     "api_key_env",         "ca_file",           "concurrency", "retries",
                                             "timeout", "requests_per_second", "tokens_per_minute", NULL};
    static const char *const of_models[] = {"adapter", "chat_template", "compute", "max_batch", NULL};
    if (!node || node->kind == YAML_NULL)
        return status_hint(status_fail(ST_CONFIG, "'%s' is missing", key),
                           "%s: {model: DIR}, or {url: http://host:port/v1, model: NAME, api_key_env: VARIABLE}", key);
    TRY(read_config(node, key, file, arena, config));
    if (config->replay && config->url) return teacher_refuse(config, "it names a log to replay and a server", "keep one");
    TRY(check_kwargs(config));
    if (config->replay) return ST_OK;
    if (config->url) TRY(check_url(config));
    if (!config->model) return teacher_refuse(config, "it lacks 'model'", "a model directory, or with 'url' the name of the server's model");
    return config->url ? check_belongs(config, of_models, "a model on this machine") : check_belongs(config, of_servers, "'url'");
}

Status teacher_config_sampling(const TeacherConfig *config, Arena *arena, TeacherSampling *sampling) {
    return read_sampling(config->node, config->key, config->file, teacher_options, arena, sampling);
}

int64_t teacher_count(double tokens) { return tokens >= 0 ? (int64_t)MIN(tokens, 1e9) : 0; }

/* ---- the common interface ---- */

bool teacher_config_is_local(const TeacherConfig *config) { return config->node && !config->replay && !config->url; }

Status teacher_open(const TeacherConfig *config, const TeacherOptions *options, Teacher **out) {
    *out = NULL;
    Teacher *teacher = calloc(1, sizeof *teacher);
    if (!teacher) return status_errno(ENOMEM, "cannot open the teacher");
    *teacher = (Teacher){.config = *config, .options = *options, .width = 32};
    teacher->kind = config->replay ? &teacher_kind_replay : config->url ? &teacher_kind_remote : &teacher_kind_local;
    Status status = teacher->kind->open(teacher);
    if (status == ST_OK)
        *out = teacher;
    else
        teacher_close(teacher);
    return status;
}

void teacher_close(Teacher *teacher) {
    if (!teacher) return;
    teacher->kind->close(teacher);
    free(teacher);
}

Status teacher_ask(Teacher *teacher, const TeacherPrompt *prompts, size_t n, const TeacherSampling *sampling, OnTeacherAnswer *on_answer,
                   void *context) {
    return n == 0 ? ST_OK : teacher->kind->ask(teacher, prompts, n, sampling, on_answer, context);
}

void teacher_note_known(Teacher *teacher, const TeacherPrompt *prompt, const TeacherSampling *sampling) {
    if (teacher->kind->note_known) teacher->kind->note_known(teacher, prompt, sampling);
}

bool teacher_chats(const Teacher *teacher) { return teacher->chats; }
bool teacher_compares(const Teacher *teacher) { return teacher->compares; }
size_t teacher_width(const Teacher *teacher) { return teacher->width; }

Status teacher_user_turn(const Teacher *teacher, const char *system, Str *text) {
    if (teacher->kind->user_turn) return teacher->kind->user_turn(teacher, system, text);
    status_fail(ST_INPUT, "the teacher's chat template is not known here");
    return status_hint(ST_INPUT,
                       "a local model has it; for a server, set synth.user_turn to the text that its template writes before a user's words");
}

/* ---- a choice in words ---- */

size_t teacher_choice_bytes(const TeacherPrompt *prompt) {
    size_t most = 0;
    for (size_t i = 0; i < prompt->n_choices; i++) most = MAX(most, strlen(prompt->choices[i]));
    return most;
}

/* Characters beyond ASCII count as letters. */
static bool in_word(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Whether the choice, without leading spaces, is at `text`. If a letter or digit adjoins one of its own, it is part of another word. Scripts beyond
 * ASCII may have no word borders. */
static bool stands_at(const char *begin, const char *text, const char *choice, size_t *len) {
    const char *at = text;
    while (isspace((unsigned char)*choice)) choice++;
    if (!*choice || (text > begin && in_word(text[-1]) && isalnum((unsigned char)*choice))) return false;
    for (; *choice; at++, choice++)
        if (tolower((unsigned char)*at) != tolower((unsigned char)*choice)) return false;
    *len = (size_t)(at - text);
    return !(isalnum((unsigned char)at[-1]) && in_word(*at));
}

static size_t longest_at(const char *begin, const char *text, const char *const *choices, size_t n, size_t *longest) {
    size_t best = n, len;
    *longest = 0;
    for (size_t i = 0; i < n; i++)
        if (stands_at(begin, text, choices[i], &len) && len > *longest) best = i, *longest = len;
    return best;
}

const char *teacher_choice(const char *reply, const char *const *choices, size_t n) {
    size_t only = n, here, len;
    const char *at = reply;
    for (bool begins = true; begins && *at; at++) {
        if ((here = longest_at(reply, at, choices, n, &len)) < n) return choices[here];
        begins = !in_word(*at);
    }
    for (; *at; at += MAX(len, 1)) {
        if ((here = longest_at(reply, at, choices, n, &len)) == n) continue;
        if (only < n && only != here) return "";
        only = here;
    }
    return only < n ? choices[only] : "";
}
