/* Teachers: what a recipe says about them, and the kinds behind one door. */
#include "data/synth/teacher.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- options of a map ---- */

static const MapOption *option_find(const MapOption *options, const char *name) {
    for (; options && options->name; options++)
        if (strcmp(options->name, name) == 0) return options;
    return NULL;
}

static const char *place_text(const char *file, int line, char out[512]) {
    if (file && line > 0) snprintf(out, 512, "in '%s' line %d", file, line);
    else snprintf(out, 512, "on the command line");
    return out;
}

static Status unknown_option(const char *key, const char *name, const char *file, int line, const MapOption *options, const MapOption *others) {
    const char *names[64];
    char place[512];
    size_t n = 0;
    for (const MapOption *o = options; o && o->name && n < COUNT_OF(names); o++) names[n++] = o->name;
    for (const MapOption *o = others; o && o->name && n < COUNT_OF(names); o++) names[n++] = o->name;
    status_fail(ST_CONFIG, "unknown key '%s' of '%s' %s", name, key, place_text(file, line, place));
    return status_hint_nearest(ST_CONFIG, name, names, n, NULL);
}

static Status wrong_option(const char *key, const MapOption *option, const char *file, int line) {
    char place[512], expected[128] = "a text";
    bool bounded = option->low < option->high;
    const char *kind = option->type == MAP_INT ? "a whole number" : "a number";
    if (option->choices) snprintf(expected, sizeof expected, "%s", option->choices);
    else if (option->type == MAP_BOOL) snprintf(expected, sizeof expected, "true or false");
    else if (option->type == MAP_TEXTS) snprintf(expected, sizeof expected, "a list of texts");
    else if (option->type != MAP_TEXT && bounded && isinf(option->high)) snprintf(expected, sizeof expected, "%s of at least %g", kind, option->low);
    else if (option->type != MAP_TEXT) snprintf(expected, sizeof expected, "%s from %g to %g", kind, option->low, option->high);
    return status_fail(ST_CONFIG, "wrong value for '%s.%s' %s: expected %s", key, option->name, place_text(file, line, place), expected);
}

static bool read_texts(const Yaml *node, Arena *arena, TextList *list) {
    size_t n = node->kind == YAML_LIST ? node->n : 1;
    list->items = arena_alloc(arena, MAX(n, 1) * sizeof *list->items);
    list->n = n;
    for (size_t i = 0; i < n && list->items; i++) {
        const Yaml *item = node->kind == YAML_LIST ? node->items[i] : node;
        if (item->kind != YAML_SCALAR || item->text[0] == '\0') return false;
        list->items[i] = item->text;
    }
    return list->items != NULL;
}

static bool read_option(const Yaml *node, const MapOption *option, Arena *arena, void *out) {
    void *field = (char *)out + option->offset;
    int64_t whole;
    double real;
    switch (option->type) {
    case MAP_TEXT:
        if (node->kind != YAML_SCALAR || node->text[0] == '\0' || (option->choices && !text_among(option->choices, '|', node->text))) return false;
        *(const char **)field = node->text;
        return true;
    case MAP_BOOL: return yaml_as_bool(node, field);
    case MAP_TEXTS: return read_texts(node, arena, field);
    case MAP_INT:
        if (!yaml_as_int(node, &whole) || !((double)whole >= option->low && (double)whole <= option->high)) return false;
        *(int64_t *)field = whole;
        return true;
    case MAP_REAL:
        if (!yaml_as_double(node, &real) || !(real >= option->low && real <= option->high)) return false;
        *(double *)field = real;
        return true;
    }
    return false;
}

/* Fills fields of `out` at their offsets. Keys that are in neither table are ST_CONFIG; those of `others` alone are passed over. Tables end before
 * the first entry without a name. */
static Status map_options_read(const Yaml *map, const char *key, const char *file, const MapOption *options, const MapOption *others, Arena *arena,
                               void *out) {
    char place[512];
    if (!map || map->kind == YAML_NULL) return ST_OK;
    if (map->kind != YAML_MAP)
        return status_fail(ST_CONFIG, "wrong value for '%s' %s: expected a map of keys", key, place_text(file, map->line, place));
    for (size_t i = 0; i < map->n; i++) {
        const MapOption *option = option_find(options, map->keys[i]);
        if (!option && option_find(others, map->keys[i])) continue;
        if (!option) return unknown_option(key, map->keys[i], file, map->key_lines[i], options, others);
        if (map->items[i]->kind == YAML_NULL) continue;
        if (!read_option(map->items[i], option, arena, out)) return wrong_option(key, option, file, map->key_lines[i]);
    }
    return ST_OK;
}

/* ---- sampling ---- */

#define SAMPLE(name) offsetof(TeacherSampling, sample.name)
static const MapOption sampling_options[] = {
    {"max_new_tokens", MAP_INT, offsetof(TeacherSampling, max_new_tokens), 1, 1 << 20, NULL},
    {"temperature", MAP_REAL, SAMPLE(temperature), 0, 100, NULL},
    {"greedy", MAP_BOOL, SAMPLE(greedy), 0, 0, NULL},
    {"top_k", MAP_INT, SAMPLE(top_k), 0, 1e9, NULL},
    {"top_p", MAP_REAL, SAMPLE(top_p), 0, 1, NULL},
    {"min_p", MAP_REAL, SAMPLE(min_p), 0, 1, NULL},
    {"repetition_penalty", MAP_REAL, SAMPLE(repetition_penalty), 0.01, 100, NULL},
    {"presence_penalty", MAP_REAL, SAMPLE(presence_penalty), -100, 100, NULL},
    {"frequency_penalty", MAP_REAL, SAMPLE(frequency_penalty), -100, 100, NULL},
    {"stop", MAP_TEXTS, offsetof(TeacherSampling, stop), 0, 0, NULL},
    {0},
};

TeacherSampling teacher_sampling(void) {
    return (TeacherSampling){.sample = {.temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1}, .max_new_tokens = 256};
}

Status teacher_sampling_read(const Yaml *map, const char *key, const char *file, Arena *arena, TeacherSampling *sampling) {
    return map_options_read(map, key, file, sampling_options, NULL, arena, sampling);
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

#define FIELD(name) offsetof(TeacherConfig, name)
static const MapOption teacher_options[] = {
    {"model", MAP_TEXT, FIELD(model), 0, 0, NULL},
    {"adapter", MAP_TEXT, FIELD(adapter), 0, 0, NULL},
    {"chat_template", MAP_TEXT, FIELD(chat_template), 0, 0, NULL},
    {"compute", MAP_TEXT, FIELD(compute), 0, 0, "auto|f32|bf16"},
    {"base", MAP_BOOL, FIELD(base), 0, 0, NULL},
    {"max_batch", MAP_INT, FIELD(max_batch), 0, 1 << 16, NULL},
    {"url", MAP_TEXT, FIELD(url), 0, 0, NULL},
    {"api", MAP_TEXT, FIELD(api), 0, 0, "chat|completions"},
    {"api_key_env", MAP_TEXT, FIELD(api_key_env), 0, 0, NULL},
    {"ca_file", MAP_TEXT, FIELD(ca_file), 0, 0, NULL},
    {"concurrency", MAP_INT, FIELD(concurrency), 1, 256, NULL},
    {"retries", MAP_INT, FIELD(retries), 0, 100, NULL},
    {"timeout", MAP_REAL, FIELD(timeout), 0.01, 86400, NULL},
    {"requests_per_second", MAP_REAL, FIELD(requests_per_second), 0, 1e6, NULL},
    {"tokens_per_minute", MAP_REAL, FIELD(tokens_per_minute), 0, 1e12, NULL},
    {"price_in", MAP_REAL, FIELD(price_in), 0, 1e9, NULL},
    {"price_out", MAP_REAL, FIELD(price_out), 0, 1e9, NULL},
    {"replay", MAP_TEXT, FIELD(replay), 0, 0, NULL},
    {0},
};

static Status refuse(const TeacherConfig *config, const char *problem, const char *hint) {
    char place[512];
    status_fail(ST_CONFIG, "'%s' %s %s", config->key, place_text(config->file, config->node ? config->node->line : 0, place), problem);
    return status_hint(ST_CONFIG, "%s", hint);
}

/* A key that another kind of teacher would use. */
static Status check_belongs(const TeacherConfig *config, const char *const *names, const char *where) {
    char problem[128];
    for (; *names; names++)
        if (yaml_get(config->node, *names)) {
            snprintf(problem, sizeof problem, "has '%s', which goes with %s", *names, where);
            return refuse(config, problem, "leave it out");
        }
    return ST_OK;
}

/* The recipe is written into the run directory: what is secret must not be in it. The message does not repeat the url. */
static Status check_url(const TeacherConfig *config) {
    const char *host = strstr(config->url, "://"), *at;
    host = host ? host + 3 : config->url;
    at = strchr(host, '@');
    if (at && at < host + strcspn(host, "/?#"))
        return refuse(config, "has a user or a password in its 'url', which the run directory would keep",
                      "leave it out of the url; api_key_env: VARIABLE names an environment variable with the key");
    if (host[strcspn(host, "?#")])
        return refuse(config, "has a 'url' with '?' or '#', and paths are added to its end",
                      "end it with the version, as https://host/v1; api_key_env: VARIABLE names an environment variable with the key");
    return ST_OK;
}

Status teacher_config(const Yaml *node, const char *key, const char *file, Arena *arena, TeacherConfig *config) {
    static const char *const of_servers[] = {"api",     "api_key_env",         "ca_file",           "concurrency", "retries",
                                             "timeout", "requests_per_second", "tokens_per_minute", NULL};
    static const char *const of_models[] = {"adapter", "chat_template", "compute", "max_batch", NULL};
    *config = (TeacherConfig){.api = "chat", .concurrency = 8, .retries = 5, .timeout = 120, .node = node, .key = key, .file = file};
    TeacherSampling sampling = teacher_sampling();
    if (!node || node->kind == YAML_NULL)
        return status_hint(status_fail(ST_CONFIG, "'%s' is missing", key),
                           "%s: {model: DIR}, or {url: http://host:port/v1, model: NAME, api_key_env: VARIABLE}", key);
    TRY(map_options_read(node, key, file, teacher_options, sampling_options, arena, config));
    TRY(map_options_read(node, key, file, sampling_options, teacher_options, arena, &sampling));
    if (config->replay && config->url) return refuse(config, "names a log to replay and a server", "keep one");
    if (config->replay) return ST_OK;
    if (config->url) TRY(check_url(config));
    if (!config->model) return refuse(config, "lacks 'model'", "a model directory, or with 'url' the name of the server's model");
    return config->url ? check_belongs(config, of_models, "a model on this machine") : check_belongs(config, of_servers, "'url'");
}

Status teacher_config_sampling(const TeacherConfig *config, Arena *arena, TeacherSampling *sampling) {
    return map_options_read(config->node, config->key, config->file, sampling_options, teacher_options, arena, sampling);
}

int64_t teacher_count(double tokens) { return tokens >= 0 ? (int64_t)MIN(tokens, 1e9) : 0; }

/* ---- one door ---- */

Status teacher_open(const TeacherConfig *config, const TeacherOptions *options, Teacher **out) {
    *out = NULL;
    Teacher *teacher = calloc(1, sizeof *teacher);
    if (!teacher) return status_errno(ENOMEM, "cannot open the teacher");
    *teacher = (Teacher){.config = *config, .options = *options, .width = 32};
    teacher->kind = config->replay ? &teacher_kind_replay : config->url ? &teacher_kind_remote : &teacher_kind_local;
    Status status = teacher->kind->open(teacher);
    if (status == ST_OK) *out = teacher;
    else teacher_close(teacher);
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
                       "a model on this machine has it; of a server, say in synth.user_turn what its template writes before a user's words");
}

/* ---- a choice in words ---- */

size_t teacher_choice_bytes(const TeacherPrompt *prompt) {
    size_t most = 0;
    for (size_t i = 0; i < prompt->n_choices; i++) most = MAX(most, strlen(prompt->choices[i]));
    return most;
}

/* Letters beyond ASCII count as such. */
static bool in_word(char c) { return isalnum((unsigned char)c) || (unsigned char)c >= 0x80; }

/* Whether the choice, without spaces before it, stands at `text`; a letter or digit beside its own would make it another word. Scripts beyond ASCII
 * may have no such ends. */
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
