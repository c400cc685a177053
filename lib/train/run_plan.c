/* SPDX-License-Identifier: Apache-2.0 */
/* See run_plan.h. */
#include "lib/train/run_plan.h"

#include "lib/model/adapter.h"
#include "lib/model/text_part.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- lines ---- */

static void plan_add(RunPlan *plan, int kind, const char *text) {
    if (plan->n_lines == plan->cap_lines) {
        size_t cap = plan->cap_lines ? 2 * plan->cap_lines : 16;
        RunPlanLine *lines = arena_alloc(plan->arena, cap * sizeof *lines);
        if (!lines) {
            plan->status = ST_RESOURCE;
            return;
        }
        if (plan->n_lines) memcpy(lines, plan->lines, plan->n_lines * sizeof *lines);
        plan->lines = lines;
        plan->cap_lines = cap;
    }
    const char *kept = arena_strdup(plan->arena, text);
    if (kept)
        plan->lines[plan->n_lines++] = (RunPlanLine){kind, kept};
    else
        plan->status = ST_RESOURCE;
}

void run_plan_say(RunPlan *plan, const char *format, ...) {
    Str text = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&text, format, args);
    va_end(args);
    plan_add(plan, PLAN_LINE, str_text(&text));
    str_release(&text);
}

void run_plan_warn(void *plan, const char *text) { plan_add(plan, PLAN_WARNING, text); }

void run_plan_note(void *plan, const char *text) { plan_add(plan, PLAN_NOTE, text); }

/* ---- values ---- */

static void plan_put(RunPlan *plan, RunPlanValue value) {
    ASSERT(plan->n_values < PLAN_VALUES, "more than %d values", PLAN_VALUES);
    if (value.text && !(value.text = arena_strdup(plan->arena, value.text))) plan->status = ST_RESOURCE;
    plan->values[plan->n_values++] = value;
}

void run_plan_count(RunPlan *plan, RunPlanUse use, const char *name, int64_t value) {
    plan_put(plan, (RunPlanValue){name, use, PLAN_COUNT, (double)value, NULL});
}

void run_plan_real(RunPlan *plan, RunPlanUse use, const char *name, double value) {
    plan_put(plan, (RunPlanValue){name, use, PLAN_REAL, value, NULL});
}

void run_plan_text(RunPlan *plan, RunPlanUse use, const char *name, const char *text) {
    plan_put(plan, (RunPlanValue){name, use, PLAN_TEXT, 0, text});
}

void run_plan_json(RunPlan *plan, RunPlanUse use, const char *name, const char *json) {
    plan_put(plan, (RunPlanValue){name, use, PLAN_JSON, 0, json});
}

double run_plan_get(const RunPlan *plan, const char *name) {
    for (size_t i = 0; i < plan->n_values; i++)
        if (strcmp(plan->values[i].name, name) == 0) return plan->values[i].number;
    return (double)NAN;
}

static void write_value(JsonWriter *w, const RunPlanValue *value) {
    switch (value->kind) {
    case PLAN_COUNT: jw_int(w, value->name, (int64_t)value->number); break;
    case PLAN_REAL: jw_double(w, value->name, value->number); break;
    case PLAN_TEXT: jw_string(w, value->name, value->text); break;
    case PLAN_JSON: jw_raw(w, value->name, value->text); break;
    }
}

void run_plan_write(const RunPlan *plan, RunPlanUse use, JsonWriter *w) {
    for (size_t i = 0; i < plan->n_values; i++)
        if (plan->values[i].use & use) write_value(w, &plan->values[i]);
    if (use == PLAN_RECORD) {
        jw_array(w, "warnings");
        for (size_t i = 0; i < plan->n_lines; i++)
            if (plan->lines[i].kind == PLAN_WARNING) jw_string(w, NULL, plan->lines[i].text);
        jw_end_array(w);
    }
    if (plan->memory.total > 0) train_memory_write(w, &plan->memory);
}

/* ---- what runs have in common ---- */

void run_plan_form(RunPlan *plan, const Dataset *rows) {
    const char *shape = rows->n_files == 1 ? rows->files[0].shape : rows->shape; /* with several files, data_files_report says the format of each */
    if (shape) run_plan_say(plan, "rows: format recognized by %s", shape);
    if (rows->plain_as) run_plan_say(plan, "plain texts: %s", rows->plain_as);
}

void run_plan_ranks(RunPlan *plan, const Recipe *recipe, const Comm *comm) {
    const CommReduce reduce = (CommReduce)recipe->parallel_reduce;
    if (comm_size(comm) == 1) return;
    if (recipe->parallel_reduce_dtype == PARALLEL_REDUCE_DTYPE_BF16)
        run_plan_say(plan, "gradients travel as bf16 (parallel.reduce_dtype): bits depend on the number of ranks");
    else if (reduce == COMM_RING || reduce == COMM_MPI)
        run_plan_say(plan, "gradients are added by 'parallel.reduce: %s': bits depend on the number of ranks%s", comm_reduce_word(reduce),
                     reduce == COMM_MPI ? " and on the library" : "");
}

void run_plan_memory(RunPlan *plan) {
    Str text = {0};
    train_memory_describe(&plan->memory, &text);
    run_plan_say(plan, "memory: %s", str_text(&text));
    str_release(&text);
}

/* "base: llama-wide.q4_k_m.gguf, 0.65 MB, 13 q4_k, 3 q6_k, 5 F32; 4.98 bits a weight", of a quantised base. */
static void say_base(RunPlan *plan, const Model *model) {
    if (!model->files || !weight_file_is_quantised(model->files)) return;
    Str types = {0};
    size_t bytes = 0;
    char size[32];
    for (size_t i = 0; i < model->files->n; i++) bytes += model->files->tensors[i].bytes;
    weight_file_describe(model->files, &types);
    run_plan_say(plan, "base: %s, %s, %s", path_name(model->dir), format_bytes((double)bytes, size), str_text(&types));
    str_release(&types);
}

void run_plan_model(RunPlan *plan, const Recipe *recipe, const Model *model, const char *with) {
    int64_t parameters = params_count(&model->params, false), trained = params_count(&model->params, true);
    Str adapter = {0}, carried = {0};
    run_plan_count(plan, PLAN_BOTH, "parameters", parameters);
    run_plan_count(plan, PLAN_BOTH, "trained_parameters", trained);
    run_plan_text(plan, PLAN_BOTH, "compute", dtype_name(model->compute));
    say_base(plan, model);
    run_plan_say(plan, "model: %s, %lld parameter%s, %lld trained (%s%s), products in %s", recipe->model_path, (long long)parameters,
                 plural(parameters), (long long)trained, recipe->has_lora ? "LoRA" : "all", with, dtype_name(model->compute));
    adapter_describe(model, &adapter);
    if (adapter.len > 0) run_plan_say(plan, "adapter: on %s", str_text(&adapter));
    if (!recipe->has_lora) text_describe_passthrough(model, &carried);
    if (carried.len > 0) run_plan_say(plan, "not trained, saved unchanged: %s", str_text(&carried));
    run_plan_memory(plan);
    str_release(&carried);
    str_release(&adapter);
}
