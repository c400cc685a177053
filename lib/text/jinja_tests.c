/* SPDX-License-Identifier: Apache-2.0 */
/* Tests, used after `is`: one function and one line of the table each. */
#include <utf8proc.h>

#include "lib/text/jinja.h"
#include "lib/text/tokenizer_parts.h"

#define TEST(name) static Value test_##name(Jinja *j, Value v, const Args *args)

static Value first_arg(Jinja *j, const Args *args) {
    const Value *value = arg(args, 0, "other");
    return value ? *value : jinja_fail(j, "the test needs an argument");
}

TEST(defined) { return (void)j, (void)args, v_bool(v.type != V_UNDEFINED); }
TEST(undefined) { return (void)j, (void)args, v_bool(v.type == V_UNDEFINED); }
TEST(none) { return (void)j, (void)args, v_bool(v.type == V_NONE); }
TEST(boolean) { return (void)j, (void)args, v_bool(v.type == V_BOOL); }
TEST(true) { return (void)j, (void)args, v_bool(v.type == V_BOOL && v.as.boolean); }
TEST(false) { return (void)j, (void)args, v_bool(v.type == V_BOOL && !v.as.boolean); }
TEST(integer) { return (void)j, (void)args, v_bool(v.type == V_INT); }
TEST(float) { return (void)j, (void)args, v_bool(v.type == V_FLOAT); }
TEST(number) { return (void)j, (void)args, v_bool(is_number(v)); }
TEST(string) { return (void)j, (void)args, v_bool(is_string(v)); }
TEST(mapping) { return (void)j, (void)args, v_bool(v.type == V_DICT); }
TEST(sequence) {
    return (void)j, (void)args, v_bool(is_string(v) || is_sequence(v) || v.type == V_DICT || v.type == V_RANGE || v.type == V_UNDEFINED);
}
TEST(iterable) {
    return (void)j, (void)args,
           v_bool(is_string(v) || is_sequence(v) || v.type == V_DICT || v.type == V_RANGE || v.type == V_UNDEFINED || v.type == V_LOOP ||
                  v.type == V_VIEW || v.type == V_GENERATOR);
}
TEST(callable) {
    return (void)j, (void)args,
           v_bool(v.type == V_MACRO || v.type == V_BUILTIN || v.type == V_METHOD || v.type == V_JOINER || v.type == V_LOOP || v.type == V_UNDEFINED);
}
TEST(escaped) { return (void)j, (void)args, v_bool(v.safe); }
TEST(eq) { return v_bool(v_equal(j, v, first_arg(j, args))); }
TEST(ne) { return v_bool(!v_equal(j, v, first_arg(j, args))); }
TEST(lt) { return v_bool(v_compare(j, v, first_arg(j, args), "<") < 0); }
TEST(le) { return v_bool(v_compare(j, v, first_arg(j, args), "<=") <= 0); }
TEST(gt) { return v_bool(v_compare(j, v, first_arg(j, args), ">") > 0); }
TEST(ge) { return v_bool(v_compare(j, v, first_arg(j, args), ">=") >= 0); }
TEST(in) { return v_bool(v_contains(j, first_arg(j, args), v)); }

TEST(sameas) {
    Value other = first_arg(j, args);
    if (v.type != other.type) return v_bool(false);
    if (is_sequence(v) || v.type == V_DICT || v.type == V_NAMESPACE) return v_bool(v.as.list == other.as.list);
    return v_bool(v_equal(j, v, other));
}

TEST(divisibleby) {
    Value rest = v_binary(j, (Slice){"%", 1}, v, first_arg(j, args));
    return v_bool(is_number(rest) && number_of(rest) == 0);
}

static Value parity(Jinja *j, Value v, int64_t wanted) {
    Value rest = v_binary(j, (Slice){"%", 1}, v, v_int(2));
    return v_bool(is_number(rest) && number_of(rest) == (double)wanted);
}
TEST(even) { return (void)args, parity(j, v, 0); }
TEST(odd) { return (void)args, parity(j, v, 1); }

/* Like str.islower and str.isupper: the string has a letter of the wanted case and none of the other. */
static Value letters(Jinja *j, Value v, bool lower) {
    Slice s = text_of(j, v);
    bool some = false;
    for (size_t at = 0; at < s.len;) {
        uint32_t c;
        at += char_next(s.data + at, &c);
        utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
        bool is_lower = category == UTF8PROC_CATEGORY_LL, is_upper = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
        if (lower ? is_upper : is_lower) return v_bool(false);
        some = some || (lower ? is_lower : is_upper);
    }
    return v_bool(some);
}
TEST(lower) { return (void)args, letters(j, v, true); }
TEST(upper) { return (void)args, letters(j, v, false); }
TEST(filter) { return (void)args, v_hashable(j, v), v_bool(is_string(v) && filter_find(v.as.string) && jinja_ok(j)); }
TEST(test) { return (void)args, v_hashable(j, v), v_bool(is_string(v) && test_find(v.as.string) && jinja_ok(j)); }

static const Builtin tests[] = {
    {"defined", test_defined},
    {"undefined", test_undefined},
    {"none", test_none},
    {"boolean", test_boolean},
    {"true", test_true},
    {"false", test_false},
    {"integer", test_integer},
    {"float", test_float},
    {"number", test_number},
    {"string", test_string},
    {"mapping", test_mapping},
    {"sequence", test_sequence},
    {"iterable", test_iterable},
    {"callable", test_callable},
    {"escaped", test_escaped},
    {"eq", test_eq},
    {"==", test_eq},
    {"equalto", test_eq},
    {"ne", test_ne},
    {"!=", test_ne},
    {"lt", test_lt},
    {"<", test_lt},
    {"lessthan", test_lt},
    {"le", test_le},
    {"<=", test_le},
    {"gt", test_gt},
    {">", test_gt},
    {"greaterthan", test_gt},
    {"ge", test_ge},
    {">=", test_ge},
    {"in", test_in},
    {"sameas", test_sameas},
    {"divisibleby", test_divisibleby},
    {"even", test_even},
    {"odd", test_odd},
    {"lower", test_lower},
    {"upper", test_upper},
    {"filter", test_filter},
    {"test", test_test},
};

const Builtin *test_find(Slice name) {
    for (size_t i = 0; i < COUNT_OF(tests); i++)
        if (slice_is(name, tests[i].name)) return &tests[i];
    return NULL;
}

bool test_call(Jinja *j, Slice name, Value value, const Args *args) {
    const Builtin *test = test_find(name);
    if (!test) jinja_fail(j, "no test named '%.*s'", (int)name.len, name.data);
    return test && jinja_charge(j, value) && test->call(j, value, args).as.boolean;
}
