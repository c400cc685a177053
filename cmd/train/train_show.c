/* SPDX-License-Identifier: Apache-2.0 */
/* Shows plan, progress and end of a run. */
#include "cmd/app/ranks.h"
#include "cmd/app/terminal.h"
#include "cmd/train/train_show.h"

#include "data/formats/row_form.h"
#include "lib/text/chat.h"
#include "lib/train/trained_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- plan ---- */

static void show_plan(void *context, const RunPlan *plan) {
    Show *show = context;
    const RecipeCommand *job = show->job;
    show->conversations = 2 * run_plan_get(plan, "conversations") > run_plan_get(plan, "rows");
    if (job->options.dry_run && job->command->json) {
        JsonWriter w = {0};
        jw_object(&w, NULL);
        run_plan_write(plan, PLAN_PRINT, &w);
        jw_end_object(&w);
        print_result("%s\n", str_text(&w.text));
        jw_release(&w);
    }
    for (size_t i = 0; i < plan->n_lines; i++) {
        if (plan->lines[i].kind == PLAN_LINE) show_line("%s", plan->lines[i].text);
        if (plan->lines[i].kind == PLAN_WARNING) show_warning(NULL, plan->lines[i].text);
    }
}

/* ---- progress ---- */

/* Appends "loss 2.5134" or "12 episodes"; nothing if the metric is not known. */
static void append_metric(Str *text, const char *before, const Shown *shown, const Metrics *metrics) {
    double value = metric_get(metrics, shown->metric);
    if (isnan(value)) return;
    if (shown->counts)
        str_printf(text, "%s%.0f %s%s", before, value, shown->label, plural((int64_t)value));
    else if (shown->digits > 0)
        str_printf(text, "%s%s %.*f", before, shown->label, shown->digits, value);
    else
        str_printf(text, "%s%s %s", before, shown->label, NUMBER(value));
}

static void show_step(void *context, const Progress *p) {
    const Recipe *recipe = ((const Show *)context)->job->recipe;
    double curve = metric_get(p->metrics, p->shown->metric);
    char left[32], memory[32];
    Str text = {0};
    ranks_step();
    if (p->evaluation) {
        append_metric(&text, "", p->shown, p->metrics);
        end_live_line();
        show_line("step %lld: held-out %s", (long long)p->step, str_text(&text));
    } else {
        if (recipe->train_live && !isnan(curve)) show_curve(curve);
        for (const Shown *shown = p->shown; shown->metric; shown++) append_metric(&text, "  ", shown, p->metrics);
        show_progress("step %lld/%lld%s  %.0f %s/s  %s left%s%s", (long long)p->step, (long long)p->total, str_text(&text), p->per_second, p->rate,
                      format_seconds(p->seconds_left, left), p->memory ? "  " : "", p->memory ? format_bytes((double)p->memory, memory) : "");
    }
    str_release(&text);
}

TrainingConfig show_training(Show *show) {
    return (TrainingConfig){.recipe = show->job->recipe,
                            .runtime = show->job->runtime,
                            .options = show->job->options,
                            .comm = ranks_world(),
                            .on_plan = show_plan,
                            .on_progress = show_step,
                            .context = show};
}

/* ---- result ---- */

const char *trained_part(const Recipe *recipe) { return recipe->has_lora ? "adapter" : "model"; }

static void print_object(const Recipe *recipe, const TrainResult *result, const char *part) {
    JsonWriter w = {0};
    jw_object(&w, NULL);
    metrics_write(&w, &result->numbers, "");
    if (part) {
        Str path = {0};
        str_printf(&path, "%s/%s", recipe->output, part);
        jw_string(&w, part, str_text(&path));
        str_release(&path);
    }
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

/* "12 steps in 3 s: loss 2.5134 -> 1.2045", with what the kind of run has. */
static void show_numbers(const TrainResult *result) {
    const Metrics *numbers = &result->numbers;
    double first_loss = metric_get(numbers, "first_loss"), last_loss = metric_get(numbers, "last_loss"), eval_loss = metric_get(numbers, "eval_loss"),
           first_eval = metric_get(numbers, "first_eval_reward"), last_eval = metric_get(numbers, "last_eval_reward"),
           env_steps = metric_get(numbers, "env_steps"), episodes = metric_get(numbers, "episodes");
    int64_t steps = (int64_t)(isnan(env_steps) ? metric_get(numbers, "steps") : env_steps);
    char seconds[32], counted[64];
    snprintf(counted, sizeof counted, "%lld step%s", (long long)steps, plural(steps));
    format_seconds(metric_get(numbers, "seconds"), seconds);
    if (!isnan(last_eval)) show_line("held-out reward %s -> %s (greedy answers)", NUMBER(first_eval), NUMBER(last_eval));
    if (!isnan(last_loss))
        show_line("%s in %s: loss %.4f -> %.4f%s", counted, seconds, first_loss, last_loss, result->early_stopped ? ", stopped early" : "");
    else if (isnan(env_steps) && isnan(metric_get(numbers, "last_reward"))) /* learning from a teacher needs no reward */
        show_line("%s in %s", counted, seconds);
    else if (isnan(env_steps))
        show_line("%s in %s: reward %s -> %s", counted, seconds, NUMBER(metric_get(numbers, "first_reward")),
                  NUMBER(metric_get(numbers, "last_reward")));
    else if (episodes == 0)
        show_line("%s in %s, no episode ended", counted, seconds);
    else
        show_line("%s, %lld episode%s in %s: return %s, best %s (means of an update's episodes)", counted, (long long)episodes,
                  plural((int64_t)episodes), seconds, NUMBER(metric_get(numbers, "last_reward")), NUMBER(metric_get(numbers, "best_reward")));
    if (!isnan(eval_loss)) show_line("held-out loss %.4f, best %.4f", eval_loss, metric_get(numbers, "best_eval_loss"));
}

bool show_training_result(const RecipeCommand *job, const TrainResult *result, const char *part) {
    if (job->options.dry_run) return false;
    end_live_line();
    if (job->command->json) print_object(job->recipe, result, part);
    if (result->already_finished)
        show_line("'%s' is a finished run: nothing to do", job->recipe->output);
    else
        show_numbers(result);
    return !result->already_finished;
}

/* ---- what to do next ---- */

/* The base that the adapter belongs to: with model.quantize a directory next to that of the run. */
static void append_base(Str *text, const Recipe *recipe) {
    Arena *arena = arena_new(0);
    const char *adapter = arena ? path_join(arena, recipe->output, "adapter") : NULL, *base = NULL;
    const bool known = adapter && trained_base(recipe, adapter, arena, &base) == ST_OK && *base;
    str_append_shell(text, "%s", known ? base : recipe->model_path);
    arena_free(arena);
}

void append_trained(Str *text, const Recipe *recipe) {
    if (recipe->has_lora) {
        append_base(text, recipe);
        str_append(text, " --adapter ");
    }
    str_append_shell(text, "%s/%s", recipe->output, trained_part(recipe));
}

static bool has_template(const Recipe *recipe) {
    ChatTemplate *template = NULL;
    bool has = chat_template_load(recipe->model_path, recipe->model_adapter, recipe->model_chat_template, &template) == ST_OK && template;
    chat_template_free(template);
    return has;
}

typedef struct FirstRow {
    RowForm form;
    bool asks;
} FirstRow;

/* Whether the row has messages, in any column of its format. */
static Status look_at_row(void *context, const Row *row) {
    static const char *const columns[] = {"messages", "conversations", "conversation", "prompt", "chosen", "chosen_messages"};
    FirstRow *first = context;
    json_t *formed, *plain;
    RowFound found;
    Status status = row_formed(&first->form, row->json, &formed, &plain, &found);
    for (size_t i = 0; i < COUNT_OF(columns) && status == ST_OK; i++) {
        const json_t *value = json_object_get(formed, columns[i]);
        first->asks = first->asks || json_is_array(value) || json_is_object(value);
    }
    json_decref(formed);
    json_decref(plain);
    return status;
}

bool first_row_is_conversation(const Recipe *recipe) {
    if (recipe->data_as == DATA_AS_CHAT) return true;
    Arena *arena = arena_new(0);
    DataSource *sources;
    const char **paths;
    size_t n = 0, n_paths = 0;
    FirstRow first = {row_form(&(DataConfig){.columns = recipe->data_columns}, ROWS_AS_SCORED), false};
    Status status = arena && recipe->data_train ? data_sources(recipe->data_train, "data.train", arena, &sources, &n) : ST_INPUT;
    if (status == ST_OK && n > 0) status = rows_expand(sources[0].path, arena, &paths, &n_paths);
    if (status == ST_OK && n > 0) status = row_form_begin(&first.form, &sources[0]);
    if (status == ST_OK && n_paths > 0) status = rows_read_some(paths[0], 1, look_at_row, &first);
    row_form_release(&first.form);
    arena_free(arena);
    return status == ST_OK && first.asks;
}

void show_next_use(const Recipe *recipe, bool asks) {
    Str trained = {0}, more = {0};
    const char *word = "next";
    append_trained(&trained, recipe);
    if (asks && recipe->data_system) {
        str_append(&more, " --system ");
        str_append_shell(&more, "%s", recipe->data_system);
    }
    if (asks)
        show_line("next: tune chat %s%s", str_text(&trained), str_text(&more));
    else if (tokenizer_in(recipe->model_path))
        show_line("next: tune generate %s%s --prompt Hello", str_text(&trained), has_template(recipe) ? " --raw" : "");
    if (asks || tokenizer_in(recipe->model_path)) word = "or";
    str_clear(&more);
    str_append_shell(&more, "%s/merged", recipe->output);
    str_clear(&trained);
    append_base(&trained, recipe);
    str_append_char(&trained, ' ');
    str_append_shell(&trained, "%s/adapter", recipe->output);
    if (recipe->has_lora) show_line("%s: tune merge %s -o %s", word, str_text(&trained), str_text(&more));
    str_release(&trained);
    str_release(&more);
}
