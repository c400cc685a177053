/* SPDX-License-Identifier: Apache-2.0 */
/* The steps before a format reads a row: its columns get our names (data.columns), public forms of rows become ours (shapes.def), and plain texts
 * become turns of the chat template (data.as).
 *
 *     RowForm form = row_form(&config, ROWS_AS_EXAMPLES);
 *     TRY(row_form_begin(&form, source));            // for each source, then for each of its rows:
 *     TRY(row_shape(&form, row, &json, &shape));
 *     TRY(row_turn(&form, format, &json, &found));   // format: what reads the row; NULL: none is known
 *     TRY(row_form_end(&form));
 *     row_form_release(&form);                       // in any case
 */
#ifndef TUNE_ROW_FORM_H
#define TUNE_ROW_FORM_H

#include "data/data.h"

typedef struct RowForm {
    const Yaml *recipe_columns, *columns; /* data.columns; those of the source */
    const ColumnMap *map;                 /* of an entry of dataset_info.json */
    const char *as;                       /* auto | chat | text; NULL: text */
    bool has_template;
    RowUse use;
    uint64_t recipe_seen, seen; /* columns that some row has had, by their index in the map */
    bool uses_recipe;           /* some source uses recipe_columns */
    json_t *first;              /* the current row, for messages */
    const char *shape;          /* of the last row in a public form; NULL: all rows are in our forms */
} RowForm;
/* How a row of plain texts was read; none of these: it is no such row. */
typedef struct RowFound {
    bool as_chat;     /* it became turns of the chat template */
    bool text;        /* it is still a text */
    bool untemplated; /* it is still a text, the model has a template, and the recipe did not ask for texts */
} RowFound;

RowForm row_form(const DataConfig *config, RowUse use);
/* ST_CONFIG: no map of names to columns; key: for the message. */
Status columns_check(const Yaml *columns, const char *key);
Status row_form_begin(RowForm *form, const DataSource *source);
/* *shaped: a new reference. *shape: the name of the public form, "question, answer" or "lists of texts"; NULL: the row is in one of ours. ST_INPUT:
 * it lacks a column of data.columns, or its public form is broken. */
Status row_shape(RowForm *form, const json_t *row, json_t **shaped, const char **shape);
/* Replaces *row if it becomes turns. ST_INPUT: it cannot. */
Status row_turn(const RowForm *form, const DataFormat *format, json_t **row, RowFound *found);
/* ST_INPUT: no row has a column that data.columns names. */
Status row_form_end(RowForm *form);
void row_form_release(RowForm *form);
/* Both steps for one row whose format is detected by its columns: *plain after the first step, *formed after both. Both are new references, also on
 * failure. */
Status row_formed(RowForm *form, const json_t *row, json_t **formed, json_t **plain, RowFound *found);
/* How rows of plain texts are read: "as turns of the chat template", "as text: the model has no chat template", "as text"; NULL: there are none, or
 * texts are the default. */
const char *row_form_describe(const RowForm *form, const DataCounts *counts);
void row_found_count(const RowFound *found, DataCounts *counts);
/* The hint for a row that lacks the column `ours`: data.columns with a column that may be the one. False: none is similar */
bool columns_hint(const json_t *row, const char *ours);
void columns_example(const json_t *row, Str *known); /* data.columns with columns of the row, after the list of known formats */
/* "'a', 'b'" */
void columns_list(const json_t *row, Str *text);

/* ---- its parts ---- */

Status columns_rename(const Yaml *map, const json_t *row, uint64_t *seen, json_t **renamed);
Status shape_apply(const json_t *row, RowUse use, json_t **shaped, const char **shape);
bool turns_are_plain(const json_t *row, const DataFormat *format);
Status turns_make(const json_t *row, const DataFormat *format, json_t **turns); /* from such a row; a new reference */
/* Splits a dialogue that is one text at each speaker's name at the start or after an empty line: messages, a new list; NULL: it does not begin with a
 * known speaker. */
typedef struct Speaker {
    const char *name, *role;
} Speaker;
json_t *dialogue_messages(const char *text, const Speaker *speakers, size_t n_speakers);
json_t *message_new(const char *role, const char *content, size_t len); /* NULL: out of memory, or no UTF-8 */

#endif
