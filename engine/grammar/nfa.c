/* engine/grammar/nfa.c - builds nondeterministic automata over bytes from the rules of a grammar. Classes of code
 * points become edges over the bytes of UTF-8. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/nfa.h"

#include <stdbool.h>

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grow.h"

enum {
    /* Rules up to this size are copied to where they are used. Larger rules are called, and the calls share masks. */
    COPY_STATES = 40,
    /* A repeat that would become larger than this calls its part as a rule. */
    REPEAT_STATES = 40000,
    CALLED = UINT8_MAX,
};

/* A node of the grammar that is to be built between two states. */
typedef struct task {
    uint32_t node, from, to;
} task;

typedef struct builder {
    const gbnf *g;
    nfa *n;
    uint32_t *node_size; /* estimated states of each node, at most REPEAT_STATES */
    bool *copied;        /* for each rule of g: whether it is copied */
    task *tasks;
    size_t n_tasks, cap_tasks;
    uint32_t *queue; /* rules that are to be built */
    size_t n_queue, cap_queue;
    uint32_t named; /* the rule of g that is being built */
    bool failed;    /* no memory */
    bool full;      /* a limit was reached */
} builder;

static uint32_t new_state(builder *b) {
    nfa *n = b->n;
    if (n->n_states == NFA_MAX_STATES) {
        b->full = true;
        return 0;
    }
    if (!mr_grammar_grow(&n->first_edge, &n->cap_states, n->n_states + 1, sizeof *n->first_edge)) {
        b->failed = true;
        return 0;
    }
    n->first_edge[n->n_states] = NFA_NONE;
    return (uint32_t)n->n_states++;
}

static void add_edge(builder *b, uint32_t from, nfa_edge e) {
    nfa *n = b->n;
    b->full = b->full || n->n_edges == NFA_MAX_EDGES;
    if (b->full || b->failed)
        return;
    if (!mr_grammar_grow(&n->edges, &n->cap_edges, n->n_edges + 1, sizeof *n->edges)) {
        b->failed = true;
        return;
    }
    e.next = n->first_edge[from];
    n->first_edge[from] = (uint32_t)n->n_edges;
    n->edges[n->n_edges++] = e;
}

static void add_empty(builder *b, uint32_t from, uint32_t to) {
    add_edge(b, from, (nfa_edge){.kind = NFA_EMPTY, .target = to});
}

static void add_bytes(builder *b, uint32_t from, uint8_t low, uint8_t high, uint32_t to) {
    add_edge(b, from, (nfa_edge){.kind = NFA_BYTES, .low = low, .high = high, .target = to});
}

static void add_task(builder *b, uint32_t node, uint32_t from, uint32_t to) {
    if (!mr_grammar_grow(&b->tasks, &b->cap_tasks, b->n_tasks + 1, sizeof *b->tasks)) {
        b->failed = true;
        return;
    }
    b->tasks[b->n_tasks++] = (task){node, from, to};
}

/* Adds a call of a rule. The first call of a rule also queues the rule to be built. */
static void add_call(builder *b, uint32_t rule, uint32_t from, uint32_t to) {
    add_edge(b, from, (nfa_edge){.kind = NFA_CALL, .rule = rule, .target = to});
    if (b->n->rules[rule].start != NFA_NONE)
        return;
    b->n->rules[rule].start = new_state(b);
    b->n->rules[rule].end = new_state(b);
    if (!mr_grammar_grow(&b->queue, &b->cap_queue, b->n_queue + 1, sizeof *b->queue)) {
        b->failed = true;
        return;
    }
    b->queue[b->n_queue++] = rule;
}

/* behind[i]: the state in which i continuation bytes of any value are missing. A state is created when it is needed. */
typedef struct tails {
    uint32_t behind[4];
} tails;

static uint32_t tail_of(builder *b, tails *t, size_t n_missing) {
    for (size_t i = 1; i <= n_missing; i++)
        if (t->behind[i] == NFA_NONE)
            add_bytes(b, t->behind[i] = new_state(b), 0x80, 0xBF, t->behind[i - 1]);
    return t->behind[n_missing];
}

/* Whether all bytes have this value. */
static bool all_are(const uint8_t *bytes, size_t n, uint8_t value) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* Adds the characters of n bytes that lie inside a range and share their first i + 1 bytes with one end of the range,
 * low or high. */
static void add_end(builder *b, uint32_t at, const uint8_t *end, size_t i, size_t n, bool is_low, tails *t) {
    uint8_t whole = is_low ? 0x80 : 0xBF;
    for (size_t k = i; k + 1 < n; k++) {
        uint32_t next = new_state(b);
        add_bytes(b, at, end[k], end[k], next);
        at = next;
        uint8_t byte = end[k + 1];
        size_t n_behind = n - k - 2;
        bool last = all_are(end + k + 2, n_behind, whole); /* from here on the range has all values */
        uint8_t from = is_low ? (uint8_t)(byte + !last) : 0x80, to = is_low ? 0xBF : (uint8_t)(byte - !last);
        if (from <= to && (last || byte != (is_low ? 0xBF : 0x80)))
            add_bytes(b, at, from, to, tail_of(b, t, n_behind));
        if (last)
            return;
    }
}

/* Adds all characters of n bytes from low to high. The range is split where its later bytes do not have all values. */
static void add_same_length(builder *b, uint32_t from, const uint8_t *low, const uint8_t *high, size_t n, tails *t) {
    size_t i = 0;
    for (; i + 1 < n && low[i] == high[i]; i++) {
        uint32_t next = new_state(b);
        add_bytes(b, from, low[i], low[i], next);
        from = next;
    }
    /* low[i] < high[i], or i is the last byte. An end of the range gets a path of its own if its later bytes do not
     * have all values. */
    uint8_t first = low[i], last = high[i];
    if (!all_are(low + i + 1, n - i - 1, 0x80)) {
        add_end(b, from, low, i, n, true, t);
        first++;
    }
    if (!all_are(high + i + 1, n - i - 1, 0xBF)) {
        add_end(b, from, high, i, n, false, t);
        last--;
    }
    if (first <= last)
        add_bytes(b, from, first, last, tail_of(b, t, n - i - 1));
}

static void build_class(builder *b, const gbnf_node *node, uint32_t from, uint32_t to) {
    static const uint32_t last_of_length[] = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};
    tails t = {{to, NFA_NONE, NFA_NONE, NFA_NONE}};
    for (uint32_t i = 0; i < node->n; i++) {
        gbnf_range r = b->g->ranges[node->first + i];
        for (size_t k = 0; k < 4 && r.low <= r.high; k++) {
            if (r.low > last_of_length[k])
                continue;
            uint32_t high = r.high < last_of_length[k] ? r.high : last_of_length[k];
            uint8_t low_bytes[4], high_bytes[4];
            size_t n = gbnf_utf8(r.low, low_bytes);
            gbnf_utf8(high, high_bytes);
            add_same_length(b, from, low_bytes, high_bytes, n, &t);
            r.low = high + 1;
        }
    }
}

static void build_literal(builder *b, const gbnf_node *node, uint32_t from, uint32_t to) {
    if (node->n == 0)
        add_empty(b, from, to);
    for (uint32_t i = 0; i < node->n; i++) {
        uint8_t byte = b->g->bytes[node->first + i];
        uint32_t next = i + 1 == node->n ? to : new_state(b);
        add_bytes(b, from, byte, byte, next);
        from = next;
    }
}

/* Builds a repeat between new states, so that its loop touches neither from nor to. */
static void build_repeat(builder *b, const gbnf_node *node, uint32_t from, uint32_t to) {
    uint32_t part = node->first, n = node->max == GBNF_UNLIMITED ? node->min : node->max, rule = NFA_NONE;
    if ((uint64_t)n * b->node_size[part] > REPEAT_STATES && b->node_size[part] > 2) {
        nfa *a = b->n;
        if (!mr_grammar_grow(&a->rules, &a->cap_rules, a->n_rules + 1, sizeof *a->rules)) {
            b->failed = true;
            return;
        }
        rule = (uint32_t)a->n_rules++;
        a->rules[rule] = (nfa_rule){.body = part, .start = NFA_NONE, .end = NFA_NONE, .named = b->named};
    }
    uint32_t at = new_state(b);
    add_empty(b, from, at);
    for (uint32_t i = 0; i < n && !b->full && !b->failed; i++) {
        uint32_t next = new_state(b);
        if (i >= node->min)
            add_empty(b, at, to);
        if (rule == NFA_NONE)
            add_task(b, part, at, next);
        else
            add_call(b, rule, at, next);
        at = next;
    }
    if (node->max == GBNF_UNLIMITED) {
        uint32_t loop = new_state(b);
        add_empty(b, at, loop);
        add_task(b, part, loop, loop);
        at = loop;
    }
    add_empty(b, at, to);
}

static void build_node(builder *b, task t) {
    const gbnf *g = b->g;
    const gbnf_node *node = &g->nodes[t.node];
    switch (node->kind) {
    case GBNF_LITERAL:
        build_literal(b, node, t.from, t.to);
        break;
    case GBNF_CLASS:
        build_class(b, node, t.from, t.to);
        break;
    case GBNF_RULE:
        if (b->copied[node->first])
            add_task(b, g->rules[node->first].body, t.from, t.to);
        else
            add_call(b, node->first, t.from, t.to);
        break;
    case GBNF_SEQUENCE:
        for (uint32_t i = 0; i < node->n; i++) {
            uint32_t next = i + 1 == node->n ? t.to : new_state(b);
            add_task(b, g->children[node->first + i], t.from, next);
            t.from = next;
        }
        if (node->n == 0)
            add_empty(b, t.from, t.to);
        break;
    case GBNF_CHOICE:
        for (uint32_t i = 0; i < node->n; i++)
            add_task(b, g->children[node->first + i], t.from, t.to);
        break;
    case GBNF_REPEAT:
        build_repeat(b, node, t.from, t.to);
        break;
    }
}

static uint32_t capped(uint64_t size) {
    return size < REPEAT_STATES ? (uint32_t)size : REPEAT_STATES;
}

/* Estimates the size of a node whose children have sizes. A rule that is not copied counts as one state. */
static uint32_t size_of(const builder *b, const gbnf_node *node) {
    const gbnf *g = b->g;
    uint64_t size = 1;
    switch (node->kind) {
    case GBNF_LITERAL:
        size = node->n;
        break;
    case GBNF_CLASS:
        size = node->n && g->ranges[node->first + node->n - 1].high > 0x7F ? 2 + 3 * (uint64_t)node->n : 1;
        break;
    case GBNF_RULE:
        size = b->copied[node->first] ? b->node_size[g->rules[node->first].body] : 1;
        break;
    case GBNF_SEQUENCE:
    case GBNF_CHOICE:
        for (uint32_t i = 0; i < node->n; i++)
            size += b->node_size[g->children[node->first + i]];
        break;
    case GBNF_REPEAT:
        size = 2 + (node->max == GBNF_UNLIMITED ? (uint64_t)node->min + 1 : node->max) *
                       (uint64_t)(1 + b->node_size[node->first]);
        break;
    }
    return capped(size);
}

/* Estimates the sizes of a rule's nodes. The nodes of a body were added one after another, children first: they are
 * first_node[r] .. g->rules[r].body for rule r. */
static void size_rule(builder *b, const uint32_t *first_node, uint32_t rule) {
    for (uint32_t i = first_node[rule]; i <= b->g->rules[rule].body; i++)
        b->node_size[i] = size_of(b, &b->g->nodes[i]);
}

/* Finds where the nodes of each rule begin: after the body of the rule before. */
static void find_first_nodes(const gbnf *g, uint32_t *rule_of_body, uint32_t *first_node) {
    memset(rule_of_body, 0xFF, g->n_nodes * sizeof *rule_of_body);
    for (uint32_t r = 0; r < g->n_rules; r++)
        rule_of_body[g->rules[r].body] = r;
    uint32_t first = 0;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        if (rule_of_body[i] == NFA_NONE)
            continue;
        first_node[rule_of_body[i]] = first;
        first = i + 1;
    }
}

/* Decides which rules are copied. A rule is settled once all rules that it refers to are settled, and small settled
 * rules are copied. Rules that contain themselves are never settled, nor are rules that refer to such rules; both are
 * called. */
static mr_status choose_copied(builder *b, mr_err *err) {
    const gbnf *g = b->g;
    size_t n = g->n_nodes, n_ready = 0;
    uint32_t *first_node = mr_alloc_array(g->n_rules, sizeof *first_node);
    uint32_t *owner = mr_alloc_array(n, sizeof *owner);         /* the rule that each node belongs to */
    uint32_t *next_user = mr_alloc_array(n, sizeof *next_user); /* lists of the nodes that refer to each rule */
    uint32_t *users = mr_alloc_array(g->n_rules, sizeof *users);
    uint32_t *n_open = mr_alloc_array(g->n_rules, sizeof *n_open);
    uint32_t *ready = mr_alloc_array(g->n_rules, sizeof *ready);
    mr_status s = MR_OK;
    if (!first_node || !owner || !next_user || !users || !n_open || !ready) {
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar of %zu parts", n);
        goto out;
    }
    find_first_nodes(g, owner, first_node);
    memset(users, 0xFF, g->n_rules * sizeof *users);
    for (uint32_t r = 0; r < g->n_rules; r++) {
        for (uint32_t i = first_node[r]; i <= g->rules[r].body; i++) {
            owner[i] = r;
            if (g->nodes[i].kind != GBNF_RULE)
                continue;
            n_open[r]++;
            next_user[i] = users[g->nodes[i].first];
            users[g->nodes[i].first] = i;
        }
        if (n_open[r] == 0)
            ready[n_ready++] = r;
    }
    for (size_t k = 0; k < n_ready; k++) {
        uint32_t r = ready[k];
        size_rule(b, first_node, r);
        b->copied[r] = b->node_size[g->rules[r].body] <= COPY_STATES;
        for (uint32_t i = users[r]; i != NFA_NONE; i = next_user[i])
            if (--n_open[owner[i]] == 0)
                ready[n_ready++] = owner[i];
    }
    for (uint32_t r = 0; r < g->n_rules; r++)
        if (n_open[r] > 0)
            size_rule(b, first_node, r);
out:
    mr_free(first_node);
    mr_free(owner);
    mr_free(next_user);
    mr_free(users);
    mr_free(n_open);
    mr_free(ready);
    return s;
}

static mr_status build_rules(builder *b, mr_err *err) {
    const gbnf *g = b->g;
    nfa *n = b->n;
    b->copied[g->root] = false;
    for (uint32_t r = 0; r < g->n_rules; r++)
        n->rules[r] = (nfa_rule){.body = g->rules[r].body, .start = NFA_NONE, .end = NFA_NONE, .named = r};
    n->n_rules = g->n_rules;
    uint32_t before_root = new_state(b);
    add_call(b, g->root, before_root, before_root);
    for (size_t k = 0; k < b->n_queue && !b->failed && !b->full; k++) {
        const nfa_rule *rule = &n->rules[b->queue[k]];
        b->named = rule->named;
        add_task(b, rule->body, rule->start, rule->end);
        while (b->n_tasks && !b->failed && !b->full) {
            task t = b->tasks[--b->n_tasks];
            build_node(b, t);
        }
    }
    if (b->failed)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the automaton of a grammar");
    if (b->full)
        return mr_err_set(err, MR_E_TOO_LONG, "the grammar is too large: it needs more than %d states or %d edges",
                          NFA_MAX_STATES, NFA_MAX_EDGES);
    return MR_OK;
}

mr_status nfa_build(const gbnf *g, nfa *out, mr_err *err) {
    *out = (nfa){0};
    builder b = {.g = g, .n = out};
    b.node_size = mr_alloc_array(g->n_nodes, sizeof *b.node_size);
    b.copied = mr_alloc_array(g->n_rules, sizeof *b.copied);
    bool room = mr_grammar_grow(&out->rules, &out->cap_rules, g->n_rules, sizeof *out->rules);
    mr_status s = b.node_size && b.copied && room
                      ? choose_copied(&b, err)
                      : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar of %zu rules", g->n_rules);
    if (s == MR_OK)
        s = build_rules(&b, err);
    mr_free(b.node_size);
    mr_free(b.copied);
    mr_free(b.tasks);
    mr_free(b.queue);
    return s;
}

void nfa_deinit(nfa *n) {
    mr_free(n->first_edge);
    mr_free(n->edges);
    mr_free(n->rules);
    *n = (nfa){0};
}
