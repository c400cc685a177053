/* SPDX-License-Identifier: Apache-2.0 */
/* Candidates become rows, or lines of rejected.jsonl with their reason; both files are written during the run. */
#include "lib/base/system.h"
#include "data/synth/synth_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- files that a resumed run writes again ---- */

Status synth_file_open(SynthFile *file, const char *path) {
    *file = (SynthFile){.path = path};
    if (!file_exists(path)) return file_write_all(path, "", 0);
    TRY(file_map(path, &file->before));
    file->replaying = file->before.size > 0;
    return ST_OK;
}

/* The unchanged part of the file ends here: cuts off the rest. */
static Status leave_replay(SynthFile *file) {
    if (!file->replaying) return ST_OK;
    file->replaying = false;
    size_t size = file->before.size;
    file_unmap(&file->before);
    return size > file->at ? file_truncate(file->path, file->at) : ST_OK;
}

/* Adds the line's end. */
static Status file_line(SynthFile *file, const Str *line) {
    Str whole = {0};
    str_append_n(&whole, str_text(line), line->len);
    str_append_char(&whole, '\n');
    bool same = file->replaying && file->at + whole.len <= file->before.size && memcmp(file->before.data + file->at, whole.data, whole.len) == 0;
    Status status = same ? ST_OK : leave_replay(file);
    if (!same && status == ST_OK) status = file_append(file->path, whole.data, whole.len);
    file->at += whole.len;
    str_release(&whole);
    return status;
}

Status synth_file_close(SynthFile *file) {
    Status status = leave_replay(file);
    file_unmap(&file->before);
    return status;
}

/* ---- candidates ---- */

SynthCandidate *synth_candidate(Synth *s, const char *type) {
    SynthCandidate *c = arena_zero(s->round.arena, sizeof *c);
    if (!c) return NULL;
    *c = (SynthCandidate){.type = type, .instruction = "", .input = "", .output = "", .before = s->round.candidates};
    s->round.candidates = c;
    s->counts.made++;
    return c;
}

SynthCandidate *synth_candidate_of_seed(Synth *s, const SynthSeed *seed) {
    SynthCandidate *c = synth_candidate(s, seed->type);
    if (!c) return NULL;
    c->instruction = seed->instruction;
    c->input = seed->input;
    c->system = seed->system;
    candidate_seed(s, c, seed->id);
    return c;
}

static SynthCandidate *given_candidate(Synth *s, const SynthSeed *seed) {
    SynthCandidate *c = synth_candidate_of_seed(s, seed);
    if (c) c->seed = seed;
    return c;
}

Status synth_given(Synth *s, size_t n_seeds, size_t each, SynthCandidate ***candidates, size_t *n) {
    *n = 0;
    do {
        n_seeds = MIN(n_seeds, s->seeds.n - s->cursor);
        SynthCandidate **firsts = arena_alloc(s->round.arena, MAX(n_seeds, 1) * sizeof *firsts),
                       **all = *candidates = arena_alloc(s->round.arena, MAX(n_seeds, 1) * each * sizeof *all);
        if (!firsts || !all) return ST_RESOURCE;
        for (size_t i = 0; i < n_seeds; i++)
            if (!(firsts[i] = given_candidate(s, &s->seeds.items[s->cursor + i]))) return ST_RESOURCE;
        s->cursor += n_seeds;
        for (size_t i = 0; i < n_seeds; i++)
            if (firsts[i]->seed->hidden_part) TRY(synth_reject(s, firsts[i], firsts[i]->seed->hidden_part));
        TRY(synth_apply_filters(s, FILTER_PROMPT, firsts, n_seeds));
        for (size_t i = 0; i < n_seeds; i++) {
            if (firsts[i]->rejected) continue;
            for (size_t k = 0; k < each; k++) {
                SynthCandidate *c = all[(*n)++] = k == 0 ? firsts[i] : given_candidate(s, firsts[i]->seed);
                if (!c) return ST_RESOURCE;
                if (k > 0) c->scores = json_copy(firsts[i]->scores), c->judged = firsts[i]->judged;
            }
        }
    } while (*n == 0 && s->cursor < s->seeds.n);
    s->exhausted = s->cursor == s->seeds.n;
    return ST_OK;
}

/* Lists of candidates grow by one at a time and stay short. */
static void *one_more(Synth *s, const void *items, size_t n, size_t size) {
    char *more = arena_alloc(s->round.arena, (n + 1) * size);
    if (more && n) memcpy(more, items, n * size);
    if (!more && s->status == ST_OK) s->status = ST_RESOURCE;
    return more;
}

void candidate_seed(Synth *s, SynthCandidate *c, const char *id) {
    const char **more = one_more(s, c->seed_ids, c->n_seed_ids, sizeof *more);
    if (!more) return;
    more[c->n_seed_ids++] = id;
    c->seed_ids = more;
}

void candidate_parent(Synth *s, SynthCandidate *c, int64_t row) {
    int64_t *more = one_more(s, c->parents, c->n_parents, sizeof *more);
    if (!more) return;
    more[c->n_parents++] = row;
    c->parents = more;
}

void candidate_request(Synth *s, SynthCandidate *c, const SynthRequest *request) {
    const SynthRequest **more = one_more(s, c->requests, c->n_requests, sizeof *more);
    if (!more) return;
    more[c->n_requests++] = request;
    c->requests = more;
}

void candidate_score(SynthCandidate *c, const char *name, double score) {
    if (!c->scores) c->scores = json_object();
    json_object_set_new(c->scores, name, json_real(score));
}

void candidate_more(SynthCandidate *c, const char *column, json_t *value) {
    if (!c->more) c->more = json_object();
    json_object_set_new(c->more, column, value);
}

void synth_end_candidates(Synth *s) {
    for (SynthCandidate *c = s->round.candidates; c; c = c->before) {
        json_decref(c->more);
        json_decref(c->scores);
    }
    s->round.candidates = NULL;
    if (s->filters) filters_forget_tried(s->filters); /* prompts of this round without a kept row may occur again */
}

/* ---- a row as JSON ---- */

static void write_message(JsonWriter *w, const char *role, const char *text) {
    jw_object(w, NULL);
    jw_string(w, "role", role);
    jw_string(w, "content", text);
    jw_end_object(w);
}

static void write_messages(const SynthCandidate *c, const char *prompt, JsonWriter *w) {
    jw_array(w, "messages");
    if (c->system) write_message(w, "system", c->system);
    write_message(w, "user", prompt);
    if (c->output[0]) write_message(w, "assistant", c->output);
    jw_end_array(w);
}

static void write_text(const Synth *s, const SynthCandidate *c, const char *prompt, JsonWriter *w) {
    if (s->recipe->synth_format == SYNTH_FORMAT_ALPACA) {
        jw_string(w, "instruction", c->instruction);
        jw_string(w, "input", c->input);
        jw_string(w, "output", c->output);
    } else if (s->recipe->synth_format == SYNTH_FORMAT_PROMPT_COMPLETION) {
        jw_string(w, "prompt", prompt);
        jw_string(w, "completion", c->output);
    } else
        write_messages(c, prompt, w);
}

static void write_columns(const json_t *columns, JsonWriter *w) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)columns, key, value) {
        char *text = json_text(value, JSON_COMPACT | JSON_ENCODE_ANY);
        jw_raw(w, key, text ? text : "null");
        free(text);
    }
}

/* Lists each stage once: several requests of one stage share its template and sampling. */
static bool first_of_stage(const SynthCandidate *c, size_t i) {
    for (size_t j = 0; j < i; j++)
        if (c->requests[j]->stage == c->requests[i]->stage) return false;
    return true;
}

static const char *teacher_name(const TeacherConfig *config) { return config->replay ? config->replay : config->model; }

static void write_provenance(const Synth *s, const SynthCandidate *c, JsonWriter *w) {
    jw_object(w, "provenance");
    jw_array(w, "seed_ids");
    for (size_t i = 0; i < c->n_seed_ids; i++) jw_string(w, NULL, c->seed_ids[i]);
    jw_end_array(w);
    jw_string(w, "preset", s->preset->name);
    jw_string(w, "teacher", teacher_name(&s->teacher_config));
    if (s->teacher_config.adapter) jw_string(w, "adapter", s->teacher_config.adapter);
    if (s->judge) jw_string(w, "judge", teacher_name(&s->judge_config));
    jw_object(w, "template_hash");
    for (size_t i = 0; i < c->n_requests; i++)
        if (first_of_stage(c, i) && !c->requests[i]->rendered)
            jw_string(w, s->stage_list[c->requests[i]->stage].name, s->stages[c->requests[i]->stage].hash);
    jw_end_object(w);
    jw_object(w, "sampling");
    for (size_t i = 0; i < c->n_requests; i++)
        if (first_of_stage(c, i) && !c->requests[i]->n_choices)
            teacher_sampling_write(&s->stages[c->requests[i]->stage].sampling, w, s->stage_list[c->requests[i]->stage].name);
    jw_end_object(w);
    jw_object(w, "random_key");
    jw_int(w, "seed", s->recipe->seed);
    jw_array(w, "requests");
    for (size_t i = 0; i < c->n_requests; i++) jw_int(w, NULL, (int64_t)c->requests[i]->number);
    jw_end_array(w);
    jw_end_object(w);
    jw_array(w, "parents");
    for (size_t i = 0; i < c->n_parents; i++) jw_int(w, NULL, c->parents[i]);
    jw_end_array(w);
    jw_object(w, "scores");
    if (c->scores) write_columns(c->scores, w);
    jw_end_object(w);
    jw_end_object(w);
}

static void write_row(const Synth *s, const SynthCandidate *c, const char *prompt, JsonWriter *w) {
    bool pair = json_object_get(c->more, "rejected") != NULL; /* preference rows have their answers in separate columns */
    jw_object(w, NULL);
    if (!pair) write_text(s, c, prompt, w);
    if (c->more) write_columns(c->more, w);
    jw_string(w, "task_type", c->type);
    write_provenance(s, c, w);
    jw_end_object(w);
}

/* ---- verdicts ---- */

static Status count_reason(Synth *s, const char *name) {
    size_t i = 0;
    while (i < s->counts.n_reasons && strcmp(s->counts.reasons[i].name, name) != 0) i++;
    if (i == s->counts.n_reasons) {
        SynthCount *more = arena_alloc(s->arena, (i + 1) * sizeof *more);
        char *kept = arena_strdup(s->arena, name);
        if (!more || !kept) return ST_RESOURCE;
        if (i) memcpy(more, s->counts.reasons, i * sizeof *more);
        more[i] = (SynthCount){.name = kept};
        s->counts.reasons = more;
        s->counts.n_reasons++;
    }
    s->counts.reasons[i].made++;
    s->counts.rejected++;
    return ST_OK;
}

static void count_type(Synth *s, const SynthCandidate *c, bool kept) {
    for (size_t t = 0; t < s->seeds.n_types; t++) {
        if (strcmp(s->counts.types[t].name, c->type) != 0) continue;
        s->counts.types[t].made++;
        s->counts.types[t].kept += kept;
    }
}

/* An empty input counts as missing; an empty answer counts as an answer once it was requested. */
static Slice field(const char *text, bool there) { return there ? (Slice){text, strlen(text)} : (Slice){0}; }

static double score_of(const SynthCandidate *c, const char *name) {
    const json_t *value = json_object_get(c->scores, name);
    return value ? json_number_value(value) : (double)NAN;
}

static FilterRow filter_row(const SynthCandidate *c, FilterStage stage) {
    return (FilterRow){.instruction = field(c->instruction, true),
                       .input = field(c->input, c->input[0]),
                       .completion = field(c->output, stage == FILTER_ANSWER || c->output[0]),
                       .system = field(c->system, c->system),
                       .context = c->seed ? c->seed->row.context : (Slice){0},
                       .rest = field(c->worse, c->worse),
                       .task_type = c->type,
                       .judge = score_of(c, "judge"),
                       .reward = score_of(c, "reward")};
}

static Status write_rejected(Synth *s, SynthCandidate *c, const FilterVerdict *verdict) {
    JsonWriter w = {0};
    Str line = {0};
    FilterRow row = filter_row(c, FILTER_PROMPT);
    char *prompt = synth_prompt_of(s->round.arena, c->instruction, c->input);
    write_row(s, c, prompt ? prompt : "", &w);
    json_t *json = json_parse(str_text(&w.text), w.text.len, 0, NULL);
    Status status = json ? ST_OK : status_fail(ST_RESOURCE, "out of memory for a row");
    row.json = json;
    if (json) filter_write_rejected(&row, verdict, &line);
    if (status == ST_OK) status = file_line(&s->rejected_file, &line);
    if (status == ST_OK) status = count_reason(s, verdict->reason);
    c->rejected = verdict->reason;
    count_type(s, c, false);
    json_decref(json);
    str_release(&line);
    jw_release(&w);
    return status;
}

Status synth_reject(Synth *s, SynthCandidate *c, const char *reason) {
    FilterVerdict verdict = {.reason = reason, .what = reason, .score = (double)NAN};
    Status status = write_rejected(s, c, &verdict);
    if (s->status == ST_OK) s->status = status;
    return status;
}

const char *synth_refusal(const SynthRequest *request) {
    return request->too_long ? "too_long" : request->nul ? "nul" : request->refused ? "refused_by_server" : NULL;
}

bool synth_is_answer(Synth *s, SynthCandidate *c, const SynthRequest *request) {
    const char *reason = request->refused ? synth_refusal(request) : request->cut && !s->recipe->synth_keep_cut ? "cut" : NULL;
    if (!reason) {
        s->stages[request->stage].count.kept++;
        return true;
    }
    c->output = c->instruction[0] ? request->text : "";
    if (!c->instruction[0]) c->instruction = request->text;
    synth_reject(s, c, reason);
    return false;
}

enum { ROW_ID = 40 };

/* A row of rows.jsonl is identified by its line, as in tune data filter; filters that saw it earlier read the id from the candidate. */
static void name_row(char *id, size_t line) {
    if (id && !id[0]) snprintf(id, ROW_ID, "rows.jsonl line %zu", line);
}

/* Verdicts of the remaining candidates, in `left` (indices of candidates). */
static Status run_filters(Synth *s, FilterStage stage, SynthCandidate **candidates, const size_t *left, size_t n, FilterVerdict **verdicts) {
    FilterRow *rows = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *rows);
    *verdicts = arena_zero(s->round.arena, MAX(n, 1) * sizeof **verdicts);
    json_t **texts = calloc(MAX(n, 1), sizeof *texts);
    if (!rows || !*verdicts || !texts) {
        free(texts);
        return status_fail(ST_RESOURCE, "out of memory for %zu rows", n);
    }
    for (size_t i = 0; i < n; i++) {
        SynthCandidate *c = candidates[left[i]];
        JsonWriter w = {0};
        rows[i] = filter_row(c, stage);
        rows[i].id = c->id = arena_zero(s->arena, ROW_ID);
        rows[i].id_stays = true;
        char *prompt = synth_prompt_of(s->round.arena, c->instruction, c->input);
        write_row(s, c, prompt ? prompt : "", &w);
        rows[i].json = texts[i] = json_parse(str_text(&w.text), w.text.len, 0, NULL);
        if (c->seed && texts[i]) json_object_update(texts[i], (json_t *)c->seed->row.json); /* rewards compare with its columns */
        jw_release(&w);
    }
    double before = clock_seconds();
    Status status = stage == FILTER_PROMPT ? filters_try(s->filters, stage, rows, n, *verdicts) : filters_run(s->filters, stage, rows, n, *verdicts);
    s->counts.filter_seconds += clock_seconds() - before;
    for (size_t i = 0; i < n && stage == FILTER_PROMPT && status == ST_OK; i++) {
        SynthPrompt *judged = candidates[left[i]]->judged = arena_alloc(s->round.arena, sizeof *judged);
        if (!judged)
            status = ST_RESOURCE;
        else
            *judged = (SynthPrompt){.row = rows[i], .id = candidates[left[i]]->id}, judged->row.json = NULL; /* that exists only here */
    }
    for (size_t i = 0; i < n; i++) json_decref(texts[i]);
    free(texts);
    return status;
}

/* As it was judged: an instance of a task has an input by now. */
static Status remember_prompt(Synth *s, SynthPrompt *prompt) {
    if (!prompt || prompt->remembered) return ST_OK;
    prompt->remembered = true;
    double before = clock_seconds();
    Status status = filters_remember(s->filters, FILTER_PROMPT, &prompt->row, 1);
    s->counts.filter_seconds += clock_seconds() - before;
    return status;
}

Status synth_filter_rewards(void *context, const FilterRow *rows, size_t n, double *values) {
    const Synth *s = context;
    FilterRow *asked = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *asked);
    double *rewards = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *rewards);
    size_t n_asked = 0;
    if (!asked || !rewards) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++)
        if (isnan(rows[i].reward)) asked[n_asked++] = rows[i];
    if (n_asked) TRY(s->config->reward(s->config->context, asked, n_asked, rewards));
    for (size_t i = 0, at = 0; i < n; i++) values[i] = isnan(rows[i].reward) ? rewards[at++] : rows[i].reward;
    return ST_OK;
}

/* The filters' measurements of a row that they kept. */
static void note_scores(const Synth *s, SynthCandidate *c, const FilterVerdict *verdict) {
    const FilterInfo *filter;
    for (size_t i = 0; (filter = filters_at(s->filters, i)); i++)
        if (isfinite(verdict->scores[i])) candidate_score(c, filter->name, verdict->scores[i]);
}

static size_t still_in(SynthCandidate **candidates, size_t n, size_t *left) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (!candidates[i]->rejected) left[count++] = i;
    return count;
}

Status synth_apply_filters(Synth *s, FilterStage stage, SynthCandidate **candidates, size_t n) {
    size_t *left = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *left);
    FilterVerdict *verdicts;
    if (!left) return ST_RESOURCE;
    TRY(s->status);
    size_t n_left = still_in(candidates, n, left);
    TRY(run_filters(s, stage, candidates, left, n_left, &verdicts));
    for (size_t i = 0; i < n_left; i++) {
        if (verdicts[i].kept)
            note_scores(s, candidates[left[i]], &verdicts[i]);
        else
            TRY(write_rejected(s, candidates[left[i]], &verdicts[i]));
    }
    return ST_OK;
}

/* ---- rows ---- */

static Status remember_row(Synth *s, const SynthCandidate *c, const char *prompt) {
    TRY(arena_array_grow(s->arena, &s->rows, &s->cap_rows, s->n_rows + 1, sizeof *s->rows));
    SynthRow row = {arena_strdup(s->arena, c->type), arena_strdup(s->arena, c->instruction), arena_strdup(s->arena, c->input),
                    arena_strdup(s->arena, c->output), arena_strdup(s->arena, prompt)};
    if (!row.type || !row.instruction || !row.input || !row.output || !row.prompt) return ST_RESOURCE;
    s->rows[s->n_rows++] = row;
    return ST_OK;
}

/* A row without a quality for synth.select fails when it is made, not at the end. */
static Status check_quality(const Synth *s, const SynthCandidate *c, const Str *line) {
    if (s->recipe->synth_select < 0) return ST_OK;
    FilterRow row = filter_row(c, FILTER_ANSWER);
    char id[ROW_ID];
    snprintf(id, sizeof id, "rows.jsonl line %zu", s->n_rows + 1);
    row.id = id;
    json_t *json = json_parse(str_text(line), line->len, 0, NULL);
    Status status = json ? synth_select_check(s, &row, json) : status_fail(ST_RESOURCE, "out of memory for a row");
    json_decref(json);
    return status;
}

static Status write_kept(Synth *s, SynthCandidate *c, const FilterVerdict *verdict) {
    JsonWriter w = {0};
    char *prompt = synth_prompt_of(s->round.arena, c->instruction, c->input);
    if (!prompt) return ST_RESOURCE;
    note_scores(s, c, verdict);
    write_row(s, c, prompt, &w);
    Status status = check_quality(s, c, &w.text);
    if (status == ST_OK) status = file_line(&s->rows_file, &w.text);
    if (status == ST_OK) status = remember_row(s, c, prompt);
    name_row(c->id, s->n_rows);
    if (c->judged) name_row(c->judged->id, s->n_rows);
    if (status == ST_OK) status = remember_prompt(s, c->judged);
    jw_release(&w);
    count_type(s, c, true);
    return status;
}

Status synth_write_rows(Synth *s, SynthCandidate **candidates, size_t n) {
    size_t *left = arena_alloc(s->round.arena, MAX(n, 1) * sizeof *left);
    FilterVerdict *verdicts;
    if (!left) return ST_RESOURCE;
    TRY(s->status);
    size_t n_left = still_in(candidates, n, left);
    TRY(run_filters(s, FILTER_ANSWER, candidates, left, n_left, &verdicts));
    for (size_t i = 0; i < n_left; i++) {
        SynthCandidate *c = candidates[left[i]];
        if (!verdicts[i].kept)
            TRY(write_rejected(s, c, &verdicts[i]));
        else if ((int64_t)s->n_rows < s->recipe->synth_num_rows)
            TRY(write_kept(s, c, &verdicts[i]));
        else
            TRY(synth_reject(s, c, "beyond_num_rows"));
    }
    return ST_OK;
}
