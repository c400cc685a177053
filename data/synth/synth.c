/* SPDX-License-Identifier: Apache-2.0 */
/* A synthesis run: opens and checks everything, runs rounds until there are enough rows, and writes the pages. */
#include "lib/base/system.h"
#include "data/synth/synth_parts.h"
#include "data/synth/teacher_ranks.h"
#include "lib/recipe/keys.h"
#include "lib/run/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const SynthPreset *const presets[] = {
#define PRESET(id) &synth_preset_##id,
#include "data/synth/synth_presets.def"
#undef PRESET
};

static const SynthPreset *preset_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(presets); i++)
        if (strcmp(presets[i]->name, name) == 0) return presets[i];
    return NULL;
}

void synth_presets_help(Str *text) {
    for (size_t i = 0; i < COUNT_OF(presets); i++) str_printf(text, "  %-18s %s\n", presets[i]->name, presets[i]->help);
}

Status synth_preset_filters(const Recipe *recipe, Arena *arena, const Yaml **filters) {
    const char *text = preset_find(recipe->synth_preset)->filters;
    Yaml *own = NULL;
    if (text) TRY(yaml_read_text(text, strlen(text), recipe->synth_preset, arena, &own));
    *filters = own;
    return ST_OK;
}

/* ---- keys that the preset does not read are refused ---- */

static const char keys_of_all[] =
    "preset teacher judge seeds num_rows format filters select select_quality select_share select_quotas choose_by batch prompts sampling max_requests max_tokens max_cost min_acceptance acceptance_after";

static Status refuse_key(const Synth *s, const Key *key) {
    const Recipe *r = s->recipe;
    int line = recipe_line(r, key->dotted), n = 0;
    Str who = {0};
    for (size_t i = 0; i < COUNT_OF(presets); i++)
        if (text_among(presets[i]->keys, ' ', key->name)) str_printf(&who, "%s%s", n++ ? ", " : "", presets[i]->name);
    if (line > 0 && r->path)
        status_fail(ST_CONFIG, "'%s' line %d: preset '%s' does not take '%s'", r->path, line, s->preset->name, key->dotted);
    else
        status_fail(ST_CONFIG, "preset '%s' does not take '%s'", s->preset->name, key->dotted);
    status_hint(ST_CONFIG, "it belongs to %s; leave it out, or take another synth.preset", str_text(&who));
    str_release(&who);
    return ST_CONFIG;
}

/* A key that has its default is allowed, since the recipe that a run writes has all keys. */
static Status check_keys(const Synth *s) {
    Recipe *defaults;
    Status status = ST_OK;
    TRY(recipe_read(NULL, NULL, 0, &defaults));
    for (size_t i = 0; i < n_recipe_keys && status == ST_OK; i++) {
        const Key *key = &recipe_keys[i];
        if (strcmp(key->section, "synth") != 0 || text_among(keys_of_all, ' ', key->name) || text_among(s->preset->keys, ' ', key->name)) continue;
        if (!recipe_same(s->recipe, defaults, key->dotted)) status = refuse_key(s, key);
    }
    recipe_free(defaults);
    return status;
}

/* ---- stages ---- */

static int stage_find(const Synth *s, const char *name) {
    for (int i = 0; i < s->n_stages; i++)
        if (strcmp(s->stage_list[i].name, name) == 0) return i;
    return -1;
}

/* Checks that the keys of a map are stages of this preset. */
static Status check_stage_names(const Synth *s, const Yaml *map, const char *key) {
    Str names = {0};
    if (!map) return ST_OK;
    if (map->kind != YAML_MAP) return status_fail(ST_CONFIG, "wrong value for '%s': expected a map of stages", key);
    for (int i = 0; i < s->n_stages; i++) str_printf(&names, "%s%s", i ? ", " : "", s->stage_list[i].name);
    Status status = ST_OK;
    for (size_t i = 0; i < map->n && status == ST_OK; i++) {
        if (stage_find(s, map->keys[i]) >= 0) continue;
        status = status_fail(ST_CONFIG, "unknown stage '%s' in '%s'", map->keys[i], key);
        status_hint(status, "preset '%s' has: %s", s->preset->name, str_text(&names));
    }
    str_release(&names);
    return status;
}

static Status template_path(const Synth *s, const SynthStage *stage, bool chats, const char **path) {
    const Yaml *own = s->recipe->synth_prompts ? yaml_get(s->recipe->synth_prompts, stage->name) : NULL;
    if (own && own->kind != YAML_SCALAR) return status_fail(ST_CONFIG, "wrong value for 'synth.prompts.%s': expected a file", stage->name);
    if (own) {
        *path = own->text;
        return file_exists(own->text) ? ST_OK : status_fail(ST_INPUT, "cannot find the prompt '%s' of stage '%s'", own->text, stage->name);
    }
    for (size_t i = 0; i < s->config->n_folders; i++) {
        *path = arena_printf(s->arena, "%s/prompts/%s%s.jinja", s->config->folders[i], stage->prompt, chats ? "" : ".base");
        if (!*path) return ST_RESOURCE;
        if (file_exists(*path)) return ST_OK;
    }
    if (chats) {
        status_fail(ST_INPUT, "cannot find the prompt 'prompts/%s.jinja'", stage->prompt);
        return status_hint(ST_INPUT, "it belongs to the recipes that come with the program; tune recipes ls shows whether they are found");
    }
    status_fail(ST_CONFIG, "preset '%s' has no prompt '%s' for a teacher that continues texts", s->preset->name, stage->name);
    return status_hint(ST_CONFIG, "take a teacher with a chat template, or write one and name it in synth.prompts: {%s: FILE}", stage->name);
}

/* The stage's defaults, then the recipe's generate section, the teacher's keys, and the stage's keys. */
static Status stage_sampling(const Synth *s, const SynthStage *stage, bool chats, const TeacherConfig *teacher, TeacherSampling *sampling) {
    const Recipe *r = s->recipe;
    const char *const *stops = chats ? stage->stop : stage->base_stop;
    *sampling = teacher_sampling();
    sampling->max_new_tokens = stage->max_new_tokens;
    sampling->sample.temperature = stage->temperature;
    sampling->sample.top_p = stage->top_p ? stage->top_p : 1;
    sampling->sample.presence_penalty = stage->presence_penalty;
    sampling->stop.items = (const char **)stops;
    while (sampling->stop.n < COUNT_OF(stage->stop) && stops[sampling->stop.n]) sampling->stop.n++;
    if (recipe_given(r, "generate.max_new_tokens")) sampling->max_new_tokens = r->generate_max_new_tokens;
    if (recipe_given(r, "generate.temperature")) sampling->sample.temperature = r->generate_temperature;
    if (recipe_given(r, "generate.top_k")) sampling->sample.top_k = r->generate_top_k;
    if (recipe_given(r, "generate.top_p")) sampling->sample.top_p = r->generate_top_p;
    if (recipe_given(r, "generate.min_p")) sampling->sample.min_p = r->generate_min_p;
    if (recipe_given(r, "generate.repetition_penalty")) sampling->sample.repetition_penalty = r->generate_repetition_penalty;
    if (recipe_given(r, "generate.stop")) sampling->stop = r->generate_stop;
    if (recipe_given(r, "generate.greedy")) sampling->sample.greedy = r->generate_greedy;
    TRY(teacher_config_sampling(teacher, s->arena, sampling));
    if (!r->synth_sampling) return ST_OK;
    return teacher_sampling_read(yaml_get(r->synth_sampling, stage->name), arena_printf(s->arena, "synth.sampling.%s", stage->name), r->path,
                                 s->arena, sampling);
}

static Status open_stage(Synth *s, int i) {
    const SynthStage *stage = &s->stage_list[i];
    StageState *state = &s->stages[i];
    bool judged = stage->by_judge && s->judge, chats = teacher_chats(judged ? s->judge : s->teacher);
    state->count.name = stage->name;
    TRY(stage_sampling(s, stage, chats, judged ? &s->judge_config : &s->teacher_config, &state->sampling));
    if (!stage->prompt) return ST_OK;
    const char *path = NULL;
    Str text = {0};
    TRY(template_path(s, stage, chats, &path));
    Status status = file_read(path, 1 << 20, &text);
    if (status == ST_OK) status = chat_template_parse(path, str_text(&text), text.len, &state->template);
    XXH128_hash_t hash = XXH3_128bits(str_text(&text), text.len);
    snprintf(state->hash, sizeof state->hash, "%016llx%016llx", (unsigned long long)hash.high64, (unsigned long long)hash.low64);
    str_release(&text);
    return status;
}

static Status open_stages(Synth *s) {
    static const SynthStage judge = {.name = "judge", .prompt = "judge", .max_new_tokens = 256, .temperature = 0, .by_judge = true};
    for (const SynthStage *stage = s->preset->stages; stage->name; stage++)
        if (!stage->checks_labels || s->recipe->synth_check_labels) s->stage_list[s->n_stages++] = *stage;
    if (filters_has(s->filters, "judge") && stage_find(s, "judge") < 0) s->stage_list[s->n_stages++] = judge;
    if (s->judge && stage_find(s, "judge") < 0)
        return status_hint(status_fail(ST_CONFIG, "preset '%s' does not use 'synth.judge'", s->preset->name),
                           "turn the filter on: synth.filters: {judge: 7}");
    ASSERT(s->n_stages < SYNTH_MAX_STAGES, "%d stages", s->n_stages);
    TRY(check_stage_names(s, s->recipe->synth_prompts, "synth.prompts"));
    TRY(check_stage_names(s, s->recipe->synth_sampling, "synth.sampling"));
    for (int i = 0; i < s->n_stages; i++) TRY(open_stage(s, i));
    return ST_OK;
}

/* ---- opening ---- */

static TeacherOptions teacher_options(const Synth *s, int number) {
    const Recipe *r = s->recipe;
    return (TeacherOptions){.device = s->config->device,
                            .seed = (uint64_t)r->seed,
                            .now = r->data_now,
                            .secret = s->config->secret,
                            .context = s->config->context,
                            .reads_choices = r->synth_choose_by == SYNTH_CHOOSE_BY_TEXT,
                            .comm = s->config->comm,
                            .number = number};
}

static Status read_teachers(Synth *s) {
    const Recipe *r = s->recipe;
    TRY(teacher_config(r->synth_teacher, "synth.teacher", r->path, s->arena, &s->teacher_config));
    return r->synth_judge ? teacher_config(r->synth_judge, "synth.judge", r->path, s->arena, &s->judge_config) : ST_OK;
}

static Status open_teachers(Synth *s) {
    const TeacherOptions asked = teacher_options(s, 0), judges = teacher_options(s, 1);
    TRY(teacher_open(&s->teacher_config, &asked, &s->teacher));
    return s->judge_config.node ? teacher_open(&s->judge_config, &judges, &s->judge) : ST_OK;
}

static Status check_system(const Synth *s) {
    if (!s->recipe->synth_system || teacher_chats(s->teacher)) return ST_OK;
    status_fail(ST_CONFIG, "'synth.system' needs a teacher that chats: this one continues texts and would never see it");
    return status_hint(ST_CONFIG, "use your own prompt for it: synth.prompts");
}

static Status open_filters(Synth *s) {
    const Yaml *base;
    TRY(synth_preset_filters(s->recipe, s->arena, &base));
    FilterConfig config = {.base = base, .filters = s->recipe->synth_filters, .file = s->recipe->path, .judge = {synth_filter_scores, s}};
    if (s->config->reward) config.reward = (FilterScorer){synth_filter_rewards, s};
    TRY(filters_open(&config, &s->filters));
    for (size_t i = 0; i < s->seeds.n && s->preset->new_prompts; i++) TRY(filters_remember(s->filters, FILTER_BOTH, &s->seeds.items[i].row, 1));
    return ST_OK;
}

static Status count_types(Synth *s) {
    s->counts.types = arena_zero(s->arena, s->seeds.n_types * sizeof *s->counts.types);
    if (!s->counts.types) return ST_RESOURCE;
    for (size_t t = 0; t < s->seeds.n_types; t++) s->counts.types[t].name = s->seeds.types[t].name;
    return ST_OK;
}

static bool priced(const TeacherConfig *config) {
    return config->node && (yaml_get(config->node, "price_in") || yaml_get(config->node, "price_out"));
}

/* Without prices the cost stays 0, so a limit on it would have no effect. */
static Status check_prices(const Synth *s) {
    bool asks_server = s->judge_config.url && !priced(&s->judge_config);
    if (isnan(s->recipe->synth_max_cost)) return ST_OK;
    if (!asks_server && (priced(&s->teacher_config) || (!s->teacher_config.url && priced(&s->judge_config)))) return ST_OK;
    status_fail(ST_CONFIG, "'synth.max_cost' needs prices, and '%s' has neither 'price_in' nor 'price_out'",
                asks_server ? "synth.judge" : "synth.teacher");
    return status_hint(ST_CONFIG, "a price is the cost of a million tokens, and may be 0");
}

static Status open_all(Synth *s) {
    const Recipe *r = s->recipe;
    s->preset = preset_find(r->synth_preset);
    ASSERT(s->preset, "preset '%s' of config.def is not in synth_presets.def", r->synth_preset);
    TRY(check_keys(s));
    TRY(read_teachers(s));
    TRY(check_prices(s));
    TRY(seeds_read(r->synth_seeds, s->preset->needs, s->preset->seeds_optional, s->arena, &s->seeds));
    TRY(count_types(s));
    if (s->preset->open) TRY(s->preset->open(s));
    TRY(synth_labels_open(s));
    TRY(open_filters(s));
    TRY(synth_select_open(s));
    TRY(open_teachers(s));
    TRY(check_system(s));
    return open_stages(s);
}

static void close_all(Synth *s) {
    synth_end_candidates(s);
    for (int i = 0; i < s->n_stages; i++) chat_template_free(s->stages[i].template);
    teacher_close(s->teacher);
    teacher_close(s->judge);
    filters_close(s->filters);
    journal_close(s->journal);
    seeds_release(&s->seeds);
    run_close(s->run);
    for (size_t i = 0; i < s->round.n_asked; i++) json_decref(s->round.asked[i]->messages);
    free(s->round.asked);
    file_unmap(&s->rows_file.before);
    file_unmap(&s->rejected_file.before);
    arena_free(s->round.arena);
    arena_free(s->arena);
}

/* ---- a resumed run must have the same inputs ---- */

static void add_text(XXH3_state_t *state, const char *text) { XXH3_64bits_update(state, text ? text : "", text ? strlen(text) + 1 : 1); }

static void add_teacher(XXH3_state_t *state, const TeacherConfig *c) {
    const char *parts[] = {c->model, c->adapter, c->chat_template, c->url ? c->api : NULL, c->base ? "base" : NULL};
    for (size_t i = 0; i < COUNT_OF(parts); i++) add_text(state, parts[i]);
    json_t *values = teacher_kwargs(c);
    char *text = values ? json_text(values, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (text) add_text(state, text);
    free(text);
    json_decref(values);
}

static void add_seeds(XXH3_state_t *state, const SynthSeeds *seeds) {
    for (size_t i = 0; i < seeds->n; i++) {
        char *text = json_text(seeds->items[i].row.json, JSON_COMPACT | JSON_SORT_KEYS);
        add_text(state, text);
        free(text);
    }
}

static void add_stages(XXH3_state_t *state, const Synth *s) {
    for (int i = 0; i < s->n_stages; i++) {
        JsonWriter w = {0};
        teacher_sampling_write(&s->stages[i].sampling, &w, NULL);
        add_text(state, s->stages[i].hash);
        add_text(state, str_text(&w.text));
        jw_release(&w);
    }
}

static Status write_inputs(const Synth *s, JsonWriter *w) {
    static const char *const names[] = {"synth.seeds", "synth.teacher", "synth.prompts", "synth.filters"};
    XXH3_state_t *state = XXH3_createState();
    if (!state) return status_fail(ST_RESOURCE, "out of memory");
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char hex[17];
        uint64_t fingerprint = filters_fingerprint(s->filters);
        XXH3_64bits_reset(state);
        if (i == 0)
            add_seeds(state, &s->seeds);
        else if (i == 1)
            add_teacher(state, &s->teacher_config), add_teacher(state, &s->judge_config);
        else if (i == 2)
            add_stages(state, s);
        else
            XXH3_64bits_update(state, &fingerprint, sizeof fingerprint);
        snprintf(hex, sizeof hex, "%016llx", (unsigned long long)XXH3_64bits_digest(state));
        jw_string(w, names[i], hex);
    }
    XXH3_freeState(state);
    return ST_OK;
}

static Status compare_inputs(const Synth *s, const json_t *before, const json_t *now) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)now, name, value) {
        if (json_equal(json_object_get(before, name), value)) continue;
        status_fail(ST_CONFIG, "cannot resume '%s': '%s', or a file that it names, has changed", s->recipe->output, name);
        return status_hint(ST_CONFIG, "seeds, prompts, filters and teacher must stay the same in a run: choose another output");
    }
    return ST_OK;
}

/* The first start writes inputs.json; later ones compare it. */
static Status check_inputs(Synth *s) {
    const char *path = run_path(s->run, "inputs.json");
    JsonWriter w = {.pretty = true};
    json_t *before = NULL, *now = NULL;
    jw_object(&w, NULL);
    Status status = path ? write_inputs(s, &w) : ST_RESOURCE;
    jw_end_object(&w);
    if (status == ST_OK && !file_exists(path)) status = file_write_all(path, str_text(&w.text), w.text.len);
    if (status == ST_OK) status = json_read_file(path, &before);
    if (status == ST_OK) status = json_read_text(str_text(&w.text), w.text.len, path, &now);
    if (status == ST_OK) status = compare_inputs(s, before, now);
    json_decref(before);
    json_decref(now);
    jw_release(&w);
    return status;
}

static Status open_run(Synth *s) {
    TRY(run_open(s->recipe, run_mode(&s->config->options), &s->run));
    run_say_backup(s->run, &s->config->options);
    run_resume_by(s->run, s->config->options.resume_command);
    TRY(check_inputs(s));
    const char *requests = run_path(s->run, "requests.jsonl"), *rows = run_path(s->run, "rows.jsonl"), *rejected = run_path(s->run, "rejected.jsonl");
    if (!requests || !rows || !rejected) return ST_RESOURCE;
    TRY(journal_open(requests, false, &s->journal));
    TRY(synth_file_open(&s->rows_file, rows));
    return synth_file_open(&s->rejected_file, rejected);
}

/* ---- rounds ---- */

void synth_progress(Synth *s, size_t asked, bool round_over, SynthProgress *p) {
    double seconds = clock_seconds() - s->counts.started, kept = (double)s->n_rows, left = (double)s->recipe->synth_num_rows - kept;
    bool known = s->n_rows >= 4 && s->counts.generated_tokens > 0 && s->counts.replayed == 0;
    for (int i = 0; i < s->n_stages; i++) s->stage_counts[i] = s->stages[i].count;
    *p = (SynthProgress){
        .preset = s->preset->name,
        .rows = (int64_t)s->n_rows,
        .wanted = s->recipe->synth_num_rows,
        .round = s->counts.round,
        .asked = (int64_t)asked,
        .requests = s->counts.requests,
        .replayed = s->counts.replayed,
        .types = s->counts.types,
        .n_types = s->seeds.n_types,
        .stages = s->stage_counts,
        .n_stages = (size_t)s->n_stages,
        .reasons = s->counts.reasons,
        .n_reasons = s->counts.n_reasons,
        .tokens = s->counts.tokens,
        .prompt_tokens = s->counts.prompt_tokens,
        .tokens_per_second = s->counts.teacher_seconds > 0 ? (double)s->counts.generated_tokens / s->counts.teacher_seconds : 0,
        .seconds = seconds,
        .seconds_left = known ? seconds * left / kept : (double)NAN,
        .cost = s->counts.cost,
        .cost_left = s->n_rows >= 4 ? s->counts.cost * left / kept : (double)NAN,
        .candidates = s->counts.made,
        .candidates_total = s->n_rows >= 4 ? (int64_t)ceil((double)s->counts.made * (double)s->recipe->synth_num_rows / kept) : -1,
        .round_over = round_over,
    };
}

static Status end_round(Synth *s) {
    SynthProgress p;
    JsonWriter w = {0};
    synth_progress(s, 0, true, &p);
    jw_object(&w, NULL);
    jw_int(&w, "step", ++s->counts.round);
    jw_int(&w, "rows", (int64_t)s->n_rows);
    jw_int(&w, "candidates", s->counts.made);
    jw_double(&w, "acceptance", (double)s->n_rows / (double)MAX(s->counts.made, 1));
    jw_int(&w, "requests", s->counts.requests);
    jw_int(&w, "tokens", s->counts.tokens);
    jw_double(&w, "tokens_per_second", p.tokens_per_second);
    jw_double(&w, "seconds", p.seconds);
    jw_end_object(&w);
    Status status = run_metric(s->run, str_text(&w.text));
    jw_release(&w);
    if (s->config->on_progress) s->config->on_progress(s->config->context, &p);
    return status;
}

/* The most frequent reasons first. */
static void say_reasons(const Synth *s, Str *text) {
    bool *said = calloc(MAX(s->counts.n_reasons, 1), sizeof *said);
    for (size_t round = 0; round < MIN(s->counts.n_reasons, 4) && said; round++) {
        size_t most = s->counts.n_reasons;
        for (size_t i = 0; i < s->counts.n_reasons; i++)
            if (!said[i] && (most == s->counts.n_reasons || s->counts.reasons[i].made > s->counts.reasons[most].made)) most = i;
        said[most] = true;
        str_printf(text, "%s%s %lld", round ? ", " : "", s->counts.reasons[most].name, (long long)s->counts.reasons[most].made);
    }
    free(said);
}

/* Suggests what to do about too few rows; without a suggestion, shows a refusal, which may explain more than counts. */
static Status advise(const Synth *s, const char *advice) {
    if (s->n_rows == 0 && s->counts.refusal) return status_hint(ST_INPUT, "the teacher refused: '%.300s'", s->counts.refusal);
    return status_hint(ST_INPUT, "rejected.jsonl shows the teacher's replies%s", advice);
}

static Status check_acceptance(const Synth *s) {
    const Recipe *r = s->recipe;
    int64_t tries = s->counts.made + s->counts.empty_rounds;
    if ((int64_t)s->n_rows >= r->synth_num_rows || tries < r->synth_acceptance_after || (double)s->n_rows >= r->synth_min_acceptance * (double)tries)
        return ST_OK;
    Str reasons = {0};
    say_reasons(s, &reasons);
    status_fail(ST_INPUT, "only %zu of %lld candidates were kept, which is below 'synth.min_acceptance' %g; rejected: %s", s->n_rows,
                (long long)tries, r->synth_min_acceptance, str_text(&reasons));
    str_release(&reasons);
    return advise(s, "; change prompts, filters or teacher, or lower the limit and continue with --resume");
}

static Status make_rows(Synth *s) {
    while ((int64_t)s->n_rows < s->recipe->synth_num_rows && !s->exhausted) {
        int64_t requests = s->counts.requests, made = s->counts.made;
        synth_end_candidates(s);
        arena_reset(s->round.arena);
        TRY(s->preset->make_round(s));
        TRY(s->status);
        if (s->counts.requests == requests) s->exhausted = true;
        if (s->counts.made == made) s->counts.empty_rounds += s->counts.requests - requests;
        TRY(end_round(s));
        TRY(check_acceptance(s));
        if (interrupt_requested()) return status_fail(ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* ---- the end ---- */

static void write_counts(JsonWriter *w, const char *key, const SynthCount *counts, size_t n, bool kept) {
    jw_object(w, key);
    for (size_t i = 0; i < n; i++) {
        if (!kept) {
            jw_int(w, counts[i].name, counts[i].made);
            continue;
        }
        jw_object(w, counts[i].name);
        jw_int(w, "made", counts[i].made);
        jw_int(w, "kept", counts[i].kept);
        jw_end_object(w);
    }
    jw_end_object(w);
}

static Status synth_finish(Synth *s, SynthResult *result) {
    SynthProgress p;
    JsonWriter w = {0};
    json_t *summary;
    TRY(synth_select_write(s, &result->selected));
    synth_progress(s, 0, true, &p);
    jw_object(&w, NULL);
    jw_string(&w, "kind", "synth");
    jw_int(&w, "rows", result->rows);
    if (result->selected >= 0) jw_int(&w, "selected", result->selected);
    jw_int(&w, "wanted", result->wanted);
    jw_bool(&w, "exhausted", result->exhausted);
    jw_int(&w, "candidates", s->counts.made);
    jw_double(&w, "acceptance", (double)s->n_rows / (double)MAX(s->counts.made, 1));
    jw_int(&w, "requests", s->counts.requests);
    jw_int(&w, "prompt_tokens", s->counts.prompt_tokens);
    jw_int(&w, "tokens", s->counts.tokens);
    jw_double(&w, "cost", s->counts.cost);
    write_counts(&w, "stages", p.stages, p.n_stages, true);
    write_counts(&w, "task_types", p.types, p.n_types, true);
    write_counts(&w, "rejected", p.reasons, p.n_reasons, false);
    jw_double(&w, "seconds", result->seconds);
    jw_double(&w, "teacher_seconds", result->teacher_seconds);
    jw_double(&w, "filter_seconds", result->filter_seconds);
    jw_end_object(&w);
    Status status = json_read_text(str_text(&w.text), w.text.len, "summary", &summary);
    jw_release(&w);
    TRY(status);
    status = synth_pages_write(s, summary);
    if (status == ST_OK) status = run_mark_finished(s->run, summary);
    json_decref(summary);
    TRY(status);
    return dir_remove(run_path(s->run, "checkpoints")); /* such a run is resumed from the log */
}

static int64_t count_refused(const Synth *s) {
    for (size_t i = 0; i < s->counts.n_reasons; i++)
        if (strcmp(s->counts.reasons[i].name, "refused_by_server") == 0) return s->counts.reasons[i].made;
    return 0;
}

static void synth_report_progress(const Synth *s, SynthResult *result) {
    *result = (SynthResult){
        .rows = (int64_t)s->n_rows,
        .wanted = s->recipe->synth_num_rows,
        .rejected = s->counts.rejected,
        .refused = count_refused(s),
        .requests = s->counts.requests,
        .replayed = s->counts.replayed,
        .tokens = s->counts.tokens,
        .prompt_tokens = s->counts.prompt_tokens,
        .cost = s->counts.cost,
        .seconds = clock_seconds() - s->counts.started,
        .teacher_seconds = s->counts.teacher_seconds,
        .filter_seconds = s->counts.filter_seconds,
        .exhausted = s->exhausted,
        .selected = -1,
    };
}

static Status run_rounds(Synth *s, SynthResult *result) {
    s->counts.started = clock_seconds();
    Status status = make_rows(s);
    synth_report_progress(s, result);
    if ((status == ST_RESOURCE || status == ST_INTERRUPTED) && !status_hint_text()[0])
        return status_hint(status, "the answers so far are in '%s': continue with --resume", s->recipe->output);
    if (status != ST_OK) return status;
    TRY(synth_file_close(&s->rows_file));
    TRY(synth_file_close(&s->rejected_file));
    if (s->n_rows == 0) {
        Str reasons = {0};
        say_reasons(s, &reasons);
        status_fail(ST_INPUT, "no row was kept; rejected: %s", str_text(&reasons));
        str_release(&reasons);
        return advise(s, "");
    }
    return synth_finish(s, result);
}

static void show_plan(const Synth *s) {
    SynthPlan plan = {.preset = s->preset->name,
                      .help = s->preset->help,
                      .teacher = s->teacher_config.replay ? s->teacher_config.replay : s->teacher_config.model,
                      .seeds = s->seeds.n,
                      .n_types = s->seeds.n_types,
                      .filters = s->filters,
                      .logged = s->journal ? journal_count(s->journal) : 0};
    SynthCount *types = arena_zero(s->arena, s->seeds.n_types * sizeof *types);
    for (size_t t = 0; t < s->seeds.n_types && types; t++)
        types[t] = (SynthCount){.name = s->seeds.types[t].name, .kept = (int64_t)s->seeds.types[t].n};
    plan.types = types;
    if (types && s->config->on_plan) s->config->on_plan(s->config->context, &plan);
}

/* A run keeps the date of its start, so that a local teacher whose chat template writes the date gets the same prompts on another day. */
static Status keep_day(Synth *s) {
    const char *day;
    if (s->recipe->data_now) return ST_OK;
    TRY(recipe_day(s->recipe, s->config->options.resume, &day));
    s->dated = recipe_dated(s->recipe, day);
    s->recipe = &s->dated;
    return ST_OK;
}

static Status synth_run_all(Synth *s, SynthResult *result) {
    TRY(run_check(s->recipe, run_mode(&s->config->options), &result->already_finished));
    if (result->already_finished) return ST_OK;
    TRY(keep_day(s));
    TRY(open_all(s));
    if (!s->config->options.dry_run) TRY(open_run(s));
    show_plan(s);
    return s->config->options.dry_run ? ST_OK : run_rounds(s, result);
}

Status synth_run(const SynthConfig *config, SynthResult *result) {
    Synth s = {.config = config, .recipe = config->recipe, .arena = arena_new(0), .round.arena = arena_new(0)};
    *result = (SynthResult){0};
    Status status = s.arena && s.round.arena ? synth_run_all(&s, result) : status_fail(ST_RESOURCE, "out of memory");
    if (s.run && status != ST_OK) status = report_run(s.run, NULL, run_mark_stopped(s.run, status));
    close_all(&s);
    return status == ST_OK ? teacher_dismiss(config->comm) : status;
}

static Status serve_teachers(Synth *s) {
    TRY(read_teachers(s));
    const TeacherConfig *configs[] = {&s->teacher_config, &s->judge_config};
    Teacher **teachers[] = {&s->teacher, &s->judge}, *open[] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        const TeacherOptions options = teacher_options(s, i);
        if (!teacher_config_is_local(configs[i])) continue;
        TRY(teacher_open(configs[i], &options, teachers[i]));
        open[i] = *teachers[i];
    }
    return teacher_serve(s->config->comm, open, COUNT_OF(open));
}

Status synth_serve(const SynthConfig *config) {
    Synth s = {.config = config, .recipe = config->recipe, .arena = arena_new(0)};
    Status status = s.arena ? serve_teachers(&s) : status_fail(ST_RESOURCE, "out of memory");
    teacher_close(s.teacher);
    teacher_close(s.judge);
    arena_free(s.arena);
    return status;
}
