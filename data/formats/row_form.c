/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a row from its file to its format. */
#include "data/formats/row_form.h"

#include <string.h>

#include "data/formats/formats.h"

RowForm row_form(const DataConfig *config, RowUse use) {
    return (RowForm){
        .recipe_columns = config->columns, .as = config->as ? config->as : "text", .has_template = chat_has_template(config->chat), .use = use};
}

static bool as_is(const RowForm *form, const char *as) { return strcmp(form->as, as) == 0; }
static bool is_map(const Yaml *columns) { return columns && columns->kind == YAML_MAP; }

/* ---- columns that no row has ---- */

static Status check_seen(const RowForm *form, const Yaml *columns, uint64_t seen) {
    for (size_t i = 0; is_map(columns) && form->first && i < columns->n; i++) {
        if (seen >> i & 1) continue;
        Str list = {0};
        columns_list(form->first, &list);
        status_fail(ST_INPUT, "no row has the column '%s', which data.columns reads as '%s'", columns->items[i]->text, columns->keys[i]);
        status_hint(ST_INPUT, "the first row's columns are %s", str_text(&list));
        str_release(&list);
        return ST_INPUT;
    }
    return ST_OK;
}

/* A source has its own columns; the recipe's columns are looked up in all sources that use them. */
static Status leave_source(RowForm *form) {
    if (form->columns == form->recipe_columns)
        form->recipe_seen |= form->seen;
    else
        TRY(check_seen(form, form->columns, form->seen));
    form->seen = 0;
    return ST_OK;
}

Status row_form_begin(RowForm *form, const DataSource *source) {
    TRY(leave_source(form));
    TRY(columns_check(form->recipe_columns, "data.columns"));
    form->map = source->columns;
    form->columns = source->names ? source->names : form->recipe_columns;
    form->uses_recipe = form->uses_recipe || !source->names;
    return ST_OK;
}

Status row_form_end(RowForm *form) {
    TRY(leave_source(form));
    return form->uses_recipe ? check_seen(form, form->recipe_columns, form->recipe_seen) : ST_OK;
}

void row_form_release(RowForm *form) {
    json_decref(form->first);
    form->first = NULL;
}

/* ---- one row ---- */

Status row_shape(RowForm *form, const json_t *row, json_t **shaped, const char **shape) {
    json_t *mapped = NULL, *renamed = NULL;
    *shaped = NULL;
    *shape = NULL;
    if (!form->first) form->first = json_incref((json_t *)(uintptr_t)row);
    if (form->map && !(mapped = columns_apply(form->map, row, form->use == ROWS_AS_SCORED)))
        return status_fail(ST_RESOURCE, "out of memory for a row");
    if (mapped && !is_map(form->columns)) {
        *shaped = mapped;
        return ST_OK;
    }
    Status status = columns_rename(form->columns, mapped ? mapped : row, &form->seen, &renamed);
    json_decref(mapped);
    if (status == ST_OK) status = shape_apply(renamed, form->use, shaped, shape);
    if (*shape) form->shape = *shape;
    json_decref(renamed);
    return status;
}

static bool is_covered(const DataFormat *format) { return strcmp(format->name, "alpaca") == 0 || strcmp(format->name, "prompt_completion") == 0; }

Status row_turn(const RowForm *form, const DataFormat *format, json_t **row, RowFound *found) {
    *found = (RowFound){0};
    if (!format || !turns_are_plain(*row, format)) return ST_OK;
    bool by_itself = as_is(form, "auto") && form->has_template;
    if (!as_is(form, "chat") && !(by_itself && is_covered(format))) {
        *found = (RowFound){.text = true, .untemplated = by_itself};
        return ST_OK;
    }
    json_t *turns;
    TRY(turns_make(*row, format, &turns));
    json_decref(*row);
    *row = turns;
    found->as_chat = true;
    return ST_OK;
}

Status row_formed(RowForm *form, const json_t *row, json_t **formed, json_t **plain, RowFound *found) {
    const char *shape;
    *formed = *plain = NULL;
    TRY(row_shape(form, row, plain, &shape));
    *formed = json_incref(*plain);
    return row_turn(form, data_format_of(*formed), formed, found);
}

/* ---- descriptions and hints ---- */

void row_found_count(const RowFound *found, DataCounts *counts) {
    counts->as_chat += found->as_chat;
    counts->texts += found->text;
    counts->untemplated += found->untemplated;
}

const char *row_form_describe(const RowForm *form, const DataCounts *counts) {
    if (counts->as_chat > 0) return counts->texts > 0 ? "some as turns of the chat template, some as text" : "as turns of the chat template";
    if (counts->texts == 0 || form->use != ROWS_AS_EXAMPLES) return NULL; /* prompts and pairs are texts by default */
    return as_is(form, "auto") && !form->has_template ? "as text: the model has no chat template" : "as text";
}
