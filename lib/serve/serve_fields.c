/* SPDX-License-Identifier: Apache-2.0 */
/* The fields of a request's body, with their ranges. */
#include <math.h>
#include <string.h>

#include "lib/serve/serve_parts.h"

static bool body_parse(Exchange *x, bool list, json_t **body) {
    json_error_t error;
    *body = json_parse(str_text(&x->body), x->body.len, JSON_REJECT_DUPLICATES, &error);
    if (*body && (list ? json_is_array(*body) : json_is_object(*body))) return true;
    if (*body)
        exchange_fail(x, 400, NULL, NULL, "the body must be a JSON %s", list ? "array" : "object");
    else
        exchange_fail(x, 400, NULL, "invalid_json", "the body is not JSON: line %d, column %d: %s", error.line, error.column, error.text);
    json_decref(*body);
    *body = NULL;
    return false;
}

bool body_read(Exchange *x, json_t **body) { return body_parse(x, false, body); }
bool body_list(Exchange *x, json_t **body) { return body_parse(x, true, body); }

static const json_t *field_given(const json_t *body, const char *key) {
    const json_t *value = json_object_get(body, key);
    return json_is_null(value) ? NULL : value;
}

bool field_int(Exchange *x, const json_t *body, const char *key, int64_t low, int64_t high, int64_t *value) {
    const json_t *given = field_given(body, key);
    if (!given) return true;
    bool whole = json_is_real(given) && json_real_value(given) == floor(json_real_value(given)) && fabs(json_real_value(given)) < 1e15;
    int64_t number = whole ? (int64_t)json_real_value(given) : json_integer_value(given);
    if ((json_is_integer(given) || whole) && number >= low && number <= high) {
        *value = number;
        return true;
    }
    exchange_fail(x, 400, key, "invalid_value", "'%s' must be a whole number from %lld to %lld", key, (long long)low, (long long)high);
    return false;
}

bool field_real(Exchange *x, const json_t *body, const char *key, double low, double high, double *value) {
    const json_t *given = field_given(body, key);
    if (!given) return true;
    double number = json_number_value(given);
    if (json_is_number(given) && number >= low && number <= high) {
        *value = number;
        return true;
    }
    exchange_fail(x, 400, key, "invalid_value", "'%s' must be a number from %s to %s", key, NUMBER(low), NUMBER(high));
    return false;
}

bool field_bool(Exchange *x, const json_t *body, const char *key, bool *value) {
    const json_t *given = field_given(body, key);
    if (given && !json_is_boolean(given)) {
        exchange_fail(x, 400, key, "invalid_type", "'%s' must be true or false", key);
        return false;
    }
    if (given) *value = json_is_true(given);
    return true;
}

bool field_text(Exchange *x, const json_t *body, const char *key, const char **value) {
    const json_t *given = field_given(body, key);
    if (given && !json_is_string(given)) {
        exchange_fail(x, 400, key, "invalid_type", "'%s' must be a text", key);
        return false;
    }
    if (given) *value = json_string_value(given);
    return true;
}

bool field_object(Exchange *x, const json_t *body, const char *key, const json_t **value) {
    const json_t *given = field_given(body, key);
    if (given && !json_is_object(given)) {
        exchange_fail(x, 400, key, "invalid_type", "'%s' must be an object", key);
        return false;
    }
    if (given) *value = given;
    return true;
}

/* Remembers the name of an unknown field for the log, which the engine writes. A long name is remembered by its beginning; after MOST_UNKNOWN names,
 * no further one is told. */
static void tell_unknown(Server *server, const char *key) {
    bool news = true;
    pthread_mutex_lock(&server->lock);
    for (size_t i = 0; i < server->n_unknown && news; i++) news = strncmp(server->unknown[i], key, sizeof server->unknown[i] - 1) != 0;
    if (news && server->n_unknown < MOST_UNKNOWN) strncpy(server->unknown[server->n_unknown++], key, sizeof server->unknown[0] - 1);
    pthread_mutex_unlock(&server->lock);
}

bool fields_known(Exchange *x, const json_t *body, const char *known) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)body, key, value) {
        if (*key && !strchr(key, ' ') && text_among(known, ' ', key)) continue;
        if (x->server->config.strict) {
            exchange_fail(x, 400, key, "unknown_parameter", "unknown parameter '%.100s'", key);
            return false;
        }
        tell_unknown(x->server, key);
    }
    return true;
}
