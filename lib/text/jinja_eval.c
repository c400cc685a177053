/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the tree: scopes, loops, macros, operators, attributes. */
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "lib/base/system.h"
#include "lib/text/jinja.h"

/* The variables of a block; lookup continues in the outer scope. A loop's body has a new scope for each iteration, so variables set there end with
 * it. */
struct Scope {
    Scope *outer;
    struct Variable *variables;
};
typedef struct Variable {
    Slice name;
    Value value;
    struct Variable *next;
} Variable;

struct Loop {
    Value items; /* a list */
    int64_t index, depth;
    const JinjaNode *node; /* the node of a recursive loop */
    Scope *scope;          /* the scope that contains the loop */
    Value seen;            /* for changed(): the values of its last call */
    bool has_seen;
};
struct Macro {
    const JinjaNode *node;
    Scope *scope;
};

bool jinja_charge(Jinja *j, Value v) {
    bool listed = is_sequence(v) || v.type == V_VIEW || v.type == V_GENERATOR;
    j->steps += 1 + (is_string(v)                                ? v.as.string.len / 256
                     : listed                                    ? v.as.list->n / 16
                     : v.type == V_DICT || v.type == V_NAMESPACE ? v.as.dict->n / 16
                     : v.type == V_RANGE                         ? (size_t)v.as.range->n / 16
                                                                 : 0);
    if (interrupt_requested() && jinja_ok(j)) j->status = status_fail(ST_INTERRUPTED, "interrupted");
    if (j->steps > JINJA_MAX_STEPS) jinja_fail(j, "more than %d steps: the template does not end", JINJA_MAX_STEPS);
    return jinja_ok(j);
}

static Value eval(Jinja *j, const JinjaNode *node);
static void run_body(Jinja *j, const NodeList *body);

Value jinja_fail(Jinja *j, const char *format, ...) {
    char text[800];
    va_list list;
    if (!jinja_ok(j)) return v_undefined(NULL);
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    j->status = jinja_fault(j->name, j->source, j->source_len, j->at, "%s", text);
    return v_undefined(NULL);
}

/* ---- scopes ---- */

static Scope *scope_new(Jinja *j, Scope *outer) {
    Scope *scope = pool_alloc(&j->pool, sizeof *scope);
    if (!scope) {
        jinja_fail(j, "the template needs too much memory");
        return outer;
    }
    scope->outer = outer;
    return scope;
}

static Value *scope_find(Scope *scope, Slice name) {
    for (; scope; scope = scope->outer)
        for (Variable *v = scope->variables; v; v = v->next)
            if (slice_equal(v->name, name)) return &v->value;
    return NULL;
}

static void scope_set(Jinja *j, Scope *scope, Slice name, Value value) {
    for (Variable *v = scope->variables; v; v = v->next)
        if (slice_equal(v->name, name)) {
            v->value = value;
            return;
        }
    Variable *v = pool_alloc(&j->pool, sizeof *v);
    if (!v) {
        jinja_fail(j, "the template needs too much memory");
        return;
    }
    *v = (Variable){name, value, scope->variables};
    scope->variables = v;
}

static const char *name_text(Jinja *j, Slice name) {
    Value copy = v_string(j, name.data, name.len);
    return copy.as.string.data;
}

static Value need_defined(Jinja *j, Value v) {
    if (v.type == V_UNDEFINED) jinja_fail(j, "'%s' is undefined", v.as.name ? v.as.name : "a value");
    return v;
}

/* ---- attributes and items ---- */

static Value loop_attribute(Jinja *j, Loop *loop, Slice name, bool *found) {
    int64_t n = (int64_t)loop->items.as.list->n, i = loop->index;
    *found = true;
    if (slice_is(name, "index")) return v_int(i + 1);
    if (slice_is(name, "index0")) return v_int(i);
    if (slice_is(name, "revindex")) return v_int(n - i);
    if (slice_is(name, "revindex0")) return v_int(n - i - 1);
    if (slice_is(name, "first")) return v_bool(i == 0);
    if (slice_is(name, "last")) return v_bool(i + 1 == n);
    if (slice_is(name, "length")) return v_int(n);
    if (slice_is(name, "depth")) return v_int(loop->depth + 1);
    if (slice_is(name, "depth0")) return v_int(loop->depth);
    if (slice_is(name, "previtem")) return i > 0 ? loop->items.as.list->items[i - 1] : v_undefined("there is no previous item");
    if (slice_is(name, "nextitem")) return i + 1 < n ? loop->items.as.list->items[i + 1] : v_undefined("there is no next item");
    (void)j;
    *found = false;
    return v_undefined(NULL);
}

static Value bind(Jinja *j, const Builtin *builtin, Value self) {
    Method *method = pool_alloc(&j->pool, sizeof *method);
    if (!method) return jinja_fail(j, "the template needs too much memory");
    *method = (Method){builtin, self};
    return (Value){.type = V_METHOD, .as.method = method};
}

/* In the sandbox, methods that would change a value are undefined; the message at their use says why. */
static const char *unsafe_name(Jinja *j, Value object, Slice name) {
    Str text = {0};
    str_printf(&text, "%s.%.*s, which would change what the template was given,", v_type_name(object), (int)name.len, name.data);
    return v_str(j, &text).as.string.data;
}

static Value method_or_undefined(Jinja *j, Value object, Slice name) {
    bool mutates = false;
    const Builtin *builtin = method_find(object.type, name, &mutates);
    if (mutates) return v_undefined(unsafe_name(j, object, name));
    return builtin ? bind(j, builtin, object) : v_undefined(name_text(j, name));
}

static Value macro_attribute(Jinja *j, const Macro *macro, Slice name) {
    const JinjaNode *node = macro->node;
    Value names = v_list(j, V_TUPLE);
    if (slice_is(name, "name")) return v_slice(node->name);
    for (size_t i = 0; i < node->list.n; i++) list_push(j, names, v_slice(node->list.items[i]->name));
    if (slice_is(name, "arguments")) return names;
    if (slice_is(name, "caller")) return v_bool(node->value.as.integer & MACRO_CALLER);
    if (slice_is(name, "catch_kwargs")) return v_bool(node->value.as.integer & MACRO_KWARGS);
    if (slice_is(name, "catch_varargs")) return v_bool(node->value.as.integer & MACRO_VARARGS);
    return v_undefined(name_text(j, name));
}

Value get_attribute(Jinja *j, Value object, Slice name) {
    bool found;
    if (object.type == V_UNDEFINED) return need_defined(j, object);
    if (object.type == V_LOOP) {
        Value value = loop_attribute(j, object.as.loop, name, &found);
        if (found) return value;
    }
    if (object.type == V_NAMESPACE) {
        Value *value = dict_find(object, v_slice(name));
        return value ? *value : v_undefined(name_text(j, name));
    }
    if (object.type == V_RANGE && slice_is(name, "start")) return v_int(object.as.range->start);
    if (object.type == V_RANGE && slice_is(name, "stop")) return v_int(object.as.range->stop);
    if (object.type == V_RANGE && slice_is(name, "step")) return v_int(object.as.range->step);
    if (object.type == V_MACRO) return macro_attribute(j, object.as.macro, name);
    if (object.type == V_CYCLER && slice_is(name, "current")) return object.as.cycler->items->items[object.as.cycler->at];
    if (object.type == V_TUPLE && object.safe && slice_is(name, "grouper")) return object.as.list->items[0];
    if (object.type == V_TUPLE && object.safe && slice_is(name, "list")) return object.as.list->items[1];
    if (object.type == V_DICT) { /* a method takes precedence over a key of the same name */
        bool mutates = false;
        Value *value = dict_find(object, v_slice(name));
        if (value && !method_find(V_DICT, name, &mutates) && !mutates) return *value;
    }
    return method_or_undefined(j, object, name);
}

static Value sequence_item(Value object, int64_t index, int64_t n) {
    if (index < 0) index += n;
    if (index < 0 || index >= n) return v_undefined("an item past the end");
    if (object.type == V_RANGE) return v_int(object.as.range->start + index * object.as.range->step);
    return object.as.list->items[index];
}

Value get_item(Jinja *j, Value object, Value key) {
    if (object.type == V_UNDEFINED) return need_defined(j, object);
    if (object.type == V_DICT) {
        Value *value = dict_find(object, key);
        if (value) return *value;
    } else if (is_integral(key) && (is_sequence(object) || object.type == V_RANGE)) {
        return sequence_item(object, int_of(key), length_of(j, object));
    } else if (is_integral(key) && is_string(object)) {
        if (!jinja_charge(j, object)) return v_undefined(NULL); /* charged, because characters are counted from the beginning */
        int64_t n = string_length(object.as.string), index = int_of(key) < 0 ? int_of(key) + n : int_of(key);
        return index < 0 || index >= n ? v_undefined("a character past the end") : v_slice(string_part(object.as.string, index, index + 1));
    }
    return is_string(key) ? (object.type == V_DICT ? method_or_undefined(j, object, key.as.string) : get_attribute(j, object, key.as.string))
                          : v_undefined("an item that is not there");
}

/* A slice's bound, with Python's rules. */
static int64_t bound(Jinja *j, Value v, int64_t n, int64_t missing, int64_t low, int64_t high) {
    if (v.type == V_NONE) return missing;
    if (!is_integral(v)) jinja_fail(j, "slice indices must be integers or None");
    int64_t i = is_integral(v) ? int_of(v) : 0;
    if (i < 0) i = i < -n ? -1 - n : i + n;
    return i < low ? low : i > high ? high : i;
}

Value slice_of(Jinja *j, Value object, Value start, Value stop, Value step) {
    if (object.type == V_UNDEFINED) return need_defined(j, object);
    if (!is_string(object) && !is_sequence(object) && object.type != V_RANGE)
        return jinja_fail(j, "'%s' object is not subscriptable by a slice", v_type_name(object));
    int64_t n = length_of(j, object), by = 1;
    if (step.type != V_NONE) by = is_integral(step) ? int_of(step) : 0;
    if (by == 0) return jinja_fail(j, "slice step cannot be zero");
    int64_t begin = bound(j, start, n, by > 0 ? 0 : n - 1, by > 0 ? 0 : -1, by > 0 ? n : n - 1),
            end = bound(j, stop, n, by > 0 ? n : -1, by > 0 ? 0 : -1, by > 0 ? n : n - 1);
    if (object.type == V_RANGE) {
        int64_t first = object.as.range->start, each = object.as.range->step, step_of;
        if (__builtin_mul_overflow(each, by, &step_of)) return jinja_fail(j, "an integer beyond 64 bits");
        return v_range(j, first + begin * each, first + end * each, step_of);
    }
    if (!jinja_charge(j, object)) return v_undefined(NULL);
    if (is_string(object) && by == 1) return v_slice(string_part(object.as.string, begin, MAX(begin, end)));
    Value items = v_iterate(j, object), result = v_list(j, object.type == V_TUPLE ? V_TUPLE : V_LIST);
    for (int64_t i = begin; jinja_ok(j) && (by > 0 ? i < end : i > end); i += by) {
        list_push(j, result, items.as.list->items[i]);
        if (by > 0 ? i > INT64_MAX - by : i < INT64_MIN - by) break;
    }
    if (!is_string(object) || !jinja_ok(j)) return result;
    Str text = {0};
    for (size_t i = 0; i < result.as.list->n; i++) append_text(j, &text, result.as.list->items[i]);
    return v_str(j, &text);
}

Value get_path(Jinja *j, Value object, Value path, const Value *missing) {
    if (is_integral(path)) object = get_item(j, object, path);
    if (is_integral(path)) return object.type == V_UNDEFINED && missing ? *missing : object;
    if (!is_string(path)) return jinja_fail(j, "an attribute must be a name or a number, not %s", v_type_name(path));
    Slice rest = path.as.string;
    while (jinja_ok(j)) {
        const char *dot = rest.len ? memchr(rest.data, '.', rest.len) : NULL;
        Slice part = {rest.data, dot ? (size_t)(dot - rest.data) : rest.len};
        bool digits = part.len > 0 && part.len < 18;
        int64_t index = 0;
        for (size_t i = 0; i < part.len && digits; i++) {
            digits = part.data[i] >= '0' && part.data[i] <= '9';
            index = index * 10 + (part.data[i] - '0');
        }
        object = get_item(j, object, digits ? v_int(index) : v_slice(part));
        if (object.type == V_UNDEFINED && missing) object = *missing;
        if (!dot) break;
        rest = (Slice){dot + 1, rest.len - part.len - 1};
    }
    return object;
}

/* ---- operators ---- */

static Value unsupported(Jinja *j, Slice op, Value a, Value b) {
    if (a.type == V_UNDEFINED) return need_defined(j, a);
    if (b.type == V_UNDEFINED) return need_defined(j, b);
    return jinja_fail(j, "unsupported operand type(s) for %.*s: '%s' and '%s'", (int)op.len, op.data, v_type_name(a), v_type_name(b));
}

static Value overflow(Jinja *j) { return jinja_fail(j, "an integer beyond 64 bits"); }

static Value jinja_eval_add(Jinja *j, Slice op, Value a, Value b) {
    int64_t sum;
    if (is_string(a) && is_string(b)) {
        Str text = {0};
        bool safe = a.safe || b.safe; /* like Markup: text joined to escaped text is escaped */
        if (safe && !a.safe) a = filter_call(j, (Slice){"forceescape", 11}, a, &(Args){0});
        if (safe && !b.safe) b = filter_call(j, (Slice){"forceescape", 11}, b, &(Args){0});
        if (!jinja_ok(j)) return a;
        if (a.as.string.len + b.as.string.len > JINJA_MAX_OUTPUT) return jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
        str_append_n(&text, a.as.string.data, a.as.string.len);
        str_append_n(&text, b.as.string.data, b.as.string.len);
        Value joined = v_str(j, &text);
        joined.safe = safe;
        return joined;
    }
    if (is_sequence(a) && a.type == b.type) {
        Value list = v_list(j, a.type);
        for (size_t i = 0; i < a.as.list->n && jinja_ok(j); i++) list_push(j, list, a.as.list->items[i]);
        for (size_t i = 0; i < b.as.list->n && jinja_ok(j); i++) list_push(j, list, b.as.list->items[i]);
        return list;
    }
    if (!is_number(a) || !is_number(b)) return unsupported(j, op, a, b);
    if (a.type == V_FLOAT || b.type == V_FLOAT) return v_float(number_of(a) + number_of(b));
    return __builtin_add_overflow(int_of(a), int_of(b), &sum) ? overflow(j) : v_int(sum);
}

static Value repeat(Jinja *j, Value sequence, int64_t times) {
    if (times < 0) times = 0;
    if (is_string(sequence)) {
        Str text = {0};
        if (sequence.as.string.len && (size_t)times > JINJA_MAX_OUTPUT / sequence.as.string.len)
            return jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
        for (int64_t i = 0; i < times && sequence.as.string.len; i++) str_append_n(&text, sequence.as.string.data, sequence.as.string.len);
        return v_str(j, &text);
    }
    Value list = v_list(j, sequence.type);
    size_t n = sequence.as.list->n;
    for (int64_t i = 0; i < times && n && jinja_ok(j); i++)
        for (size_t k = 0; k < n; k++) list_push(j, list, sequence.as.list->items[k]);
    return list;
}

static Value real_power(Jinja *j, double base, double exponent) {
    if (base == 0 && exponent < 0) return jinja_fail(j, "zero cannot be raised to a negative power");
    if (base < 0 && isfinite(exponent) && exponent != floor(exponent)) return jinja_fail(j, "a root of a negative number");
    double result = pow(base, exponent);
    return isinf(result) && isfinite(base) && isfinite(exponent) ? jinja_fail(j, "numerical result out of range") : v_float(result);
}

static Value power(Jinja *j, int64_t base, int64_t exponent) {
    int64_t result = 1;
    if (exponent < 0) return real_power(j, (double)base, (double)exponent);
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return overflow(j);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return overflow(j);
    }
    return v_int(result);
}

static Value integer_arithmetic(Jinja *j, Slice op, int64_t a, int64_t b) {
    int64_t result;
    if (slice_is(op, "-")) return __builtin_sub_overflow(a, b, &result) ? overflow(j) : v_int(result);
    if (slice_is(op, "*")) return __builtin_mul_overflow(a, b, &result) ? overflow(j) : v_int(result);
    if (slice_is(op, "**")) return power(j, a, b);
    if (b == 0) return jinja_fail(j, "division by zero");
    if (slice_is(op, "/")) return v_float((double)a / (double)b);
    if (b == -1) return slice_is(op, "%") ? v_int(0) : a == INT64_MIN ? overflow(j) : v_int(-a);
    int64_t rest = a % b, whole = a / b;
    bool adjust = rest != 0 && (rest < 0) != (b < 0);
    return v_int(slice_is(op, "%") ? rest + (adjust ? b : 0) : whole - adjust);
}

static Value real_arithmetic(Jinja *j, Slice op, double a, double b) {
    if (slice_is(op, "-")) return v_float(a - b);
    if (slice_is(op, "*")) return v_float(a * b);
    if (slice_is(op, "**")) return real_power(j, a, b);
    if (b == 0) return jinja_fail(j, "float division by zero");
    if (slice_is(op, "/")) return v_float(a / b);
    double rest = fmod(a, b);
    double whole = (a - rest) / b;
    if (rest == 0)
        rest = copysign(0, b);
    else if ((rest < 0) != (b < 0))
        rest += b, whole -= 1;
    return v_float(slice_is(op, "%") ? rest : whole == 0 ? copysign(0, a / b) : floor(whole + 0.5));
}

Value v_binary(Jinja *j, Slice op, Value a, Value b) {
    if (!jinja_ok(j)) return v_undefined(NULL);
    if (slice_is(op, "+")) return jinja_eval_add(j, op, a, b);
    if (slice_is(op, "%") && is_string(a)) return format_percent(j, a.as.string, b);
    if (slice_is(op, "*") && (is_string(a) || is_sequence(a)) && is_integral(b)) return repeat(j, a, int_of(b));
    if (slice_is(op, "*") && (is_string(b) || is_sequence(b)) && is_integral(a)) return repeat(j, b, int_of(a));
    if (!is_number(a) || !is_number(b)) return unsupported(j, op, a, b);
    if (a.type == V_FLOAT || b.type == V_FLOAT) return real_arithmetic(j, op, number_of(a), number_of(b));
    return integer_arithmetic(j, op, int_of(a), int_of(b));
}

static Value negate(Jinja *j, Slice op, Value v) {
    if (!is_number(v)) {
        need_defined(j, v);
        return jinja_fail(j, "bad operand type for unary %.*s: '%s'", (int)op.len, op.data, v_type_name(v));
    }
    if (slice_is(op, "+")) return v.type == V_BOOL ? v_int(int_of(v)) : v;
    if (v.type == V_FLOAT) return v_float(-v.as.real);
    return int_of(v) == INT64_MIN ? overflow(j) : v_int(-int_of(v));
}

static bool jinja_eval_holds(Jinja *j, Slice op, Value a, Value b) {
    if (!jinja_charge(j, b)) return false;
    if (slice_is(op, "==")) return v_equal(j, a, b);
    if (slice_is(op, "!=")) return !v_equal(j, a, b);
    if (slice_is(op, "in")) return v_contains(j, b, a);
    if (slice_is(op, "not")) return !v_contains(j, b, a);
    if ((a.type == V_FLOAT && isnan(a.as.real)) || (b.type == V_FLOAT && isnan(b.as.real))) return false;
    char text[4];
    snprintf(text, sizeof text, "%.*s", (int)op.len, op.data);
    int sign = v_compare(j, a, b, text);
    return slice_is(op, "<") ? sign < 0 : slice_is(op, "<=") ? sign <= 0 : slice_is(op, ">") ? sign > 0 : sign >= 0;
}

static Value eval_compare(Jinja *j, const JinjaNode *node) {
    Value left = eval(j, node->a);
    for (size_t i = 0; i < node->list.n && jinja_ok(j); i++) {
        Value right = eval(j, node->list.items[i]->a);
        if (!jinja_ok(j) || !jinja_eval_holds(j, node->list.items[i]->name, left, right)) return v_bool(false);
        left = right;
    }
    return v_bool(true);
}

/* ---- calls ---- */

typedef struct ArgStore {
    Value items;
    Keyword *keywords;
    size_t n_keywords, cap;
} ArgStore;

static void store_keyword(Jinja *j, ArgStore *store, Slice name, Value value) {
    for (size_t i = 0; i < store->n_keywords; i++)
        if (slice_equal(store->keywords[i].name, name)) {
            jinja_fail(j, "the keyword '%.*s' is given twice", (int)name.len, name.data);
            return;
        }
    if (store->n_keywords == store->cap) {
        size_t cap = store->cap ? store->cap * 2 : 4;
        Keyword *grown = pool_alloc(&j->pool, cap * sizeof *grown);
        if (!grown) {
            jinja_fail(j, "the template needs too much memory");
            return;
        }
        if (store->n_keywords) memcpy(grown, store->keywords, store->n_keywords * sizeof *grown);
        store->keywords = grown;
        store->cap = cap;
    }
    store->keywords[store->n_keywords++] = (Keyword){name, value};
}

static Args eval_arguments(Jinja *j, const NodeList *list) {
    ArgStore store = {.items = v_list(j, V_LIST)};
    for (size_t i = 0; i < list->n && jinja_ok(j); i++) {
        const JinjaNode *node = list->items[i];
        bool named = node->type == N_KEYWORD || node->type == N_SPREAD || node->type == N_SPREAD_KEYWORDS;
        Value value = eval(j, named ? node->a : node);
        if (!jinja_ok(j)) break;
        if (node->type == N_KEYWORD) {
            store_keyword(j, &store, node->name, value);
        } else if (node->type == N_SPREAD) {
            Value items = v_iterate(j, value);
            for (size_t k = 0; jinja_ok(j) && k < items.as.list->n; k++) list_push(j, store.items, items.as.list->items[k]);
        } else if (node->type == N_SPREAD_KEYWORDS) {
            if (value.type != V_DICT) jinja_fail(j, "argument after ** must be a mapping, not %s", v_type_name(value));
            for (size_t k = 0; jinja_ok(j) && k < value.as.dict->n; k++)
                store_keyword(j, &store, text_of(j, value.as.dict->pairs[k].key), value.as.dict->pairs[k].value);
        } else {
            list_push(j, store.items, value);
        }
    }
    if (!jinja_ok(j)) return (Args){0};
    return (Args){store.items.as.list->items, store.items.as.list->n, store.keywords, store.n_keywords};
}

static bool enter(Jinja *j) {
    if (++j->depth > JINJA_MAX_DEPTH) jinja_fail(j, "calls, loops and expressions nested more than %d deep", JINJA_MAX_DEPTH);
    return jinja_ok(j);
}

/* Redirects output to a separate string until capture_end. */
typedef struct Capture {
    Str text;
    Str *out;
    size_t outer;
} Capture;
static void capture_begin(Jinja *j, Capture *capture) {
    *capture = (Capture){.out = j->out, .outer = j->outer};
    j->outer += j->out->len;
    j->out = &capture->text;
}

static Value capture_end(Jinja *j, Capture *capture) {
    j->out = capture->out;
    j->outer = capture->outer;
    return v_str(j, &capture->text);
}

static bool takes_name(const JinjaNode *macro, Slice name) {
    for (size_t i = 0; i < macro->list.n; i++)
        if (slice_equal(macro->list.items[i]->name, name)) return true;
    return false;
}

/* Binds the remaining arguments to varargs, kwargs and caller if the macro's body uses them; otherwise they are an error. */
static void bind_rest(Jinja *j, const JinjaNode *node, Scope *scope, const Args *args) {
    int64_t asks = node->value.as.integer;
    bool called = false;
    Value varargs = v_list(j, V_TUPLE), kwargs = v_dict(j);
    for (size_t i = node->list.n; i < args->n; i++) list_push(j, varargs, args->items[i]);
    for (size_t i = 0; i < args->n_keywords && jinja_ok(j); i++) {
        Slice name = args->keywords[i].name;
        if (takes_name(node, name)) continue;
        if (slice_is(name, "caller") && (asks & MACRO_CALLER))
            scope_set(j, scope, name, args->keywords[i].value), called = true;
        else
            dict_set(j, kwargs, v_slice(name), args->keywords[i].value);
    }
    if (!jinja_ok(j)) return;
    if (varargs.as.list->n && !(asks & MACRO_VARARGS))
        jinja_fail(j, "macro '%.*s' takes not more than %zu argument(s)", (int)node->name.len, node->name.data, node->list.n);
    if (kwargs.as.dict->n && !(asks & MACRO_KWARGS)) {
        Slice name = kwargs.as.dict->pairs[0].key.as.string;
        jinja_fail(j, "macro '%.*s' takes no keyword argument '%.*s'", (int)node->name.len, node->name.data, (int)name.len, name.data);
    }
    if ((asks & MACRO_CALLER) && !called) scope_set(j, scope, (Slice){"caller", 6}, v_undefined("caller"));
    if (asks & MACRO_VARARGS) scope_set(j, scope, (Slice){"varargs", 7}, varargs);
    if (asks & MACRO_KWARGS) scope_set(j, scope, (Slice){"kwargs", 6}, kwargs);
}

static Value call_macro(Jinja *j, const Macro *macro, const Args *args) {
    const JinjaNode *node = macro->node;
    Scope *before = j->scope, *scope = scope_new(j, macro->scope);
    Capture capture;
    if (!enter(j)) return v_undefined(NULL);
    j->scope = scope;
    size_t n_required = node->list.n - node->more.n;
    for (size_t i = 0; i < node->list.n && jinja_ok(j); i++) {
        Slice name = node->list.items[i]->name;
        Value value = v_undefined(name_text(j, name));
        bool given = i < args->n;
        if (given) value = args->items[i];
        for (size_t k = 0; k < args->n_keywords; k++) {
            if (!slice_equal(args->keywords[k].name, name)) continue;
            if (given) jinja_fail(j, "macro '%.*s' got two values for '%.*s'", (int)node->name.len, node->name.data, (int)name.len, name.data);
            value = args->keywords[k].value;
            given = true;
        }
        if (!given && i >= n_required) value = eval(j, node->more.items[i - n_required]);
        scope_set(j, scope, name, value);
    }
    bind_rest(j, node, scope, args);
    capture_begin(j, &capture);
    run_body(j, &node->b->list);
    Value text = capture_end(j, &capture);
    j->scope = before;
    j->depth--;
    return text;
}

static Value run_loop(Jinja *j, const JinjaNode *node, Value iterable, int64_t depth);

static Value call_loop(Jinja *j, Loop *loop, const Args *args) {
    Capture capture;
    Scope *before = j->scope;
    if (!loop->node->flag) return jinja_fail(j, "this loop is not recursive: {%% for ... recursive %%}");
    if (args->n != 1 || !enter(j)) return jinja_fail(j, "a recursive loop takes one argument");
    capture_begin(j, &capture);
    j->scope = loop->scope;
    run_loop(j, loop->node, args->items[0], loop->depth + 1);
    j->scope = before;
    j->depth--;
    return capture_end(j, &capture);
}

static Value call_value(Jinja *j, Value callee, const Args *args) {
    if (!jinja_ok(j)) return v_undefined(NULL);
    switch (callee.type) {
    case V_BUILTIN: return callee.as.builtin->call(j, v_none(), args);
    case V_METHOD: {
        Value self = callee.as.method->self;
        if (!jinja_charge(j, self)) return v_undefined(NULL);
        Value result = callee.as.method->builtin->call(j, self, args);
        result.safe = result.safe || (is_string(self) && self.safe && is_string(result)); /* methods of Markup return Markup */
        return result;
    }
    case V_MACRO: return call_macro(j, callee.as.macro, args);
    case V_LOOP: return call_loop(j, callee.as.loop, args);
    case V_JOINER: {
        Value text = callee.as.joiner->used ? v_slice(callee.as.joiner->separator) : v_text("");
        callee.as.joiner->used = true;
        return text;
    }
    case V_UNDEFINED: return need_defined(j, callee);
    default: return jinja_fail(j, "'%s' object is not callable", v_type_name(callee));
    }
}

/* loop.cycle(...) and loop.changed(...) need the loop itself. */
static bool call_of_loop(Jinja *j, const JinjaNode *node, Value *result) {
    const JinjaNode *callee = node->a;
    if (callee->type != N_ATTRIBUTE || (!slice_is(callee->name, "cycle") && !slice_is(callee->name, "changed"))) return false;
    Value object = eval(j, callee->a);
    if (!jinja_ok(j) || object.type != V_LOOP) return !jinja_ok(j);
    Args args = eval_arguments(j, &node->list);
    Loop *loop = object.as.loop;
    if (!jinja_ok(j)) return true;
    if (slice_is(callee->name, "cycle")) {
        *result = args.n ? args.items[loop->index % (int64_t)args.n] : jinja_fail(j, "no items for cycling given");
        return true;
    }
    Value now = v_list(j, V_TUPLE);
    for (size_t i = 0; i < args.n; i++) list_push(j, now, args.items[i]);
    *result = v_bool(!loop->has_seen || !v_equal(j, loop->seen, now));
    loop->seen = now;
    loop->has_seen = true;
    return true;
}

static Value eval_call(Jinja *j, const JinjaNode *node) {
    Value result = v_undefined(NULL);
    if (call_of_loop(j, node, &result)) return result;
    Value callee = eval(j, node->a);
    Args args = eval_arguments(j, &node->list);
    j->at = node->at;
    return jinja_ok(j) ? call_value(j, callee, &args) : v_undefined(NULL);
}

static Value eval_filter(Jinja *j, const JinjaNode *node, Value value) {
    Args args = eval_arguments(j, &node->list);
    j->at = node->at;
    if (!jinja_ok(j) || !jinja_charge(j, value)) return v_undefined(NULL);
    return node->value.as.builtin ? node->value.as.builtin->call(j, value, &args) : filter_call(j, node->name, value, &args);
}

/* ---- expressions ---- */

static Value eval_name(Jinja *j, const JinjaNode *node) {
    Value *value = scope_find(j->scope, node->name);
    if (value) return *value;
    const Builtin *global = global_find(node->name);
    return global ? (Value){.type = V_BUILTIN, .as.builtin = global} : v_undefined(name_text(j, node->name));
}

static Value eval_item(Jinja *j, const JinjaNode *node) {
    Value object = eval(j, node->a);
    if (node->b->type != N_SLICE) {
        Value key = eval(j, node->b);
        return jinja_ok(j) ? get_item(j, object, key) : v_undefined(NULL);
    }
    const JinjaNode *s = node->b;
    Value start = s->a ? eval(j, s->a) : v_none(), stop = s->b ? eval(j, s->b) : v_none(), step = s->c ? eval(j, s->c) : v_none();
    return jinja_ok(j) ? slice_of(j, object, start, stop, step) : v_undefined(NULL);
}

static Value eval_concat(Jinja *j, const JinjaNode *node) {
    Str text = {0};
    for (size_t i = 0; i < node->list.n && jinja_ok(j); i++) append_text(j, &text, eval(j, node->list.items[i]));
    if (text.len > JINJA_MAX_OUTPUT) jinja_fail(j, "a text of more than %zu MB", JINJA_MAX_OUTPUT >> 20);
    return v_str(j, &text);
}

static Value eval_elements(Jinja *j, const JinjaNode *node, ValueType type) {
    Value list = v_list(j, type);
    for (size_t i = 0; i < node->list.n && jinja_ok(j); i++) list_push(j, list, eval(j, node->list.items[i]));
    return list;
}

static Value eval_dict(Jinja *j, const JinjaNode *node) {
    Value dict = v_dict(j);
    for (size_t i = 0; i < node->list.n && jinja_ok(j); i++) {
        Value key = eval(j, node->list.items[i]);
        if (key.type == V_LIST || key.type == V_DICT) jinja_fail(j, "unhashable type: '%s'", v_type_name(key));
        dict_set(j, dict, key, eval(j, node->more.items[i]));
    }
    return dict;
}

static Value eval_here(Jinja *j, const JinjaNode *node) {
    switch (node->type) {
    case N_CONSTANT: return node->value;
    case N_NAME: return eval_name(j, node);
    case N_ATTRIBUTE: {
        Value object = eval(j, node->a);
        j->at = node->at;
        return jinja_ok(j) ? get_attribute(j, object, node->name) : object;
    }
    case N_ITEM: return eval_item(j, node);
    case N_CALL: return eval_call(j, node);
    case N_FILTER: return eval_filter(j, node, eval(j, node->a));
    case N_TEST: {
        Value value = eval(j, node->a);
        Args args = eval_arguments(j, &node->list);
        j->at = node->at;
        return v_bool(jinja_ok(j) && (node->value.as.builtin ? node->value.as.builtin->call(j, value, &args).as.boolean
                                                             : test_call(j, node->name, value, &args)) != node->flag);
    }
    case N_UNARY: return negate(j, node->name, eval(j, node->a));
    case N_BINARY: {
        Value a = eval(j, node->a), b = eval(j, node->b);
        j->at = node->at;
        return v_binary(j, node->name, a, b);
    }
    case N_COMPARE: return eval_compare(j, node);
    case N_AND: {
        Value a = eval(j, node->a);
        return v_truth(j, a) ? eval(j, node->b) : a;
    }
    case N_OR: {
        Value a = eval(j, node->a);
        return v_truth(j, a) ? a : eval(j, node->b);
    }
    case N_NOT: return v_bool(!v_truth(j, eval(j, node->a)));
    case N_IF_ELSE: {
        bool yes = v_truth(j, eval(j, node->a));
        return yes ? eval(j, node->b) : node->c ? eval(j, node->c) : v_undefined("the missing else of an inline if");
    }
    case N_CONCAT: return eval_concat(j, node);
    case N_LIST: return eval_elements(j, node, V_LIST);
    case N_TUPLE: return eval_elements(j, node, V_TUPLE);
    case N_DICT: return eval_dict(j, node);
    default: return jinja_fail(j, "an expression of this kind has no value here");
    }
}

static Value eval(Jinja *j, const JinjaNode *node) {
    if (!jinja_ok(j)) return v_undefined(NULL);
    j->at = node->at;
    if (!jinja_charge(j, v_none()) || !enter(j)) return v_undefined(NULL);
    Value value = eval_here(j, node);
    j->depth--;
    return jinja_ok(j) ? value : v_undefined(NULL);
}

/* ---- statements ---- */

static void assign(Jinja *j, const JinjaNode *target, Value value) {
    if (!jinja_ok(j)) return;
    j->at = target->at;
    if (target->type == N_NAME) {
        scope_set(j, j->scope, target->name, value);
    } else if (target->type == N_ATTRIBUTE) {
        Value object = eval(j, target->a);
        if (object.type != V_NAMESPACE)
            jinja_fail(j, "cannot assign attribute on a non-namespace object");
        else
            dict_set(j, object, v_slice(target->name), value);
    } else {
        Value items = v_iterate(j, value);
        if (!jinja_ok(j)) return;
        if (items.as.list->n != target->list.n) jinja_fail(j, "%zu values for %zu names", items.as.list->n, target->list.n);
        for (size_t i = 0; i < target->list.n && jinja_ok(j); i++) assign(j, target->list.items[i], items.as.list->items[i]);
    }
}

/* The elements that satisfy the loop's condition. */
static Value loop_items(Jinja *j, const JinjaNode *node, Value iterable) {
    Value all = v_iterate(j, iterable);
    if (!node->c || !jinja_ok(j)) return all;
    Value some = v_list(j, V_LIST);
    Scope *before = j->scope;
    for (size_t i = 0; i < all.as.list->n && jinja_ok(j); i++) {
        j->scope = scope_new(j, before);
        assign(j, node->a, all.as.list->items[i]);
        if (v_truth(j, eval(j, node->c))) list_push(j, some, all.as.list->items[i]);
    }
    j->scope = before;
    return some;
}

static Value run_loop(Jinja *j, const JinjaNode *node, Value iterable, int64_t depth) {
    Value items = loop_items(j, node, iterable);
    Loop *loop = pool_alloc(&j->pool, sizeof *loop);
    Scope *before = j->scope;
    if (!loop) jinja_fail(j, "the template needs too much memory");
    if (!jinja_ok(j)) return v_undefined(NULL);
    *loop = (Loop){.items = items, .depth = depth, .node = node, .scope = before};
    bool completed = false; /* an iteration ended without break or continue: only then does Jinja2 skip the else */
    for (size_t i = 0; i < items.as.list->n && jinja_ok(j); i++) {
        loop->index = (int64_t)i;
        j->scope = scope_new(j, before);
        scope_set(j, j->scope, (Slice){"loop", 4}, (Value){.type = V_LOOP, .as.loop = loop});
        assign(j, node->a, items.as.list->items[i]);
        run_body(j, &node->list);
        bool left = j->flow == FLOW_BREAK;
        completed = completed || j->flow == FLOW_NORMAL;
        j->flow = FLOW_NORMAL;
        if (left) break;
    }
    j->scope = before;
    if (!completed && node->more.n && jinja_ok(j)) {
        j->scope = scope_new(j, before);
        run_body(j, &node->more);
        j->scope = before;
    }
    return v_none();
}

static void output(Jinja *j, Value value) {
    if (!jinja_ok(j)) return;
    append_text(j, j->out, value);
    if (j->out->len + j->outer > JINJA_MAX_OUTPUT) jinja_fail(j, "the template writes more than %zu MB", JINJA_MAX_OUTPUT >> 20);
}

/* The text of a block, passed through the filters that it names. */
static Value block_text(Jinja *j, const NodeList *body, const JinjaNode *filters) {
    Capture capture;
    Scope *before = j->scope;
    j->scope = scope_new(j, before);
    capture_begin(j, &capture);
    run_body(j, body);
    Value text = capture_end(j, &capture);
    j->scope = before;
    const JinjaNode *chain[32];
    size_t n = 0;
    for (; filters && n < COUNT_OF(chain); filters = filters->a) chain[n++] = filters;
    while (n > 0 && jinja_ok(j)) text = eval_filter(j, chain[--n], text);
    return text;
}

static void output_filtered(Jinja *j, Value text) {
    if (jinja_ok(j) && text.type != V_STRING) jinja_fail(j, "the filter of a block must make a text");
    output(j, text);
}

static Value macro_value(Jinja *j, const JinjaNode *node) {
    Macro *macro = pool_alloc(&j->pool, sizeof *macro);
    if (!macro) return jinja_fail(j, "the template needs too much memory");
    *macro = (Macro){node, j->scope};
    return (Value){.type = V_MACRO, .as.macro = macro};
}

static void run_call_block(Jinja *j, const JinjaNode *node) {
    Value callee = eval(j, node->a->a), caller = macro_value(j, node);
    Args args = eval_arguments(j, &node->a->list);
    Keyword *keywords = pool_alloc(&j->pool, (args.n_keywords + 1) * sizeof *keywords);
    if (!keywords) jinja_fail(j, "the template needs too much memory");
    if (!jinja_ok(j)) return;
    if (args.n_keywords) memcpy(keywords, args.keywords, args.n_keywords * sizeof *keywords);
    keywords[args.n_keywords] = (Keyword){{"caller", 6}, caller};
    args.keywords = keywords;
    args.n_keywords++;
    output(j, call_value(j, callee, &args));
}

static void run_with(Jinja *j, const JinjaNode *node) {
    Scope *before = j->scope, *scope = scope_new(j, before);
    for (size_t i = 0; i < node->more.n && jinja_ok(j); i++) {
        Value value = eval(j, node->more.items[i]->a); /* in the outer scope */
        j->scope = scope;
        assign(j, node->more.items[i]->b, value);
        j->scope = before;
    }
    j->scope = scope;
    run_body(j, &node->list);
    j->scope = before;
}

static void run_generation(Jinja *j, const JinjaNode *node) {
    size_t begin = j->outer + j->out->len;
    Scope *before = j->scope;
    j->scope = scope_new(j, before);
    run_body(j, &node->list);
    j->scope = before;
    if (!jinja_ok(j)) return;
    j->status = array_grow(&j->generated, &j->cap_generated, j->n_generated + 1, sizeof *j->generated, "spans of a chat");
    if (!jinja_ok(j)) return;
    j->generated[j->n_generated++] = (ChatSpan){begin, j->outer + j->out->len};
}

static void run_statement(Jinja *j, const JinjaNode *node) {
    switch (node->type) {
    case N_TEXT: output(j, node->value); break;
    case N_OUTPUT: output(j, eval(j, node->a)); break;
    case N_FOR: run_loop(j, node, eval(j, node->b), 0); break;
    case N_IF: run_body(j, v_truth(j, eval(j, node->a)) ? &node->list : &node->more); break;
    case N_SET: assign(j, node->a, eval(j, node->b)); break;
    case N_SET_BLOCK: assign(j, node->a, block_text(j, &node->list, node->b)); break;
    case N_MACRO: scope_set(j, j->scope, node->name, macro_value(j, node)); break;
    case N_CALL_BLOCK: run_call_block(j, node); break;
    case N_FILTER_BLOCK: output_filtered(j, block_text(j, &node->list, node->a)); break;
    case N_WITH: run_with(j, node); break;
    case N_GENERATION: run_generation(j, node); break;
    case N_BREAK: j->flow = FLOW_BREAK; break;
    case N_CONTINUE: j->flow = FLOW_CONTINUE; break;
    default: jinja_fail(j, "a statement of an unknown kind"); break;
    }
}

static void run_body(Jinja *j, const NodeList *body) {
    if (!jinja_ok(j) || !enter(j)) return;
    for (size_t i = 0; i < body->n && jinja_ok(j) && j->flow == FLOW_NORMAL; i++) {
        j->at = body->items[i]->at;
        if (jinja_charge(j, v_none())) run_statement(j, body->items[i]);
    }
    j->depth--;
}

void jinja_run(Jinja *j, const NodeList *body) {
    j->scope = j->globals = scope_new(j, j->globals);
    run_body(j, body);
}

void jinja_set(Jinja *j, Slice name, Value value) {
    if (!j->globals && !(j->globals = scope_new(j, NULL))) return; /* out of memory */
    scope_set(j, j->globals, name, value);
}
