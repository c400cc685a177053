/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: reading with jansson, writing piece by piece. */
#ifndef TUNE_JSON_H
#define TUNE_JSON_H

#include <jansson.h>
#include "lib/base/str.h"

/* json_loadb and json_dumps for a program whose memory may run out (see json_memory.c): all JSON is read and written through these. They return NULL
 * without memory, which memory_check then reports too. flags: jansson's; error may be NULL; the caller frees the text. */
json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *error);
char *json_text(const json_t *json, size_t flags);
size_t json_memory_bound(const char *text, size_t len); /* the most bytes that parsing the text takes */
/* Parses strict UTF-8 JSON without duplicate keys. The caller calls json_decref. Errors name file, line and column. In a file, integers beyond 64
 * bits become reals: transformers writes 10^30 as model_max_length when there is no limit. */
Status json_read_file(const char *path, json_t **root);
/* The same for config.json and similar files, which Python writes and which may contain a bare Infinity, -Infinity or NaN. Such a value becomes
 * {"__float__": "Infinity"}, as in transformers 5; with `bare`, the object also has "bare": true, for code that writes the file again. */
Status json_read_config(const char *path, bool bare, json_t **root);
Status json_read_config_text(const char *text, size_t len, const char *where, bool bare, json_t **root);
/* The value of a number or of such an object; false for anything else. */
bool json_float(const json_t *value, double *number);
/* The bare name that such an object replaced; NULL for anything else. */
const char *json_bare(const json_t *value);
/* Parses any JSON value; integers beyond 64 bits become reals. flags: jansson's. NULL: not JSON. The caller calls json_decref. */
json_t *json_of_text(const char *text, size_t len, size_t flags);
Status json_read_text(const char *text, size_t len, const char *where, json_t **root);             /* where: the file or other source, for messages */
Status json_read_line(const char *text, size_t len, const char *file, size_t line, json_t **root); /* one line of a file */
Status json_line_fault(const char *file, size_t line, const json_error_t *error);                  /* the failure of that line */
/* Parses a row of data, whose columns are not all used. Strings may contain NUL; code that uses one checks it. With `widen`, integers beyond 64 bits
 * become reals and numbers beyond double become strings. */
json_t *json_load_row(const char *text, size_t len, bool widen, json_error_t *error);
/* Whether it contains a number of 2^63 or more. json_load_row may have widened it, so it cannot be written unchanged. */
bool json_contains_wide(const json_t *value);
bool json_contains_nul(const json_t *value); /* in any of its strings */
/* Members of an object. A wrong type is ST_INPUT naming `where` and the key. A missing or null key leaves *value unchanged. */
Status json_get_int(const json_t *object, const char *where, const char *key, int64_t *value);
Status json_get_double(const json_t *object, const char *where, const char *key, double *value); /* an integer is fine */
Status json_get_bool(const json_t *object, const char *where, const char *key, bool *value);
Status json_get_string(const json_t *object, const char *where, const char *key, const char **value); /* borrowed from object */
/* Numbers that may be unknown: NaN in memory, null in a file. */
json_t *json_real_or_null(double value);                    /* a new reference; infinities become null too */
double json_real_of(const json_t *object, const char *key); /* NaN when it is missing or not a number */

/* Writes JSON text piece by piece into a Str and places the commas. Doubles read back exactly; NaN and infinities become null. */
typedef struct JsonWriter {
    Str text;
    int depth;
    bool comma, pretty;
} JsonWriter;
void jw_object(JsonWriter *w, const char *key); /* key NULL inside arrays and at the top */
void jw_array(JsonWriter *w, const char *key);
void jw_end_object(JsonWriter *w);
void jw_end_array(JsonWriter *w);
void jw_string(JsonWriter *w, const char *key, const char *value); /* NULL value: null */
void jw_string_n(JsonWriter *w, const char *key, const char *value, size_t len);
void jw_int(JsonWriter *w, const char *key, int64_t value);
void jw_double(JsonWriter *w, const char *key, double value);
void jw_bool(JsonWriter *w, const char *key, bool value);
void jw_null(JsonWriter *w, const char *key);
void jw_raw(JsonWriter *w, const char *key, const char *json); /* a value that is already JSON */
void jw_release(JsonWriter *w);

#endif
