/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: reading by jansson, writing piece by piece. */
#ifndef TUNE_JSON_H
#define TUNE_JSON_H

#include <jansson.h>
#include "lib/base/str.h"

/* json_loadb and json_dumps for a program whose memory may run out (json_memory.c): all JSON is read and told through these. NULL without memory,
 * which memory_check knows too. flags: jansson's; error: may be NULL; the text is to be freed. */
json_t *json_parse(const char *text, size_t len, size_t flags, json_error_t *error);
char *json_text(const json_t *json, size_t flags);
size_t json_memory_bound(const char *text, size_t len); /* bytes that a parse of the text takes at most */
/* Parses strict UTF-8 JSON without duplicate keys. The caller calls json_decref. Errors name file, line and column. In a file integers beyond 64 bits
 * are reals: transformers writes 10^30 as model_max_length where there is none. */
Status json_read_file(const char *path, json_t **root);
/* The same of config.json and its like, which Python writes and which may hold what JSON has not: a bare Infinity, -Infinity or NaN. It becomes
 * {"__float__": "Infinity"}, as transformers 5 writes it; with `bare` there is "bare": true beside it, for who writes the file again. */
Status json_read_config(const char *path, bool bare, json_t **root);
Status json_read_config_text(const char *text, size_t len, const char *where, bool bare, json_t **root);
/* A number, or one of these objects; false: anything else. */
bool json_float(const json_t *value, double *number);
/* The bare name that such an object stood for in its file; NULL: it is none. */
const char *json_bare(const json_t *value);
/* What is JSON, whatever its numbers are: whole ones beyond 64 bits become reals. flags: jansson's. NULL: it is none. The caller decrefs it. */
json_t *json_of_text(const char *text, size_t len, size_t flags);
Status json_read_text(const char *text, size_t len, const char *where, json_t **root); /* where: for messages, a file or what else the text is */
Status json_read_line(const char *text, size_t len, const char *file, size_t line, json_t **root); /* one line of a file */
Status json_line_fault(const char *file, size_t line, const json_error_t *error);                  /* the failure of such a line */
/* A row of data, whose columns are not all used: strings may hold NUL, which whoever uses one asks for; with `widen` integers beyond 64 bits are
 * reals, numbers beyond doubles are strings of them. */
json_t *json_load_row(const char *text, size_t len, bool widen, json_error_t *error);
bool json_contains_wide(const json_t *value); /* a number of 2^63 or more, which json_load_row may have widened: it is not written as it stood */
bool json_contains_nul(const json_t *value);  /* in any string of it */
/* Members of an object; a wrong type is ST_INPUT naming `where` and the key. A missing or null key leaves *value as it is. */
Status json_get_int(const json_t *object, const char *where, const char *key, int64_t *value);
Status json_get_double(const json_t *object, const char *where, const char *key, double *value); /* an integer is fine */
Status json_get_bool(const json_t *object, const char *where, const char *key, bool *value);
Status json_get_string(const json_t *object, const char *where, const char *key, const char **value); /* borrowed from object */
/* Numbers that may not be known: NaN here, null in a file. */
json_t *json_real_or_null(double value);                    /* a new reference; infinities become null, too */
double json_real_of(const json_t *object, const char *key); /* NaN for what is missing or no number */

/* Writes JSON text piece by piece into a Str; commas are placed by themselves. Doubles read back the same; NaN and infinities become null. */
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
void jw_raw(JsonWriter *w, const char *key, const char *json); /* a value that is JSON already */
void jw_release(JsonWriter *w);

#endif
