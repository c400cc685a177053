/* SPDX-License-Identifier: Apache-2.0 */
/* tune data synth: makes training rows from seeds with a teacher. */
#include <math.h>

#include "cmd/app/folders.h"
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/common/recipe_command.h"
#include "cmd/common/runtime.h"
#include "cmd/data/cmd_data.h"
#include "data/synth/synth.h"
#include "rl/reward/reward.h"

/* account: the counts of candidates by stage and reason after the last round */
typedef struct Job {
    const RecipeCommand *command;
    RewardSet *rewards;
    Str account;
} Job;

/* ---- plan and progress ---- */

static void print_plan(const SynthPlan *plan) {
    JsonWriter w = {0};
    const FilterInfo *filter;
    jw_object(&w, NULL);
    jw_string(&w, "preset", plan->preset);
    jw_string(&w, "teacher", plan->teacher);
    jw_int(&w, "seeds", (int64_t)plan->seeds);
    jw_object(&w, "task_types");
    for (size_t i = 0; i < plan->n_types; i++) jw_int(&w, plan->types[i].name, plan->types[i].kept);
    jw_end_object(&w);
    jw_array(&w, "filters");
    for (size_t i = 0; (filter = filters_at(plan->filters, i)); i++) jw_string(&w, NULL, filter->name);
    jw_end_array(&w);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

static void show_plan(void *context, const SynthPlan *plan) {
    const Job *job = context;
    if (job->command->options.dry_run && job->command->command->json) print_plan(plan);
    Str text = {0};
    for (size_t i = 0; i < MIN(plan->n_types, 8); i++)
        str_printf(&text, "%s%s %lld", i ? ", " : "", plan->types[i].name, (long long)plan->types[i].kept);
    if (plan->n_types > 8) str_printf(&text, " and %zu more type%s", plan->n_types - 8, plural((int64_t)(plan->n_types - 8)));
    show_line("preset: %s: %s", plan->preset, plan->help);
    show_line("seeds: %zu (%s)", plan->seeds, str_text(&text));
    str_clear(&text);
    const FilterInfo *filter;
    for (size_t i = 0; (filter = filters_at(plan->filters, i)); i++) str_printf(&text, "%s%s", i ? ", " : "", filter->name);
    show_line("filters: %s", text.len ? str_text(&text) : "none");
    show_line("teacher: %s", plan->teacher);
    if (plan->logged) show_line("log: %zu line%s from an earlier run", plan->logged, plural((int64_t)plan->logged));
    str_release(&text);
}

enum { TYPES_SHOWN = 8, REASONS_SHOWN = 6 };

static void add_counts(Str *text, const char *title, const SynthCount *counts, size_t n, size_t most) {
    str_printf(text, "  %-24s %8s %8s %7s\n", title, "made", "kept", "share");
    for (size_t i = 0; i < MIN(n, most); i++)
        str_printf(text, "  %-24.24s %8lld %8lld %5.0f %%\n", counts[i].name, (long long)counts[i].made, (long long)counts[i].kept,
                   100 * (double)counts[i].kept / (double)MAX(counts[i].made, 1));
    if (n > most) str_printf(text, "  and %zu more\n", n - most);
}

/* The table above the live line: task types, stages, and why rows are rejected. */
static void draw_table(const SynthProgress *p) {
    Str text = {0};
    add_counts(&text, "task type", p->types, p->n_types, TYPES_SHOWN);
    add_counts(&text, "stage", p->stages, p->n_stages, TYPES_SHOWN);
    if (p->n_reasons) str_append(&text, "  rejected:");
    for (size_t i = 0; i < MIN(p->n_reasons, (size_t)REASONS_SHOWN); i++)
        str_printf(&text, "%s %s %lld", i ? "," : "", p->reasons[i].name, (long long)p->reasons[i].made);
    if (p->n_reasons > REASONS_SHOWN) str_append(&text, ", ...");
    if (p->n_reasons) str_append(&text, "\n");
    show_table(str_text(&text));
    str_release(&text);
}

/* The share that each stage accepted, and the reasons for rejection: they explain the number of rows. */
static void note_account(const SynthProgress *p, Str *text) {
    str_clear(text);
    for (size_t i = 0; i < p->n_stages; i++)
        str_printf(text, "%s%s %lld of %lld (%.0f %%)", i ? ", " : "stages: ", p->stages[i].name, (long long)p->stages[i].kept,
                   (long long)p->stages[i].made, 100 * (double)p->stages[i].kept / (double)MAX(p->stages[i].made, 1));
    for (size_t i = 0; i < p->n_reasons; i++)
        str_printf(text, "%s%s %lld", i ? ", " : "; rejected: ", p->reasons[i].name, (long long)p->reasons[i].made);
}

static void show_state(void *context, const SynthProgress *p) {
    Job *job = context;
    comm_poll(ranks_world()); /* the others wait for questions */
    char left[32];
    Str text = {0};
    draw_table(p);
    if (p->round_over) note_account(p, &job->account);
    str_printf(&text, "%lld/%lld rows of %lld candidate%s", (long long)p->rows, (long long)p->wanted, (long long)p->candidates,
               plural(p->candidates));
    if (p->candidates_total > p->candidates) str_printf(&text, " (about %lld in all)", (long long)p->candidates_total);
    str_printf(&text, "  %lld request%s", (long long)p->requests, plural(p->requests));
    if (p->asked) str_printf(&text, " (%lld pending)", (long long)p->asked);
    str_printf(&text, "  %.0f tokens/s", p->tokens_per_second);
    if (p->cost > 0) str_printf(&text, "  cost %s", NUMBER(p->cost));
    if (p->cost > 0 && !isnan(p->cost_left)) str_printf(&text, " + %.2g", p->cost_left);
    if (!isnan(p->seconds_left)) str_printf(&text, "  %s left", format_seconds(p->seconds_left, left));
    show_progress("%s", str_text(&text));
    str_release(&text);
}

/* Reads the result that a finished run has saved. */
static Status read_finished(const Recipe *recipe, SynthResult *r) {
    Str path = {0};
    json_t *told;
    const char *reason;
    json_t *count;
    str_printf(&path, "%s/finished.json", recipe->output);
    Status status = json_read_file(str_text(&path), &told);
    str_release(&path);
    TRY(status);
    r->rows = json_integer_value(json_object_get(told, "rows"));
    r->wanted = json_integer_value(json_object_get(told, "wanted"));
    r->selected = json_object_get(told, "selected") ? json_integer_value(json_object_get(told, "selected")) : -1;
    r->requests = json_integer_value(json_object_get(told, "requests"));
    r->tokens = json_integer_value(json_object_get(told, "tokens"));
    r->prompt_tokens = json_integer_value(json_object_get(told, "prompt_tokens"));
    r->cost = json_number_value(json_object_get(told, "cost"));
    r->seconds = json_number_value(json_object_get(told, "seconds"));
    r->exhausted = json_is_true(json_object_get(told, "exhausted"));
    json_object_foreach(json_object_get(told, "rejected"), reason, count) r->rejected += json_integer_value(count);
    json_decref(told);
    return ST_OK;
}

static void write_summary(const Recipe *recipe, const SynthResult *r) {
    JsonWriter w = {0};
    Str path = {0};
    str_printf(&path, "%s/rows.jsonl", recipe->output);
    jw_object(&w, NULL);
    jw_int(&w, "rows", r->rows);
    jw_int(&w, "wanted", r->wanted);
    if (r->selected >= 0) jw_int(&w, "selected", r->selected);
    jw_int(&w, "rejected", r->rejected);
    jw_int(&w, "requests", r->requests);
    jw_int(&w, "replayed", r->replayed);
    jw_int(&w, "tokens", r->tokens);
    jw_int(&w, "prompt_tokens", r->prompt_tokens);
    jw_double(&w, "cost", r->cost);
    jw_bool(&w, "exhausted", r->exhausted);
    jw_double(&w, "seconds", r->seconds);
    jw_bool(&w, "already_finished", r->already_finished);
    jw_string(&w, "output", str_text(&path));
    if (r->selected >= 0) {
        str_clear(&path);
        str_printf(&path, "%s/selected.jsonl", recipe->output);
        jw_string(&w, "selected_output", str_text(&path));
    }
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
    str_release(&path);
}

/* Appends KEY=VALUE with the value quoted as YAML and the whole quoted for a shell. */
static void append_override(Str *text, const char *key, const char *value) {
    Str yaml = {0};
    str_append_yaml(&yaml, value);
    str_append_shell(text, "%s=%s", key, str_text(&yaml));
    str_release(&yaml);
}

/* Suggests the next command: data check with the local teacher as the model to train; if the teacher is a server, no model is known, and data
 * filter is suggested. */
static void show_next(const Recipe *recipe, const SynthResult *r) {
    const Yaml *model = yaml_get(recipe->synth_teacher, "model");
    bool here = model && model->kind == YAML_SCALAR && dir_exists(model->text);
    Str path = {0}, words = {0};
    str_printf(&path, "%s/%s.jsonl", recipe->output, r->selected >= 0 ? "selected" : "rows");
    if (here) {
        append_override(&words, "data.train", str_text(&path));
        str_append_char(&words, ' ');
        append_override(&words, "model.path", model->text);
        show_line("next: tune data check %s", str_text(&words));
    } else {
        str_append_shell(&words, "%s", str_text(&path));
        str_append(&words, " -o ");
        str_append_shell(&words, "%s/clean.jsonl", recipe->output);
        show_line("next: tune data filter %s", str_text(&words));
    }
    str_release(&path);
    str_release(&words);
}

static void warn_of_missing(const SynthResult *r) {
    Str refused = {0};
    if (r->refused)
        str_printf(&refused, "the server refused %lld request%s, as rejected.jsonl shows, and ", (long long)r->refused, plural(r->refused));
    show_message("tune: warning: %lld of %lld row%s: %sthe seeds gave no more questions", (long long)r->rows, (long long)r->wanted, plural(r->wanted),
                 str_text(&refused));
    str_release(&refused);
}

static void cmd_data_synth_summarize(const RecipeCommand *job, const SynthResult *r) {
    char seconds[32];
    end_live_line();
    if (job->command->json) write_summary(job->recipe, r);
    if (r->already_finished) {
        show_line("'%s' is a finished run: nothing to do", job->recipe->output);
        return;
    }
    show_line("%lld row%s kept, %lld candidate%s rejected, %lld request%s in %s", (long long)r->rows, plural(r->rows), (long long)r->rejected,
              plural(r->rejected), (long long)r->requests, plural(r->requests), format_seconds(r->seconds, seconds));
    if (r->exhausted && r->rows < r->wanted) warn_of_missing(r);
    if (r->selected >= 0) show_line("%lld of them chosen", (long long)r->selected);
    show_line("wrote %s/rows.jsonl, %srejected.jsonl, dataset_card.md, report.html", job->recipe->output, r->selected >= 0 ? "selected.jsonl, " : "");
    if (r->rows > 0) show_next(job->recipe, r);
}

/* ---- functions that the libraries call back ---- */

static Status reward_rows(void *context, const FilterRow *rows, size_t n, double *values) {
    return filter_rewards(((const Job *)context)->rewards, rows, n, values);
}

static Status cmd_data_synth_make(const RecipeCommand *command) {
    Job job = {.command = command};
    const Recipe *recipe = command->recipe;
    const char *folders[RECIPE_FOLDERS];
    SynthResult result;
    SynthConfig config = {
        .recipe = recipe,
        .options = command->options,
        .device = runtime_choose(NULL).device,
        .comm = ranks_world(),
        .folders = folders,
        .secret = secret_from_environment,
        .on_plan = show_plan,
        .on_progress = show_state,
        .context = &job,
    };
    if (comm_rank(config.comm) > 0) return synth_serve(&config);
    TRY(recipe_folders(command->command->arena, folders, &config.n_folders));
    if (recipe->synth_system && recipe->synth_format != SYNTH_FORMAT_MESSAGES)
        show_message("tune: warning: answers depend on 'synth.system', but rows of format '%s' cannot hold it: 'messages' can",
                     synth_format_text(recipe->synth_format));
    if (recipe->reward) {
        TRY(rewards_open(
            recipe->reward, recipe->path,
            &(RewardOptions){.max_new_tokens = recipe->generate_max_new_tokens, .run_folder = recipe->output, .secret = secret_from_environment},
            &job.rewards));
        config.reward = reward_rows;
    }
    Status status = synth_run(&config, &result);
    end_live_line();
    if (job.account.len) show_line("%s", str_text(&job.account));
    if (status == ST_OK && result.already_finished) status = read_finished(recipe, &result);
    if (status == ST_OK && (!command->options.dry_run || result.already_finished)) cmd_data_synth_summarize(command, &result);
    rewards_close(job.rewards);
    str_release(&job.account);
    return status;
}

Status cmd_data_synth(int argc, char **argv) {
    static const char *const sections[] = {"", "reward", "synth", "generate", NULL};
    Str about = {0}, filters = {0};
    str_append(
        &about,
        "Makes training rows: a teacher (a model on this machine, or any server with OpenAI's protocol) sees seeds, writes new prompts and answers them, and filters "
        "reject bad and repeated rows. The run directory has rows.jsonl, rejected.jsonl with a reason for each row, requests.jsonl with every answer (so that no request is sent twice), "
        "dataset_card.md and report.html.\n"
        "    tune data synth recipes/synth_few_shot.yaml synth.seeds=seeds.jsonl synth.teacher='{model: DIR}' output=runs/synth\n\npresets:\n");
    synth_presets_help(&about);
    str_append(&about, "\nfilters:\n");
    filters_write_help(&filters);
    str_append(&about, str_text(&filters));
    Status status = recipe_command(argc, argv, "data synth", str_text(&about), sections, cmd_data_synth_make);
    str_release(&about);
    str_release(&filters);
    return status;
}
