/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes: either a failure that names a line, or a tree whose parts can all be visited, and whose strings survive being written. */
#include "lib/base/yaml.h"
#include "tests/support/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static void visit(const Yaml *node, Arena *arena) {
    ASSERT(node->line > 0, "line %d", node->line);
    if (node->kind == YAML_SCALAR) {
        int64_t whole;
        double number;
        bool truth;
        ASSERT(!yaml_as_int(node, &whole) || yaml_as_double(node, &number), "'%s' is an integer but no number", node->text);
        ASSERT(!yaml_as_bool(node, &truth) || !yaml_as_double(node, &number), "'%s' is a number and a truth value", node->text);
        Str text = {0};
        Yaml *again;
        str_append_yaml(&text, node->text);
        Status status = yaml_read_text(str_text(&text), text.len, "written", arena, &again);
        ASSERT(status == ST_OK && again->kind == YAML_SCALAR && strcmp(again->text, node->text) == 0, "'%s' written as '%s': %s", node->text,
               str_text(&text), status_text());
        str_release(&text);
    }
    for (size_t i = 0; i < node->n; i++) {
        if (node->kind == YAML_MAP) ASSERT(yaml_get(node, node->keys[i]) == node->items[i] && node->key_lines[i] > 0, "key '%s'", node->keys[i]);
        visit(node->items[i], arena);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len) {
    Arena *arena = arena_new(0);
    Yaml *root;
    Status status = yaml_read_text((const char *)bytes, len, "fuzz", arena, &root);
    if (status == ST_OK) {
        visit(root, arena);
    } else {
        ASSERT(status == ST_CONFIG && !root && strstr(status_text(), "line "), "status %d: %s", (int)status, status_text());
    }
    arena_free(arena);
    return 0;
}
