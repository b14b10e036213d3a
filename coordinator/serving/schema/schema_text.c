/* Writes sets of texts as rules. A set that a regular expression can say is
 * written as one. Any other set becomes an automaton, and each of its states a rule that ends with the next state. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grow.h"

enum {
    MAX_STATES = 3000,
    EDGE_BYTES = 32,     /* of the text of an edge, about */
    MAX_BYTES = 3 << 17, /* of the rules with an automaton: three quarters of what a request may have */
    MAX_SYMBOLS = 255,
    MAX_USED = 60,          /* classes of one automaton: bits of a signature */
    MAX_INLINE = 40,        /* states inside each other in one rule */
    MAX_INLINE_BYTES = 200, /* of an expression that gets no rule of its own */
    MAX_SHORT_CLASS = 6,    /* ranges of a class that gets no rule of its own */
    DEAD = UINT16_MAX,
};

/* --- Characters -------------------------------------------------------------------------------------------------- */

/* Appends a character of a class. */
static void put_char(schema_writer *w, mr_text_buf *buf, uint32_t c) {
    bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    schema_put(w, buf, is_plain ? "%c" : c < 0x80 ? "\\x%02X" : "\\U%08X", c);
}

/* Appends the part of a range that lies between low and high to a class. */
static void put_range(schema_writer *w, mr_text_buf *buf, gbnf_range r, uint32_t low, uint32_t high) {
    low = r.low > low ? r.low : low;
    high = r.high < high ? r.high : high;
    if (low > high)
        return;
    put_char(w, buf, low);
    if (low == high)
        return;
    schema_put(w, buf, "-");
    put_char(w, buf, high);
}

/* Appends the escapes of those characters that a JSON string cannot have as they are. */
static void put_escapes(schema_writer *w, mr_text_buf *buf, gbnf_range r) {
    static const char *const shorts[128] = {
        ['\b'] = "b", ['\t'] = "t", ['\n'] = "n", ['\f'] = "f", ['\r'] = "r", ['"'] = "\\\"", ['\\'] = "\\\\"};
    for (uint32_t c = r.low; c <= r.high && c <= '\\'; c++) {
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (shorts[c])
            schema_put(w, buf, " | \"\\\\%s\"", shorts[c]);
        else
            schema_put(w, buf, " | \"\\\\u00\" [%X] [%X%s]", c >> 4, c & 15,
                       c % 16 > 9 ? (char[]){(char)('a' + c % 16 - 10), 0} : "");
    }
}

static void put_ranges(schema_writer *w, mr_text_buf *buf, const gbnf_range *ranges, size_t n, text_form form) {
    /* In JSON all characters but 00-1F, 22 (quote) and 5C (backslash) stand for themselves. */
    static const gbnf_range raw[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    mr_text_buf escapes = {0};
    for (size_t i = 0; i < n && form == TEXT_JSON; i++)
        put_escapes(w, &escapes, ranges[i]);
    schema_put(w, buf, escapes.len ? "([" : "[");
    for (size_t i = 0; i < n && form == TEXT_BARE; i++)
        put_range(w, buf, ranges[i], 0, 0x10FFFF);
    for (size_t i = 0; i < n * 3 && form == TEXT_JSON; i++)
        put_range(w, buf, ranges[i / 3], raw[i % 3].low, raw[i % 3].high);
    schema_put(w, buf, "]");
    schema_put_bytes(w, buf, (mr_str){escapes.data, escapes.len});
    schema_put(w, buf, escapes.len ? ") " : " ");
    mr_text_buf_deinit(&escapes);
}

/* Appends one character of a class. A class of many ranges gets a rule. */
static void put_class(schema_writer *w, mr_text_buf *buf, uint32_t id, text_form form) {
    text_class *c = &w->texts.classes[id];
    const gbnf_range *ranges = w->texts.ranges + c->first;
    if (id == w->texts.terms[TEXT_ANY].a) {
        schema_put(w, buf, form == TEXT_JSON ? "%s-char " : ". ", w->name);
        return;
    }
    if (c->n <= MAX_SHORT_CLASS) {
        put_ranges(w, buf, ranges, c->n, form);
        return;
    }
    if (!(c->is_written & 1 << form)) {
        c->is_written |= (uint8_t)(1 << form);
        schema_put(w, w->out, "%s-c%u%s ::= ", w->name, id, form == TEXT_JSON ? "" : "b");
        put_ranges(w, w->out, ranges, c->n, form);
        schema_put(w, w->out, "\n");
    }
    schema_put(w, buf, "%s-c%u%s ", w->name, id, form == TEXT_JSON ? "" : "b");
}

/* --- Regular expressions ----------------------------------------------------------------------------------------- */

static void put_expression(schema_writer *w, mr_text_buf *buf, text_set set, text_form form) {
    const text_sets *p = &w->texts;
    for (; w->status == MR_OK && p->terms[set].kind == TEXT_IS_SEQUENCE; set = p->terms[set].b)
        put_expression(w, buf, p->terms[set].a, form);
    const text_term t = p->terms[set];
    switch ((text_kind)t.kind) {
    case TEXT_IS_EMPTY:
        schema_put(w, buf, "\"\" ");
        return;
    case TEXT_IS_CHARS:
        put_class(w, buf, t.a, form);
        return;
    case TEXT_IS_CHOICE:
        schema_put(w, buf, "(");
        for (; w->status == MR_OK && p->terms[set].kind == TEXT_IS_CHOICE; set = p->terms[set].b) {
            put_expression(w, buf, p->terms[set].a, form);
            schema_put(w, buf, "| ");
        }
        put_expression(w, buf, set, form);
        schema_put(w, buf, ") ");
        return;
    case TEXT_IS_REPEAT:
        schema_put(w, buf, "(");
        put_expression(w, buf, t.a, form);
        schema_put(w, buf, t.max == TEXT_UNLIMITED ? "){%u,} " : "){%u,%u} ", t.min, t.max);
        return;
    default:
        schema_put(w, buf, "[] ");
    }
}

/* --- Automata ---------------------------------------------------------------------------------------------------- */

/* Characters from `from` on, up to the next interval, belong to one symbol. */
typedef struct interval {
    uint32_t from;
    uint8_t symbol;
} interval;

/* Characters of one symbol lead to the same states everywhere. */
typedef struct symbol {
    uint64_t signature;
    uint32_t code; /* one of its characters */
} symbol;

typedef struct state {
    text_set set;
    text_before before;
    uint16_t n_in; /* other states that lead here */
    bool lives;    /* an end can be reached */
    bool goes_on;  /* another character may follow */
    bool has_rule, is_written;
} state;

typedef struct automaton {
    schema_writer *w;
    text_sets *p;
    text_form form;
    const char *end; /* appended in GBNF where a text may end */
    size_t id;
    uint32_t used[MAX_USED];
    size_t n_used;
    interval *intervals;
    size_t n_intervals, cap_intervals;
    symbol symbols[MAX_SYMBOLS];
    size_t n_symbols;
    state *states;
    uint16_t *next; /* [n_states, n_symbols] */
    size_t n_states, cap_states, cap_next;
    gbnf_range *ranges; /* of one edge */
    size_t n_edges;
    bool has_numbers;
} automaton;

static bool add_used(automaton *a, uint32_t class_id) {
    for (size_t i = 0; i < a->n_used; i++)
        if (a->used[i] == class_id)
            return true;
    if (a->n_used == MAX_USED)
        return text_fail(a->p, TEXT_TOO_LARGE) != TEXT_NONE;
    a->used[a->n_used++] = class_id;
    return true;
}

/* Lists the classes of a set. Parts of a term have lower indices than the term. */
static bool find_used(automaton *a, text_set set) {
    bool *seen = mr_alloc_array(set + (size_t)1, sizeof *seen);
    if (!seen)
        text_fail(a->p, TEXT_NO_MEMORY);
    else
        seen[set] = true;
    for (text_set i = set; i > 0 && !a->p->problem && text_spend(a->p, 1); i--) {
        const text_term *t = &a->p->terms[i];
        if (!seen[i])
            continue;
        if (t->kind == TEXT_IS_CHARS)
            add_used(a, t->a);
        else if (t->kind == TEXT_IS_EDGE)
            add_used(a, a->p->words);
        else if (t->kind == TEXT_IS_MULTIPLE)
            a->has_numbers = true;
        else
            seen[t->a] = seen[t->b] = true;
    }
    mr_free(seen);
    return a->p->problem == TEXT_FINE;
}

static bool add_interval(automaton *a, uint32_t from) {
    if (!mr_grammar_grow(&a->intervals, &a->cap_intervals, a->n_intervals + 1, sizeof *a->intervals))
        return text_fail(a->p, TEXT_NO_MEMORY) != TEXT_NONE;
    a->intervals[a->n_intervals++] = (interval){.from = from};
    return true;
}

static int compare_intervals(const void *a, const void *b) {
    uint32_t x = ((const interval *)a)->from, y = ((const interval *)b)->from;
    return (x > y) - (x < y);
}

/* For each class a bit, whether it has the character. Numbers tell digits, sign and point apart. */
static uint64_t signature_of(const automaton *a, uint32_t code) {
    static const char marks[] = "-.0123456789";
    uint64_t s = 0;
    for (size_t i = 0; i < a->n_used; i++)
        s |= (uint64_t)text_class_has(a->p, a->used[i], code) << i;
    const char *mark = a->has_numbers && code > 0 && code < 0x80 ? strchr(marks, (int)code) : NULL;
    return s | (uint64_t)(mark ? mark - marks + 1 : 0) << MAX_USED;
}

static bool find_symbols(automaton *a) {
    const text_sets *p = a->p;
    uint32_t any = p->terms[TEXT_ANY].a;
    bool ok = true;
    for (size_t i = 0; ok && i <= a->n_used; i++) {
        const text_class *c = &p->classes[i < a->n_used ? a->used[i] : any];
        for (uint32_t k = 0; ok && k < c->n; k++)
            ok = add_interval(a, p->ranges[c->first + k].low) && add_interval(a, p->ranges[c->first + k].high + 1);
    }
    for (uint32_t c = '-'; ok && a->has_numbers && c <= '9' + 1; c++)
        ok = add_interval(a, c);
    if (!ok)
        return false;
    qsort(a->intervals, a->n_intervals, sizeof *a->intervals, compare_intervals);
    size_t n = 0;
    for (size_t i = 0; i < a->n_intervals; i++)
        if (n == 0 || a->intervals[n - 1].from != a->intervals[i].from)
            a->intervals[n++] = a->intervals[i];
    a->n_intervals = n;
    for (size_t i = 0; i < n; i++) {
        uint32_t code = a->intervals[i].from;
        uint64_t signature = signature_of(a, code);
        size_t s = 0;
        while (s < a->n_symbols && a->symbols[s].signature != signature)
            s++;
        if (!text_class_has(p, any, code))
            s = MAX_SYMBOLS;
        else if (s == MAX_SYMBOLS || !text_spend(a->p, s + a->n_used))
            return text_fail(a->p, TEXT_TOO_LARGE) != TEXT_NONE;
        else if (s == a->n_symbols)
            a->symbols[a->n_symbols++] = (symbol){signature, code};
        a->intervals[i].symbol = (uint8_t)s;
    }
    return true;
}

/* The state of a set, which is added if it is new. slots: a hash table of states, index + 1. */
static bool find_state(automaton *a, uint32_t *slots, text_set set, text_before before, uint16_t *out) {
    *out = DEAD;
    if (set == TEXT_NONE)
        return a->p->problem == TEXT_FINE;
    if (!a->p->terms[set].needs_before)
        before = TEXT_AFTER_OTHER;
    size_t slot = (set * 2654435761u >> 8) % (MAX_STATES * 2);
    for (; slots[slot]; slot = (slot + 1) % (MAX_STATES * 2)) {
        const state *s = &a->states[slots[slot] - 1];
        if (s->set == set && s->before == before) {
            *out = (uint16_t)(slots[slot] - 1);
            return true;
        }
    }
    if (a->n_states == MAX_STATES)
        return text_fail(a->p, TEXT_TOO_LARGE) != TEXT_NONE;
    if (!mr_grammar_grow(&a->states, &a->cap_states, a->n_states + 1, sizeof *a->states) ||
        !mr_grammar_grow(&a->next, &a->cap_next, (a->n_states + 1) * a->n_symbols, sizeof *a->next))
        return text_fail(a->p, TEXT_NO_MEMORY) != TEXT_NONE;
    a->states[a->n_states] = (state){.set = set, .before = before};
    *out = (uint16_t)a->n_states++;
    slots[slot] = (uint32_t)*out + 1;
    return true;
}

static bool find_states(automaton *a, text_set set) {
    uint32_t *slots = mr_alloc_array((size_t)MAX_STATES * 2, sizeof *slots);
    uint16_t to;
    bool ok = slots ? find_state(a, slots, set, TEXT_AT_START, &to) : text_fail(a->p, TEXT_NO_MEMORY) != TEXT_NONE;
    for (size_t s = 0; ok && s < a->n_states; s++) {
        for (size_t c = 0; ok && c < a->n_symbols; c++) {
            const state from = a->states[s];
            uint32_t code = a->symbols[c].code;
            bool is_word = text_class_has(a->p, a->p->words, code);
            text_set after =
                text_spend(a->p, a->n_used / 8) ? text_derive(a->p, from.set, code, from.before) : TEXT_NONE;
            ok = find_state(a, slots, after, is_word ? TEXT_AFTER_WORD : TEXT_AFTER_OTHER, &to);
            a->next[s * a->n_symbols + c] = to;
        }
    }
    mr_free(slots);
    return ok;
}

static bool ends(const automaton *a, size_t s) {
    return a->p->terms[a->states[s].set].takes_empty >> a->states[s].before & 1;
}

/* Takes the states away from which no text ends, and counts how many states lead to each. */
static bool find_living(automaton *a) {
    for (bool changed = true; changed;) {
        changed = false;
        if (!text_spend(a->p, a->n_states * a->n_symbols / 16))
            return false;
        for (size_t s = a->n_states; s-- > 0;) {
            bool lives = a->states[s].lives || ends(a, s);
            for (size_t c = 0; !lives && c < a->n_symbols; c++) {
                uint16_t to = a->next[s * a->n_symbols + c];
                lives = to != DEAD && a->states[to].lives;
            }
            changed = changed || lives != a->states[s].lives;
            a->states[s].lives = lives;
        }
    }
    for (size_t s = 0; s < a->n_states; s++) {
        uint16_t *next = a->next + s * a->n_symbols;
        for (size_t c = 0; c < a->n_symbols; c++) {
            bool first = true;
            if (next[c] != DEAD && !a->states[next[c]].lives)
                next[c] = DEAD;
            for (size_t k = 0; k < c && first; k++)
                first = next[k] != next[c];
            if (next[c] == DEAD || !first || !a->states[s].lives)
                continue;
            a->states[next[c]].n_in += next[c] != s;
            a->states[s].goes_on = true;
            a->n_edges++;
        }
    }
    return a->w->out->len + a->w->body.len + a->n_edges * EDGE_BYTES < MAX_BYTES ||
           text_fail(a->p, TEXT_TOO_LARGE) != TEXT_NONE;
}

/* Appends one character of those that lead from a state to another. */
static void put_edge(automaton *a, mr_text_buf *buf, size_t s, uint16_t to) {
    const uint16_t *next = a->next + s * a->n_symbols;
    size_t n = 0;
    for (size_t i = 0; i < a->n_intervals; i++) {
        uint8_t c = a->intervals[i].symbol;
        if (c == MAX_SYMBOLS || next[c] != to)
            continue;
        uint32_t low = a->intervals[i].from, high = i + 1 < a->n_intervals ? a->intervals[i + 1].from - 1 : 0x10FFFF;
        if (n && a->ranges[n - 1].high + 1 == low)
            a->ranges[n - 1].high = high;
        else
            a->ranges[n++] = (gbnf_range){low, high};
    }
    put_class(a->w, buf, text_class_of(a->p, a->ranges, n), a->form);
}

/* Appends what may follow in a state. A state to which only one state leads stands inside that state. */
static void put_state(automaton *a, mr_text_buf *buf, uint16_t s, int level) {
    const uint16_t *next = a->next + (size_t)s * a->n_symbols;
    bool first = true, loops = false;
    for (size_t c = 0; c < a->n_symbols; c++)
        loops = loops || next[c] == s;
    if (loops) {
        put_edge(a, buf, s, s);
        schema_put(a->w, buf, "* ");
    }
    schema_put(a->w, buf, "(");
    for (size_t c = 0; c < a->n_symbols && !a->p->problem && a->w->status == MR_OK; c++) {
        uint16_t to = next[c];
        bool is_new = to != DEAD && to != s;
        for (size_t k = 0; k < c && is_new; k++)
            is_new = next[k] != to;
        if (!is_new)
            continue;
        schema_put(a->w, buf, first ? "" : "| ");
        first = false;
        put_edge(a, buf, s, to);
        if (!a->states[to].goes_on) {
            schema_put(a->w, buf, "%s", a->end);
        } else if (a->states[to].n_in == 1 && to != 0 && level < MAX_INLINE) {
            put_state(a, buf, to, level + 1);
        } else {
            a->states[to].has_rule = true;
            schema_put(a->w, buf, "%s-a%zu-%u ", a->w->name, a->id, (unsigned)to);
        }
    }
    if (ends(a, s))
        schema_put(a->w, buf, "%s%s", first ? "" : "| ", a->end);
    schema_put(a->w, buf, ") ");
}

static void put_automaton(automaton *a, mr_text_buf *buf) {
    if (!a->states[0].lives) {
        schema_put(a->w, buf, "[] ");
        return;
    }
    a->states[0].has_rule = true;
    for (size_t s = 0; s < a->n_states && !a->p->problem && a->w->status == MR_OK; s++) {
        if (!a->states[s].has_rule || a->states[s].is_written)
            continue;
        a->states[s].is_written = true;
        mr_text_buf rule = {0}; /* classes may write rules of their own meanwhile */
        put_state(a, &rule, (uint16_t)s, 0);
        schema_put(a->w, a->w->out, "%s-a%zu-%zu ::= ", a->w->name, a->id, s);
        schema_put_bytes(a->w, a->w->out, (mr_str){rule.data, rule.len});
        schema_put(a->w, a->w->out, "\n");
        mr_text_buf_deinit(&rule);
    }
    schema_put(a->w, buf, "%s-a%zu-0 ", a->w->name, a->id);
}

static bool write_automaton(schema_writer *w, mr_text_buf *buf, text_set set, text_form form, const char *end) {
    text_sets *p = &w->texts;
    automaton *a = mr_alloc(sizeof *a);
    if (!a)
        return text_fail(p, TEXT_NO_MEMORY) != TEXT_NONE;
    *a = (automaton){.w = w, .p = p, .form = form, .end = *end ? end : "\"\" ", .id = w->n_automata++};
    bool ok = find_used(a, set) && find_symbols(a);
    a->ranges = ok ? mr_alloc_array(a->n_intervals + 1, sizeof *a->ranges) : NULL;
    if (ok && !a->ranges)
        text_fail(p, TEXT_NO_MEMORY);
    if (ok && a->ranges && find_states(a, set) && find_living(a)) {
        put_automaton(a, buf);
        if (p->problem == TEXT_TOO_LARGE)
            schema_fail(w, MR_E_TOO_LONG, "schema: it takes too long to compile");
    }
    mr_free(a->intervals);
    mr_free(a->states);
    mr_free(a->next);
    mr_free(a->ranges);
    mr_free(a);
    return p->problem == TEXT_FINE && w->status == MR_OK;
}

bool schema_write_set(schema_writer *w, mr_text_buf *buf, text_set set, text_form form, const char *end) {
    text_sets *p = &w->texts;
    bool again = form == TEXT_JSON && !*end;
    if (w->status || p->problem)
        return false;
    for (size_t i = 0; again && i < w->n_written; i++) {
        if (w->written[i].set == set) {
            schema_put(w, buf, "%s-a%zu-0 ", w->name, w->written[i].id);
            return true;
        }
    }
    size_t id = w->n_automata;
    if (!p->terms[set].is_plain) {
        if (!write_automaton(w, buf, set, form, end))
            return false;
    } else {
        mr_text_buf text = {0};
        put_expression(w, &text, set, form);
        schema_put(w, &text, "%s", end);
        again = again && text.len > MAX_INLINE_BYTES;
        if (again) {
            w->n_automata++;
            schema_put(w, w->out, "%s-a%zu-0 ::= ", w->name, id);
            schema_put_bytes(w, w->out, (mr_str){text.data, text.len});
            schema_put(w, w->out, "\n");
            schema_put(w, buf, "%s-a%zu-0 ", w->name, id);
        } else {
            schema_put_bytes(w, buf, (mr_str){text.data, text.len});
        }
        mr_text_buf_deinit(&text);
    }
    if (again && w->n_written < SCHEMA_MAX_WRITTEN) {
        w->written[w->n_written].set = set;
        w->written[w->n_written++].id = id;
    }
    return w->status == MR_OK;
}
