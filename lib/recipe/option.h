/* SPDX-License-Identifier: Apache-2.0 */
/* Options of the filters, rewards and teachers in a recipe: a table of the options of each, and functions that read their values.
 *
 *     enum { MAX };
 *     static const OptionSpec options[] = {[MAX] = {"max", OPTION_WHOLE, .value = 150, .low = 1, .high = 1e9, .help = "most words"}, {0}};
 *     OptionValue values[OPTIONS_MOST];
 *     TRY(options_read(&owner, options, map, arena, values));                   // the defaults, then the values in the map; or one by one:
 *     options_init(options, values);
 *     TRY(option_read(&owner, &options[MAX], node, arena, &values[MAX]));
 */
#ifndef TUNE_OPTION_H
#define TUNE_OPTION_H

#include "lib/base/file.h"
#include "lib/base/yaml.h"

enum { OPTIONS_MOST = 30 }; /* the most of one table */
typedef enum OptionKind { OPTION_NUMBER, OPTION_WHOLE, OPTION_BOOL, OPTION_STRING, OPTION_STRINGS, OPTION_YAML } OptionKind;
/* A table of options ends with an entry without name; NULL is an empty table. */
typedef struct OptionSpec {
    const char *name;
    OptionKind kind;
    double value;     /* default of a number; a truth value is 0 or 1 */
    const char *text; /* default of a text; NULL: not given. Lists have no default */
    bool required;
    double low, high;    /* bounds of numbers; if both are equal there are none */
    const char *choices; /* of a text, "a|b|c"; NULL: any text */
    const char *help;
} OptionSpec;
/* node: the recipe's value, valid as long as the recipe; NULL: not given. OPTION_YAML has only this field. */
typedef struct OptionValue {
    double number;
    const char *text;
    const char **list;
    size_t n;
    const Yaml *node;
} OptionValue;
/* The owner of options, for messages. what: "filter", "reward", "key"; name NULL: it has none; file NULL: the message gives no place */
typedef struct OptionOwner {
    const char *what, *name, *file;
} OptionOwner;

void options_init(const OptionSpec *specs, OptionValue values[OPTIONS_MOST]);
const OptionSpec *option_find(const OptionSpec *specs, const char *name); /* NULL: there is none */
/* Reads one option; texts are copied to `arena`. ST_CONFIG: the value does not fit the option. */
Status option_read(const OptionOwner *owner, const OptionSpec *spec, const Yaml *node, Arena *arena, OptionValue *value);
/* Sets the defaults, then reads a map; map NULL or null: only the defaults. ST_CONFIG: not a map, an unknown option, or a value that does not fit. */
Status options_read(const OptionOwner *owner, const OptionSpec *specs, const Yaml *map, Arena *arena, OptionValue values[OPTIONS_MOST]);
/* ST_CONFIG: "filter 'rouge_l' in 'recipe.yaml' line 7: TEXT"; line 0: on the command line. */
Status option_refuse(const OptionOwner *owner, int line, const char *text);
/* ST_CONFIG for an option that is not in the table; `others`: names that are valid in addition to it. */
Status option_unknown(const OptionOwner *owner, const char *name, int line, const OptionSpec *specs, const char *const *others, size_t n_others);

#endif
