/* coordinator/serving/jinja/arithmetic.c - arithmetic of the template language with Python's results: integers that
 * report overflow, division that rounds down, and + and * of strings and lists. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "coordinator/serving/jinja/value.h"

static bool overflow(jx *x) {
    return jx_fail(x, MR_E_INVALID, "an integer does not fit 64 bits");
}

static bool zero_division(jx *x) {
    return jx_fail(x, MR_E_INVALID, "division by zero");
}

/* Quotients are rounded down, and a remainder has the sign of the divisor. */
static bool divide_ints(jx *x, char op, int64_t a, int64_t b, jv *out) {
    if (b == 0)
        return zero_division(x);
    if (a == INT64_MIN && b == -1)
        return op == 'f' ? overflow(x) : jv_give(out, jv_int(0));
    int64_t q = a / b, r = a % b;
    if (r != 0 && (r < 0) != (b < 0)) {
        q--;
        r += b;
    }
    return jv_give(out, jv_int(op == 'f' ? q : r));
}

static bool power_ints(jx *x, int64_t a, int64_t n, jv *out) {
    int64_t result = 1;
    while (n > 0) {
        if ((n & 1) && __builtin_mul_overflow(result, a, &result))
            return overflow(x);
        n >>= 1;
        if (n && __builtin_mul_overflow(a, a, &a))
            return overflow(x);
    }
    return jv_give(out, jv_int(result));
}

static bool int_arithmetic(jx *x, char op, int64_t a, int64_t b, jv *out) {
    int64_t r;
    switch (op) {
    case '+':
        return __builtin_add_overflow(a, b, &r) ? overflow(x) : jv_give(out, jv_int(r));
    case '-':
        return __builtin_sub_overflow(a, b, &r) ? overflow(x) : jv_give(out, jv_int(r));
    case '*':
        return __builtin_mul_overflow(a, b, &r) ? overflow(x) : jv_give(out, jv_int(r));
    case 'f':
    case '%':
        return divide_ints(x, op, a, b, out);
    case '/':
        *out = jv_float((double)a / (double)b);
        return b == 0 ? zero_division(x) : true;
    default:
        if (b >= 0)
            return power_ints(x, a, b, out);
        *out = jv_float(pow((double)a, (double)b));
        return a == 0 ? zero_division(x) : true;
    }
}

static bool float_arithmetic(jx *x, char op, double a, double b, jv *out) {
    if (b == 0 && (op == '/' || op == 'f' || op == '%'))
        return zero_division(x);
    double r = fmod(a, b);
    switch (op) {
    case '+':
        return jv_give(out, jv_float(a + b));
    case '-':
        return jv_give(out, jv_float(a - b));
    case '*':
        return jv_give(out, jv_float(a * b));
    case '/':
        return jv_give(out, jv_float(a / b));
    case 'f':
    case '%':
        if (r != 0 && (r < 0) != (b < 0))
            r += b;
        return jv_give(out, jv_float(op == '%' ? (r == 0 ? copysign(0, b) : r) : round((a - r) / b)));
    default:
        if ((a == 0 && b < 0) || (a < 0 && b != floor(b)))
            return jx_fail(x, MR_E_INVALID, "a power that is no real number");
        *out = jv_float(pow(a, b));
        return isinf(out->f) && !isinf(a) && !isinf(b) ? jx_fail(x, MR_E_INVALID, "a power is too large") : true;
    }
}

/* a * n: the items or characters of a, n times. */
static bool repeat(jx *x, jv a, int64_t n, jv *out) {
    n = n < 0 ? 0 : n;
    if (a.kind == J_STR) {
        jtext text = {0};
        for (int64_t i = 0; a.s->len && i < n; i++)
            if (!jtext_add(x, &text, a.s->data, a.s->len))
                return false;
        return jv_mark(out, a.markup, jv_text(x, &text, out));
    }
    jlist *list = jlist_new(x, 0);
    for (int64_t i = 0; list && a.list->n && i < n; i++)
        for (size_t k = 0; k < a.list->n; k++)
            if (!jlist_push(x, list, a.list->items[k]))
                return false;
    *out = jv_list(a.kind, list);
    return list != NULL;
}

static bool join_lists(jx *x, jv a, jv b, jv *out) {
    jlist *list = jlist_new(x, a.list->n + b.list->n);
    if (!list)
        return false;
    if (a.list->n)
        memcpy(list->items, a.list->items, a.list->n * sizeof *list->items);
    if (b.list->n)
        memcpy(list->items + a.list->n, b.list->items, b.list->n * sizeof *list->items);
    list->n = a.list->n + b.list->n;
    *out = jv_list(a.kind, list);
    return jx_work(x, list->n);
}

/* Appends to a string. Templates build long texts piece by piece, so a string at the end of the used memory grows in
 * place. The bytes of the shorter string stay valid. */
bool jv_concat(jx *x, jstr *a, jstr *b, jv *out) {
    if (!a->len || !b->len)
        return jv_give(out, (jv){.kind = J_STR, .s = a->len ? a : b});
    size_t n = a->len + b->len;
    if (x->max_output_bytes && n > x->max_output_bytes)
        return jx_fail(x, MR_E_TOO_LONG, "a text is longer than %zu bytes", x->max_output_bytes);
    if (!x->tail || a->data + a->len != x->tail || b->len > (size_t)(x->tail_end - x->tail)) {
        size_t cap = n < 64 ? n : 2 * n;
        char *data = mr_arena_alloc_aligned(x->arena, cap, 1);
        if (!data)
            return jx_no_memory(x);
        memcpy(data, a->data, a->len);
        x->tail = data + a->len;
        x->tail_end = data + cap;
        if (!jx_work(x, a->len) || !jv_str(x, data, n, out))
            return false;
    } else if (!jv_str(x, a->data, n, out)) {
        return false;
    }
    memcpy(x->tail, b->data, b->len);
    x->tail += b->len;
    if (a->n_chars >= 0 && b->n_chars >= 0)
        out->s->n_chars = a->n_chars + b->n_chars;
    return jx_work(x, b->len);
}

bool jv_escape(jx *x, jv v, jv *out) {
    static const char from[] = "&<>'\"", *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    jtext text = {0};
    if (!jv_to_str(x, v, &v))
        return false;
    if (v.markup)
        return jv_give(out, v);
    for (size_t i = 0; i < v.s->len; i++) {
        const char *at = v.s->data[i] ? strchr(from, v.s->data[i]) : NULL;
        if (!(at ? jtext_puts(x, &text, to[at - from]) : jtext_add(x, &text, v.s->data + i, 1)))
            return false;
    }
    return jv_mark(out, true, jv_text(x, &text, out));
}

static bool add_strings(jx *x, jv a, jv b, jv *out) {
    bool markup = a.markup || b.markup;
    if (markup && (!jv_escape(x, a, &a) || !jv_escape(x, b, &b)))
        return false;
    return jv_mark(out, markup, jv_concat(x, a.s, b.s, out));
}

bool jv_arithmetic(jx *x, char op, jv a, jv b, jv *out) {
    jv bad = a.kind == J_UNDEFINED ? a : b;
    if (!jx_work(x, 0))
        return false;
    if (op == '%' && a.kind == J_STR)
        return jv_percent(x, a.s, b, out);
    if (bad.kind == J_UNDEFINED)
        return jx_fail(x, MR_E_INVALID, "%.*s", (int)bad.s->len, bad.s->data);
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT)
            return float_arithmetic(x, op, jv_number(a), jv_number(b), out);
        return int_arithmetic(x, op, a.kind == J_INT ? a.i : a.b, b.kind == J_INT ? b.i : b.b, out);
    }
    bool sequence = a.kind == J_STR || a.kind == J_LIST || a.kind == J_TUPLE;
    if (op == '+' && a.kind == J_STR && b.kind == J_STR)
        return add_strings(x, a, b, out);
    if (op == '+' && sequence && a.kind == b.kind)
        return join_lists(x, a, b, out);
    if (op == '*' && sequence && (b.kind == J_INT || b.kind == J_BOOL))
        return repeat(x, a, b.kind == J_INT ? b.i : b.b, out);
    if (op == '*' && (b.kind == J_STR || b.kind == J_LIST || b.kind == J_TUPLE) &&
        (a.kind == J_INT || a.kind == J_BOOL))
        return repeat(x, b, a.kind == J_INT ? a.i : a.b, out);
    if ((a.kind == J_LONG || jv_is_number(a)) && (b.kind == J_LONG || jv_is_number(b)))
        return overflow(x);
    static const char ops[] = "fp", *const texts[] = {"//", "**"};
    const char *at = strchr(ops, op);
    char text[2] = {op, 0};
    return jx_fail(x, MR_E_INVALID, "unsupported operand types for %s: '%s' and '%s'", at ? texts[at - ops] : text,
                   jv_type(a), jv_type(b));
}
