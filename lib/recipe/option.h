/* SPDX-License-Identifier: Apache-2.0 */
/* Options of what a recipe names, a filter, a reward or a teacher: a table of what each takes, and the reading of a value.
 *
 *     enum { MAX };
 *     static const OptionSpec options[] = {[MAX] = {"max", OPTION_WHOLE, .value = 150, .low = 1, .high = 1e9, .help = "most words"}, {0}};
 *     OptionValue values[OPTIONS_MOST];
 *     TRY(options_read(&owner, options, map, arena, values));                   // the defaults, then what the map has; or one by one:
 *     options_init(options, values);
 *     TRY(option_read(&owner, &options[MAX], node, arena, &values[MAX]));
 */
#ifndef TUNE_OPTION_H
#define TUNE_OPTION_H

#include "lib/base/file.h"
#include "lib/base/yaml.h"

enum { OPTIONS_MOST = 30 }; /* of one table */
typedef enum OptionKind { OPTION_NUMBER, OPTION_WHOLE, OPTION_BOOL, OPTION_STRING, OPTION_STRINGS, OPTION_YAML } OptionKind;
/* A table ends with an entry without name; NULL is an empty one. */
typedef struct OptionSpec {
    const char *name;
    OptionKind kind;
    double value;     /* default of a number; a truth value is 0 or 1 */
    const char *text; /* default of a text; NULL: not given. Texts have none */
    bool required;
    double low, high;    /* of numbers; the same: no bounds */
    const char *choices; /* of a text, "a|b|c"; NULL: any */
    const char *help;
} OptionSpec;
/* node: what the recipe has, as long as that is there; NULL: not given. OPTION_YAML is that alone. */
typedef struct OptionValue {
    double number;
    const char *text;
    const char **list;
    size_t n;
    const Yaml *node;
} OptionValue;
/* Whose they are, for messages: what: "filter", "reward", "key"; name NULL: it has none; file NULL: it is not said where */
typedef struct OptionOwner {
    const char *what, *name, *file;
} OptionOwner;

void options_init(const OptionSpec *specs, OptionValue values[OPTIONS_MOST]);
const OptionSpec *option_find(const OptionSpec *specs, const char *name); /* NULL: there is none */
/* Texts are copied to `arena`. ST_CONFIG: it is not what the option takes. */
Status option_read(const OptionOwner *owner, const OptionSpec *spec, const Yaml *node, Arena *arena, OptionValue *value);
/* The defaults, and what a map has; NULL or null: nothing. ST_CONFIG: no map, an unknown option, a value that does not fit. */
Status options_read(const OptionOwner *owner, const OptionSpec *specs, const Yaml *map, Arena *arena, OptionValue values[OPTIONS_MOST]);
/* ST_CONFIG: "filter 'rouge_l' in 'recipe.yaml' line 7: TEXT"; line 0: on the command line. */
Status option_refuse(const OptionOwner *owner, int line, const char *text);
/* The same of an option that is not in the table; `others` are taken besides. */
Status option_unknown(const OptionOwner *owner, const char *name, int line, const OptionSpec *specs, const char *const *others, size_t n_others);

#endif
