/* What stands behind `is`. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/value.h"

#define TEST(name) static bool name(jx *x, jv self, const jv *a, const jargs *args, jv *out)
#define UNUSED() ((void)x, (void)self, (void)a, (void)args)

static bool answer(jv *out, bool yes) {
    *out = jv_bool(yes);
    return true;
}

TEST(t_defined) {
    UNUSED();
    return answer(out, self.kind != J_UNDEFINED);
}
TEST(t_undefined) {
    UNUSED();
    return answer(out, self.kind == J_UNDEFINED);
}
TEST(t_none) {
    UNUSED();
    return answer(out, self.kind == J_NONE);
}
TEST(t_boolean) {
    UNUSED();
    return answer(out, self.kind == J_BOOL);
}
TEST(t_true) {
    UNUSED();
    return answer(out, self.kind == J_BOOL && self.b);
}
TEST(t_false) {
    UNUSED();
    return answer(out, self.kind == J_BOOL && !self.b);
}
TEST(t_integer) {
    UNUSED();
    return answer(out, self.kind == J_INT);
}
TEST(t_float) {
    UNUSED();
    return answer(out, self.kind == J_FLOAT);
}
TEST(t_number) {
    UNUSED();
    return answer(out, jv_is_number(self));
}
TEST(t_string) {
    UNUSED();
    return answer(out, self.kind == J_STR);
}
TEST(t_mapping) {
    UNUSED();
    return answer(out, self.kind == J_DICT);
}
TEST(t_iterable) {
    UNUSED();
    return answer(out, jv_is_iterable(self));
}
TEST(t_sequence) {
    UNUSED();
    return answer(out, self.kind == J_UNDEFINED || self.kind == J_STR || self.kind == J_LIST || self.kind == J_TUPLE ||
                           self.kind == J_DICT || self.kind == J_RANGE);
}
TEST(t_callable) {
    UNUSED();
    return answer(out, jv_is_callable(self));
}
TEST(t_escaped) {
    UNUSED();
    return answer(out, self.markup);
}

/* By identity, which values of this interpreter have where they are shared. */
TEST(t_sameas) {
    UNUSED();
    jv other = a[0];
    bool same = self.kind == other.kind;
    if (same && self.kind == J_BOOL)
        same = self.b == other.b;
    else if (same && (self.kind == J_STR || self.kind == J_INT || self.kind == J_FLOAT))
        return jv_equal(x, self, other, &same) && answer(out, same);
    else if (same && self.kind != J_NONE && self.kind != J_UNDEFINED)
        same = self.list == other.list;
    return answer(out, same);
}

static bool has_case(jx *x, jv self, const char *method, jv *out) {
    jv text;
    const jbuiltin *b = jmethod_str_find(method, strlen(method));
    return jv_to_str(x, self, &text) && jbuiltin_call(x, b, text, &(jargs){0}, out);
}

TEST(t_lower) {
    UNUSED();
    return has_case(x, self, "islower", out);
}
TEST(t_upper) {
    UNUSED();
    return has_case(x, self, "isupper", out);
}

static bool remainder_is(jx *x, jv v, jv divisor, int64_t wanted, jv *out) {
    jv r;
    bool same;
    return jv_arithmetic(x, '%', v, divisor, &r) && jv_equal(x, r, jv_int(wanted), &same) && answer(out, same);
}

TEST(t_even) {
    UNUSED();
    return remainder_is(x, self, jv_int(2), 0, out);
}
TEST(t_odd) {
    UNUSED();
    return remainder_is(x, self, jv_int(2), 1, out);
}
TEST(t_divisibleby) {
    UNUSED();
    return remainder_is(x, self, a[0], 0, out);
}

TEST(t_in) {
    UNUSED();
    bool yes;
    return jv_contains(x, self, a[0], &yes) && answer(out, yes);
}
TEST(t_eq) {
    UNUSED();
    bool yes;
    return jv_equal(x, self, a[0], &yes) && answer(out, yes);
}
TEST(t_ne) {
    UNUSED();
    bool yes;
    return jv_equal(x, self, a[0], &yes) && answer(out, !yes);
}
TEST(t_lt) {
    UNUSED();
    int order;
    return jv_compare(x, self, a[0], &order) && answer(out, order < 0);
}
TEST(t_gt) {
    UNUSED();
    int order;
    return jv_compare(x, self, a[0], &order) && answer(out, order == 1);
}
TEST(t_le) {
    UNUSED();
    int order;
    return jv_compare(x, self, a[0], &order) && answer(out, order <= 0);
}
TEST(t_ge) {
    UNUSED();
    int order;
    return jv_compare(x, self, a[0], &order) && answer(out, order == 0 || order == 1);
}
static bool exists(jx *x, jv name, const jbuiltin *(*find)(const char *, size_t), jv *out) {
    jstr *s;
    return jv_as_str(x, name, "a name", &s) && answer(out, find(s->data, s->len) != NULL);
}
TEST(t_filter) {
    UNUSED();
    return exists(x, self, jfilter_find, out);
}
TEST(t_test) {
    UNUSED();
    return exists(x, self, jtest_find, out);
}

const jbuiltin *jtest_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"defined", "", 0, t_defined},
                                     {"undefined", "", 0, t_undefined},
                                     {"none", "", 0, t_none},
                                     {"boolean", "", 0, t_boolean},
                                     {"true", "", 0, t_true},
                                     {"false", "", 0, t_false},
                                     {"integer", "", 0, t_integer},
                                     {"float", "", 0, t_float},
                                     {"number", "", 0, t_number},
                                     {"string", "", 0, t_string},
                                     {"mapping", "", 0, t_mapping},
                                     {"iterable", "", 0, t_iterable},
                                     {"sequence", "", 0, t_sequence},
                                     {"callable", "", 0, t_callable},
                                     {"escaped", "", 0, t_escaped},
                                     {"sameas", "other", 1, t_sameas},
                                     {"lower", "", 0, t_lower},
                                     {"upper", "", 0, t_upper},
                                     {"even", "", 0, t_even},
                                     {"odd", "", 0, t_odd},
                                     {"divisibleby", "num", 1, t_divisibleby},
                                     {"in", "seq", 1, t_in},
                                     {"eq", "other", 1, t_eq},
                                     {"equalto", "other", 1, t_eq},
                                     {"==", "other", 1, t_eq},
                                     {"ne", "other", 1, t_ne},
                                     {"!=", "other", 1, t_ne},
                                     {"lt", "other", 1, t_lt},
                                     {"lessthan", "other", 1, t_lt},
                                     {"<", "other", 1, t_lt},
                                     {"gt", "other", 1, t_gt},
                                     {"greaterthan", "other", 1, t_gt},
                                     {">", "other", 1, t_gt},
                                     {"le", "other", 1, t_le},
                                     {"<=", "other", 1, t_le},
                                     {"ge", "other", 1, t_ge},
                                     {">=", "other", 1, t_ge},
                                     {"filter", "", 0, t_filter},
                                     {"test", "", 0, t_test}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
