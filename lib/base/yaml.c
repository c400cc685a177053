/* SPDX-License-Identifier: Apache-2.0 */
/* Parses recipes: libyaml's events become a small tree that knows its lines. */
#include "lib/base/file.h"
#include "lib/base/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define MAX_BYTES ((size_t)1 << 20)
#define MAX_DEPTH 32
#define MAX_NODES 100000

typedef struct Reader {
    yaml_parser_t parser;
    yaml_event_t event; /* the latest event; a deleted event is all zero */
    const char *where;
    Arena *arena;
    size_t nodes;
} Reader;

/* The children of a list or map during parsing. */
typedef struct Children {
    Yaml **items;
    const char **keys;
    int *key_lines;
    size_t n, room;
} Children;

static int event_line(const Reader *reader) { return (int)reader->event.start_mark.line + 1; }

static Status yaml_fault(const Reader *reader, int line, const char *problem) {
    return status_fail(ST_CONFIG, "cannot parse '%s': line %d: %s", reader->where, line, problem);
}

static Status reader_next(Reader *reader) {
    yaml_event_delete(&reader->event);
    if (yaml_parser_parse(&reader->parser, &reader->event)) return ST_OK;
    const yaml_parser_t *parser = &reader->parser;
    if (parser->error == YAML_MEMORY_ERROR) return status_errno(ENOMEM, "cannot parse '%s'", reader->where);
    if (parser->error != YAML_READER_ERROR) {
        Status status = yaml_fault(reader, (int)parser->problem_mark.line + 1, parser->problem ? parser->problem : "not YAML");
        bool odd = parser->problem && strstr(parser->problem, "cannot start any token");
        return odd ? status_hint(status, "lines are indented with spaces, not tabs; quote a text that begins with @, ` or %%") : status;
    }
    /* Before the first token there is no mark; then the offset counts bytes, and the lines are those scanned so far. */
    return yaml_fault(reader, (int)parser->mark.line + 1, parser->problem ? parser->problem : "not UTF-8");
}

static bool children_room(Children *children) {
    if (children->n < children->room) return true;
    size_t room = children->room > 0 ? children->room * 2 : 8;
    if (array_resize(&children->items, room, sizeof *children->items, "entries") != ST_OK ||
        array_resize(&children->keys, room, sizeof *children->keys, "keys") != ST_OK ||
        array_resize(&children->key_lines, room, sizeof *children->key_lines, "keys") != ST_OK)
        return false;
    children->room = room;
    return true;
}

typedef struct KeyAt {
    const char *key;
    int line;
} KeyAt;

static int compare_keys(const void *a, const void *b) {
    const KeyAt *x = a, *y = b;
    int order = strcmp(x->key, y->key);
    return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

/* Sorted, so that a hostile map with many keys does not take quadratic time. */
static Status keys_check(const Reader *reader, const Children *children) {
    if (children->n < 2) return ST_OK;
    KeyAt *sorted = malloc(children->n * sizeof *sorted);
    if (!sorted) return status_errno(ENOMEM, "cannot parse '%s'", reader->where);
    for (size_t i = 0; i < children->n; i++) sorted[i] = (KeyAt){children->keys[i], children->key_lines[i]};
    qsort(sorted, children->n, sizeof *sorted, compare_keys);
    Status status = ST_OK;
    for (size_t i = 1; i < children->n && status == ST_OK; i++) {
        if (strcmp(sorted[i].key, sorted[i - 1].key) != 0) continue;
        status = status_fail(ST_CONFIG, "cannot parse '%s': line %d: key '%s' is already on line %d", reader->where, sorted[i].line, sorted[i].key,
                             sorted[i - 1].line);
    }
    free(sorted);
    return status;
}

/* Moves the children into the arena. */
static Status node_adopt(const Reader *reader, Yaml *node, const Children *children) {
    size_t n = children->n;
    node->n = n;
    node->items = arena_alloc(reader->arena, n * sizeof *node->items);
    if (!node->items) return ST_RESOURCE;
    if (n > 0) memcpy(node->items, children->items, n * sizeof *node->items);
    if (node->kind != YAML_MAP) return ST_OK;
    node->keys = arena_alloc(reader->arena, n * sizeof *node->keys);
    node->key_lines = arena_alloc(reader->arena, n * sizeof *node->key_lines);
    if (!node->keys || !node->key_lines) return ST_RESOURCE;
    if (n == 0) return ST_OK;
    memcpy(node->keys, children->keys, n * sizeof *node->keys);
    memcpy(node->key_lines, children->key_lines, n * sizeof *node->key_lines);
    return ST_OK;
}

static bool text_is_null(const char *text) {
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strcmp(text, words[i]) == 0) return true;
    }
    return false;
}

static Status read_key(Reader *reader, const char **key) {
    if (reader->event.type == YAML_ALIAS_EVENT) return yaml_fault(reader, event_line(reader), "aliases are not supported");
    if (reader->event.type != YAML_SCALAR_EVENT) return yaml_fault(reader, event_line(reader), "a key must be a plain word");
    if (reader->event.data.scalar.anchor) return yaml_fault(reader, event_line(reader), "anchors are not supported");
    const char *text = (const char *)reader->event.data.scalar.value;
    size_t len = reader->event.data.scalar.length;
    if (memchr(text, '\0', len)) return yaml_fault(reader, event_line(reader), "a key holds a NUL character");
    *key = arena_strndup(reader->arena, text, len);
    return *key ? ST_OK : ST_RESOURCE;
}

static Status read_node(Reader *reader, int depth, Yaml **node);

static Status read_children(Reader *reader, int depth, Yaml *node) {
    yaml_event_type_t end = node->kind == YAML_MAP ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
    Children children = {0};
    Status status = ST_OK;
    while (true) {
        TRY_GOTO(reader_next(reader), out);
        if (reader->event.type == end) break;
        if (!children_room(&children)) TRY_GOTO(status_errno(ENOMEM, "cannot parse '%s'", reader->where), out);
        children.keys[children.n] = NULL;
        children.key_lines[children.n] = event_line(reader);
        if (node->kind == YAML_MAP) {
            TRY_GOTO(read_key(reader, &children.keys[children.n]), out);
            TRY_GOTO(reader_next(reader), out);
        }
        TRY_GOTO(read_node(reader, depth + 1, &children.items[children.n]), out);
        children.n++;
    }
    if (node->kind == YAML_MAP) TRY_GOTO(keys_check(reader, &children), out);
    status = node_adopt(reader, node, &children);
out:
    free(children.items);
    free(children.keys);
    free(children.key_lines);
    return status;
}

static Status read_scalar(Reader *reader, Yaml *node) {
    const char *text = (const char *)reader->event.data.scalar.value;
    size_t len = reader->event.data.scalar.length;
    if (memchr(text, '\0', len)) return yaml_fault(reader, node->line, "a value holds a NUL character");
    node->quoted = reader->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->kind = !node->quoted && text_is_null(text) ? YAML_NULL : YAML_SCALAR;
    node->text = arena_strndup(reader->arena, text, len);
    return node->text ? ST_OK : ST_RESOURCE;
}

/* Parses the node that the current event starts. */
static Status read_node(Reader *reader, int depth, Yaml **result) {
    const yaml_event_t *event = &reader->event;
    int line = event_line(reader);
    if (event->type == YAML_ALIAS_EVENT) return yaml_fault(reader, line, "aliases are not supported");
    bool scalar = event->type == YAML_SCALAR_EVENT, map = event->type == YAML_MAPPING_START_EVENT;
    /* Each of the three kinds of event has its anchor and tag in its own structure. */
    const yaml_char_t *anchor = scalar ? event->data.scalar.anchor : map ? event->data.mapping_start.anchor : event->data.sequence_start.anchor;
    const yaml_char_t *tag = scalar ? event->data.scalar.tag : map ? event->data.mapping_start.tag : event->data.sequence_start.tag;
    if (anchor) return yaml_fault(reader, line, "anchors are not supported");
    if (tag) return yaml_fault(reader, line, "tags are not supported");
    if (depth > MAX_DEPTH) return yaml_fault(reader, line, "nested too deep");
    if (++reader->nodes > MAX_NODES) return yaml_fault(reader, line, "too many values");
    Yaml *node = arena_zero(reader->arena, sizeof *node);
    if (!node) return ST_RESOURCE;
    node->line = line;
    *result = node;
    if (scalar) return read_scalar(reader, node);
    node->kind = map ? YAML_MAP : YAML_LIST;
    return read_children(reader, depth, node);
}

static Status read_document(Reader *reader, Yaml **root) {
    TRY(reader_next(reader)); /* start of the stream */
    TRY(reader_next(reader)); /* start of the document */
    if (reader->event.type == YAML_STREAM_END_EVENT) {
        *root = arena_zero(reader->arena, sizeof **root);
        if (!*root) return ST_RESOURCE;
        (*root)->line = 1;
        return ST_OK; /* only comments: null */
    }
    TRY(reader_next(reader));
    TRY(read_node(reader, 1, root));
    TRY(reader_next(reader)); /* end of the document */
    TRY(reader_next(reader));
    if (reader->event.type != YAML_STREAM_END_EVENT) return yaml_fault(reader, event_line(reader), "a second document starts");
    return ST_OK;
}

Status yaml_read_text(const char *text, size_t len, const char *where, Arena *arena, Yaml **root) {
    *root = NULL;
    if (len > MAX_BYTES) return status_fail(ST_CONFIG, "cannot parse '%s': longer than 1 MiB", where);
    /* Windows editors write it; libyaml counts it as a column, so that the rest would be indented less */
    if (len >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) {
        text += 3;
        len -= 3;
    }
    Reader reader = {.where = where, .arena = arena};
    if (!yaml_parser_initialize(&reader.parser)) return status_errno(ENOMEM, "cannot parse '%s'", where);
    yaml_parser_set_encoding(&reader.parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, len);
    Status status = read_document(&reader, root);
    yaml_event_delete(&reader.event);
    yaml_parser_delete(&reader.parser);
    if (status != ST_OK) *root = NULL;
    return status;
}

Status yaml_read_file(const char *path, Arena *arena, Yaml **root) {
    *root = NULL;
    Str text = {0};
    Status status = file_read(path, MAX_BYTES, &text);
    if (status == ST_INPUT) status = ST_CONFIG; /* an unreadable recipe is a fault of the recipe */
    if (status == ST_OK) status = yaml_read_text(str_text(&text), text.len, path, arena, root);
    str_release(&text);
    return status;
}

void yaml_forget_lines(Yaml *node) {
    node->line = 0;
    for (size_t i = 0; i < node->n; i++) {
        if (node->key_lines) node->key_lines[i] = 0;
        yaml_forget_lines(node->items[i]);
    }
}

Yaml *yaml_get(const Yaml *map, const char *key) {
    if (!map || map->kind != YAML_MAP) return NULL;
    for (size_t i = 0; i < map->n; i++) {
        if (strcmp(map->keys[i], key) == 0) return map->items[i];
    }
    return NULL;
}

static bool text_as_int(const char *text, int64_t *value) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0') return false;
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return errno == 0;
}

static bool text_as_double(const char *text, double *value) {
    if (*text == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0' || !strpbrk(text, "0123456789")) return false;
    char *end;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value);
}

static bool text_as_bool(const char *text, bool *value) {
    static const struct {
        const char *word;
        bool value;
    } words[] = {{"true", true}, {"false", false}, {"yes", true}, {"no", false}, {"on", true}, {"off", false}};
    char lower[8] = "";
    size_t len = strlen(text);
    if (len >= sizeof lower) return false;
    for (size_t i = 0; i < len; i++) lower[i] = (char)tolower((unsigned char)text[i]);
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        if (strcmp(lower, words[i].word) != 0) continue;
        *value = words[i].value;
        return true;
    }
    return false;
}

static const char *plain_text(const Yaml *node) { return node && node->kind == YAML_SCALAR && !node->quoted ? node->text : ""; }
bool yaml_as_int(const Yaml *node, int64_t *value) { return text_as_int(plain_text(node), value); }
bool yaml_as_double(const Yaml *node, double *value) { return text_as_double(plain_text(node), value); }
bool yaml_as_bool(const Yaml *node, bool *value) { return text_as_bool(plain_text(node), value); }

static json_t *scalar_to_json(const Yaml *node) {
    int64_t whole;
    double number;
    bool truth;
    if (yaml_as_int(node, &whole)) return json_integer(whole);
    if (yaml_as_double(node, &number)) return json_real(number);
    if (yaml_as_bool(node, &truth)) return json_boolean(truth);
    return json_string(node->text);
}

json_t *yaml_to_json(const Yaml *node) {
    if (node->kind == YAML_NULL) return json_null();
    if (node->kind == YAML_SCALAR) return scalar_to_json(node);
    bool map = node->kind == YAML_MAP, whole = true;
    json_t *json = map ? json_object() : json_array();
    for (size_t i = 0; i < node->n && json && whole; i++) {
        json_t *item = yaml_to_json(node->items[i]);
        whole = item && (map ? json_object_set_new(json, node->keys[i], item) : json_array_append_new(json, item)) == 0;
    }
    if (whole) return json;
    json_decref(json);
    return NULL;
}

/* Whether every YAML reader reads the unquoted `text` back as this very string. */
static bool plain_is_safe(const char *text) {
    static const char inner[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    int64_t whole;
    double number;
    bool truth;
    if (text_is_null(text) || text_as_int(text, &whole) || text_as_double(text, &number) || text_as_bool(text, &truth)) return false;
    if (!isalpha((unsigned char)text[0]) && text[0] != '_' && text[0] != '/' && !text_starts_with(text, "./") && !text_starts_with(text, "../"))
        return false;
    return text[strspn(text, inner)] == '\0' && strcmp(text, "y") != 0 && strcmp(text, "n") != 0 && strcmp(text, "Y") != 0 && strcmp(text, "N") != 0;
}

void str_append_yaml(Str *str, const char *text) {
    if (plain_is_safe(text)) {
        str_append(str, text);
    } else {
        str_append_json(str, text, strlen(text)); /* a JSON string is a double-quoted YAML scalar */
    }
}
