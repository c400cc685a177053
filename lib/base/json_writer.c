/* SPDX-License-Identifier: Apache-2.0 */
/* Writing JSON piece by piece. */
#include "lib/base/json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void new_line(JsonWriter *w) {
    if (!w->pretty) return;
    str_append_char(&w->text, '\n');
    for (int i = 0; i < w->depth; i++) str_append(&w->text, "  ");
}

/* Writes what precedes a value: comma, line end and indent, key. */
static void lead_in(JsonWriter *w, const char *key) {
    if (w->comma) str_append(&w->text, w->pretty || w->depth == 0 ? "," : ", ");
    if (w->depth > 0) new_line(w);
    if (key) {
        str_append_json(&w->text, key, strlen(key));
        str_append(&w->text, ": ");
    }
    w->comma = true;
}

static void open_with(JsonWriter *w, const char *key, char bracket) {
    lead_in(w, key);
    str_append_char(&w->text, bracket);
    w->depth++;
    w->comma = false;
}

static void close_with(JsonWriter *w, char bracket) {
    ASSERT(w->depth > 0, "'%c' closes nothing", bracket);
    w->depth--;
    if (w->comma) new_line(w);
    str_append_char(&w->text, bracket);
    w->comma = w->depth > 0;
}

void jw_object(JsonWriter *w, const char *key) { open_with(w, key, '{'); }
void jw_array(JsonWriter *w, const char *key) { open_with(w, key, '['); }
void jw_end_object(JsonWriter *w) { close_with(w, '}'); }
void jw_end_array(JsonWriter *w) { close_with(w, ']'); }

void jw_raw(JsonWriter *w, const char *key, const char *json) {
    lead_in(w, key);
    str_append(&w->text, json);
    if (w->depth == 0) w->comma = false;
}

void jw_null(JsonWriter *w, const char *key) { jw_raw(w, key, "null"); }
void jw_bool(JsonWriter *w, const char *key, bool value) { jw_raw(w, key, value ? "true" : "false"); }

void jw_string_n(JsonWriter *w, const char *key, const char *value, size_t len) {
    lead_in(w, key);
    str_append_json(&w->text, value, len);
    if (w->depth == 0) w->comma = false;
}

void jw_string(JsonWriter *w, const char *key, const char *value) {
    if (value) {
        jw_string_n(w, key, value, strlen(value));
    } else {
        jw_null(w, key);
    }
}

void jw_int(JsonWriter *w, const char *key, int64_t value) {
    Str digits = {0};
    str_printf(&digits, "%" PRId64, value);
    jw_raw(w, key, str_text(&digits));
    str_release(&digits);
}

void jw_double(JsonWriter *w, const char *key, double value) {
    if (!isfinite(value)) {
        jw_null(w, key);
        return;
    }
    Str digits = {0};
    str_append_double(&digits, value);
    if (!strpbrk(str_text(&digits), ".e")) str_append(&digits, ".0"); /* so that typed readers see a float */
    jw_raw(w, key, str_text(&digits));
    str_release(&digits);
}

void jw_release(JsonWriter *w) { str_release(&w->text); }
