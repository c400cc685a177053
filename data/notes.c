/* SPDX-License-Identifier: Apache-2.0 */
/* Notes about rows; see notes.h. */
#include "lib/base/arena.h"
#include "lib/base/log.h"
#include "data/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS_KEPT = 16, PLACES_KEPT = 8, LONGEST_NOTE = 400 };

/* Finds the note of this text, or adds it if another kind still fits. NULL: there is none. */
static RowNote *notes_find(RowNotes *notes, const char *text) {
    for (size_t i = 0; i < notes->n; i++)
        if (strcmp(notes->items[i].text, text) == 0) return &notes->items[i];
    char *copy =
        notes->n < KINDS_KEPT && array_grow(&notes->items, &notes->cap, notes->n + 1, sizeof *notes->items, "notes") == ST_OK ? strdup(text) : NULL;
    if (!copy) return NULL;
    notes->items[notes->n] = (RowNote){.text = copy};
    return &notes->items[notes->n++];
}

void row_note(RowNotes *notes, const char *format, ...) {
    char text[LONGEST_NOTE];
    va_list arguments;
    if (!notes) return;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n >= (int)sizeof text) text[utf8_whole_prefix(text, sizeof text - 1)] = '\0';
    text_keep_one_line(text, sizeof text);
    RowNote *note = notes_find(notes, text);
    if (note)
        note->n = 1;
    else
        notes->more = 1;
}

void row_notes_add(RowNotes *all, const RowNotes *of_row, const char *file, const char *unit, size_t line) {
    for (size_t i = 0; i < of_row->n; i++) {
        RowNote *note = notes_find(all, of_row->items[i].text);
        if (!note) {
            all->more++;
        } else if (note->n++ < PLACES_KEPT) {
            str_printf(&note->places, "%s%s %s %zu", note->places.len ? ", " : "", file, unit, line);
        }
    }
    all->more += of_row->more;
}

void row_notes_clear(RowNotes *notes) {
    for (size_t i = 0; i < notes->n; i++) {
        free(notes->items[i].text);
        str_release(&notes->items[i].places);
    }
    notes->n = 0;
    notes->more = 0;
}

void row_notes_release(RowNotes *notes) {
    row_notes_clear(notes);
    free(notes->items);
    *notes = (RowNotes){0};
}

void row_notes_report(const RowNotes *notes, const char *what, void (*say)(void *context, const char *text), void *context) {
    Str text = {0};
    for (size_t i = 0; i < notes->n; i++) {
        const RowNote *note = &notes->items[i];
        str_printf(&text, "%s: %lld row%s %s", what, (long long)note->n, plural(note->n), note->text);
        if (note->places.len) str_printf(&text, " (%s", str_text(&note->places));
        if (note->places.len && note->n > PLACES_KEPT) str_printf(&text, " and %lld more", (long long)note->n - PLACES_KEPT);
        if (note->places.len) str_append_char(&text, ')');
        say(context, str_text(&text));
        str_clear(&text);
    }
    if (notes->more) {
        str_printf(&text, "%s: %lld row%s with other oddities: %d kinds are named above", what, (long long)notes->more, plural(notes->more),
                   KINDS_KEPT);
        say(context, str_text(&text));
    }
    str_release(&text);
}

static void log_note(void *context, const char *text) {
    (void)context;
    log_message(LOG_WARNING, "%s", text);
}

void row_notes_warn(const RowNotes *notes, const char *what) { row_notes_report(notes, what, log_note, NULL); }

void row_notes_write(const RowNotes *notes, JsonWriter *w) {
    jw_int(w, "more_notes", notes->more);
    jw_array(w, "notes");
    for (size_t i = 0; i < notes->n; i++) {
        jw_object(w, NULL);
        jw_string(w, "text", notes->items[i].text);
        jw_int(w, "rows", notes->items[i].n);
        jw_string(w, "places", str_text(&notes->items[i].places));
        jw_end_object(w);
    }
    jw_end_array(w);
}

Status row_notes_read(const json_t *about, RowNotes *notes) {
    const json_t *list = json_object_get(about, "notes");
    TRY(json_get_int(about, "tokenised rows", "more_notes", &notes->more));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        const char *text = NULL, *places = NULL;
        TRY(json_get_string(item, "tokenised rows", "text", &text));
        TRY(json_get_string(item, "tokenised rows", "places", &places));
        RowNote *note = text && places ? notes_find(notes, text) : NULL;
        if (!note) return status_fail(ST_INPUT, "tokenised rows: note %zu is invalid", i + 1);
        str_append(&note->places, places);
        TRY(json_get_int(item, "tokenised rows", "rows", &note->n));
    }
    return ST_OK;
}
