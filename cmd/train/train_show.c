/* SPDX-License-Identifier: Apache-2.0 */
/* Shows plan, progress and end of a run. */
#include "cmd/app/terminal.h"
#include "cmd/train/train_show.h"

#include "data/formats/row_form.h"
#include "lib/model/adapter.h"
#include "lib/model/text_part.h"
#include "lib/text/chat.h"

#include <math.h>

void print_training_plan(const RecipeCommand *job, const TrainPlan *plan) {
    if (!job->options.dry_run || !job->command->json) return;
    JsonWriter w = {0};
    jw_object(&w, NULL);
    jw_int(&w, "rows", plan->rows);
    if (plan->tokens >= 0) jw_int(&w, "tokens", plan->tokens);
    if (plan->trained_tokens >= 0) jw_int(&w, "trained_tokens", plan->trained_tokens);
    jw_int(&w, "eval_rows", plan->eval_rows);
    jw_int(&w, "steps", plan->steps);
    if (plan->largest_batch_tokens >= 0) jw_int(&w, "largest_batch_tokens", plan->largest_batch_tokens);
    jw_int(&w, "parameters", plan->parameters);
    jw_int(&w, "trained_parameters", plan->trained_parameters);
    jw_string(&w, "compute", dtype_name(plan->compute));
    train_memory_write(&w, plan->memory);
    jw_end_object(&w);
    print_result("%s\n", str_text(&w.text));
    jw_release(&w);
}

void show_plain_rows(const Dataset *rows) {
    const char *shape = rows->n_files == 1 ? rows->files[0].shape : rows->shape; /* with several files, data_files_report shows the format of each */
    if (shape) show_line("rows: format recognized by %s", shape);
    if (rows->plain_as) show_line("plain texts: %s", rows->plain_as);
}

void show_memory(const TrainMemory *memory) {
    Str text = {0};
    train_memory_describe(memory, &text);
    show_line("memory: %s", str_text(&text));
    str_release(&text);
}

void show_training_model(const Recipe *recipe, const TrainPlan *plan, const char *with) {
    show_line("model: %s, %lld parameter%s, %lld trained (%s%s), products in %s", recipe->model_path, (long long)plan->parameters,
              plural(plan->parameters), (long long)plan->trained_parameters, recipe->has_lora ? "LoRA" : "all", with, dtype_name(plan->compute));
    Str adapter = {0}, carried = {0}, types = {0};
    if (plan->model->files && weight_file_is_quantised(plan->model->files)) {
        weight_file_describe(plan->model->files, &types);
        show_line("quantised: %s; %s in memory", str_text(&types), dtype_name(plan->compute));
    }
    adapter_describe(plan->model, &adapter);
    if (adapter.len > 0) show_line("adapter: on %s", str_text(&adapter));
    if (!recipe->has_lora) text_describe_passthrough(plan->model, &carried);
    if (carried.len > 0) show_line("not trained, saved unchanged: %s", str_text(&carried));
    str_release(&types);
    str_release(&carried);
    str_release(&adapter);
    show_memory(plan->memory);
}

void show_training_step(void *context, const Progress *p) {
    const Recipe *recipe = context;
    char left[32], memory[32];
    if (p->evaluation) {
        show_line("step %lld: held-out loss %.4f", (long long)p->step, p->eval_loss);
        return;
    }
    if (recipe->train_live) show_curve(p->loss);
    show_progress("step %lld/%lld  loss %.4f  %.0f tokens/s  %s left  %s", (long long)p->step, (long long)p->total_steps, p->loss,
                  p->tokens_per_second, format_seconds(p->seconds_left, left), format_bytes((double)p->memory, memory));
}

const char *trained_part(const Recipe *recipe) { return recipe->has_lora ? "adapter" : "model"; }

bool show_run_end(const Command *command, const Recipe *recipe, JsonWriter *w, bool already_finished) {
    jw_end_object(w);
    end_live_line();
    if (command->json) print_result("%s\n", str_text(&w->text));
    if (already_finished) show_line("'%s' is a finished run: nothing to do", recipe->output);
    jw_release(w);
    return !already_finished;
}

static void write_result(const Recipe *recipe, const TrainResult *result, JsonWriter *w) {
    Str path = {0};
    str_printf(&path, "%s/%s", recipe->output, trained_part(recipe));
    jw_object(w, NULL);
    jw_int(w, "steps", result->steps);
    jw_double(w, "first_loss", result->first_loss);
    jw_double(w, "last_loss", result->last_loss);
    jw_double(w, "eval_loss", result->eval_loss);
    jw_double(w, "best_eval_loss", result->best_eval_loss);
    jw_int(w, "tokens", result->tokens);
    jw_int(w, "loss_tokens", result->loss_tokens);
    jw_double(w, "seconds", result->seconds);
    jw_string(w, trained_part(recipe), str_text(&path));
    str_release(&path);
}

void show_training_result(const Command *command, const Recipe *recipe, const TrainResult *result) {
    char seconds[32];
    JsonWriter w = {0};
    write_result(recipe, result, &w);
    if (!show_run_end(command, recipe, &w, result->already_finished)) return;
    show_line("%lld step%s in %s: loss %.4f -> %.4f%s", (long long)result->steps, plural(result->steps), format_seconds(result->seconds, seconds),
              result->first_loss, result->last_loss, result->early_stopped ? ", stopped early" : "");
    if (!isnan(result->eval_loss)) show_line("held-out loss %.4f, best %.4f", result->eval_loss, result->best_eval_loss);
    show_line("wrote %s/%s", recipe->output, trained_part(recipe));
}

/* ---- what to do next ---- */

void append_trained(Str *text, const Recipe *recipe) {
    if (recipe->has_lora) {
        str_append_shell(text, "%s", recipe->model_path);
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
    str_append_shell(&trained, "%s", recipe->model_path);
    str_append_char(&trained, ' ');
    str_append_shell(&trained, "%s/adapter", recipe->output);
    if (recipe->has_lora) show_line("%s: tune merge %s -o %s", word, str_text(&trained), str_text(&more));
    str_release(&trained);
    str_release(&more);
}
