/* SPDX-License-Identifier: Apache-2.0 */
/* Recipes: YAML and key=value texts checked against the table of keys. */
#include "lib/base/date.h"
#include "lib/recipe/keys.h"
#include "lib/recipe/rejected.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES(field) static const char field##_choices[] = ""
#define CHOICE(constant, text) "|" text
#define CHOICES_END(field) ;
#include "lib/recipe/choices.def"
#undef CHOICES
#undef CHOICE
#undef CHOICES_END
/* keys.h reads and writes their fields as an int. */
#define CHOICES(field) _Static_assert(sizeof(enum field) == sizeof(int), #field);
#define CHOICE(constant, text)
#define CHOICES_END(field)
#include "lib/recipe/choices.def"
#undef CHOICES
#undef CHOICE
#undef CHOICES_END

#define CHOICES_OF_INT(field, choices) choices
#define CHOICES_OF_REAL(field, choices) choices
#define CHOICES_OF_BOOL(field, choices) choices
#define CHOICES_OF_TEXT(field, choices) choices
#define CHOICES_OF_CHOICE(field, choices) field##_choices + 1
#define CHOICES_OF_NAME(field, choices) choices
#define CHOICES_OF_LIST(field, choices) choices
#define CHOICES_OF_REALS(field, choices) choices
#define CHOICES_OF_MAP(field, choices) choices
#define CHOICES_OF_NODE(field, choices) choices

const Key recipe_keys[] = {
#define TOP_KEY(name, owner, type, fallback, low, high, choices, help) \
    {"", #name, #name, KEY_##type, fallback, low, high, CHOICES_OF_##type(name, choices), help, OWNER_##owner, offsetof(Recipe, name)},
#define KEY(section, name, owner, type, fallback, low, high, choices, help) \
    {#section,                                                              \
     #name,                                                                 \
     #section "." #name,                                                    \
     KEY_##type,                                                            \
     fallback,                                                              \
     low,                                                                   \
     high,                                                                  \
     CHOICES_OF_##type(section##_##name, choices),                          \
     help,                                                                  \
     OWNER_##owner,                                                         \
     offsetof(Recipe, section##_##name)},
#include "lib/recipe/config.def"
#undef KEY
#undef TOP_KEY
};
const size_t n_recipe_keys = COUNT_OF(recipe_keys);
const KeySection recipe_sections[] = {
    {"model", offsetof(Recipe, has_model), "what is trained"},
    {"lora", offsetof(Recipe, has_lora), "the adapter; absent or null: every weight is trained"},
    {"data", offsetof(Recipe, has_data), "the rows"},
    {"train", offsetof(Recipe, has_train), "how it is trained"},
    {"eval", offsetof(Recipe, has_eval), "evaluation"},
    {"generate", offsetof(Recipe, has_generate), "how answers are sampled"},
    {"rl", offsetof(Recipe, has_rl), "reinforcement learning"},
    {"synth", offsetof(Recipe, has_synth), "rows made from seeds by a teacher"},
    {"policy", offsetof(Recipe, has_policy), "networks of policies and values on environments"},
    {"distil", offsetof(Recipe, has_distil), "learning from a teacher (tune sft)"},
    {"parallel", offsetof(Recipe, has_parallel), "how the work of a step is divided"},
    {"plan", offsetof(Recipe, has_plan), "the machine that tune plan plans for"},
};
const size_t n_recipe_sections = COUNT_OF(recipe_sections);

const KeyOwner recipe_owners[] = {
#define OWNER(name, title) {#name, title},
#include "lib/recipe/owners.def"
#undef OWNER
};
const size_t n_recipe_owners = COUNT_OF(recipe_owners);

/* Where a value is written, for messages. */
typedef struct Source {
    const char *file;
    int line;
} Source; /* file NULL: the command line */

const Key *key_find(const char *dotted) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (strcmp(recipe_keys[i].dotted, dotted) == 0) return &recipe_keys[i];
    return NULL;
}

const Key *key_in(const char *section, const char *name) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (strcmp(recipe_keys[i].section, section) == 0 && strcmp(recipe_keys[i].name, name) == 0) return &recipe_keys[i];
    return NULL;
}

static const KeySection *section_find(const char *name) {
    for (size_t i = 0; i < n_recipe_sections; i++)
        if (strcmp(recipe_sections[i].name, name) == 0) return &recipe_sections[i];
    return NULL;
}

/* Owners in the order of their table, keys of one owner in that of theirs. */
static bool is_listed_before(const Key *a, const Key *b) { return a->owner != b->owner ? a->owner < b->owner : a < b; }

const Key *key_listed_after(const char *section, const Key *last) {
    const Key *next = NULL;
    for (const Key *key = recipe_keys; key < recipe_keys + n_recipe_keys; key++)
        if (strcmp(key->section, section) == 0 && (!last || is_listed_before(last, key)) && (!next || is_listed_before(key, next))) next = key;
    return next;
}

size_t section_owners(const char *section) {
    size_t n = 0;
    for (const Key *key = NULL, *last = NULL; (key = key_listed_after(section, last)); last = key) n += !last || key->owner != last->owner;
    return n;
}

static bool *section_flag(const Recipe *recipe, const KeySection *section) { return (bool *)((char *)recipe + section->has_offset); }

bool section_present(const Recipe *recipe, const char *section) { return section[0] == '\0' || *section_flag(recipe, section_find(section)); }

bool choice_next(const char **choices, Slice *word) {
    *choices += **choices == '|';
    *word = (Slice){*choices, strcspn(*choices, "|")};
    *choices += word->len;
    return word->len > 0;
}

int key_choice(const Key *key, const char *text) {
    const char *choices = key->choices;
    int i = 0;
    for (Slice word; choice_next(&choices, &word); i++)
        if (slice_is(word, text)) return i;
    return -1;
}

static bool key_allows(const Key *key, const char *value) { return key_choice(key, value) >= 0; }

/* ---- what is wrong, and where ---- */

static const char *source_text(const Source *source, char out[512]) {
    if (source->file && source->line > 0) {
        snprintf(out, 512, "in '%s' line %d", source->file, source->line);
    } else {
        snprintf(out, 512, "on the command line");
    }
    return out;
}

static Status refuse_choice(const Key *key, const char *value, const Source *source, Arena *arena) {
    char where[512];
    Str list = {0};
    const char *names[64], *choices = key->choices;
    size_t n = 0;
    for (Slice word; choice_next(&choices, &word);) {
        const char *name = n < COUNT_OF(names) ? arena_strndup(arena, word.data, word.len) : NULL;
        if (name) names[n++] = name;
        str_printf(&list, "%s%.*s", list.len ? ", " : "", (int)word.len, word.data);
    }
    status_fail(ST_CONFIG, "wrong value '%s' for '%s' %s: not one of %s", value, key->dotted, source_text(source, where), str_text(&list));
    str_release(&list);
    return status_hint_nearest(ST_CONFIG, value, names, n, n == 1 ? "the value that works is " : "the values that work are ");
}

static const char *kind_text(const Yaml *node, char out[128]) {
    if (node->kind == YAML_NULL) snprintf(out, 128, "null");
    if (node->kind == YAML_LIST) snprintf(out, 128, "a list");
    if (node->kind == YAML_MAP) snprintf(out, 128, "a map of keys");
    if (node->kind == YAML_SCALAR) snprintf(out, 128, "'%.100s'", node->text);
    return out;
}

static Status refuse_type(const Key *key, const Yaml *node, const Source *source, const char *expected) {
    char where[512], what[128];
    return status_fail(ST_CONFIG, "wrong value %s for '%s' %s: expected %s", kind_text(node, what), key->dotted, source_text(source, where),
                       expected);
}

/* "a whole number from 1 to 65536", "a number of at least 0". */
static const char *expected_number(const Key *key, const Yaml *node, char out[128]) {
    double value;
    const char *kind = key->type == KEY_INT ? "a whole number" : "a number";
    if (key->type == KEY_INT && !key->high[0] && yaml_as_double(node, &value) && fabs(value) >= 0x1p63) { /* the number does not fit 64 bits */
        snprintf(out, 128, "%s from %s to %lld", kind, key->low[0] ? key->low : "-9223372036854775808", (long long)INT64_MAX);
    } else if (key->low[0] && key->high[0]) {
        snprintf(out, 128, "%s from %s to %s", kind, key->low, key->high);
    } else if (key->low[0]) {
        snprintf(out, 128, "%s of at least %s", kind, key->low);
    } else {
        snprintf(out, 128, "%s", kind);
    }
    return out;
}

static bool in_range(const Key *key, double value) {
    return isfinite(value) && !(key->low[0] && value < strtod(key->low, NULL)) && !(key->high[0] && value > strtod(key->high, NULL));
}

/* ---- one value ---- */

static bool nullable(const Key *key) { return strcmp(key->fallback, "null") == 0; }

static Status read_int(const Key *key, const Yaml *node, const Source *source, int64_t *value) {
    char expected[128];
    int64_t number;
    if (!yaml_as_int(node, &number) || !in_range(key, (double)number)) return refuse_type(key, node, source, expected_number(key, node, expected));
    *value = number;
    return ST_OK;
}

static Status read_real(const Key *key, const Yaml *node, const Source *source, double *value) {
    char expected[128];
    double number;
    if (!yaml_as_double(node, &number) || !in_range(key, number)) return refuse_type(key, node, source, expected_number(key, node, expected));
    *value = number;
    return ST_OK;
}

static Status read_text(const Key *key, const Yaml *node, const Source *source, const char **value) {
    if (node->kind != YAML_SCALAR) return refuse_type(key, node, source, "a text");
    *value = node->text;
    return ST_OK;
}

/* Length of a list; a single value is a list of one. */
static size_t list_length(const Yaml *node) { return node->kind == YAML_LIST ? node->n : 1; }
static const Yaml *list_item(const Yaml *node, size_t i) { return node->kind == YAML_LIST ? node->items[i] : node; }

/* Whether the key is a list of module names. No name contains a comma, unless it is a regular expression. */
static bool is_names(const Key *key) {
    return strcmp(key->dotted, "lora.target_modules") == 0 || strcmp(key->dotted, "lora.modules_to_save") == 0 ||
           strcmp(key->dotted, "model.quantize_modules") == 0;
}

static Status refuse_joined(const Key *key, const char *value, const Source *source) {
    char where[512];
    if (value[strspn(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_., -")] != '\0') return ST_OK;
    status_fail(ST_CONFIG, "wrong value '%s' for '%s' %s: expected a list", value, key->dotted, source_text(source, where));
    return source->file ? status_hint(ST_CONFIG, "%s: [%s]", key->name, value) : status_hint(ST_CONFIG, "'%s=[%s]'", key->dotted, value);
}

static Status read_list(const Key *key, const Yaml *node, const Source *source, Arena *arena, TextList *list) {
    if (node->kind != YAML_LIST && node->kind != YAML_SCALAR) return refuse_type(key, node, source, "a text or a list of texts");
    list->n = list_length(node);
    list->items = arena_alloc(arena, list->n * sizeof *list->items);
    if (!list->items) return ST_RESOURCE;
    for (size_t i = 0; i < list->n; i++) {
        TRY(read_text(key, list_item(node, i), source, &list->items[i]));
        if (key->choices[0] && !key_allows(key, list->items[i])) return refuse_choice(key, list->items[i], source, arena);
        if (is_names(key) && strchr(list->items[i], ',')) TRY(refuse_joined(key, list->items[i], source));
    }
    return ST_OK;
}

static Status read_reals(const Key *key, const Yaml *node, const Source *source, Arena *arena, RealList *list) {
    if (node->kind != YAML_LIST && node->kind != YAML_SCALAR) return refuse_type(key, node, source, "a list of numbers");
    list->n = list_length(node);
    list->items = arena_alloc(arena, list->n * sizeof *list->items);
    if (!list->items) return ST_RESOURCE;
    for (size_t i = 0; i < list->n; i++) TRY(read_real(key, list_item(node, i), source, &list->items[i]));
    return ST_OK;
}

static Status read_map(const Key *key, const Yaml *node, const Source *source, Arena *arena, NumberMap *map) {
    if (node->kind != YAML_MAP) return refuse_type(key, node, source, "a map of names to numbers");
    *map = (NumberMap){.n = node->n, .keys = node->keys, .values = arena_alloc(arena, node->n * sizeof *map->values)};
    if (!map->values) return ST_RESOURCE;
    for (size_t i = 0; i < node->n; i++) TRY(read_real(key, node->items[i], source, &map->values[i]));
    return ST_OK;
}

static void set_null(const Key *key, void *field) {
    if (key->type == KEY_INT) *(int64_t *)field = -1;
    if (key->type == KEY_REAL) *(double *)field = (double)NAN;
    if (key->type == KEY_TEXT) *(const char **)field = NULL;
    if (key->type == KEY_NODE) *(YamlNode *)field = NULL;
}

/* Checks a key that takes one of its choices: compares the text as YAML has it; null means none. */
static Status check_choice(const Key *key, const Yaml *node, const Source *source, Arena *arena) {
    if (key->choices[0] == '\0' || key->type == KEY_LIST) return ST_OK;
    char number[64];
    if (node->kind != YAML_NULL && node->kind != YAML_SCALAR)
        return refuse_type(key, node, source, strchr(key->choices, '|') ? "a text" : key->choices);
    const char *text = node->kind == YAML_NULL ? "null" : node->text;
    double real;
    bool truth;
    if (key->type == KEY_BOOL && yaml_as_bool(node, &truth)) text = truth ? "true" : "false";
    if (key->type == KEY_REAL && yaml_as_double(node, &real)) {
        snprintf(number, sizeof number, "%g", real);
        text = number;
    }
    return key_allows(key, text) ? ST_OK : refuse_choice(key, text, source, arena);
}

/* Checked before. */
static Status set_choice(const Key *key, const Yaml *node, int *value) {
    *value = key_choice(key, node->kind == YAML_NULL ? "null" : node->text);
    return ST_OK;
}

static Status read_value(Recipe *recipe, const Key *key, const Yaml *node, const Source *source) {
    void *field = key_field(recipe, key);
    if (key->type == KEY_BOOL && !yaml_as_bool(node, field)) return refuse_type(key, node, source, "true or false");
    bool chosen = key->type == KEY_CHOICE || key->type == KEY_NAME;
    if (chosen && node->kind != YAML_SCALAR && !(node->kind == YAML_NULL && nullable(key))) return refuse_type(key, node, source, "a text");
    TRY(check_choice(key, node, source, recipe->arena));
    if (key->type == KEY_CHOICE) return set_choice(key, node, field);
    if (node->kind == YAML_NULL && nullable(key)) {
        set_null(key, field);
        return ST_OK;
    }
    switch (key->type) {
    case KEY_BOOL: return ST_OK;
    case KEY_INT: return read_int(key, node, source, field);
    case KEY_REAL: return read_real(key, node, source, field);
    case KEY_TEXT:
    case KEY_NAME: return read_text(key, node, source, field);
    case KEY_CHOICE: return ST_OK;
    case KEY_LIST: return read_list(key, node, source, recipe->arena, field);
    case KEY_REALS: return read_reals(key, node, source, recipe->arena, field);
    case KEY_MAP: return read_map(key, node, source, recipe->arena, field);
    case KEY_NODE: *(YamlNode *)field = node; return ST_OK;
    }
    return ST_OK;
}

/* Keeps the failure of a wrong value until all keys are known; reading continues. */
static Status keep_wrong(Recipe *recipe, Status status) {
    UnknownKeys *unknown = recipe->unknown;
    if (status != ST_CONFIG || !unknown) return status;
    if (unknown->wrong.status == ST_OK) failure_save(&unknown->wrong, status);
    return ST_OK;
}

static Status set_key(Recipe *recipe, const Key *key, const Yaml *node, const Source *source) {
    TRY(keep_wrong(recipe, read_value(recipe, key, node, source)));
    size_t i = (size_t)(key - recipe_keys);
    recipe->given[i] = true;
    recipe->lines[i] = source->line;
    return ST_OK;
}

/* ---- sections and names ---- */

/* Adds the key to the unknown ones and continues, so that recipe_read reports them all at once. */
static Status unknown_key(Recipe *recipe, const char *section, const char *name, const Yaml *value, const Source *source) {
    char where[512];
    const char *typed = !source->file && value->kind == YAML_SCALAR ? value->text : NULL;
    unknown_add(recipe->unknown, section, name, typed, source->line, source_text(source, where));
    return ST_OK;
}

static Status set_default(Recipe *recipe, const Key *key) {
    Yaml *node;
    TRY(yaml_read_text(key->fallback, strlen(key->fallback), key->dotted, recipe->arena, &node));
    TRY(read_value(recipe, key, node, &(Source){0}));
    size_t i = (size_t)(key - recipe_keys);
    recipe->given[i] = false;
    recipe->lines[i] = 0;
    return ST_OK;
}

/* SECTION=null on the command line: as if the file lacked the section. */
static Status blank_section(Recipe *recipe, const char *section) {
    for (size_t i = 0; i < n_recipe_keys; i++)
        if (strcmp(recipe_keys[i].section, section) == 0) TRY(set_default(recipe, &recipe_keys[i]));
    return ST_OK;
}

static Status read_section(Recipe *recipe, const KeySection *section, const Yaml *node, const Source *source) {
    char where[512];
    *section_flag(recipe, section) = node->kind != YAML_NULL;
    if (strcmp(section->name, "lora") == 0) recipe->lora_declined = node->kind == YAML_NULL;
    if (node->kind == YAML_NULL) return blank_section(recipe, section->name);
    if (node->kind != YAML_MAP)
        return keep_wrong(
            recipe, status_fail(ST_CONFIG, "wrong value for section '%s' %s: expected a map of keys", section->name, source_text(source, where)));
    for (size_t i = 0; i < node->n; i++) {
        Source at = {source->file, node->key_lines[i]};
        const Key *key = key_in(section->name, node->keys[i]);
        if (!key) {
            TRY(unknown_key(recipe, section->name, node->keys[i], node->items[i], &at));
            continue;
        }
        TRY(set_key(recipe, key, node->items[i], &at));
    }
    return ST_OK;
}

static Status read_top(Recipe *recipe, const char *name, const Yaml *node, const Source *source) {
    const KeySection *section = section_find(name);
    if (section) return read_section(recipe, section, node, source);
    const Key *key = key_in("", name);
    if (key) return set_key(recipe, key, node, source);
    return unknown_key(recipe, "", name, node, source);
}

static Status read_defaults(Recipe *recipe) {
    for (size_t i = 0; i < n_recipe_keys; i++) TRY(set_default(recipe, &recipe_keys[i]));
    return ST_OK;
}

/* text NULL: reads the file. */
static Status read_file(Recipe *recipe, const char *path, const Str *text) {
    Yaml *root;
    static const char advice[] = "a recipe is a YAML file; `tune recipes ls` names some to start from";
    Status status = text ? yaml_read_text(str_text(text), text->len, path, recipe->arena, &root) : yaml_read_file(path, recipe->arena, &root);
    if (status != ST_OK) return status_hint_text()[0] ? status : status_hint(status, advice);
    if (root->kind != YAML_MAP) return status_hint(status_fail(ST_CONFIG, "cannot read recipe '%s': it has no keys", path), advice);
    for (size_t i = 0; i < root->n; i++) TRY(read_top(recipe, root->keys[i], root->items[i], &(Source){path, root->key_lines[i]}));
    return ST_OK;
}

/* Keys with a structured value that may also be a text, chosen by the user. */
static bool may_be_text(const Key *key) {
    static const char *const names[] = {"data.train", "data.eval", "eval.data", "rl.env"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (strcmp(key->dotted, names[i]) == 0) return true;
    return key->type == KEY_TEXT || key->type == KEY_LIST;
}

/* The value of an override is YAML, except for text keys. YAML would cut a text at " #", parse "a: b" as a map and "*.jsonl" as an alias, and
 * nobody expects YAML there. So a text is taken literally unless it is quoted or null, or a list or map for a key that takes one. */
static Status override_value(const Key *key, const char *name, const char *value, Arena *arena, Yaml **node) {
    bool quoted = *value == '\'' || *value == '"', nested = key && key->type != KEY_TEXT && (*value == '[' || *value == '{');
    Status status = yaml_read_text(value, strlen(value), name, arena, node);
    if (!key || !may_be_text(key) || quoted || nested || utf8_fault(value, strlen(value)) < strlen(value)) return status;
    if (status == ST_OK && (*node)->kind == YAML_SCALAR && strcmp((*node)->text, value) == 0) return ST_OK;
    if (status == ST_OK && (*node)->kind == YAML_NULL && value[strspn(value, " \t")] != '#') return ST_OK;
    if (status == ST_OK && (*node)->kind == YAML_LIST && key->type != KEY_TEXT) return ST_OK; /* lines that begin with "-" */
    *node = arena_zero(arena, sizeof **node);
    if (!*node) return ST_RESOURCE;
    **node = (Yaml){.kind = YAML_SCALAR, .quoted = true, .text = arena_strdup(arena, value)};
    return (*node)->text ? ST_OK : ST_RESOURCE;
}

/* Why a path of keys cannot be set: a value on the way that is not a map, and the path below it. */
typedef struct Obstacle {
    const Yaml *node;
    const char *below;
} Obstacle;

/* A copy of `map` (NULL: an empty one) in which the dotted `path` has `value`; NULL: there is an obstacle. */
static Status map_with(const Yaml *map, const char *path, Yaml *value, Arena *arena, Obstacle *obstacle, Yaml **result) {
    *result = NULL;
    if (map && map->kind != YAML_MAP && map->kind != YAML_NULL) {
        *obstacle = (Obstacle){map, path};
        return ST_OK;
    }
    size_t len = strcspn(path, "."), n = map && map->kind == YAML_MAP ? map->n : 0, at = 0;
    const char *name = arena_strndup(arena, path, len);
    Yaml *copy = arena_zero(arena, sizeof *copy);
    const char **keys = arena_alloc(arena, (n + 1) * sizeof *keys);
    Yaml **items = arena_alloc(arena, (n + 1) * sizeof *items);
    int *lines = arena_zero(arena, (n + 1) * sizeof *lines);
    if (!name || !copy || !keys || !items || !lines) return ST_RESOURCE;
    for (size_t i = 0; i < n; i++) keys[i] = map->keys[i], items[i] = map->items[i], lines[i] = map->key_lines[i];
    while (at < n && strcmp(keys[at], name) != 0) at++;
    if (path[len] == '.') TRY(map_with(at < n ? items[at] : NULL, path + len + 1, value, arena, obstacle, &value));
    if (!value) return ST_OK;
    keys[at] = name, items[at] = value, lines[at] = value->line;
    *copy = (Yaml){.kind = YAML_MAP, .line = map ? map->line : 0, .n = MAX(n, at + 1), .keys = keys, .key_lines = lines, .items = items};
    *result = copy;
    return ST_OK;
}

/* Sets a key inside a structured value, as in "rl.env.is_slippery=true"; `below`: "is_slippery". */
static Status override_below(Recipe *recipe, const Key *key, const char *below, Yaml *value) {
    const Yaml *now = *(const YamlNode *)key_field(recipe, key);
    Yaml *node;
    Obstacle obstacle;
    char what[128];
    TRY(map_with(now, below, value, recipe->arena, &obstacle, &node));
    if (node) return set_key(recipe, key, node, &(Source){0});
    const char *name = arena_printf(recipe->arena, "%s.%s", key->dotted, below);
    if (!name) return ST_RESOURCE;
    int above = (int)(strlen(name) - strlen(obstacle.below) - 1);
    status_fail(ST_CONFIG, "cannot set '%s' on the command line: '%.*s' is %s", name, above, name, kind_text(obstacle.node, what));
    return status_hint(ST_CONFIG, "give '%.*s' as a map of keys: %.*s={key: value, ...}", above, name, above, name);
}

/* The structured key that the dotted `name` leads into, with the rest in *below. NULL: none. */
static const Key *key_around(const char *name, const char **below) {
    for (size_t i = 0; i < n_recipe_keys; i++) {
        size_t len = strlen(recipe_keys[i].dotted);
        *below = name + len + 1;
        if (recipe_keys[i].type == KEY_NODE && strncmp(recipe_keys[i].dotted, name, len) == 0 && name[len] == '.' && **below) return &recipe_keys[i];
    }
    return NULL;
}

/* "section.key=value", "section.key.key=value", "key=value" or "section=null"; blanks around the value are removed. */
static Status read_override(Recipe *recipe, const char *text) {
    const char *equals = strchr(text, '=');
    if (!equals || equals == text || *text == '.') {
        status_fail(ST_USAGE, "cannot understand '%s'", text);
        return status_hint(ST_USAGE, "a key of the recipe is set as key=value, e.g. lora.rank=16");
    }
    char *name = arena_strndup(recipe->arena, text, (size_t)(equals - text));
    if (!name) return ST_RESOURCE;
    char *dot = strchr(name, '.');
    Yaml *node;
    const char *value = equals + 1 + strspn(equals + 1, " \t\r\n");
    size_t len = strlen(value);
    while (len > 0 && strchr(" \t\r\n", value[len - 1])) len--;
    if (!(value = arena_strndup(recipe->arena, value, len))) return ST_RESOURCE;
    TRY(override_value(dot ? key_find(name) : key_in("", name), name, value, recipe->arena, &node));
    yaml_forget_lines(node);
    Source source = {0};
    if (!dot) return read_top(recipe, name, node, &source);
    const char *below;
    const Key *around = key_around(name, &below);
    *dot = '\0';
    const KeySection *section = section_find(name);
    if (around) {
        if (section) *section_flag(recipe, section) = true;
        return override_below(recipe, around, below, node);
    }
    const Key *key = key_in(name, dot + 1);
    if (!key) return unknown_key(recipe, name, dot + 1, node, &source);
    *section_flag(recipe, section) = true;
    return set_key(recipe, key, node, &source);
}

static Status refuse_betas(const Recipe *recipe) {
    char where[512];
    Source source = {recipe->path, recipe_line(recipe, "train.betas")};
    return status_fail(ST_CONFIG, "wrong value for 'train.betas' %s: expected two numbers from 0 to below 1", source_text(&source, where));
}

static Status check_date(const Recipe *recipe) {
    char where[512];
    struct tm date;
    Source source = {recipe->path, recipe_line(recipe, "data.now")};
    if (!recipe->data_now || date_read(recipe->data_now, &date)) return ST_OK;
    return status_fail(ST_CONFIG, "wrong value '%s' for 'data.now' %s: expected a date, YYYY-MM-DD or YYYY-MM-DD HH:MM:SS", recipe->data_now,
                       source_text(&source, where));
}

static Status check_kwargs(const Recipe *recipe) {
    const Key *key = key_find("data.template_kwargs");
    Source source = {recipe->path, recipe_line(recipe, key->dotted)};
    if (!recipe->data_template_kwargs || recipe->data_template_kwargs->kind == YAML_MAP) return ST_OK;
    return refuse_type(key, recipe->data_template_kwargs, &source, "a map of names to values");
}

/* Checks that involve several keys. */
static Status check_together(const Recipe *recipe) {
    TRY(check_date(recipe));
    TRY(check_kwargs(recipe));
    TRY(recipe_check_schedule(recipe));
    if (recipe->data_eval && recipe->eval_data)
        return status_hint(status_fail(ST_CONFIG, "'data.eval' and 'eval.data' are both given"), "they mean the same; keep one");
    if ((recipe->data_eval || recipe->eval_data) && recipe->data_eval_split > 0)
        return status_hint(status_fail(ST_CONFIG, "evaluation rows and 'data.eval_split' are both given"), "keep one");
    if (recipe->train_loss == TRAIN_LOSS_DFT && recipe->train_label_smoothing > 0)
        return status_hint(status_fail(ST_CONFIG, "'train.loss: dft' does not work with 'train.label_smoothing'"),
                           "leave one of them out; train.loss: nll works with it");
    if (recipe->has_lora && recipe->lora_alpha == 0)
        return status_hint(status_fail(ST_CONFIG, "'lora.alpha' is 0: the adapter would have no effect and learn nothing"),
                           "twice the rank is usual");
    if (recipe->has_lora && recipe->lora_lr_ratio == 0)
        return status_hint(status_fail(ST_CONFIG, "'lora.lr_ratio' is 0: B would not change, and a new adapter would learn nothing"),
                           "1 trains A and B alike, 16 is usual for LoRA+");
    if (recipe->train_betas.n != 2 || recipe->train_betas.items[0] >= 1 || recipe->train_betas.items[1] >= 1) return refuse_betas(recipe);
    if (recipe->train_early_stopping > 0 && !recipe->data_eval && !recipe->eval_data && recipe->data_eval_split <= 0)
        return status_hint(status_fail(ST_CONFIG, "'train.early_stopping' needs evaluation rows"), "give 'data.eval' or 'data.eval_split'");
    if (recipe->train_early_stopping > 0 && recipe->train_eval_every == 0)
        return status_hint(status_fail(ST_CONFIG, "'train.early_stopping' needs evaluations during training"), "give 'train.eval_every'");
    return ST_OK;
}

/* An unknown key may be the reason why a value is wrong or missing, so it is reported first. */
static Status read_all(Recipe *recipe, const char *path, const Str *text, const char *const *overrides, size_t n_overrides) {
    UnknownKeys unknown = {0};
    Failure failure = {0};
    recipe->unknown = &unknown;
    Status status = read_defaults(recipe);
    if (status == ST_OK && path) {
        recipe->path = arena_strdup(recipe->arena, path);
        status = recipe->path ? read_file(recipe, path, text) : ST_RESOURCE;
    }
    for (size_t i = 0; i < n_overrides && status == ST_OK; i++) status = read_override(recipe, overrides[i]);
    if (status == ST_OK) status = unknown.n > 0 ? unknown_fail(&unknown, path) : failure_restore(&unknown.wrong);
    failure_save(&failure, status);
    unknown_release(&unknown);
    recipe->unknown = NULL;
    return failure_restore(&failure);
}

Status recipe_read_text(const char *path, const Str *text, const char *const *overrides, size_t n_overrides, Recipe **result) {
    *result = NULL;
    Arena *arena = arena_new(0);
    Recipe *recipe = arena ? arena_zero(arena, sizeof *recipe) : NULL;
    if (!recipe) {
        arena_free(arena);
        return status_fail(ST_RESOURCE, "out of memory for the recipe");
    }
    recipe->arena = arena;
    Status status = ST_RESOURCE;
    recipe->given = arena_zero(arena, n_recipe_keys * sizeof *recipe->given);
    recipe->lines = arena_zero(arena, n_recipe_keys * sizeof *recipe->lines);
    if (!recipe->given || !recipe->lines) goto failed;
    TRY_GOTO(read_all(recipe, path, text, overrides, n_overrides), failed);
    TRY_GOTO(check_together(recipe), failed);
    bool skips = recipe->data_on_bad_row == DATA_ON_BAD_ROW_SKIP;
    if (skips && !(recipe->rejected = arena_zero(arena, sizeof *recipe->rejected))) goto failed;
    *result = recipe;
    return ST_OK;
failed:
    arena_free(arena);
    return status;
}

Status recipe_read(const char *path, const char *const *overrides, size_t n_overrides, Recipe **result) {
    return recipe_read_text(path, NULL, overrides, n_overrides, result);
}

void recipe_free(Recipe *recipe) {
    if (!recipe) return;
    rejected_release(recipe->rejected);
    arena_free(recipe->arena);
}

bool recipe_given(const Recipe *recipe, const char *dotted_key) {
    const Key *key = key_find(dotted_key);
    ASSERT(key, "'%s' is no key", dotted_key);
    return recipe->given[key - recipe_keys];
}

int recipe_line(const Recipe *recipe, const char *dotted_key) {
    const Key *key = key_find(dotted_key);
    ASSERT(key, "'%s' is no key", dotted_key);
    return recipe->lines[key - recipe_keys];
}
