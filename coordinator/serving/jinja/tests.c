/* coordinator/serving/jinja/tests.c - the tests of the template language, which stand behind `is`. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/value.h"

static bool answer(jv *out, bool yes) {
    return jv_give(out, jv_bool(yes));
}

BUILTIN(t_defined) {
    return answer(out, self.kind != J_UNDEFINED);
}
/* Whether the value has one kind. how: the jkind. */
BUILTIN(t_kind) {
    return answer(out, self.kind == how);
}
BUILTIN(t_integer) {
    return answer(out, self.kind == J_INT || self.kind == J_LONG);
}
BUILTIN(t_truth) {
    return answer(out, self.kind == J_BOOL && self.b == how);
}
BUILTIN(t_number) {
    return answer(out, jv_is_number(self) || self.kind == J_LONG);
}
BUILTIN(t_iterable) {
    return answer(out, jv_is_iterable(self));
}
BUILTIN(t_sequence) {
    return answer(out, self.kind == J_UNDEFINED || self.kind == J_STR || self.kind == J_LIST || self.kind == J_TUPLE ||
                           self.kind == J_DICT || self.kind == J_RANGE);
}
BUILTIN(t_callable) {
    return answer(out, jv_is_callable(self));
}
BUILTIN(t_escaped) {
    return answer(out, self.markup);
}

/* Python compares identities here. Shared objects are compared by pointer, all other values by equality. */
BUILTIN(t_sameas) {
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

BUILTIN(t_has_case) {
    const jbuiltin *method = how == CASE_LOWER ? jmethod_str_find("islower", 7) : jmethod_str_find("isupper", 7);
    return jv_to_str(x, self, &self) && jbuiltin_call(x, method, self, &(jargs){0}, out);
}

static bool remainder_is(jx *x, jv v, jv divisor, int64_t wanted, jv *out) {
    jv r;
    bool same;
    return jv_arithmetic(x, '%', v, divisor, &r) && jv_equal(x, r, jv_int(wanted), &same) && answer(out, same);
}

BUILTIN(t_parity) {
    return remainder_is(x, self, jv_int(2), how, out);
}
BUILTIN(t_divisibleby) {
    return remainder_is(x, self, a[0], 0, out);
}

BUILTIN(t_compare) {
    bool yes;
    return jv_holds(x, (char)how, self, a[0], &yes) && answer(out, yes);
}

BUILTIN(t_filter) {
    jstr *s;
    return jv_as_str(x, self, "a name", &s) && answer(out, jfilter_find(s->data, s->len) != NULL);
}
BUILTIN(t_test) {
    jstr *s;
    return jv_as_str(x, self, "a name", &s) && answer(out, jtest_find(s->data, s->len) != NULL);
}

const jbuiltin *jtest_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"defined", "", 0, t_defined, 0},
                                     {"undefined", "", 0, t_kind, J_UNDEFINED},
                                     {"none", "", 0, t_kind, J_NONE},
                                     {"boolean", "", 0, t_kind, J_BOOL},
                                     {"true", "", 0, t_truth, true},
                                     {"false", "", 0, t_truth, false},
                                     {"integer", "", 0, t_integer, 0},
                                     {"float", "", 0, t_kind, J_FLOAT},
                                     {"number", "", 0, t_number, 0},
                                     {"string", "", 0, t_kind, J_STR},
                                     {"mapping", "", 0, t_kind, J_DICT},
                                     {"iterable", "", 0, t_iterable, 0},
                                     {"sequence", "", 0, t_sequence, 0},
                                     {"callable", "", 0, t_callable, 0},
                                     {"escaped", "", 0, t_escaped, 0},
                                     {"sameas", "other", 1, t_sameas, 0},
                                     {"lower", "", 0, t_has_case, CASE_LOWER},
                                     {"upper", "", 0, t_has_case, CASE_UPPER},
                                     {"even", "", 0, t_parity, 0},
                                     {"odd", "", 0, t_parity, 1},
                                     {"divisibleby", "num", 1, t_divisibleby, 0},
                                     {"in", "seq", 1, t_compare, 'i'},
                                     {"eq", "other", 1, t_compare, '='},
                                     {"equalto", "other", 1, t_compare, '='},
                                     {"==", "other", 1, t_compare, '='},
                                     {"ne", "other", 1, t_compare, '!'},
                                     {"!=", "other", 1, t_compare, '!'},
                                     {"lt", "other", 1, t_compare, '<'},
                                     {"lessthan", "other", 1, t_compare, '<'},
                                     {"<", "other", 1, t_compare, '<'},
                                     {"gt", "other", 1, t_compare, '>'},
                                     {"greaterthan", "other", 1, t_compare, '>'},
                                     {">", "other", 1, t_compare, '>'},
                                     {"le", "other", 1, t_compare, 'l'},
                                     {"<=", "other", 1, t_compare, 'l'},
                                     {"ge", "other", 1, t_compare, 'g'},
                                     {">=", "other", 1, t_compare, 'g'},
                                     {"filter", "", 0, t_filter, 0},
                                     {"test", "", 0, t_test, 0}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
