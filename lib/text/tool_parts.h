/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of tools in the syntaxes of models; for tool_calls.c and the files that read the bodies of calls. */
#ifndef TUNE_TOOL_PARTS_H
#define TUNE_TOOL_PARTS_H

#include "lib/text/tool_calls.h"

/* The calls of a body, in order. */
typedef struct Call {
    Str name, arguments; /* arguments: the text of a JSON object */
} Call;
typedef struct Calls {
    Call *items;
    size_t n, cap;
} Calls;
void calls_release(Calls *calls);
/* Adds a call with its name; returns its arguments, empty. NULL: no memory, which memory_check reports. */
Str *calls_add(Calls *calls, Slice name);

/* Read the text between the marks of a call. tools: types of parameters, or NULL. False: the text is not in the syntax; calls that were added then
 * are left to the caller. */
typedef bool CallReader(Slice body, const json_t *tools, Calls *calls);
bool calls_of_json(Slice body, const json_t *tools, Calls *calls);    /* {"name", "arguments" or "parameters"}, or a list of them */
bool calls_of_xml(Slice body, const json_t *tools, Calls *calls);     /* <function=f><parameter=a>1</parameter></function> */
bool calls_of_glm(Slice body, const json_t *tools, Calls *calls);     /* f<arg_key>a</arg_key><arg_value>1</arg_value> */
bool calls_of_gemma(Slice body, const json_t *tools, Calls *calls);   /* call:f{a:1,b:<|"|>text<|"|>} */
bool calls_of_python(Slice body, const json_t *tools, Calls *calls);  /* [f(a=1, b="text")], or as calls_of_json */
bool calls_of_mistral(Slice body, const json_t *tools, Calls *calls); /* f[ARGS]{"a": 1}, or as calls_of_json */

Slice body_trim(Slice text); /* without blanks and line ends around it */
/* Finds `part` in text[from..]; text.len if it is not there. */
size_t body_find(Slice text, size_t from, const char *part);

#endif
