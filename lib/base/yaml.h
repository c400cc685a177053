/* SPDX-License-Identifier: Apache-2.0 */
/* YAML (libyaml's events), with the line of every node for messages. */
#ifndef TUNE_YAML_H
#define TUNE_YAML_H

#include "lib/base/arena.h"
#include "lib/base/json.h"
#include "lib/base/str.h"

typedef enum YamlKind { YAML_NULL, YAML_SCALAR, YAML_LIST, YAML_MAP } YamlKind;
typedef struct Yaml Yaml;
struct Yaml {
    YamlKind kind;
    bool quoted;       /* a quoted scalar is a string even if it looks like a number or null */
    int line;          /* from 1; 0 when it comes from the command line */
    const char *text;  /* YAML_SCALAR */
    size_t n;          /* children */
    const char **keys; /* YAML_MAP: n keys, NULL for lists */
    int *key_lines;
    Yaml **items; /* n children */
};
/* Parses YAML; all nodes are in `arena`. Limits: 1 MiB of text, depth 32, 100000 nodes; anchors and aliases are refused; a duplicate key is an error.
 * ST_CONFIG with file and line. */
Status yaml_read_file(const char *path, Arena *arena, Yaml **root);
Status yaml_read_text(const char *text, size_t len, const char *where, Arena *arena, Yaml **root);
void yaml_forget_lines(Yaml *node);               /* sets all lines to 0, for a text that is not in a file */
Yaml *yaml_get(const Yaml *map, const char *key); /* NULL when missing */
bool yaml_as_int(const Yaml *node, int64_t *value);
bool yaml_as_double(const Yaml *node, double *value); /* 2e-4, .5 and 1 are all valid */
bool yaml_as_bool(const Yaml *node, bool *value);     /* true false yes no on off */
/* Converts to JSON: unquoted scalars that look like truth values or numbers become those. A new reference. NULL: no memory, or a text that is not
 * UTF-8. */
json_t *yaml_to_json(const Yaml *node);
void str_append_yaml(Str *str, const char *text); /* as a scalar, quoted where the plain style would change its meaning */

#endif
