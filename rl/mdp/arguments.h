/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments after an id: "FrozenLake-v1:map_name=8x8,is_slippery=false". Each environment or world has a table of its arguments, which is used to
 * parse and check texts and to explain errors.
 *
 *     static const Argument takes[MAX_ARGUMENTS] = {{.name = "p_heads", .value = 0.4, .high = 1}};
 *     Arguments values;
 *     TRY(arguments_read("Gambler", text, takes, &values, common, &common_values));
 *     ... values.number[0] ...
 */
#ifndef TUNE_ARGUMENTS_H
#define TUNE_ARGUMENTS_H

#include "data/data.h"

#define MAX_ARGUMENTS 8

/* A number with its default, unless is_bool or is_text. low = high: no bounds. A table ends before the first entry without a name. */
typedef struct Argument {
    const char *name;
    double value;
    bool is_bool, is_whole, is_text;
    double low, high;
    const char *text; /* the default of a text; NULL: not given */
} Argument;
/* Values in the table's order; texts are borrowed from the parsed text */
typedef struct Arguments {
    double number[MAX_ARGUMENTS];
    const char *text[MAX_ARGUMENTS];
} Arguments;

/* `text`: "key=value,key=value", modified in place; NULL: all defaults. `own` and `common` are tables of MAX_ARGUMENTS. ST_CONFIG: a name that
 * neither table has (with the nearest), an invalid value (with the valid ones). */
Status arguments_read(const char *id, char *text, const Argument *own, Arguments *own_values, const Argument *common, Arguments *common_values);

#endif
