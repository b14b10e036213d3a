/* engine/grammar/dfa_check.c - checks the automata of a grammar after they are built. States from which no text can be
 * completed are removed. A grammar that no text matches is refused, and so is a grammar with left recursion. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/dfa.h"
#include "engine/text/utf8.h"

static mr_status too_much(mr_err *err) {
    return mr_err_set(err, MR_E_TOO_LONG, "the grammar takes too long to compile");
}

static bool spend(dfa_work *work, uint64_t steps) {
    bool ok = work->left >= steps;
    work->left -= ok ? steps : 0;
    return ok;
}

static bool reaches_end(const dfa *d, const bool *live, uint32_t state) {
    if (d->flags[state] & DFA_END)
        return true;
    for (uint32_t i = d->first_call[state]; i < d->first_call[state + 1]; i++)
        if (live[d->calls[i].start] && live[d->calls[i].back])
            return true;
    if (d->flags[state] & DFA_BYTES)
        for (uint32_t c = 0; c < d->n_classes; c++)
            if (live[d->next[(size_t)state * d->n_classes + c]])
                return true;
    return false;
}

/* Removes all bytes and calls that lead to states which are not live. */
static void take_out_dead(dfa *d, const bool *live) {
    size_t n_calls = 0;
    for (uint32_t state = 0, begin = 0; state < d->n_states; state++) {
        uint32_t end = d->first_call[state + 1];
        d->flags[state] &= DFA_END;
        d->first_call[state] = (uint32_t)n_calls;
        for (uint32_t i = begin; live[state] && i < end; i++) {
            if (live[d->calls[i].start] && live[d->calls[i].back]) {
                d->calls[n_calls++] = d->calls[i];
                d->flags[state] |= DFA_CALLS;
            }
        }
        begin = end;
        for (uint32_t c = 0; c < d->n_classes; c++) {
            uint16_t *to = &d->next[(size_t)state * d->n_classes + c];
            if (!live[*to])
                *to = DFA_DEAD;
            else
                d->flags[state] |= DFA_BYTES;
        }
    }
    d->first_call[d->n_states] = (uint32_t)n_calls;
    d->n_calls = n_calls;
}

static mr_status trim(dfa_work *work, dfa *d, mr_err *err) {
    bool *live = mr_alloc_array(d->n_states, sizeof *live);
    if (!live)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu states of a grammar", d->n_states);
    mr_status s = MR_OK;
    for (bool changed = true; changed && s == MR_OK;) {
        changed = false;
        if (!spend(work, d->n_states * (uint64_t)d->n_classes / 4 + d->n_calls + 1))
            s = too_much(err);
        /* Most states lead to later ones, so few rounds are needed when the last state is looked at first. */
        for (size_t state = d->n_states; state-- > 1;)
            if (!live[state] && reaches_end(d, live, (uint32_t)state))
                changed = live[state] = true;
    }
    if (s == MR_OK && !live[d->start])
        s = mr_err_set(err, MR_E_INVALID, "no text matches the grammar");
    if (s == MR_OK)
        take_out_dead(d, live);
    mr_free(live);
    return s;
}

typedef struct checker {
    const dfa *d;
    bool *empty;    /* for each rule: whether it matches the empty text */
    uint32_t *list; /* states that a rule reaches before it reads a byte */
    uint32_t *mark; /* for each state: number of the last list that had it */
    uint32_t n_lists;
    uint32_t *first;   /* [n_rules + 1], into callees */
    uint32_t *callees; /* rules that a rule calls before it reads a byte */
    uint8_t *seen;     /* for each rule: 0 not visited, 1 on the path, 2 done */
    uint32_t *path;    /* the rules on the current path */
} checker;

/* Lists the states that a rule reaches before it reads a byte. Returns their number. */
static size_t list_start(checker *c, const dfa_rule *rule) {
    const dfa *d = c->d;
    size_t n = 0;
    c->n_lists++;
    if (rule->start != DFA_DEAD)
        c->list[n++] = rule->start;
    c->mark[rule->start] = c->n_lists;
    for (size_t k = 0; k < n; k++) {
        uint32_t at = c->list[k];
        for (uint32_t i = d->first_call[at]; i < d->first_call[at + 1]; i++) {
            uint32_t back = d->calls[i].back;
            if (c->empty[d->calls[i].rule] && c->mark[back] != c->n_lists) {
                c->mark[back] = c->n_lists;
                c->list[n++] = back;
            }
        }
    }
    return n;
}

static mr_status find_empty(checker *c, dfa_work *work, mr_err *err) {
    const dfa *d = c->d;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t r = d->n_rules; r-- > 0;) {
            if (c->empty[r])
                continue;
            size_t n = list_start(c, &d->rules[r]), steps = n + 1;
            for (size_t k = 0; k < n; k++) {
                c->empty[r] = c->empty[r] || (d->flags[c->list[k]] & DFA_END);
                steps += d->first_call[c->list[k] + 1] - d->first_call[c->list[k]];
            }
            changed = changed || c->empty[r];
            if (!spend(work, steps))
                return too_much(err);
        }
    }
    return MR_OK;
}

static void find_callees(checker *c) {
    const dfa *d = c->d;
    uint32_t n_callees = 0;
    for (size_t r = 0; r < d->n_rules; r++) {
        size_t n = list_start(c, &d->rules[r]);
        c->first[r] = n_callees;
        for (size_t k = 0; k < n; k++)
            for (uint32_t i = d->first_call[c->list[k]]; i < d->first_call[c->list[k] + 1]; i++)
                c->callees[n_callees++] = d->calls[i].rule;
    }
    c->first[d->n_rules] = n_callees;
}

/* Returns a rule that calls itself before it reads a byte, directly or through other rules; n_rules if there is
 * none. */
static size_t find_cycle(checker *c) {
    const dfa *d = c->d;
    uint32_t *at = c->list; /* the next callee of each rule on the path; there is room for all rules */
    for (uint32_t r = 0; r < d->n_rules; r++) {
        size_t n = 0;
        if (c->seen[r] || c->first[r] == c->first[r + 1])
            continue;
        c->path[n] = r;
        at[n++] = c->first[r];
        c->seen[r] = 1;
        while (n) {
            uint32_t rule = c->path[n - 1];
            if (at[n - 1] == c->first[rule + 1]) {
                c->seen[rule] = 2;
                n--;
                continue;
            }
            uint32_t callee = c->callees[at[n - 1]++];
            if (c->seen[callee] == 1)
                return callee;
            if (c->seen[callee] == 0) {
                c->seen[callee] = 1;
                c->path[n] = callee;
                at[n++] = c->first[callee];
            }
        }
    }
    return d->n_rules;
}

static mr_status refuse_left_recursion(const gbnf *g, dfa_work *work, const dfa *d, mr_err *err) {
    checker c = {.d = d};
    c.empty = mr_alloc_array(d->n_rules, sizeof *c.empty);
    c.list = mr_alloc_array(d->n_states + d->n_rules, sizeof *c.list);
    c.mark = mr_alloc_array(d->n_states, sizeof *c.mark);
    c.first = mr_alloc_array(d->n_rules + 1, sizeof *c.first);
    c.callees = mr_alloc_array(d->n_calls, sizeof *c.callees);
    c.seen = mr_alloc_array(d->n_rules, sizeof *c.seen);
    c.path = mr_alloc_array(d->n_rules, sizeof *c.path);
    mr_status s = MR_OK;
    if (!c.empty || !c.list || !c.mark || !c.first || !c.callees || !c.seen || !c.path)
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu rules of a grammar", d->n_rules);
    else
        s = find_empty(&c, work, err);
    if (s == MR_OK) {
        find_callees(&c);
        size_t rule = find_cycle(&c);
        if (rule < d->n_rules) {
            char name[64];
            mr_utf8_printable(g->rules[d->rules[rule].named].name, name, sizeof name);
            s = mr_err_set(err, MR_E_UNSUPPORTED,
                           "left recursion: rule \"%s\" can start with itself; hint: write it as a repeat", name);
        }
    }
    mr_free(c.empty);
    mr_free(c.list);
    mr_free(c.mark);
    mr_free(c.first);
    mr_free(c.callees);
    mr_free(c.seen);
    mr_free(c.path);
    return s;
}

mr_status dfa_check(const gbnf *g, dfa_work *work, dfa *d, mr_err *err) {
    mr_status s = trim(work, d, err);
    return s ? s : refuse_left_recursion(g, work, d, err);
}
