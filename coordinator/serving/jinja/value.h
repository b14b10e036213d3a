/* coordinator/serving/jinja/value.h - Python values, the context in which they live, and what all files of the
 * interpreter do with them.
 * Owns:    the arena of a render owns the values that the render makes; the arena of the template owns the constants.
 *          No value is freed alone.
 * Threads: caller serialises; constants are read by many threads.
 * Errors:  a function that returns bool calls jx_fail before it returns false. The context keeps the first failure. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_VALUE_H
#define MR_COORDINATOR_SERVING_JINJA_VALUE_H

#include <stdbool.h>

#include "coordinator/serving/jinja/jinja.h"
#include "engine/base/arena.h"

typedef enum jkind {
    J_MISSING, /* no value at all: an argument that was not given */
    J_UNDEFINED,
    J_NONE,
    J_BOOL,
    J_INT,
    J_LONG, /* a number beyond 64 bits, which came from JSON: its digits */
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_ITER, /* a generator: each item can be read once */
    J_VIEW, /* keys, values or items of a dict: a view can be read many times, but not indexed */
    J_RANGE,
    J_NAMESPACE,
    J_MACRO,
    J_LOOP,
    J_FUNCTION, /* a builtin, perhaps bound to a value */
    J_CYCLER,
    J_JOINER,
} jkind;

typedef struct jstr {
    const char *data; /* UTF-8, not terminated */
    size_t len;
    int64_t n_chars; /* -1 until jstr_chars counts the characters */
} jstr;

typedef struct jlist jlist;
typedef struct jdict jdict;
typedef struct jloop jloop;
typedef struct jmacro jmacro;
typedef struct jbound jbound;
typedef struct jcycle jcycle;
typedef struct jrange jrange;

typedef struct jargs jargs;

typedef struct jv {
    uint8_t kind;
    bool markup; /* a string of class Markup: text that is appended to the string is escaped */
    union {
        bool b;
        int64_t i;
        double f;
        jstr *s; /* J_STR, J_LONG; J_UNDEFINED: the error text for a use of the value, or NULL */
        jlist *list;
        jdict *dict; /* J_DICT, J_NAMESPACE */
        jrange *range;
        jloop *loop;
        const jmacro *macro;
        const jbound *fn;
        jcycle *cycle;
    };
} jv;

struct jlist {
    jv *items;
    size_t n, cap;
    size_t next;      /* J_ITER: index of the next item to read */
    const char *type; /* J_ITER, J_VIEW: Python's name of the type */
};

typedef struct jentry {
    uint64_t hash;
    jv key, value;
} jentry;

struct jdict {
    jentry *entries; /* in order of insertion */
    size_t n, cap;
};

struct jrange {
    int64_t start, stop, step, n;
};

struct jcycle {
    jlist *items; /* J_JOINER: the separator */
    size_t next;
};

/* Arguments of a call. */
struct jargs {
    jv *pos;
    size_t n_pos;
    jv *names, *named; /* [n_named], the names are strings */
    size_t n_named;
};

typedef struct jx jx;
enum { JB_MAX_PARAMS = 6 };
/* One builtin function, filter, test or method. `call` gets in `a` one value for each name in params, J_MISSING for an
 * argument that the template does not give. If params is NULL, no argument is bound, and `call` reads args. */
typedef struct jbuiltin {
    const char *name;
    const char *params; /* names between single spaces */
    uint8_t n_required;
    bool (*call)(jx *x, jv self, const jv *a, const jargs *args, int how, jv *out);
    int how; /* passed to call: tells apart the builtins that share one function */
} jbuiltin;
/* The head of a function for jbuiltin.call. Each parameter may stay unused. */
#define JB_UNUSED __attribute__((unused))
#define BUILTIN(name)                                                                                                  \
    static bool name(JB_UNUSED jx *x, JB_UNUSED jv self, JB_UNUSED const jv *a, JB_UNUSED const jargs *args,           \
                     JB_UNUSED int how, jv *out)

struct jbound {
    const jbuiltin *builtin;
    jv self;
};

/* The context of one render. The parser uses a context too: template is then NULL, and only arena, err, status and the
 * counters are used. */
struct jx {
    mr_arena *arena;
    mr_err *err;
    mr_status status; /* of the first failure */
    int32_t line;     /* of the node that is being evaluated or parsed */
    uint64_t steps_left;
    int32_t depth_left;
    size_t max_output_bytes;
    int64_t now_unix_s;
    char *tail, *tail_end; /* unused bytes behind the newest text: that text can grow in place */
    struct jscope *scope;
    const struct mr_jinja *template;
    const json_t *variables;
    jv *globals; /* [symbols]: values of global names; J_MISSING: not looked up yet */
    struct jtext *out;
    jv filter_input; /* the text of a filter block, input of the first filter */
};

void jx_fail_text(jx *x, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);
/* Records a failure and is always false. A macro, so that the compiler sees that the caller returns false. */
#define jx_fail(...) (jx_fail_text(__VA_ARGS__), false)
static inline bool jx_no_memory(jx *x) {
    return jx_fail(x, MR_E_TOO_LONG, "it needs more memory than it may have");
}
/* Takes 1 + n / 8 steps from the limit of the render. n: bytes or items that the caller is going to read. */
bool jx_work(jx *x, size_t n);
/* Enters one more level of nested values or nodes. Call jx_leave afterwards if jx_enter returned true. */
bool jx_enter(jx *x);
static inline void jx_leave(jx *x) {
    x->depth_left++;
}
void *jx_alloc(jx *x, size_t n, size_t item_bytes);

/* A text buffer in the arena. A zeroed buffer is empty. */
typedef struct jtext {
    char *data;
    size_t len, cap;
} jtext;
bool jtext_add(jx *x, jtext *t, const char *data, size_t n);
bool jtext_puts(jx *x, jtext *t, const char *s);
bool jtext_char(jx *x, jtext *t, uint32_t c);

/* Constructors. */
static inline jv jv_none(void) {
    return (jv){.kind = J_NONE};
}
static inline jv jv_bool(bool b) {
    return (jv){.kind = J_BOOL, .b = b};
}
static inline jv jv_int(int64_t i) {
    return (jv){.kind = J_INT, .i = i};
}
static inline jv jv_float(double f) {
    return (jv){.kind = J_FLOAT, .f = f};
}
static inline jv jv_list(jkind kind, jlist *list) {
    return (jv){.kind = (uint8_t)kind, .list = list};
}
static inline bool jv_give(jv *out, jv v) {
    *out = v;
    return true;
}
/* Sets the class (Markup or not) of a string that was just made. ok: whether making the string succeeded. Returns
 * ok. */
static inline bool jv_mark(jv *out, bool markup, bool ok) {
    out->markup = markup;
    return ok;
}
bool jv_str(jx *x, const char *data, size_t n, jv *out);      /* borrows data, which must live as long as the render */
bool jv_str_copy(jx *x, const char *data, size_t n, jv *out); /* copies data */
bool jv_text(jx *x, const jtext *t, jv *out);
bool jv_undefined(jx *x, jv *out, const char *fmt, ...) MR_PRINTF(3, 4);
jlist *jlist_new(jx *x, size_t cap);
bool jlist_push(jx *x, jlist *list, jv item);
bool jlist_push_pair(jx *x, jlist *list, jv a, jv b); /* pushes the tuple (a, b) */
void jlist_reverse(jlist *list);
jdict *jdict_new(jx *x, size_t cap);
/* NULL: the dict does not have the key, or key is unhashable. In the second case x has failed. */
jentry *jdict_find(jx *x, const jdict *d, jv key);
jentry *jdict_find_str(jx *x, const jdict *d, const char *key, size_t n);
bool jdict_append(jx *x, jdict *d, jv key, jv value); /* without a lookup: the dict must not have the key */
bool jdict_set(jx *x, jdict *d, jv key, jv value);
bool jdict_update(jx *x, jdict *d, const jargs *args); /* Python's dict.update(*args) */
bool jdict_remove(jx *x, jdict *d, jentry *entry);

/* Strings by characters. */
int64_t jstr_chars(jstr *s);
size_t jstr_offset(jstr *s, int64_t char_idx); /* in bytes */
static inline bool jstr_is(const jstr *s, const char *text) {
    return s->len == strlen(text) && memcmp(s->data, text, s->len) == 0;
}

/* Operators with Python's meaning (operators.c, subscript.c, arithmetic.c). */
const char *jv_type(jv v); /* "str", "int", … */
bool jv_truth(jv v);
static inline bool jv_is_number(jv v) {
    return v.kind == J_INT || v.kind == J_FLOAT || v.kind == J_BOOL;
}
static inline double jv_number(jv v) {
    return v.kind == J_FLOAT ? v.f : v.kind == J_BOOL ? v.b : (double)v.i;
}
double jv_long_number(jv v); /* of a J_LONG, rounded */
/* `what` names the value in the error. jv_as_int takes an int or a bool, jv_as_str a string only. */
bool jv_as_int(jx *x, jv v, const char *what, int64_t *out);
bool jv_as_str(jx *x, jv v, const char *what, jstr **out);
bool jv_equal(jx *x, jv a, jv b, bool *out);
/* out: -1, 0 or 1, or 2 if one of the values is NaN. Fails for types that Python cannot order. */
bool jv_compare(jx *x, jv a, jv b, int *out);
/* Sorts by key. The sort is stable, also in reverse order. */
bool jentries_sort(jx *x, jentry *entries, size_t n, bool reverse);
bool jv_contains(jx *x, jv item, jv in, bool *out);
/* out: the result of the comparison `a op b`. op: as in an N_OPERAND (ast.h). */
bool jv_holds(jx *x, char op, jv a, jv b, bool *out);
bool jv_length(jx *x, jv v, int64_t *out);
bool jv_is_iterable(jv v);
/* The items of an iterable value. For a list, tuple or view out is the value's own list, not a copy. */
bool jv_items(jx *x, jv v, jlist **out);
bool jv_subscript(jx *x, jv object, jv key, jv *out);     /* object[key] */
bool jv_attribute(jx *x, jv object, jstr *name, jv *out); /* object.name */
bool jv_slice(jx *x, jv object, const jv bounds[3], jv *out);
/* op: one of + - * / f (//) % p (**). */
bool jv_arithmetic(jx *x, char op, jv a, jv b, jv *out);
bool jv_concat(jx *x, jstr *a, jstr *b, jv *out);
bool jv_escape(jx *x, jv v, jv *out); /* str(v) with HTML's special characters escaped, as a Markup */

/* text.c, json.c, format.c */
bool jv_write(jx *x, jv v, jtext *out); /* str(v) */
bool jv_repr(jx *x, jv v, jtext *out);
bool jv_to_str(jx *x, jv v, jv *out); /* str(v); a string comes out unchanged */
void jv_float_repr(double f, char out[32]);
bool jv_from_json(jx *x, const json_t *json, jv *out);
typedef struct json_style {
    bool ascii, sort_keys, has_indent;
    jv indent; /* J_STR */
    jstr *item_separator, *key_separator;
} json_style;
bool jv_write_json(jx *x, jv v, const json_style *style, int level, jtext *out);
bool jv_percent(jx *x, jstr *format, jv values, jv *out); /* format % values */
bool jv_format(jx *x, jstr *format, const jargs *args, jv *out);
/* Python's format(v, spec): spec is in the format specification mini-language, such as ".2f". */
bool jv_format_spec(jx *x, jv v, const char *spec, size_t n, jtext *out);

/* Calls (call.c). */
bool jv_call(jx *x, jv function, const jargs *args, jv *out);
bool jbuiltin_call(jx *x, const jbuiltin *b, jv self, const jargs *args, jv *out);
bool jv_is_callable(jv v);

/* strings.c: operations that a method of str and a filter share. */
enum { J_LEFT = 1, J_RIGHT = 2 };
typedef enum jcase { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_SWAP } jcase;
bool jstr_case(jx *x, jv s, jcase how, jv *out);
/* sides: J_LEFT, J_RIGHT or J_LEFT | J_RIGHT. chars: the characters to strip; missing or None: white space. */
bool jstr_strip(jx *x, jv s, jv chars, int sides, jv *out);
bool jstr_replace(jx *x, const jstr *s, const jstr *old, const jstr *new, int64_t count, jv *out);
bool jstr_split_lines(jx *x, const jstr *s, bool keep_ends, jlist *out);
/* Joins str(item) of all items with the separator between them. strict: an item that is no string is an error. */
bool jstr_join(jx *x, jv separator, const jlist *items, bool strict, jv *out);
bool jstr_pad(jx *x, jv s, int64_t width, uint32_t fill, char align, jv *out); /* align: < > ^ */

/* Look up a builtin by name. NULL: the name is unknown. */
const jbuiltin *jfilter_list_find(const char *name, size_t n); /* only the filters of filters_list.c */
const jbuiltin *jfilter_find(const char *name, size_t n);
const jbuiltin *jtest_find(const char *name, size_t n);
const jbuiltin *jglobal_find(const char *name, size_t n);
const jbuiltin *jmethod_find(jkind kind, const char *name, size_t n);
const jbuiltin *jmethod_str_find(const char *name, size_t n);
const jbuiltin *jbuiltin_in(const jbuiltin *table, size_t n_table, const char *name, size_t n);

#endif
