/* coordinator/serving/schema/text_set.c - the terms of sets of texts, and their derivatives. Functions recurse into
 * nested terms only, whose depth is bounded, and walk along sequences and choices. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/text_set.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/base/status.h"
#include "engine/grammar/grow.h"
#include "engine/text/utf8.h"

enum {
    N_SLOTS = 1 << 15,
    MAX_TERMS = 1 << 19,
    MAX_CLASSES = 4096,
    MAX_RANGES = 1 << 17,
    MAX_DEPTH = 250,
    MAX_WORK = 1 << 23, /* of one schema: about half a second */
    MAX_AUTOMATON_WORK = 1 << 20,
};

text_set text_fail(text_sets *p, text_problem problem) {
    if (p->problem == TEXT_FINE)
        p->problem = problem;
    return TEXT_NONE;
}

bool text_spend(text_sets *p, uint64_t steps) {
    p->work += steps;
    if (p->work > p->most)
        text_fail(p, TEXT_TOO_LARGE);
    return p->problem == TEXT_FINE;
}

bool text_sets_recover(text_sets *p) {
    if (p->problem == TEXT_NO_MEMORY)
        return false;
    p->problem = p->work < MAX_WORK && p->n_terms < MAX_TERMS ? TEXT_FINE : TEXT_TOO_LARGE;
    p->most = p->work + MAX_AUTOMATON_WORK;
    p->n_stack = 0;
    return p->problem == TEXT_FINE;
}

static uint32_t plus(uint32_t a, uint32_t b) {
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

static uint32_t times(uint32_t a, uint32_t n) {
    return a && n > UINT32_MAX / a ? UINT32_MAX : a * n;
}

static uint32_t lower(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static uint32_t higher(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t hash(const text_term *t) {
    const uint32_t parts[] = {t->kind, t->a, t->b, t->min, t->max};
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = (h ^ parts[i]) * 16777619u ^ h >> 13;
    return (h ^ h >> 15) % N_SLOTS;
}

text_set text_intern(text_sets *p, text_term t) {
    if (p->problem)
        return TEXT_NONE;
    uint32_t *slot = &p->slots[hash(&t)];
    for (uint32_t i = *slot; i; i = p->terms[i].next) {
        const text_term *o = &p->terms[i];
        if (o->kind == t.kind && o->a == t.a && o->b == t.b && o->min == t.min && o->max == t.max)
            return i;
    }
    if (p->n_terms == MAX_TERMS || t.depth > MAX_DEPTH || !text_spend(p, 1))
        return text_fail(p, TEXT_TOO_LARGE);
    if (!mr_grammar_grow(&p->terms, &p->cap_terms, p->n_terms + 1, sizeof *p->terms))
        return text_fail(p, TEXT_NO_MEMORY);
    t.next = *slot;
    p->terms[p->n_terms] = t;
    *slot = (uint32_t)p->n_terms;
    return (text_set)p->n_terms++;
}

static bool push(text_sets *p, text_set a) {
    if (!p->problem && !mr_grammar_grow(&p->stack, &p->cap_stack, p->n_stack + 1, sizeof *p->stack))
        text_fail(p, TEXT_NO_MEMORY);
    if (p->problem)
        return false;
    p->stack[p->n_stack++] = a;
    return true;
}

/* --- Classes ----------------------------------------------------------------------------------------------------- */

uint32_t text_class_of(text_sets *p, const gbnf_range *ranges, size_t n) {
    for (size_t i = 0; i < p->n_classes; i++)
        if (p->classes[i].n == n &&
            (n == 0 || memcmp(p->ranges + p->classes[i].first, ranges, n * sizeof *ranges) == 0))
            return (uint32_t)i;
    if (p->problem || p->n_classes == MAX_CLASSES || p->n_ranges + n > MAX_RANGES || !text_spend(p, p->n_classes))
        return text_fail(p, TEXT_TOO_LARGE);
    if (!mr_grammar_grow(&p->classes, &p->cap_classes, p->n_classes + 1, sizeof *p->classes) ||
        !mr_grammar_grow(&p->ranges, &p->cap_ranges, p->n_ranges + n + 1, sizeof *p->ranges))
        return text_fail(p, TEXT_NO_MEMORY);
    if (n)
        memcpy(p->ranges + p->n_ranges, ranges, n * sizeof *ranges);
    p->classes[p->n_classes] = (text_class){.first = (uint32_t)p->n_ranges, .n = (uint32_t)n};
    p->n_ranges += n;
    return (uint32_t)p->n_classes++;
}

bool text_class_has(const text_sets *p, uint32_t class_id, uint32_t code) {
    const text_class *c = &p->classes[class_id];
    size_t from = 0, to = c->n;
    while (from < to) {
        size_t middle = (from + to) / 2;
        if (p->ranges[c->first + middle].high < code)
            from = middle + 1;
        else
            to = middle;
    }
    return from < c->n && p->ranges[c->first + from].low <= code;
}

uint32_t text_category(text_sets *p, uint32_t mask) {
    gbnf_range *ranges = NULL;
    size_t n = 0, cap = 0;
    for (uint32_t i = 0; i < p->n_categories; i++)
        if (p->categories[i].mask == mask)
            return p->categories[i].class_id;
    if (p->n_categories == TEXT_MAX_CATEGORIES)
        return text_fail(p, TEXT_TOO_LARGE);
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (!(mask >> utf8proc_category((utf8proc_int32_t)code) & 1))
            continue;
        if (n && ranges[n - 1].high + 1 == code) {
            ranges[n - 1].high = code;
            continue;
        }
        if (!mr_grammar_grow(&ranges, &cap, n + 3, sizeof *ranges)) {
            mr_free(ranges);
            return text_fail(p, TEXT_NO_MEMORY);
        }
        ranges[n++] = (gbnf_range){code, code};
    }
    n = n ? mr_gbnf_normalise(ranges, n, false) : 0;
    uint32_t id = text_class_of(p, ranges, n);
    mr_free(ranges);
    p->categories[p->n_categories].mask = mask;
    p->categories[p->n_categories++].class_id = id;
    return id;
}

/* --- Terms ------------------------------------------------------------------------------------------------------- */

text_set text_chars(text_sets *p, uint32_t class_id) {
    if (p->problem || p->classes[class_id].n == 0)
        return TEXT_NONE;
    return text_intern(p, (text_term){.kind = TEXT_IS_CHARS, .is_plain = true, .a = class_id, .least = 1, .most = 1});
}

text_set text_sequence(text_sets *p, text_set a, text_set b) {
    if (a == TEXT_EMPTY || b == TEXT_NONE)
        return b;
    if (b == TEXT_EMPTY || a == TEXT_NONE)
        return a;
    const text_term *x = &p->terms[a], *y = &p->terms[b];
    MR_ASSERT(x->kind != TEXT_IS_BOTH && x->kind != TEXT_IS_NOT && x->kind != TEXT_IS_MULTIPLE);
    if (a == TEXT_ALL && (b == TEXT_ALL || (y->kind == TEXT_IS_SEQUENCE && y->a == TEXT_ALL)))
        return b;
    return text_intern(p, (text_term){.kind = TEXT_IS_SEQUENCE,
                                      .takes_empty = x->takes_empty & y->takes_empty,
                                      .is_plain = x->is_plain && y->is_plain,
                                      .needs_before = x->needs_before || y->needs_before,
                                      .depth = x->depth + 1 > y->depth ? x->depth + 1 : y->depth,
                                      .a = a,
                                      .b = b,
                                      .least = plus(x->least, y->least),
                                      .most = plus(x->most, y->most)});
}

text_set text_of(text_sets *p, mr_str utf8) {
    size_t base = p->n_stack;
    for (size_t at = 0; at < utf8.len && !p->problem;) {
        size_t n = mr_utf8_char_len(utf8.data + at, utf8.len - at);
        gbnf_range one = {0};
        mr_str c = {utf8.data + at, n};
        if (n == 1)
            one.low = (uint8_t)c.data[0];
        else if (n == 0 || !mr_gbnf_char(c, &(size_t){0}, &one.low))
            return text_fail(p, TEXT_TOO_LARGE);
        one.high = one.low;
        push(p, text_chars(p, text_class_of(p, &one, 1)));
        at += n;
    }
    text_set set = TEXT_EMPTY;
    while (!p->problem && p->n_stack > base)
        set = text_sequence(p, p->stack[--p->n_stack], set);
    return p->problem ? TEXT_NONE : set;
}

text_set text_one_of(text_sets *p, const mr_str *texts, size_t n) {
    if (n <= 1)
        return n ? text_of(p, *texts) : TEXT_NONE;
    text_set first = text_one_of(p, texts, n / 2);
    return text_choice(p, first, text_one_of(p, texts + n / 2, n - n / 2));
}

static int compare_sets(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* A choice (or both) of one term and a longer one, which is a list of the same kind or its last term. */
static text_set prepend(text_sets *p, text_kind kind, text_set a, text_set b) {
    const text_term *x = &p->terms[a], *y = &p->terms[b];
    bool both = kind == TEXT_IS_BOTH;
    return text_intern(
        p, (text_term){.kind = (uint8_t)kind,
                       .takes_empty = both ? x->takes_empty & y->takes_empty : x->takes_empty | y->takes_empty,
                       .is_plain = !both && x->is_plain && y->is_plain,
                       .needs_before = x->needs_before || y->needs_before,
                       .depth = x->depth + 1 > y->depth ? x->depth + 1 : y->depth,
                       .a = a,
                       .b = b,
                       .least = both ? higher(x->least, y->least) : lower(x->least, y->least),
                       .most = both ? lower(x->most, y->most) : higher(x->most, y->most)});
}

/* Takes the terms from base on off the stack and joins them. Lists are sorted, so that equal sets are equal terms. */
static text_set join(text_sets *p, text_kind kind, size_t base) {
    text_set nothing = kind == TEXT_IS_BOTH ? TEXT_ALL : TEXT_NONE, all = kind == TEXT_IS_BOTH ? TEXT_NONE : TEXT_ALL;
    for (size_t i = base; i < p->n_stack; i++) {
        text_set t = p->stack[i];
        if (!p->problem && p->terms[t].kind == kind) {
            p->stack[i] = p->terms[t].a;
            push(p, p->terms[t].b);
        }
    }
    size_t n = p->n_stack - base;
    p->n_stack = base;
    if (!text_spend(p, n))
        return TEXT_NONE;
    if (n > 1)
        qsort(p->stack + base, n, sizeof *p->stack, compare_sets);
    text_set set = nothing;
    for (size_t i = n; i-- > 0;) {
        text_set t = p->stack[base + i];
        if (t == all)
            return all;
        if (t == nothing || (i + 1 < n && t == p->stack[base + i + 1]))
            continue;
        set = set == nothing ? t : prepend(p, kind, t, set);
    }
    return p->problem ? TEXT_NONE : set;
}

text_set text_choice(text_sets *p, text_set a, text_set b) {
    size_t base = p->n_stack;
    push(p, a);
    push(p, b);
    return join(p, TEXT_IS_CHOICE, base);
}

text_set text_both(text_sets *p, text_set a, text_set b) {
    size_t base = p->n_stack;
    push(p, a);
    push(p, b);
    return join(p, TEXT_IS_BOTH, base);
}

text_set text_not(text_sets *p, text_set a) {
    const text_term *x = &p->terms[a];
    if (a == TEXT_NONE || a == TEXT_ALL || p->problem)
        return p->problem || a == TEXT_ALL ? TEXT_NONE : TEXT_ALL;
    if (x->kind == TEXT_IS_NOT)
        return x->a;
    return text_intern(p, (text_term){.kind = TEXT_IS_NOT,
                                      .takes_empty = x->takes_empty ^ TEXT_EVERYWHERE,
                                      .needs_before = x->needs_before,
                                      .depth = x->depth + 1,
                                      .a = a,
                                      .most = TEXT_UNLIMITED});
}

text_set text_ahead(text_sets *p, text_set a) {
    const text_term *x = &p->terms[a];
    return text_intern(p, (text_term){.kind = TEXT_IS_AHEAD,
                                      .takes_empty = x->takes_empty,
                                      .needs_before = x->needs_before,
                                      .depth = x->depth + 1,
                                      .a = a});
}

/* The texts of a plain term but the empty one. */
static text_set without_empty(text_sets *p, text_set a, int level) {
    const text_term x = p->terms[a];
    if (x.least > 0 || p->problem)
        return a;
    if (level > MAX_DEPTH)
        return text_fail(p, TEXT_TOO_LARGE);
    switch (x.kind) {
    case TEXT_IS_CHOICE:
        return text_choice(p, without_empty(p, x.a, level + 1), without_empty(p, x.b, level + 1));
    case TEXT_IS_SEQUENCE:
        return text_choice(p, text_sequence(p, without_empty(p, x.a, level + 1), x.b),
                           without_empty(p, x.b, level + 1));
    case TEXT_IS_REPEAT:
        return text_repeat(p, x.a, 1, x.max); /* repeated terms do not take the empty text */
    default:
        return TEXT_NONE;
    }
}

text_set text_repeat(text_sets *p, text_set a, uint32_t min, uint32_t max) {
    if (max == 0 || a == TEXT_EMPTY || (a == TEXT_NONE && min == 0))
        return TEXT_EMPTY;
    if (a == TEXT_NONE || a == TEXT_ALL || (min == 1 && max == 1))
        return a;
    if (p->terms[a].least == 0) {
        if (max == 1)
            return text_choice(p, a, TEXT_EMPTY);
        if (!p->terms[a].is_plain)
            return text_fail(p, TEXT_TOO_LARGE); /* an assertion that repeats */
        a = without_empty(p, a, 0);
        return text_repeat(p, a, 0, max);
    }
    const text_term *x = &p->terms[a];
    if (x->kind == TEXT_IS_REPEAT && x->min <= 1 && x->max == TEXT_UNLIMITED && min <= 1)
        return text_repeat(p, x->a, lower(x->min, min), TEXT_UNLIMITED);
    return text_intern(p, (text_term){.kind = TEXT_IS_REPEAT,
                                      .takes_empty = min ? 0 : TEXT_EVERYWHERE,
                                      .is_plain = x->is_plain,
                                      .needs_before = x->needs_before,
                                      .depth = x->depth + 1,
                                      .a = a,
                                      .min = min,
                                      .max = max,
                                      .least = times(x->least, min),
                                      .most = times(x->most, max)});
}

/* Where all parts of a sequence but one have a fixed length, and that one repeats a character, the lengths of the texts
 * become those of the repeat. Returns TEXT_NONE for other terms. */
static text_set repeat_lengths(text_sets *p, text_set a, uint32_t min, uint32_t max) {
    size_t base = p->n_stack, at = SIZE_MAX;
    uint32_t fixed = 0;
    bool fits = true;
    for (text_set rest = a; fits && rest != TEXT_EMPTY;) {
        const text_term *t = &p->terms[rest];
        text_set part = t->kind == TEXT_IS_SEQUENCE ? t->a : rest;
        rest = t->kind == TEXT_IS_SEQUENCE ? t->b : TEXT_EMPTY;
        const text_term *x = &p->terms[part];
        bool varies = x->least != x->most;
        fits = x->is_plain && push(p, part) &&
               (!varies || (at == SIZE_MAX && x->kind == TEXT_IS_REPEAT && p->terms[x->a].kind == TEXT_IS_CHARS));
        if (varies)
            at = p->n_stack - 1;
        else
            fixed = plus(fixed, x->least);
    }
    text_set set = TEXT_EMPTY;
    if (!fits || at == SIZE_MAX || fixed > max) {
        p->n_stack = base;
        return TEXT_NONE;
    }
    const text_term x = p->terms[p->stack[at]];
    uint32_t low = higher(x.min, min > fixed ? min - fixed : 0);
    uint32_t high = lower(x.max, max == TEXT_UNLIMITED ? max : max - fixed);
    p->stack[at] = low <= high ? text_repeat(p, x.a, low, high) : TEXT_NONE;
    while (p->n_stack > base)
        set = text_sequence(p, p->stack[--p->n_stack], set);
    return set;
}

text_set text_lengths(text_sets *p, text_set a, uint32_t min, uint32_t max) {
    const text_term *x = &p->terms[a];
    if (p->problem || x->most < min || x->least > max || min > max)
        return TEXT_NONE;
    if (x->least >= min && x->most <= max)
        return a;
    text_set set = repeat_lengths(p, a, min, max);
    return set != TEXT_NONE ? set : text_both(p, a, text_repeat(p, TEXT_ANY, min, max));
}

/* --- Derivatives ------------------------------------------------------------------------------------------------- */

/* A character, and what stands before it. */
typedef struct place {
    uint32_t code;
    text_before before;
} place;

static text_set derive(text_sets *p, text_set x, text_set rest, place at);

static text_set derive_both(text_sets *p, text_set x, place at) {
    size_t base = p->n_stack;
    for (; p->terms[x].kind == TEXT_IS_BOTH; x = p->terms[x].b)
        push(p, derive(p, p->terms[x].a, TEXT_EMPTY, at));
    push(p, derive(p, x, TEXT_EMPTY, at));
    return join(p, TEXT_IS_BOTH, base);
}

/* A repeat after one of its parts. */
static text_set repeat_again(text_sets *p, const text_term *t) {
    return text_repeat(p, t->a, t->min ? t->min - 1 : 0, t->max == TEXT_UNLIMITED ? t->max : t->max - 1);
}

/* The derivative of the texts of x that continue with a text of rest. */
static text_set derive(text_sets *p, text_set x, text_set rest, place at) {
    size_t base = p->n_stack;
    bool done = false;
    while (!done && text_spend(p, 1)) {
        text_term t = p->terms[x];
        bool skip = false; /* x takes nothing, and the rest comes */
        switch ((text_kind)t.kind) {
        case TEXT_IS_CHARS:
            push(p, text_class_has(p, t.a, at.code) ? rest : TEXT_NONE);
            break;
        case TEXT_IS_EMPTY:
            skip = rest != TEXT_EMPTY;
            break;
        case TEXT_IS_START:
            skip = at.before == TEXT_AT_START;
            break;
        case TEXT_IS_EDGE:
            skip = ((at.before == TEXT_AFTER_WORD) != text_class_has(p, p->words, at.code)) != (t.a != 0);
            break;
        case TEXT_IS_SEQUENCE:
            rest = text_sequence(p, t.b, rest);
            x = t.a;
            continue;
        case TEXT_IS_CHOICE:
            for (; p->terms[t.b].kind == TEXT_IS_CHOICE; t = p->terms[t.b])
                push(p, derive(p, t.a, rest, at));
            push(p, derive(p, t.a, rest, at));
            x = t.b;
            continue;
        case TEXT_IS_REPEAT:
            push(p, derive(p, t.a, text_sequence(p, repeat_again(p, &t), rest), at));
            skip = t.min == 0;
            break;
        case TEXT_IS_BOTH:
            push(p, derive_both(p, x, at));
            break;
        case TEXT_IS_NOT:
            push(p, text_not(p, derive(p, t.a, TEXT_EMPTY, at)));
            break;
        case TEXT_IS_AHEAD: {
            text_set condition = derive(p, t.a, TEXT_EMPTY, at);
            push(p, text_both(p, condition, derive(p, rest, TEXT_EMPTY, at)));
            break;
        }
        case TEXT_IS_MULTIPLE:
            push(p, text_derive_multiple(p, x, at.code));
            break;
        case TEXT_IS_NONE:
        case TEXT_IS_END:
            break;
        }
        done = !skip;
        x = rest;
        rest = TEXT_EMPTY;
    }
    return join(p, TEXT_IS_CHOICE, base);
}

text_set text_derive(text_sets *p, text_set a, uint32_t code, text_before before) {
    return derive(p, a, TEXT_EMPTY, (place){code, before});
}

bool text_has(text_sets *p, text_set a, mr_str utf8) {
    text_before before = TEXT_AT_START;
    for (size_t at = 0; at < utf8.len && a != TEXT_NONE;) {
        size_t n = mr_utf8_char_len(utf8.data + at, utf8.len - at);
        uint32_t code = (uint8_t)utf8.data[at];
        if (n > 1)
            mr_gbnf_char((mr_str){utf8.data + at, n}, &(size_t){0}, &code);
        if (n == 0 || !text_spend(p, 1))
            return false;
        a = text_derive(p, a, code, before);
        before = text_class_has(p, p->words, code) ? TEXT_AFTER_WORD : TEXT_AFTER_OTHER;
        at += n;
    }
    return p->problem == TEXT_FINE && (p->terms[a].takes_empty >> before & 1);
}

/* --- The pool ---------------------------------------------------------------------------------------------------- */

bool text_sets_init(text_sets *p) {
    static const gbnf_range words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    gbnf_range any[3];
    *p = (text_sets){.most = MAX_AUTOMATON_WORK};
    p->slots = mr_alloc_array(N_SLOTS, sizeof *p->slots);
    if (!p->slots || !mr_grammar_grow(&p->terms, &p->cap_terms, 1, sizeof *p->terms))
        return false;
    p->terms[0] = (text_term){.kind = TEXT_IS_NONE, .is_plain = true, .least = 1};
    p->n_terms = 1;
    text_intern(p, (text_term){.kind = TEXT_IS_EMPTY, .takes_empty = TEXT_EVERYWHERE, .is_plain = true});
    text_chars(p, text_class_of(p, any, mr_gbnf_normalise(any, 0, true)));
    text_intern(p, (text_term){.kind = TEXT_IS_REPEAT,
                               .takes_empty = TEXT_EVERYWHERE,
                               .is_plain = true,
                               .depth = 1,
                               .a = TEXT_ANY,
                               .max = TEXT_UNLIMITED,
                               .most = TEXT_UNLIMITED});
    text_intern(p, (text_term){.kind = TEXT_IS_START, .takes_empty = 1 << TEXT_AT_START, .needs_before = true});
    text_intern(p, (text_term){.kind = TEXT_IS_END, .takes_empty = TEXT_EVERYWHERE});
    text_intern(p, (text_term){.kind = TEXT_IS_EDGE, .takes_empty = 1 << TEXT_AFTER_WORD, .needs_before = true});
    text_intern(p, (text_term){.kind = TEXT_IS_EDGE,
                               .takes_empty = TEXT_EVERYWHERE ^ 1 << TEXT_AFTER_WORD,
                               .needs_before = true,
                               .a = 1});
    p->words = text_class_of(p, words, sizeof words / sizeof *words);
    return p->problem == TEXT_FINE;
}

void text_sets_deinit(text_sets *p) {
    mr_free(p->terms);
    mr_free(p->classes);
    mr_free(p->ranges);
    mr_free(p->slots);
    mr_free(p->stack);
    for (uint32_t i = 0; i < p->n_divisors; i++)
        mr_free(p->divisors[i].class_of);
    *p = (text_sets){0};
}
