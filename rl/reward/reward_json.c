/* SPDX-License-Identifier: Apache-2.0 */
/* json: 1 if the completion, without its thoughts (reward_completion_text), is JSON (and matches the schema), else 0; `parses` for JSON that does not
 * match. The schema is given in the recipe, in a file, or in the data row's column `field`. */
#include "lib/base/log.h"
#include "rl/reward/json_schema.h"
#include "rl/reward/reward_kinds.h"

#include <string.h>

enum { SCHEMA, FIELD, EXTRACT, PARSES };
static const OptionSpec options[] = {
    [SCHEMA] = {.name = "schema", .kind = OPTION_YAML},
    [FIELD] = {.name = "field", .kind = OPTION_STRING},
    [EXTRACT] = {.name = "extract", .kind = OPTION_STRING, .text = "whole", .choices = "whole|fence"}, /* fence: the contents of the last ``` block */
    [PARSES] = {.name = "parses", .kind = OPTION_NUMBER},
    {0},
};

typedef struct State {
    json_t *schema;   /* NULL: none, or the rows' own */
    size_t undecided; /* completions on which a pattern took too many steps */
} State;

static void reward_json_close(Reward *reward) {
    State *state = reward->state;
    if (!state) return;
    if (state->undecided > 1)
        log_message(LOG_RANK, "reward '%s': %zu completions counted as not fitting, as a pattern of the schema took too many steps on them",
                    reward->name, state->undecided);
    json_decref(state->schema);
}

static json_t *json_of(const Yaml *node) {
    int64_t whole;
    double number;
    bool truth;
    if (node->kind == YAML_NULL) return json_null();
    if (node->kind == YAML_SCALAR)
        return yaml_as_int(node, &whole)       ? json_integer(whole)
               : yaml_as_double(node, &number) ? json_real(number)
               : yaml_as_bool(node, &truth)    ? json_boolean(truth)
                                               : json_string(node->text);
    json_t *value = node->kind == YAML_LIST ? json_array() : json_object();
    for (size_t i = 0; i < node->n; i++) {
        if (node->kind == YAML_LIST)
            json_array_append_new(value, json_of(node->items[i]));
        else
            json_object_set_new(value, node->keys[i], json_of(node->items[i]));
    }
    return value;
}

static Status reward_json_open(Reward *reward) {
    const Yaml *node = reward->options[SCHEMA].node;
    State *state = reward->state = arena_zero(reward->arena, sizeof *state);
    json_t *schema = NULL;
    if (!state) return ST_RESOURCE;
    if (reward->options[PARSES].node && !node && !reward->options[FIELD].text)
        return reward_refuse(reward, reward->options[PARSES].node, "'parses' needs a 'schema'");
    if (!node) return ST_OK;
    if (reward->options[FIELD].text) return reward_refuse(reward, reward->options[FIELD].node, "it takes either 'schema' or 'field'");
    if (node->kind == YAML_SCALAR && json_read_file(node->text, &schema) != ST_OK) {
        Str why = {0};
        str_append(&why, status_text());
        reward_refuse(reward, node, "%s", str_text(&why));
        str_release(&why);
        return ST_CONFIG;
    }
    state->schema = schema ? schema : json_of(node);
    if (schema_check(state->schema, "the schema") == ST_OK) return ST_OK;
    Str why = {0}, hint = {0};
    str_append(&why, status_text());
    str_append(&hint, status_hint_text());
    reward_refuse(reward, node, "%s", str_text(&why));
    if (hint.len) status_hint(ST_CONFIG, "%s", hint.data);
    str_release(&why);
    str_release(&hint);
    return ST_CONFIG;
}

/* The text after the line that opens the last block of three backticks, up to the next three. */
static Slice last_fence(Slice text) {
    static const char mark[] = "```";
    const char *close_at = slice_find_last(text, mark, false);
    if (!close_at) return (Slice){0};
    Slice before = {text.data, (size_t)(close_at - text.data)};
    const char *open_at = slice_find_last(before, mark, false), *line = open_at ? memchr(open_at, '\n', (size_t)(close_at - open_at)) : NULL;
    return line ? (Slice){line + 1, (size_t)(close_at - line - 1)} : (Slice){0};
}

static Status schema_of_row(const Reward *reward, const RewardRow *row, const json_t **schema) {
    const char *field = reward->options[FIELD].text;
    *schema = ((const State *)reward->state)->schema;
    if (!field) return ST_OK;
    TRY(reward_column(row, field, schema));
    Status status = schema_check(*schema, "the row's schema");
    return status == ST_OK ? ST_OK : ST_INPUT;
}

/* An undecided match counts as no match; it is counted, and the first one gets a warning. */
static bool fits(const Reward *reward, const json_t *schema, const json_t *value) {
    State *state = reward->state;
    SchemaFit fit = schema ? schema_fits(schema, value) : SCHEMA_FITS;
    if (fit == SCHEMA_UNDECIDED && state->undecided++ == 0)
        log_message(LOG_RANK, "reward '%s': a pattern of the schema takes too many steps on some completions; these count as not fitting",
                    reward->name);
    return fit == SCHEMA_FITS;
}

static Status reward_json_score(Reward *reward, const RewardRow *row, double *value) {
    const json_t *schema;
    TRY(schema_of_row(reward, row, &schema));
    Str room = {0};
    Slice spoken = reward_completion_text(row, &room);
    Slice text = strcmp(reward->options[EXTRACT].text, "fence") == 0 ? last_fence(spoken) : slice_trim(spoken);
    json_t *parsed = text.len ? json_of_text(text.data, text.len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL) : NULL;
    if (parsed) *value = fits(reward, schema, parsed) ? 1 : reward->options[PARSES].number;
    json_decref(parsed);
    str_release(&room);
    return ST_OK;
}

const RewardKind reward_kind_json = {"json", options, .open = reward_json_open, .close = reward_json_close, .score = reward_json_score};
