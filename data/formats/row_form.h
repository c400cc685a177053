/* SPDX-License-Identifier: Apache-2.0 */
/* What a row goes through before its format reads it: its columns under our names (data.columns), public forms of rows as ours (shapes.def), and
 * plain texts as turns of the chat template (data.as).
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
    uint64_t recipe_seen, seen; /* columns that some row had, by their place in the map */
    bool uses_recipe;           /* some source goes by recipe_columns */
    json_t *first;              /* row that was read, for messages */
    const char *shape;          /* that some row had; NULL: they are all in our forms */
} RowForm;
/* What became of a row of plain texts; none of them: it is no such row. */
typedef struct RowFound {
    bool as_chat;     /* it is turns of the chat template now */
    bool text;        /* it stays a text */
    bool untemplated; /* and the model has a template, and nobody said that it should */
} RowFound;

RowForm row_form(const DataConfig *config, RowUse use);
/* ST_CONFIG: what is no map of names to columns; key: for the message. */
Status columns_check(const Yaml *columns, const char *key);
Status row_form_begin(RowForm *form, const DataSource *source);
/* *shaped: a new reference. *shape: what told a public form, "question, answer" or "lists of texts"; NULL: the row is in one of ours. ST_INPUT:
 * it lacks a column of data.columns, or its public form is broken. */
Status row_shape(RowForm *form, const json_t *row, json_t **shaped, const char **shape);
/* Puts another object in the place of *row where it becomes turns. ST_INPUT: it cannot. */
Status row_turn(const RowForm *form, const DataFormat *format, json_t **row, RowFound *found);
/* ST_INPUT: no row has a column that data.columns names. */
Status row_form_end(RowForm *form);
void row_form_release(RowForm *form);
/* Both steps for one row whose format is told by its columns: *plain behind the first of them, *formed behind both. Both are new references, also
 * when it fails. */
Status row_formed(RowForm *form, const json_t *row, json_t **formed, json_t **plain, RowFound *found);
/* How rows of plain texts are read: "as turns of the chat template", "as text: the model has no chat template", "as text"; NULL: there are none, or
 * it goes without saying. */
const char *row_form_describe(const RowForm *form, const DataCounts *counts);
void row_found_count(const RowFound *found, DataCounts *counts);
/* The hint of a row that lacks the column `ours`: data.columns with a column that may be meant. False: none looks like it */
bool columns_hint(const json_t *row, const char *ours);
void columns_example(const json_t *row, Str *known); /* data.columns with columns of the row, behind the formats that are known */
/* "'a', 'b'" */
void columns_list(const json_t *row, Str *text);

/* ---- its parts ---- */

Status columns_rename(const Yaml *map, const json_t *row, uint64_t *seen, json_t **renamed);
Status shape_apply(const json_t *row, RowUse use, json_t **shaped, const char **shape);
bool turns_are_plain(const json_t *row, const DataFormat *format);
Status turns_make(const json_t *row, const DataFormat *format, json_t **turns); /* of such a row: a new one */
/* A dialogue that is one text, cut where a speaker's name stands at its begin or behind an empty line: messages, a new list; NULL: it begins with no
 * speaker of them. */
typedef struct Speaker {
    const char *name, *role;
} Speaker;
json_t *dialogue_messages(const char *text, const Speaker *speakers, size_t n_speakers);
json_t *message_new(const char *role, const char *content, size_t len); /* NULL: no memory, or no UTF-8 */

#endif
