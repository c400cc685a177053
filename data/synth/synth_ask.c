/* SPDX-License-Identifier: Apache-2.0 */
/* Requests: renders templates, numbers requests, looks them up in the log, sends them, and records the answers. */
#include "lib/base/system.h"
#include "data/rating.h"
#include "data/synth/synth_parts.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>

/* ---- random draws ---- */

uint64_t synth_draw(const Synth *s, uint64_t number, uint64_t index, uint64_t n) {
    return rng_below(rng_key((uint64_t)s->recipe->seed, RNG_NOISE, number), index, n);
}

/* Draws `k` different numbers of `n`, in random order, from draws first_draw.. of this number; k <= n. */
static void synth_ask_choose(const Synth *s, uint64_t number, uint64_t first_draw, size_t n, size_t k, size_t *chosen) {
    uint64_t order = rng_u64(rng_key((uint64_t)s->recipe->seed, RNG_NOISE, number), first_draw);
    for (size_t i = 0; i < k; i++) chosen[i] = (size_t)rng_permute(rng_key(order, RNG_NOISE, 0), n, i);
}

size_t synth_batch(const Synth *s) { return s->recipe->synth_batch > 0 ? (size_t)s->recipe->synth_batch : s->machine_examples > 0 ? 64 : 256; }

/* The number of candidates that will probably be enough, by the share kept so far (initially assumed to be high). It is a little above the average,
 * since a further round for a few candidates would leave the teacher's batch nearly empty. */
size_t synth_round_size(const Synth *s) {
    double batch = (double)synth_batch(s), left = (double)(s->recipe->synth_num_rows - (int64_t)s->n_rows);
    double rate = ((double)s->n_rows + 8) / ((double)s->counts.made + 9), mean = left / rate;
    double enough = ceil(mean + 1.5 * sqrt(mean * (1 - rate)));
    return (size_t)MAX(1, MIN(batch, MAX(enough, MIN(8, batch))));
}

size_t synth_next_type(Synth *s) { return (size_t)(s->counts.n_types_drawn++ % (int64_t)s->seeds.n_types); }

/* ---- text ---- */

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'; }

static Slice stripped(const char *text, size_t len) {
    while (len && blank(*text)) text++, len--;
    while (len && blank(text[len - 1])) len--;
    return (Slice){text, len};
}

const char *synth_text(Synth *s, const char *text, size_t len) {
    Slice slice = stripped(text, len);
    return slice.len ? arena_strndup(s->round.arena, slice.data, slice.len) : "";
}

/* Without white space around it, without Markdown's ** around the complete text, and without a ** at one end that has no partner. */
static Slice undecorated(Slice text) {
    while (true) {
        size_t n = 0;
        text = stripped(text.data, text.len);
        for (size_t i = 0; i + 1 < text.len; i++)
            if (text.data[i] == '*' && text.data[i + 1] == '*') n++, i++;
        bool begins = text.len > 1 && memcmp(text.data, "**", 2) == 0, ends = text.len > 3 && memcmp(text.data + text.len - 2, "**", 2) == 0;
        bool whole = begins && ends && n == 2, first = begins && n % 2 == 1, last = !first && ends && n % 2 == 1;
        if (!whole && !first && !last) return text;
        if (whole || first) text.data += 2, text.len -= 2;
        if (whole || last) text.len -= 2;
    }
}

const char *synth_field(Synth *s, const char *begin, const char *end) {
    Slice text = undecorated((Slice){begin, (size_t)(end - begin)});
    return text.len ? arena_strndup(s->round.arena, text.data, text.len) : "";
}

const char *synth_text_after_name(const char *line, const char *name) {
    line += strspn(line, " *#0123456789.)-");
    if (strncasecmp(line, name, strlen(name)) != 0) return NULL;
    line += strlen(name);
    line += strspn(line, " *#0123456789");
    return *line == ':' ? line + 1 : NULL;
}

/* Bytes of a number followed by . ) or :, of a bullet, or of "Instruction:" or "**Task 5:"; 0 if the text begins with none of these. */
static size_t heading(const char *text) {
    static const char *const bullets[] = {"- ", "* ", "\xe2\x80\xa2"}, *const names[] = {"instruction", "task", "request"};
    size_t digits = strspn(text, "0123456789");
    /* 3.5 and 10:30 are no list numbers */
    if (digits > 0 && digits < 4 && text[digits] && strchr(").:", text[digits]) && !isdigit((unsigned char)text[digits + 1])) return digits + 1;
    for (size_t i = 0; i < COUNT_OF(bullets); i++)
        if (text_starts_with(text, bullets[i])) return strlen(bullets[i]);
    for (size_t i = 0; i < COUNT_OF(names) && digits == 0; i++) {
        const char *after = synth_text_after_name(text, names[i]);
        if (after) return (size_t)(after - text);
    }
    return 0;
}

const char *synth_clean(Synth *s, const char *text) {
    Slice slice = undecorated((Slice){text, strlen(text)});
    char *copy = arena_strndup(s->round.arena, slice.data, slice.len);
    for (size_t n; copy && (n = heading(copy)) > 0;) {
        slice = undecorated((Slice){copy + n, strlen(copy + n)});
        copy = (char *)(uintptr_t)slice.data;
        copy[slice.len] = '\0';
    }
    return copy;
}

char *synth_prompt_of(Arena *arena, const char *instruction, const char *input) {
    return input && input[0] ? arena_printf(arena, "%s\n\n%s", instruction, input) : arena_strdup(arena, instruction);
}

/* {"instruction", "input", "output", "prompt"} for templates */
static json_t *example_of_seed(const SynthSeed *seed) {
    return json_pack("{s:s, s:s, s:s, s:s}", "instruction", seed->instruction, "input", seed->input, "output", seed->output, "prompt", seed->prompt);
}

static json_t *example_of_row(const SynthRow *row) {
    return json_pack("{s:s, s:s, s:s, s:s}", "instruction", row->instruction, "input", row->input, "output", row->output, "prompt", row->prompt);
}

/* ---- examples ---- */

static bool whole(double value) { return value >= 1 && value <= 64 && value == floor(value); }

Status synth_examples_open(Synth *s, size_t low, size_t high, size_t machine, bool by_type) {
    const RealList *list = &s->recipe->synth_examples;
    if (list->n > 2 || (list->n && !(whole(list->items[0]) && whole(list->items[list->n - 1]) && list->items[0] <= list->items[list->n - 1])))
        return status_hint(status_fail(ST_CONFIG, "wrong value for 'synth.examples': expected a whole number from 1 to 64, or two of them"),
                           "[1, 5] shows one to five seeds");
    s->examples_low = list->n ? (size_t)list->items[0] : low;
    s->examples_high = list->n ? (size_t)list->items[list->n - 1] : high;
    s->machine_examples = s->recipe->synth_machine_examples >= 0 ? (size_t)s->recipe->synth_machine_examples : machine;
    const char *path = s->recipe->synth_seeds, *advice = "add seeds, or lower synth.examples";
    if (!by_type && s->seeds.n < s->examples_low)
        return status_hint(status_fail(ST_INPUT, "'%s' has %zu seeds, but synth.examples needs %zu at a time", path, s->seeds.n, s->examples_low),
                           "%s", advice);
    for (size_t t = 0; t < s->seeds.n_types && by_type; t++)
        if (s->seeds.types[t].n < s->examples_low)
            return status_hint(status_fail(ST_INPUT, "'%s': task type '%s' has %zu seed%s, but synth.examples needs %zu at a time", path,
                                           s->seeds.types[t].name, s->seeds.types[t].n, s->seeds.types[t].n == 1 ? "" : "s", s->examples_low),
                               "%s", advice);
    return ST_OK;
}

/* Rows of the type kept in earlier rounds. */
static size_t rows_of_type(const Synth *s, const SynthType *type, size_t *rows) {
    size_t n = 0;
    for (size_t i = 0; i < s->n_rows; i++)
        if (!type || strcmp(s->rows[i].type, type->name) == 0) rows[n++] = i;
    return n;
}

json_t *synth_examples(Synth *s, const SynthType *type, SynthCandidate *c) {
    enum { MOST = 128 };
    uint64_t number = s->counts.next_number;
    size_t all = type ? type->n : s->seeds.n, chosen[MOST], order[MOST], n = 0;
    json_t *drawn[MOST], *list = json_array();
    size_t high = MIN(s->examples_high, all), human = s->examples_low + (size_t)synth_draw(s, number, 0, high - s->examples_low + 1);
    synth_ask_choose(s, number, 1, all, human, chosen);
    for (; n < human; n++) {
        const SynthSeed *seed = &s->seeds.items[type ? type->seeds[chosen[n]] : chosen[n]];
        drawn[n] = example_of_seed(seed);
        candidate_seed(s, c, seed->id);
    }
    size_t *rows = s->machine_examples && s->n_rows ? arena_alloc(s->round.arena, s->n_rows * sizeof *rows) : NULL;
    size_t n_rows = rows ? rows_of_type(s, type, rows) : 0, machine = MIN(s->machine_examples, n_rows);
    if (machine) synth_ask_choose(s, number, 2, n_rows, machine, chosen);
    for (size_t i = 0; i < machine; i++) {
        drawn[n++] = example_of_row(&s->rows[rows[chosen[i]]]);
        candidate_parent(s, c, (int64_t)rows[chosen[i]]);
    }
    synth_ask_choose(s, number, 3, n, n, order);
    for (size_t i = 0; i < n; i++) json_array_append_new(list, drawn[order[i]]);
    return list;
}

/* ---- requests ---- */

static void hash_text(const char *bytes, size_t len, char out[33]) {
    XXH128_hash_t hash = XXH3_128bits(bytes, len);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
}

static Status add_asked(Synth *s, SynthRequest *request) {
    TRY(array_grow(&s->round.asked, &s->round.cap_asked, s->round.n_asked + 1, sizeof *s->round.asked, "requests"));
    s->round.asked[s->round.n_asked++] = request;
    return ST_OK;
}

/* Everything besides the model that the answer may depend on. */
static void write_question(const Synth *s, const SynthRequest *r, JsonWriter *w) {
    jw_string(w, "stage", s->stage_list[r->stage].name);
    jw_int(w, "number", (int64_t)r->number);
    jw_int(w, "seed", s->recipe->seed);
    if (r->messages) {
        char *text = json_text(r->messages, JSON_COMPACT);
        jw_raw(w, "messages", text ? text : "null");
        free(text);
    } else
        jw_string(w, "prompt", r->text_asked);
    if (r->n_choices) {
        jw_array(w, "choices");
        for (size_t i = 0; i < r->n_choices; i++) jw_string(w, NULL, r->choices[i]);
        jw_end_array(w);
    } else
        teacher_sampling_write(&s->stages[r->stage].sampling, w, "sampling");
}

static Teacher *teacher_of(const Synth *s, int stage) { return s->stage_list[stage].by_judge && s->judge ? s->judge : s->teacher; }

static SynthRequest *new_request(Synth *s, int stage) {
    SynthRequest *request = arena_zero(s->round.arena, sizeof *request);
    if (request) *request = (SynthRequest){.stage = stage, .number = s->counts.next_number++, .teacher = teacher_of(s, stage), .text = ""};
    return request;
}

static Status finish_request(Synth *s, SynthRequest *request) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    write_question(s, request, &w);
    jw_end_object(&w);
    hash_text(str_text(&w.text), w.text.len, request->key);
    jw_release(&w);
    return add_asked(s, request);
}

/* A template may write a complete conversation: each turn begins with its role's mark, which templates write as {{ turn.system }}, {{ turn.user }}
 * and {{ turn.assistant }}. */
enum { TURN_MARK = '\x01' };
#define TURN "\x01" /* a literal of its own: "\x01a" would be one character, 0x1A */
static const struct { const char *role, *mark; } turns[] = {{"system", TURN "s"}, {"user", TURN "u"}, {"assistant", TURN "a"}};

static json_t *turn_marks(void) {
    json_t *marks = json_object();
    for (size_t i = 0; i < COUNT_OF(turns); i++) json_object_set_new(marks, turns[i].role, json_string(turns[i].mark));
    return marks;
}

/* Texts of seeds and of the teacher may contain the mark's character, which would start a turn. */
static void hide_marks(json_t *json) {
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_string(json) && memchr(json_string_value(json), TURN_MARK, json_string_length(json))) {
        Str text = {0};
        str_append_n(&text, json_string_value(json), json_string_length(json));
        for (i = 0; i < text.len; i++)
            if (text.data[i] == TURN_MARK) text.data[i] = ' ';
        json_string_setn(json, str_text(&text), text.len);
        str_release(&text);
    }
    json_array_foreach(json, i, item) hide_marks(item);
    json_object_foreach(json, key, item) hide_marks(item);
}

static bool add_message(json_t *messages, const char *role, Slice text) {
    text = stripped(text.data, text.len);
    return json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", role, "content", text.data, text.len)) == 0;
}

/* Without any mark the full text is the user's message. */
static bool add_turns(json_t *messages, const Str *text) {
    const char *at = str_text(text), *end = at + text->len, *mark = memchr(at, TURN_MARK, text->len);
    if (!mark) return json_array_append_new(messages, json_pack("{s:s, s:s%}", "role", "user", "content", at, text->len)) == 0;
    for (at = mark; at < end;) {
        const char *next = memchr(at + 1, TURN_MARK, (size_t)(end - at - 1)), *stop = next ? next : end;
        size_t i = 0;
        while (i < COUNT_OF(turns) && !text_starts_with(at, turns[i].mark)) i++;
        if (i == COUNT_OF(turns) || !add_message(messages, turns[i].role, (Slice){at + 2, (size_t)(stop - at - 2)})) return false;
        at = stop;
    }
    return true;
}

/* The rendered template, as a conversation or, for a teacher that continues texts, as a text. The round's request owns the conversation until it is
 * sent. */
static Status fill_request(Synth *s, SynthRequest *request, const char *system, const Str *text) {
    if (!teacher_chats(request->teacher)) {
        if (memchr(str_text(text), TURN_MARK, text->len))
            return status_fail(ST_CONFIG, "the prompt of stage '%s' writes turns of a conversation, and the teacher continues texts",
                               s->stage_list[request->stage].name);
        request->text_asked = arena_strndup(s->round.arena, str_text(text), text->len);
        return request->text_asked ? ST_OK : ST_RESOURCE;
    }
    const char *mark = memchr(str_text(text), TURN_MARK, text->len);
    if (mark && stripped(str_text(text), (size_t)(mark - str_text(text))).len > 0)
        return status_fail(ST_CONFIG, "the prompt of stage '%s' has text before its first turn", s->stage_list[request->stage].name);
    request->messages = json_array();
    if (system) json_array_append_new(request->messages, json_pack("{s:s, s:s}", "role", "system", "content", system));
    if (add_turns(request->messages, text)) return ST_OK;
    json_decref(request->messages);
    request->messages = NULL;
    return status_fail(ST_INPUT, "a question is not valid UTF-8, or holds a control character");
}

static SynthRequest *request_under(Synth *s, int stage, const char *system, json_t *variables) {
    ChatRendering rendering = {0};
    SynthRequest *request = new_request(s, stage);
    hide_marks(variables);
    if (variables) json_object_set_new(variables, "turn", turn_marks());
    Status status = request && variables ? chat_template_render(s->stages[stage].template, variables, &(ChatOptions){0}, &rendering)
                                         : status_fail(ST_RESOURCE, "out of memory for a request");
    if (status == ST_OK) status = fill_request(s, request, system, &rendering.text);
    if (status == ST_OK) status = finish_request(s, request);
    chat_rendering_release(&rendering);
    json_decref(variables);
    if (s->status == ST_OK) s->status = status;
    return status == ST_OK ? request : NULL;
}

SynthRequest *synth_request(Synth *s, int stage, json_t *variables) { return request_under(s, stage, NULL, variables); }

static SynthRequest *choose_under(Synth *s, int stage, const char *system, json_t *variables, const char *const *choices, size_t n) {
    SynthRequest *request = request_under(s, stage, system, variables);
    if (!request || n == 0) return request;
    request->choices = choices;
    request->n_choices = n;
    s->round.n_asked--;
    Status status = finish_request(s, request); /* the choices are part of the question */
    if (s->status == ST_OK) s->status = status;
    return request;
}

SynthRequest *synth_request_choice(Synth *s, int stage, json_t *variables, const char *const *choices, size_t n) {
    return choose_under(s, stage, NULL, variables, choices, n);
}

SynthRequest *synth_request_rendered(Synth *s, int stage, const char *text) {
    SynthRequest *request = new_request(s, stage);
    if (request) request->rendered = true, request->text_asked = text;
    Status status = request ? finish_request(s, request) : ST_RESOURCE;
    if (s->status == ST_OK) s->status = status;
    return status == ST_OK ? request : NULL;
}

/* ---- answers ---- */

static void add_cost(Synth *s, const SynthRequest *request, const TeacherAnswer *answer) {
    const TeacherConfig *prices = request->teacher == s->judge ? &s->judge_config : &s->teacher_config;
    s->counts.tokens += answer->tokens;
    s->counts.prompt_tokens += answer->prompt_tokens;
    s->counts.cost += ((double)answer->prompt_tokens * prices->price_in + (double)answer->tokens * prices->price_out) / 1e6;
}

static Status take_answer(Synth *s, SynthRequest *request, const TeacherAnswer *answer) {
    Slice text = stripped(answer->text, strlen(answer->text));
    bool chosen = request->n_choices > 0;
    request->text = chosen ? arena_strdup(s->round.arena, answer->text) : text.len ? arena_strndup(s->round.arena, text.data, text.len) : "";
    request->answered = true;
    request->cut = answer->cut;
    request->refused = answer->refused;
    request->too_long = answer->too_long;
    request->nul = answer->nul;
    if (request->refused && !request->nul && !s->counts.refusal) s->counts.refusal = arena_strdup(s->arena, answer->text);
    request->margin = answer->margin;
    request->mean = answer->mean;
    s->counts.requests++;
    add_cost(s, request, answer);
    s->stages[request->stage].count.made++;
    return request->text ? ST_OK : ST_RESOURCE;
}

static TeacherPrompt prompt_of(const SynthRequest *r) {
    return (TeacherPrompt){r->number, r->key, r->messages, r->text_asked, r->rendered, r->n_choices, r->choices};
}

/* Reads the log's next line about the cost of unreadable replies to the request: each start of the run that ended because of them has left one. */
static void unread_key(const SynthRequest *request, char key[JOURNAL_KEY + 1]) {
    char text[96];
    int len = snprintf(text, sizeof text, "%s unread %zu", request->key, request->n_unread);
    hash_text(text, (size_t)len, key);
}

static Status look_up_unread(Synth *s, SynthRequest *request) {
    for (;; request->n_unread++) {
        json_t *line;
        TeacherAnswer answer;
        char key[JOURNAL_KEY + 1];
        unread_key(request, key);
        TRY(journal_find(s->journal, key, &line));
        if (!line) return ST_OK;
        Status status = teacher_answer_read(line, &answer);
        if (status == ST_OK) add_cost(s, request, &answer);
        json_decref(line);
        TRY(status);
    }
}

static Status look_up(Synth *s, SynthRequest *request) {
    json_t *line;
    TeacherAnswer answer;
    TRY(look_up_unread(s, request));
    TRY(journal_find(s->journal, request->key, &line));
    if (!line) return ST_OK;
    Status status = teacher_answer_read(line, &answer);
    if (status == ST_OK) status = take_answer(s, request, &answer);
    json_decref(line);
    if (status == ST_OK && !request->refused) {
        TeacherPrompt prompt = prompt_of(request);
        teacher_note_known(request->teacher, &prompt, &s->stages[request->stage].sampling);
    }
    s->counts.replayed += status == ST_OK;
    return status;
}

typedef struct Asking {
    Synth *s;
    SynthRequest **requests;
    size_t n, done;
} Asking;

static void show_progress(Synth *s, size_t asked, bool round_over) {
    SynthProgress progress;
    if (!s->config->on_progress) return;
    synth_progress(s, asked, round_over, &progress);
    s->config->on_progress(s->config->context, &progress);
}

static Status log_answer(Synth *s, const SynthRequest *request, const char *key, const TeacherAnswer *answer) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    write_question(s, request, &w);
    jw_bool(&w, "chat", teacher_chats(request->teacher));
    jw_bool(&w, "compares", teacher_compares(request->teacher));
    teacher_answer_write(answer, &w);
    jw_end_object(&w);
    Status status = journal_add(s->journal, key, &w.text);
    jw_release(&w);
    return status;
}

static Status on_answer(void *context, size_t i, const TeacherAnswer *answer) {
    Asking *asking = context;
    Synth *s = asking->s;
    SynthRequest *request = asking->requests[i];
    char key[JOURNAL_KEY + 1];
    if (answer->unread) {
        unread_key(request, key);
        return log_answer(s, request, key, answer);
    }
    TRY(log_answer(s, request, request->key, answer));
    TRY(take_answer(s, request, answer));
    s->counts.generated_tokens += answer->tokens;
    show_progress(s, asking->n - ++asking->done, false);
    return ST_OK;
}

/* ---- limits ---- */

static Status refuse_limit(const Synth *s, const char *key, double limit, const char *unit) {
    status_fail(ST_RESOURCE, "'synth.%s' is reached: %.10g%s, with %zu of %lld rows", key, limit, unit, s->n_rows,
                (long long)s->recipe->synth_num_rows);
    return status_hint(ST_RESOURCE, "the rows so far are in '%s'; raise the limit and continue with --resume", s->recipe->output);
}

static Status check_limits(const Synth *s) {
    const Recipe *r = s->recipe;
    if (r->synth_max_requests >= 0 && s->counts.requests >= r->synth_max_requests)
        return refuse_limit(s, "max_requests", (double)r->synth_max_requests, " requests");
    if (r->synth_max_tokens >= 0 && s->counts.tokens + s->counts.prompt_tokens >= r->synth_max_tokens)
        return refuse_limit(s, "max_tokens", (double)r->synth_max_tokens, " tokens");
    if (!isnan(r->synth_max_cost) && s->counts.cost >= r->synth_max_cost) return refuse_limit(s, "max_cost", r->synth_max_cost, "");
    return ST_OK;
}

/* The number of requests before limits are checked again: requests under way must be paid for. */
static size_t before_limits(const Synth *s, const Teacher *teacher, size_t n) {
    const Recipe *r = s->recipe;
    bool counted = r->synth_max_tokens >= 0 || !isnan(r->synth_max_cost);
    if (counted) n = MIN(n, teacher_width(teacher));
    return r->synth_max_requests >= 0 ? MIN(n, (size_t)(r->synth_max_requests - s->counts.requests)) : n;
}

/* ---- asking ---- */

static Status ask_some(Synth *s, SynthRequest **requests, size_t n) {
    TeacherPrompt *prompts = calloc(n, sizeof *prompts);
    if (!prompts) return status_fail(ST_RESOURCE, "out of memory for %zu requests", n);
    for (size_t i = 0; i < n; i++) prompts[i] = prompt_of(requests[i]);
    Asking asking = {s, requests, n, 0};
    double before = clock_seconds();
    Status status = teacher_ask(requests[0]->teacher, prompts, n, &s->stages[requests[0]->stage].sampling, on_answer, &asking);
    s->counts.teacher_seconds += clock_seconds() - before;
    free(prompts);
    Failure failure;
    failure_save(&failure, status);
    Status synced = journal_sync(s->journal); /* answers are paid for, also those before a failure */
    return status == ST_OK ? synced : failure_restore(&failure);
}

static bool same_kind(const SynthRequest *a, const SynthRequest *b) {
    return a->stage == b->stage && a->teacher == b->teacher && !a->messages == !b->messages && !a->n_choices == !b->n_choices;
}

/* Sends the requests that the log does not answer, in groups that one call can take. */
static Status ask_new(Synth *s) {
    SynthRequest **together = malloc(MAX(s->round.n_asked, 1) * sizeof *together);
    Status status = together ? ST_OK : status_fail(ST_RESOURCE, "out of memory for %zu requests", s->round.n_asked);
    for (size_t first = 0; first < s->round.n_asked && status == ST_OK; first++) {
        if (s->round.asked[first]->answered) continue;
        size_t n = 0;
        for (size_t i = first; i < s->round.n_asked; i++)
            if (!s->round.asked[i]->answered && same_kind(s->round.asked[i], s->round.asked[first])) together[n++] = s->round.asked[i];
        for (size_t done = 0, some; done < n && status == ST_OK; done += some) {
            status = check_limits(s);
            some = before_limits(s, together[0]->teacher, n - done);
            if (status == ST_OK) status = ask_some(s, together + done, some);
        }
    }
    free(together);
    return status;
}

Status synth_ask(Synth *s) {
    Status status = s->status;
    for (size_t i = 0; i < s->round.n_asked && status == ST_OK; i++) status = look_up(s, s->round.asked[i]);
    if (status == ST_OK) status = ask_new(s);
    for (size_t i = 0; i < s->round.n_asked; i++) {
        json_decref(s->round.asked[i]->messages);
        s->round.asked[i]->messages = NULL;
    }
    s->round.n_asked = 0;
    return status;
}

/* ---- an answer for each candidate ---- */

enum { SHOWN = 3 };

/* For teachers that continue texts: answered seeds of the type as examples. The seed of this very prompt is left out, since it would give its answer
 * away. */
static json_t *shown_examples(const Synth *s, const char *type, const char *prompt) {
    json_t *list = json_array();
    size_t t = 0, chosen[SHOWN + 1];
    while (t < s->seeds.n_types && strcmp(s->seeds.types[t].name, type) != 0) t++;
    if (t == s->seeds.n_types) return list;
    size_t n = MIN((size_t)SHOWN + 1, s->seeds.types[t].n);
    synth_ask_choose(s, s->counts.next_number, 0, s->seeds.types[t].n, n, chosen);
    for (size_t i = 0; i < n && json_array_size(list) < SHOWN; i++) {
        const SynthSeed *seed = &s->seeds.items[s->seeds.types[t].seeds[chosen[i]]];
        if (seed->output[0] && strcmp(seed->prompt, prompt) != 0) json_array_append_new(list, example_of_seed(seed));
    }
    return list;
}

static SynthRequest *ask_for_answer(Synth *s, int stage, const SynthCandidate *c) {
    char *prompt = synth_prompt_of(s->round.arena, c->instruction, c->input);
    const char *system = c->system ? c->system : s->recipe->synth_system;
    SynthLabels labels = synth_labels(s, c);
    json_t *variables =
        json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "prompt", prompt ? prompt : "", "instruction", c->instruction, "input", c->input, "task_type",
                  c->type, "examples", shown_examples(s, c->type, prompt ? prompt : ""), "labels", synth_labels_json(&labels));
    return choose_under(s, stage, system, variables, labels.items, labels.n);
}

/* If labels were compared, the log-probability margin to the next label becomes a score of the row. */
static Status take_reply(Synth *s, SynthCandidate *c, const SynthRequest *request) {
    if (!synth_is_answer(s, c, request)) return s->status;
    c->output = request->n_choices ? synth_chosen_label(request) : request->text;
    if (!c->system) c->system = s->recipe->synth_system;
    if (request->n_choices && !c->output[0]) return synth_reject(s, c, "no_label");
    if (request->margin > 0) candidate_score(c, "label_margin", request->margin);
    return ST_OK;
}

Status synth_answer(Synth *s, int stage, SynthCandidate **candidates, size_t n) {
    SynthRequest **requests = arena_zero(s->round.arena, MAX(n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (!candidates[i]->rejected) requests[i] = ask_for_answer(s, stage, candidates[i]);
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        if (!requests[i]) continue;
        candidate_request(s, candidates[i], requests[i]);
        TRY(take_reply(s, candidates[i], requests[i]));
    }
    return s->status;
}

Status synth_prompt_round(Synth *s, SynthBegin *begin, bool clean, int answer) {
    size_t n = synth_round_size(s);
    SynthCandidate **candidates = arena_alloc(s->round.arena, n * sizeof *candidates);
    SynthRequest **requests = arena_alloc(s->round.arena, n * sizeof *requests);
    if (!candidates || !requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (!(candidates[i] = begin(s, &requests[i]))) return s->status == ST_OK ? ST_RESOURCE : s->status;
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        candidate_request(s, candidates[i], requests[i]);
        if (!synth_is_answer(s, candidates[i], requests[i])) continue;
        candidates[i]->instruction = clean ? synth_clean(s, requests[i]->text) : requests[i]->text;
        if (!candidates[i]->instruction) return ST_RESOURCE;
    }
    TRY(synth_apply_filters(s, FILTER_PROMPT, candidates, n));
    TRY(synth_answer(s, answer, candidates, n));
    return synth_write_rows(s, candidates, n);
}

/* ---- scores by a judge ---- */

/* A truncated reply may have ended differently, and a refusal rates nothing. */
static double score_of_reply(const SynthRequest *request) {
    if (request->cut || request->refused) return (double)NAN;
    return request->n_choices ? request->mean : rating_of(request->text, 1, 10);
}

/* From the comparison of the ten scores if the judge can compare, otherwise from its words. */
static SynthRequest *ask_for_score(Synth *s, int stage, const char *prompt, const char *answer) {
    static const char *const scores[] = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"}, *const spaced[] = {" 1", " 2", " 3", " 4", " 5",
                                                                                                                " 6", " 7", " 8", " 9", " 10"};
    const Teacher *judge = teacher_of(s, stage);
    bool compares = teacher_compares(judge);
    const char *rubric = filters_text(s->filters, "judge", "rubric");
    json_t *variables = json_pack("{s:s, s:s, s:s, s:b}", "prompt", prompt, "answer", answer, "rubric", rubric ? rubric : "", "choice", compares);
    return synth_request_choice(s, stage, variables, teacher_chats(judge) ? scores : spaced, compares ? COUNT_OF(scores) : 0);
}

Status synth_scores(Synth *s, int stage, SynthCandidate **candidates, size_t n, double *scores) {
    SynthRequest **requests = arena_zero(s->round.arena, MAX(n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        char *prompt = candidates[i]->rejected ? NULL : synth_prompt_of(s->round.arena, candidates[i]->instruction, candidates[i]->input);
        if (prompt) requests[i] = ask_for_score(s, stage, prompt, candidates[i]->output);
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        scores[i] = requests[i] ? score_of_reply(requests[i]) : (double)NAN;
        if (!requests[i]) continue;
        candidate_request(s, candidates[i], requests[i]);
        s->stages[stage].count.kept += !isnan(scores[i]);
    }
    return s->status;
}

Status synth_filter_scores(void *context, const FilterRow *rows, size_t n, double *values) {
    Synth *s = context;
    int stage = 0;
    while (strcmp(s->stage_list[stage].name, "judge") != 0) stage++;
    SynthRequest **requests = arena_zero(s->round.arena, MAX(n, 1) * sizeof *requests);
    if (!requests) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        char *instruction = arena_strndup(s->round.arena, rows[i].instruction.data, rows[i].instruction.len),
             *input = arena_strndup(s->round.arena, rows[i].input.len ? rows[i].input.data : "", rows[i].input.len);
        char *answer = arena_strndup(s->round.arena, rows[i].completion.data, rows[i].completion.len),
             *prompt = instruction && input ? synth_prompt_of(s->round.arena, instruction, input) : NULL;
        if (!prompt || !answer) return ST_RESOURCE;
        requests[i] = ask_for_score(s, stage, prompt, answer);
    }
    TRY(synth_ask(s));
    for (size_t i = 0; i < n; i++) {
        values[i] = score_of_reply(requests[i]);
        s->stages[stage].count.kept += !isnan(values[i]);
    }
    return ST_OK;
}
