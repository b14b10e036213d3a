/* engine/grammar/dfa.c - turns the nondeterministic automaton of each rule into a deterministic one, by the subset
 * construction. A state of the result stands for a set of states of the nondeterministic automaton (NFA). */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/dfa.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grow.h"

enum {
    MAX_TABLE = 1 << 23,   /* entries of next */
    MAX_MEMBERS = 1 << 23, /* NFA states of all sets together */
    N_SLOTS = MR_GRAMMAR_MAX_STATES * 2,
};

/* The set of NFA states that a state stands for: members[first .. first + n), ascending. */
typedef struct state_set {
    uint32_t first, n;
    uint32_t hash;
} state_set;

typedef struct builder {
    const nfa *n;
    dfa *d;
    dfa_work *work;
    state_set *sets; /* [n_states]; that of state 0 is not used */
    uint32_t *members;
    size_t n_members, cap_sets, cap_members;
    uint32_t *slots;   /* hash table of states, 0 for an empty slot */
    uint32_t *mark;    /* for each NFA state: number of the last closure that had it */
    uint32_t closure;  /* number of the current closure */
    uint32_t *stack;   /* [n_states of n] */
    uint32_t rule_end; /* end of the rule that is being built */
    uint32_t *targets; /* targets of the edges of one state, class after class */
    size_t cap_targets;
    uint32_t begin[257]; /* where the targets of each class begin */
    mr_err *err;
} builder;

static mr_status no_memory(const builder *b) {
    return mr_err_set(b->err, MR_E_NO_MEMORY, "no memory for the automaton of a grammar with %zu states",
                      b->d->n_states);
}

static mr_status spend(const builder *b, uint64_t steps) {
    if (b->work->left < steps)
        return mr_err_set(b->err, MR_E_TOO_LONG, "the grammar takes too long to compile");
    b->work->left -= steps;
    return MR_OK;
}

/* Puts bytes between which no edge begins or ends into one class. Class numbers ascend with the bytes. */
static void find_classes(const nfa *n, dfa *d) {
    bool begins[257] = {[0] = true};
    for (size_t i = 0; i < n->n_edges; i++) {
        if (n->edges[i].kind == NFA_BYTES) {
            begins[n->edges[i].low] = true;
            begins[n->edges[i].high + 1] = true;
        }
    }
    for (size_t i = 0; i < 256; i++) {
        d->n_classes += begins[i];
        d->class_of[i] = (uint8_t)(d->n_classes - 1);
    }
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Appends to members the NFA states that n states reach by empty edges, sorted. Only states that have another kind of
 * edge are kept, and the end of the rule. */
static mr_status close_set(builder *b, const uint32_t *states, size_t n, state_set *out) {
    const nfa *a = b->n;
    size_t n_stack = 0, steps = n;
    *out = (state_set){.first = (uint32_t)b->n_members};
    b->closure++;
    for (size_t i = 0; i < n; i++) {
        if (b->mark[states[i]] != b->closure) {
            b->mark[states[i]] = b->closure;
            b->stack[n_stack++] = states[i];
        }
    }
    while (n_stack) {
        uint32_t at = b->stack[--n_stack];
        bool kept = at == b->rule_end;
        for (uint32_t e = a->first_edge[at]; e != NFA_NONE; e = a->edges[e].next, steps++) {
            uint32_t to = a->edges[e].target;
            kept = kept || a->edges[e].kind != NFA_EMPTY;
            if (a->edges[e].kind == NFA_EMPTY && b->mark[to] != b->closure) {
                b->mark[to] = b->closure;
                b->stack[n_stack++] = to;
            }
        }
        if (!kept)
            continue;
        if (b->n_members == MAX_MEMBERS)
            return mr_err_set(b->err, MR_E_TOO_LONG, "the grammar is too large to compile");
        if (!mr_grammar_grow(&b->members, &b->cap_members, b->n_members + 1, sizeof *b->members))
            return no_memory(b);
        b->members[b->n_members++] = at;
        out->n++;
    }
    if (out->n > 1)
        qsort(b->members + out->first, out->n, sizeof *b->members, compare_u32);
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < out->n; i++)
        h = (h ^ b->members[out->first + i]) * 16777619u;
    out->hash = h ^ h >> 15;
    return spend(b, steps + 8);
}

static mr_status add_state(builder *b, state_set set, uint32_t *out) {
    dfa *d = b->d;
    if (d->n_states == MR_GRAMMAR_MAX_STATES || (d->n_states + 1) * d->n_classes > MAX_TABLE)
        return mr_err_set(b->err, MR_E_TOO_LONG, "the grammar is too large: its automaton has more than %zu states",
                          d->n_states);
    if (!mr_grammar_grow(&d->next, &d->cap_next, (d->n_states + 1) * d->n_classes, sizeof *d->next) ||
        !mr_grammar_grow(&d->flags, &d->cap_flags, d->n_states + 1, sizeof *d->flags) ||
        !mr_grammar_grow(&d->first_call, &d->cap_first_call, d->n_states + 2, sizeof *d->first_call) ||
        !mr_grammar_grow(&b->sets, &b->cap_sets, d->n_states + 1, sizeof *b->sets))
        return no_memory(b);
    memset(d->next + d->n_states * d->n_classes, 0, d->n_classes * sizeof *d->next);
    d->flags[d->n_states] = 0;
    b->sets[d->n_states] = set;
    *out = (uint32_t)d->n_states++;
    return MR_OK;
}

/* Finds the state that stands for the NFA states that n states reach, or adds a new one. Without states: DFA_DEAD. */
static mr_status find_state(builder *b, const uint32_t *states, size_t n, uint32_t *out) {
    state_set set;
    *out = DFA_DEAD;
    mr_status s = close_set(b, states, n, &set);
    if (s || set.n == 0)
        return s;
    size_t slot = set.hash % N_SLOTS, probes = 1;
    for (; b->slots[slot]; slot = (slot + 1) % N_SLOTS, probes++) {
        const state_set *other = &b->sets[b->slots[slot]];
        if (other->hash == set.hash && other->n == set.n &&
            memcmp(b->members + other->first, b->members + set.first, set.n * sizeof *b->members) == 0) {
            b->n_members = set.first;
            *out = b->slots[slot];
            return spend(b, probes);
        }
    }
    s = add_state(b, set, out);
    if (s == MR_OK)
        b->slots[slot] = *out;
    return s ? s : spend(b, probes);
}

/* Collects where the byte edges of a state's set lead: targets[begin[c] .. begin[c + 1]) for class c. */
static mr_status gather_targets(builder *b, state_set set) {
    const nfa *a = b->n;
    const dfa *d = b->d;
    memset(b->begin, 0, sizeof b->begin);
    for (int pass = 0; pass < 2; pass++) {
        uint32_t at[257];
        memcpy(at, b->begin, sizeof at);
        for (uint32_t i = 0; i < set.n; i++) {
            uint32_t e = a->first_edge[b->members[set.first + i]];
            for (; e != NFA_NONE; e = a->edges[e].next) {
                const nfa_edge *edge = &a->edges[e];
                if (edge->kind != NFA_BYTES)
                    continue;
                for (uint32_t c = d->class_of[edge->low]; c <= d->class_of[edge->high]; c++) {
                    if (pass == 0)
                        b->begin[c + 1]++;
                    else
                        b->targets[at[c]++] = edge->target;
                }
            }
        }
        if (pass == 1)
            break;
        for (uint32_t c = 0; c < d->n_classes; c++)
            b->begin[c + 1] += b->begin[c];
        if (!mr_grammar_grow(&b->targets, &b->cap_targets, b->begin[d->n_classes] + 1, sizeof *b->targets))
            return no_memory(b);
    }
    return spend(b, 2 * (uint64_t)b->begin[d->n_classes] + d->n_classes);
}

static mr_status build_bytes(builder *b, uint32_t state) {
    dfa *d = b->d;
    mr_status s = gather_targets(b, b->sets[state]);
    uint32_t previous = DFA_DEAD;
    for (uint32_t c = 0; s == MR_OK && c < d->n_classes; c++) {
        uint32_t n = b->begin[c + 1] - b->begin[c], to = DFA_DEAD;
        const uint32_t *targets = b->targets + b->begin[c];
        if (c && n == b->begin[c] - b->begin[c - 1] && memcmp(targets, targets - n, n * sizeof *targets) == 0)
            to = previous;
        else if (n)
            s = find_state(b, targets, n, &to);
        previous = to;
        d->next[(size_t)state * d->n_classes + c] = (uint16_t)to;
        if (to != DFA_DEAD)
            d->flags[state] |= DFA_BYTES;
    }
    return s;
}

typedef struct call_edge {
    uint32_t rule, target;
} call_edge;

static int compare_calls(const void *a, const void *b) {
    const call_edge *x = a, *y = b;
    return x->rule != y->rule ? (x->rule > y->rule) - (x->rule < y->rule)
                              : (x->target > y->target) - (x->target < y->target);
}

/* Builds the calls of one state. Calls of the same rule become one call, which returns to the union of their
 * targets. */
static mr_status build_calls(builder *b, uint32_t state) {
    const nfa *a = b->n;
    dfa *d = b->d;
    state_set set = b->sets[state];
    call_edge *edges = NULL;
    size_t n = 0, cap = 0;
    mr_status s = MR_OK;
    for (uint32_t i = 0; i < set.n; i++) {
        uint32_t e = a->first_edge[b->members[set.first + i]];
        for (; e != NFA_NONE; e = a->edges[e].next) {
            if (a->edges[e].kind != NFA_CALL)
                continue;
            if (!mr_grammar_grow(&edges, &cap, n + 1, sizeof *edges)) {
                s = no_memory(b);
                goto out;
            }
            edges[n++] = (call_edge){a->edges[e].rule, a->edges[e].target};
        }
    }
    if (n)
        qsort(edges, n, sizeof *edges, compare_calls);
    for (size_t i = 0, end; s == MR_OK && i < n; i = end) {
        size_t count = 0;
        dfa_call call = {.rule = edges[i].rule};
        if (!mr_grammar_grow(&b->targets, &b->cap_targets, n, sizeof *b->targets) ||
            !mr_grammar_grow(&d->calls, &d->cap_calls, d->n_calls + 1, sizeof *d->calls)) {
            s = no_memory(b);
            break;
        }
        for (end = i; end < n && edges[end].rule == call.rule; end++)
            b->targets[count++] = edges[end].target;
        s = find_state(b, b->targets, count, &call.back);
        d->calls[d->n_calls++] = call;
        d->flags[state] |= DFA_CALLS;
    }
out:
    mr_free(edges);
    return s;
}

static mr_status build_rule(builder *b, const nfa_rule *rule, dfa_rule *out) {
    dfa *d = b->d;
    mr_status s = MR_OK;
    uint32_t first = (uint32_t)d->n_states;
    *out = (dfa_rule){.named = rule->named};
    if (rule->start == NFA_NONE)
        return MR_OK;
    b->rule_end = rule->end;
    s = find_state(b, &rule->start, 1, &out->start);
    for (uint32_t state = first; s == MR_OK && state < d->n_states; state++) {
        state_set set = b->sets[state];
        for (uint32_t i = 0; i < set.n; i++)
            if (b->members[set.first + i] == rule->end)
                d->flags[state] |= DFA_END;
        d->first_call[state] = (uint32_t)d->n_calls;
        s = build_bytes(b, state);
        if (s == MR_OK)
            s = build_calls(b, state);
        d->first_call[state + 1] = (uint32_t)d->n_calls;
    }
    return s;
}

static mr_status build_rules(builder *b, uint32_t root) {
    dfa *d = b->d;
    uint32_t dead;
    mr_status s = add_state(b, (state_set){0}, &dead);
    if (s == MR_OK)
        d->first_call[0] = d->first_call[1] = 0;
    for (size_t r = 0; s == MR_OK && r < b->n->n_rules; r++)
        s = build_rule(b, &b->n->rules[r], &d->rules[r]);
    if (s)
        return s;
    for (size_t i = 0; i < d->n_calls; i++)
        d->calls[i].start = d->rules[d->calls[i].rule].start;
    d->start = d->rules[root].start;
    return MR_OK;
}

mr_status dfa_build(const nfa *n, uint32_t root, dfa_work *work, dfa *out, mr_err *err) {
    *out = (dfa){.n_rules = n->n_rules};
    builder b = {.n = n, .d = out, .work = work, .err = err};
    out->rules = mr_alloc_array(n->n_rules, sizeof *out->rules);
    b.slots = mr_alloc_array(N_SLOTS, sizeof *b.slots);
    b.mark = mr_alloc_array(n->n_states, sizeof *b.mark);
    b.stack = mr_alloc_array(n->n_states, sizeof *b.stack);
    find_classes(n, out);
    mr_status s = out->rules && b.slots && b.mark && b.stack ? build_rules(&b, root) : no_memory(&b);
    mr_free(b.slots);
    mr_free(b.mark);
    mr_free(b.stack);
    mr_free(b.sets);
    mr_free(b.members);
    mr_free(b.targets);
    return s;
}

void dfa_deinit(dfa *d) {
    mr_free(d->next);
    mr_free(d->flags);
    mr_free(d->first_call);
    mr_free(d->calls);
    mr_free(d->rules);
    *d = (dfa){0};
}
