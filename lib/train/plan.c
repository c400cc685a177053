/* SPDX-License-Identifier: Apache-2.0 */
/* See plan.h. */
#include "lib/train/plan.h"

#include "lib/model/text_part.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

/* ---- lines ---- */

static void plan_add(Plan *plan, int kind, const char *text) {
    if (plan->n_lines == plan->cap_lines) {
        size_t cap = plan->cap_lines ? 2 * plan->cap_lines : 16;
        PlanLine *lines = arena_alloc(plan->arena, cap * sizeof *lines);
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
        plan->lines[plan->n_lines++] = (PlanLine){kind, kept};
    else
        plan->status = ST_RESOURCE;
}

void plan_say(Plan *plan, const char *format, ...) {
    Str text = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&text, format, args);
    va_end(args);
    plan_add(plan, PLAN_LINE, str_text(&text));
    str_release(&text);
}

void plan_warn(void *plan, const char *text) { plan_add(plan, PLAN_WARNING, text); }

void plan_note(void *plan, const char *text) { plan_add(plan, PLAN_NOTE, text); }

/* ---- values ---- */

static void plan_put(Plan *plan, PlanValue value) {
    ASSERT(plan->n_values < PLAN_VALUES, "more than %d values", PLAN_VALUES);
    if (value.text && !(value.text = arena_strdup(plan->arena, value.text))) plan->status = ST_RESOURCE;
    plan->values[plan->n_values++] = value;
}

void plan_count(Plan *plan, PlanUse use, const char *name, int64_t value) { plan_put(plan, (PlanValue){name, use, PLAN_COUNT, (double)value, NULL}); }

void plan_real(Plan *plan, PlanUse use, const char *name, double value) { plan_put(plan, (PlanValue){name, use, PLAN_REAL, value, NULL}); }

void plan_text(Plan *plan, PlanUse use, const char *name, const char *text) { plan_put(plan, (PlanValue){name, use, PLAN_TEXT, 0, text}); }

void plan_json(Plan *plan, PlanUse use, const char *name, const char *json) { plan_put(plan, (PlanValue){name, use, PLAN_JSON, 0, json}); }

double plan_get(const Plan *plan, const char *name) {
    for (size_t i = 0; i < plan->n_values; i++)
        if (strcmp(plan->values[i].name, name) == 0) return plan->values[i].number;
    return (double)NAN;
}

static void write_value(JsonWriter *w, const PlanValue *value) {
    switch (value->kind) {
    case PLAN_COUNT: jw_int(w, value->name, (int64_t)value->number); break;
    case PLAN_REAL: jw_double(w, value->name, value->number); break;
    case PLAN_TEXT: jw_string(w, value->name, value->text); break;
    case PLAN_JSON: jw_raw(w, value->name, value->text); break;
    }
}

void plan_write(const Plan *plan, PlanUse use, JsonWriter *w) {
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

void plan_form(Plan *plan, const Dataset *rows) {
    const char *shape = rows->n_files == 1 ? rows->files[0].shape : rows->shape; /* with several files, data_files_report says the format of each */
    if (shape) plan_say(plan, "rows: format recognized by %s", shape);
    if (rows->plain_as) plan_say(plan, "plain texts: %s", rows->plain_as);
}

void plan_memory(Plan *plan) {
    Str text = {0};
    train_memory_describe(&plan->memory, &text);
    plan_say(plan, "memory: %s", str_text(&text));
    str_release(&text);
}

void plan_model(Plan *plan, const Recipe *recipe, const Model *model, const char *with) {
    int64_t parameters = params_count(&model->params, false), trained = params_count(&model->params, true);
    Str adapter = {0}, carried = {0};
    plan_count(plan, PLAN_BOTH, "parameters", parameters);
    plan_count(plan, PLAN_BOTH, "trained_parameters", trained);
    plan_text(plan, PLAN_BOTH, "compute", dtype_name(model->compute));
    plan_say(plan, "model: %s, %lld parameter%s, %lld trained (%s%s), products in %s", recipe->model_path, (long long)parameters, plural(parameters),
             (long long)trained, recipe->has_lora ? "LoRA" : "all", with, dtype_name(model->compute));
    adapter_describe(model, &adapter);
    if (adapter.len > 0) plan_say(plan, "adapter: on %s", str_text(&adapter));
    if (!recipe->has_lora) text_describe_passthrough(model, &carried);
    if (carried.len > 0) plan_say(plan, "not trained, saved unchanged: %s", str_text(&carried));
    plan_memory(plan);
    str_release(&carried);
    str_release(&adapter);
}
