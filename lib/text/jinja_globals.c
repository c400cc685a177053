/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that every template has, and the handling of arguments for all callables. */
#include <string.h>
#include <time.h>

#include "lib/base/date.h"
#include "lib/text/chat.h"
#include "lib/text/jinja.h"

/* ---- arguments ---- */

const Value *arg(const Args *args, size_t index, const char *name) {
    if (index < args->n) return &args->items[index];
    for (size_t i = 0; i < args->n_keywords; i++)
        if (slice_is(args->keywords[i].name, name)) return &args->keywords[i].value;
    return NULL;
}

int64_t arg_int(Jinja *j, const Args *args, size_t index, const char *name, int64_t missing) {
    const Value *value = arg(args, index, name);
    if (!value) return missing;
    if (!is_integral(*value)) jinja_fail(j, "'%s' must be an integer, not %s", name, v_type_name(*value));
    return is_integral(*value) ? int_of(*value) : missing;
}

bool arg_bool(Jinja *j, const Args *args, size_t index, const char *name, bool missing) {
    const Value *value = arg(args, index, name);
    return value ? v_truth(j, *value) : missing;
}

Slice arg_text(Jinja *j, const Args *args, size_t index, const char *name, const char *missing) {
    const Value *value = arg(args, index, name);
    if (value && is_string(*value)) return value->as.string;
    if (value || !missing) jinja_fail(j, value ? "'%s' must be a string, not %s" : "'%s' is missing%s", name, value ? v_type_name(*value) : "");
    return missing ? (Slice){missing, strlen(missing)} : (Slice){"", 0};
}

static bool named(const char *names, Slice name) {
    for (const char *at = names; *at;) {
        const char *end = strchr(at, '|');
        size_t len = end ? (size_t)(end - at) : strlen(at);
        if (slice_equal((Slice){at, len}, name)) return true;
        at += len + (end != NULL);
    }
    return false;
}

bool args_check(Jinja *j, const char *what, const Args *args, size_t least, size_t most, const char *names) {
    if (args->n + args->n_keywords < least) jinja_fail(j, "%s takes at least %zu argument(s), %zu given", what, least, args->n + args->n_keywords);
    if (args->n > most) jinja_fail(j, "%s takes at most %zu argument(s), %zu given", what, most, args->n);
    for (size_t i = 0; i < args->n_keywords; i++)
        if (!named(names, args->keywords[i].name))
            jinja_fail(j, "%s takes no keyword argument '%.*s'", what, (int)args->keywords[i].name.len, args->keywords[i].name.data);
    return jinja_ok(j);
}

/* ---- functions ---- */

static Value global_range(Jinja *j, Value self, const Args *args) {
    (void)self;
    if (!args_check(j, "range()", args, 1, 3, "")) return v_undefined(NULL);
    int64_t start = args->n > 1 ? arg_int(j, args, 0, "start", 0) : 0, stop = arg_int(j, args, args->n > 1, "stop", 0),
            step = arg_int(j, args, 2, "step", 1);
    if (step == 0) return jinja_fail(j, "range() arg 3 must not be zero");
    enum { MOST = 100000 }; /* the limit of Jinja2's sandbox */
    Value range = v_range(j, start, stop, step);
    return jinja_ok(j) && range.as.range->n > MOST ? jinja_fail(j, "range too big: the maximum size is %d", MOST) : range;
}

static void add_pairs(Jinja *j, Value dict, Value from) {
    if (from.type == V_DICT) {
        for (size_t i = 0; i < from.as.dict->n; i++) dict_set(j, dict, from.as.dict->pairs[i].key, from.as.dict->pairs[i].value);
        return;
    }
    Value items = v_iterate(j, from);
    for (size_t i = 0; jinja_ok(j) && i < items.as.list->n; i++) {
        Value pair = v_iterate(j, items.as.list->items[i]);
        if (jinja_ok(j) && pair.as.list->n != 2)
            jinja_fail(j, "dictionary update sequence element #%zu has length %zu; 2 is required", i, pair.as.list->n);
        if (jinja_ok(j)) dict_set(j, dict, pair.as.list->items[0], pair.as.list->items[1]);
    }
}

static Value global_dict(Jinja *j, Value self, const Args *args) {
    (void)self;
    Value dict = v_dict(j);
    if (args->n > 1) return jinja_fail(j, "dict expected at most 1 argument, got %zu", args->n);
    if (args->n == 1) add_pairs(j, dict, args->items[0]);
    for (size_t i = 0; i < args->n_keywords; i++) dict_set(j, dict, v_slice(args->keywords[i].name), args->keywords[i].value);
    return dict;
}

static Value global_namespace(Jinja *j, Value self, const Args *args) {
    Value space = global_dict(j, self, args);
    if (jinja_ok(j)) space.type = V_NAMESPACE;
    return space;
}

static Value global_cycler(Jinja *j, Value self, const Args *args) {
    (void)self;
    Value value = {.type = V_CYCLER, .as.cycler = pool_alloc(&j->pool, sizeof *value.as.cycler)}, items = v_list(j, V_LIST);
    if (args->n == 0) return jinja_fail(j, "at least one item has to be provided");
    for (size_t i = 0; i < args->n; i++) list_push(j, items, args->items[i]);
    if (!value.as.cycler || !jinja_ok(j)) return jinja_fail(j, "the template needs too much memory");
    value.as.cycler->items = items.as.list;
    return value;
}

static Value global_joiner(Jinja *j, Value self, const Args *args) {
    (void)self;
    Value value = {.type = V_JOINER, .as.joiner = pool_alloc(&j->pool, sizeof *value.as.joiner)};
    if (!value.as.joiner) return jinja_fail(j, "the template needs too much memory");
    value.as.joiner->separator = arg_text(j, args, 0, "sep", ", ");
    return value;
}

static Value global_raise_exception(Jinja *j, Value self, const Args *args) {
    (void)self;
    const Value *message = arg(args, 0, "message");
    Slice text = message ? text_of(j, *message) : (Slice){"the template refuses these messages", 35};
    return jinja_fail(j, "%.*s", (int)MIN(text.len, (size_t)600), text.data);
}

bool chat_reads_date(const char *text) {
    struct tm t;
    return date_read(text, &t);
}

static Value global_strftime_now(Jinja *j, Value self, const Args *args) {
    (void)self;
    struct tm t;
    time_t now = time(NULL);
    char buffer[512];
    Slice format = arg_text(j, args, 0, "format", NULL);
    if (!jinja_ok(j)) return v_undefined(NULL);
    if (!j->now)
        localtime_r(&now, &t);
    else if (!date_read(j->now, &t))
        return jinja_fail(j, "'%s' is not a date: expected YYYY-MM-DD or YYYY-MM-DD HH:MM:SS", j->now);
    Value terminated = v_string(j, format.data, format.len);
    if (format.len == 0) return v_text("");
    size_t n = strftime(buffer, sizeof buffer, terminated.as.string.data, &t);
    return v_string(j, buffer, n);
}

static const Builtin globals[] = {
    {"range", global_range},
    {"dict", global_dict},
    {"namespace", global_namespace},
    {"cycler", global_cycler},
    {"joiner", global_joiner},
    {"raise_exception", global_raise_exception},
    {"strftime_now", global_strftime_now},
};

const Builtin *global_find(Slice name) {
    for (size_t i = 0; i < COUNT_OF(globals); i++)
        if (slice_is(name, globals[i].name)) return &globals[i];
    return NULL;
}
