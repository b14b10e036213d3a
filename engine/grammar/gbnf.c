/* engine/grammar/gbnf.c - parses the text of a grammar. The parser keeps open groups on a stack of its own and does not
 * recurse, so deep nesting cannot overflow the stack. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/gbnf.h"

#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/grow.h"
#include "engine/text/utf8.h"

enum {
    MAX_OPEN = 512,       /* nested groups */
    MAX_NAME_BYTES = 256, /* of a rule's name */
    N_SLOTS = MR_GRAMMAR_MAX_RULES * 4,
    /* Limit of all probes of the table of rules together, so that names with equal hashes cannot make parsing slow. */
    MAX_PROBES = 1 << 26,
};

/* An open group: where its parts begin in the lists of the reader. */
typedef struct group {
    size_t items, alternatives;
    size_t at;
} group;

typedef struct reader {
    mr_str text;
    size_t at;
    gbnf *g;
    uint32_t *items;        /* parts of the open sequences */
    uint32_t *alternatives; /* sequences of the open groups */
    size_t n_items, n_alternatives, cap_items, cap_alternatives;
    group open[MAX_OPEN];
    size_t n_open;
    size_t n_probes;
    mr_err *err;
} reader;

static mr_status no_memory(const reader *r) {
    return mr_err_set(r->err, MR_E_NO_MEMORY, "no memory for a grammar of %zu bytes", r->text.len);
}

static size_t line_of(mr_str text, size_t at) {
    size_t line = 1;
    for (size_t i = 0; i < at && i < text.len; i++)
        line += text.data[i] == '\n';
    return line;
}

static mr_status malformed(const reader *r, const char *what) {
    return mr_err_set(r->err, MR_E_FORMAT, "grammar, line %zu: %s", line_of(r->text, r->at), what);
}

static mr_status push(const reader *r, uint32_t **list, size_t *n, size_t *cap, uint32_t value) {
    if (!mr_grammar_grow(list, cap, *n + 1, sizeof **list))
        return no_memory(r);
    (*list)[(*n)++] = value;
    return MR_OK;
}

static mr_status add_node(reader *r, gbnf_node node, uint32_t *out) {
    gbnf *g = r->g;
    if (!mr_grammar_grow(&g->nodes, &g->cap_nodes, g->n_nodes + 1, sizeof *g->nodes))
        return no_memory(r);
    *out = (uint32_t)g->n_nodes;
    g->nodes[g->n_nodes++] = node;
    return MR_OK;
}

static mr_status add_item(reader *r, gbnf_node node) {
    uint32_t id = 0;
    mr_status s = add_node(r, node, &id);
    return s ? s : push(r, &r->items, &r->n_items, &r->cap_items, id);
}

/* Makes a node of list[begin .. *n) and removes these entries from the list. A single entry needs no node and is
 * returned as it is. */
static mr_status fold(reader *r, gbnf_kind kind, const uint32_t *list, size_t *n, size_t begin, uint32_t *out) {
    gbnf *g = r->g;
    size_t count = *n - begin;
    if (count == 1) {
        *out = list[--*n];
        return MR_OK;
    }
    if (!mr_grammar_grow(&g->children, &g->cap_children, g->n_children + count, sizeof *g->children))
        return no_memory(r);
    gbnf_node node = {.kind = kind, .first = (uint32_t)g->n_children, .n = (uint32_t)count};
    if (count)
        memcpy(g->children + g->n_children, list + begin, count * sizeof *list);
    g->n_children += count;
    *n = begin;
    return add_node(r, node, out);
}

static bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static char peek(const reader *r) {
    return r->at < r->text.len ? r->text.data[r->at] : 0;
}

/* Skips spaces and comments, and with `lines` also ends of lines. */
static void skip_space(reader *r, bool lines) {
    for (; r->at < r->text.len; r->at++) {
        char c = peek(r);
        if (c == '#')
            while (r->at + 1 < r->text.len && r->text.data[r->at + 1] != '\n')
                r->at++;
        else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r')))
            return;
    }
}

static uint32_t hash_name(mr_str name) {
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < name.len; i++)
        h = (h ^ (uint8_t)name.data[i]) * 16777619u;
    return h ^ h >> 15;
}

/* Finds the rule with this name, or adds one. */
static mr_status find_rule(reader *r, mr_str name, uint32_t *out) {
    gbnf *g = r->g;
    size_t slot = hash_name(name) % N_SLOTS;
    for (; g->slots[slot]; slot = (slot + 1) % N_SLOTS) {
        if (mr_str_equal(g->rules[g->slots[slot] - 1].name, name)) {
            *out = g->slots[slot] - 1;
            return MR_OK;
        }
        if (++r->n_probes > MAX_PROBES)
            return mr_err_set(r->err, MR_E_TOO_LONG, "the grammar takes too long to read");
    }
    if (g->n_rules == MR_GRAMMAR_MAX_RULES)
        return mr_err_set(r->err, MR_E_TOO_LONG, "the grammar has more than %d rules", MR_GRAMMAR_MAX_RULES);
    if (!mr_grammar_grow(&g->rules, &g->cap_rules, g->n_rules + 1, sizeof *g->rules))
        return no_memory(r);
    g->rules[g->n_rules] = (gbnf_rule){.name = name, .body = GBNF_NONE, .at = r->at};
    *out = (uint32_t)g->n_rules++;
    g->slots[slot] = *out + 1;
    return MR_OK;
}

static mr_status read_name(reader *r, uint32_t *out_rule) {
    size_t begin = r->at;
    while (is_name(peek(r)))
        r->at++;
    mr_str name = {r->text.data + begin, r->at - begin};
    if (name.len == 0)
        return malformed(r, "a rule's name is expected");
    if (name.len > MAX_NAME_BYTES)
        return malformed(r, "the name of a rule is longer than 256 bytes");
    return find_rule(r, name, out_rule);
}

static mr_status read_literal(reader *r) {
    gbnf *g = r->g;
    gbnf_node node = {.kind = GBNF_LITERAL, .first = (uint32_t)g->n_bytes};
    r->at++;
    while (peek(r) != '"') {
        uint32_t code;
        if (r->at >= r->text.len || r->text.data[r->at] == '\n')
            return malformed(r, "a literal is not closed");
        if (!mr_gbnf_char(r->text, &r->at, &code))
            return malformed(r, "a literal has a bad escape or bytes that are no UTF-8");
        if (!mr_grammar_grow(&g->bytes, &g->cap_bytes, g->n_bytes + 4, 1))
            return no_memory(r);
        g->n_bytes += gbnf_utf8(code, g->bytes + g->n_bytes);
    }
    r->at++;
    node.n = (uint32_t)(g->n_bytes - node.first);
    return add_item(r, node);
}

static mr_status read_class(reader *r) {
    gbnf *g = r->g;
    gbnf_node node = {.kind = GBNF_CLASS, .first = (uint32_t)g->n_ranges};
    size_t n = 0;
    r->at++;
    bool negated = peek(r) == '^';
    r->at += negated;
    for (;; n++) {
        if (!mr_grammar_grow(&g->ranges, &g->cap_ranges, g->n_ranges + n + 3, sizeof *g->ranges))
            return no_memory(r);
        if (r->at >= r->text.len)
            return malformed(r, "a class is not closed");
        if (peek(r) == ']')
            break;
        gbnf_range range;
        bool ok = mr_gbnf_char(r->text, &r->at, &range.low);
        range.high = range.low;
        if (ok && peek(r) == '-' && r->at + 1 < r->text.len && r->text.data[r->at + 1] != ']') {
            r->at++;
            ok = mr_gbnf_char(r->text, &r->at, &range.high);
        }
        if (!ok)
            return malformed(r, "a class has a bad escape or bytes that are no UTF-8");
        if (range.high < range.low)
            return malformed(r, "a range of a class runs backwards");
        g->ranges[g->n_ranges + n] = range;
    }
    r->at++;
    node.n = (uint32_t)mr_gbnf_normalise(g->ranges + g->n_ranges, n, negated);
    g->n_ranges += node.n;
    return add_item(r, node);
}

static mr_status read_any(reader *r) {
    gbnf *g = r->g;
    gbnf_node node = {.kind = GBNF_CLASS, .first = (uint32_t)g->n_ranges};
    if (!mr_grammar_grow(&g->ranges, &g->cap_ranges, g->n_ranges + 2, sizeof *g->ranges))
        return no_memory(r);
    node.n = (uint32_t)mr_gbnf_normalise(g->ranges + g->n_ranges, 0, true);
    g->n_ranges += node.n;
    r->at++;
    return add_item(r, node);
}

static mr_status read_count(reader *r, uint32_t *out) {
    uint32_t value = 0;
    if (peek(r) < '0' || peek(r) > '9')
        return malformed(r, "a repeat needs a number");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        value = value * 10 + (uint32_t)(peek(r) - '0');
        if (value > MR_GRAMMAR_MAX_REPEAT)
            return mr_err_set(r->err, MR_E_TOO_LONG, "grammar, line %zu: a repeat of more than %d",
                              line_of(r->text, r->at), MR_GRAMMAR_MAX_REPEAT);
    }
    skip_space(r, false);
    *out = value;
    return MR_OK;
}

/* Reads a repeat in braces: {m}, {m,}, {m,n} or {,n}. */
static mr_status read_braces(reader *r, gbnf_node *node) {
    mr_status s = MR_OK;
    r->at++;
    skip_space(r, false);
    node->min = 0;
    if (peek(r) != ',') {
        s = read_count(r, &node->min);
        node->max = node->min;
    }
    if (s == MR_OK && peek(r) == ',') {
        r->at++;
        skip_space(r, false);
        node->max = GBNF_UNLIMITED;
        if (peek(r) != '}')
            s = read_count(r, &node->max);
    }
    if (s)
        return s;
    if (peek(r) != '}')
        return malformed(r, "a repeat is not closed by }");
    if (node->max < node->min)
        return malformed(r, "the maximum of a repeat is below its minimum");
    r->at++;
    return MR_OK;
}

/* Reads a sign that repeats the last part of the sequence. */
static mr_status read_repeat(reader *r) {
    char sign = peek(r);
    gbnf_node node = {.kind = GBNF_REPEAT, .min = sign == '+', .max = sign == '?' ? 1 : GBNF_UNLIMITED};
    if (r->n_items == r->open[r->n_open - 1].items)
        return malformed(r, "nothing stands before a repeat");
    if (sign == '{') {
        mr_status s = read_braces(r, &node);
        if (s)
            return s;
    } else {
        r->at++;
    }
    node.first = r->items[--r->n_items];
    return add_item(r, node);
}

static mr_status open_group(reader *r) {
    if (r->n_open == MAX_OPEN)
        return mr_err_set(r->err, MR_E_TOO_LONG, "grammar, line %zu: more than %d groups inside each other",
                          line_of(r->text, r->at), MAX_OPEN);
    r->open[r->n_open++] = (group){.items = r->n_items, .alternatives = r->n_alternatives, .at = r->at};
    return MR_OK;
}

static mr_status end_sequence(reader *r) {
    uint32_t id = 0;
    mr_status s = fold(r, GBNF_SEQUENCE, r->items, &r->n_items, r->open[r->n_open - 1].items, &id);
    return s ? s : push(r, &r->alternatives, &r->n_alternatives, &r->cap_alternatives, id);
}

static mr_status close_group(reader *r, uint32_t *out) {
    mr_status s = end_sequence(r);
    if (s == MR_OK)
        s = fold(r, GBNF_CHOICE, r->alternatives, &r->n_alternatives, r->open[r->n_open - 1].alternatives, out);
    r->n_open--;
    return s;
}

/* Reads the next part of a rule's right side. *done: the right side has ended. */
static mr_status read_part(reader *r, bool *done) {
    char c = peek(r);
    uint32_t id = 0;
    mr_status s;
    switch (c) {
    case '"':
        return read_literal(r);
    case '[':
        return read_class(r);
    case '.':
        return read_any(r);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_repeat(r);
    case '(':
        s = open_group(r);
        r->at++;
        return s;
    case ')':
        if (r->n_open == 1)
            return malformed(r, "a ) without a (");
        s = close_group(r, &id);
        r->at++;
        return s ? s : push(r, &r->items, &r->n_items, &r->cap_items, id);
    case '|':
        s = end_sequence(r);
        r->at++;
        skip_space(r, true);
        return s;
    default:
        if (!is_name(c)) {
            *done = true;
            return MR_OK;
        }
        s = read_name(r, &id);
        return s ? s : add_item(r, (gbnf_node){.kind = GBNF_RULE, .first = id});
    }
}

/* Skips space up to the next part. A rule ends with its line, unless a group is open or the next line begins with |. */
static void skip_to_part(reader *r) {
    skip_space(r, r->n_open > 1);
    size_t end_of_line = r->at;
    if (peek(r) == '\n' || peek(r) == '\r') {
        skip_space(r, true);
        if (peek(r) != '|')
            r->at = end_of_line;
    }
}

static mr_status read_rule(reader *r) {
    uint32_t rule = 0, body = 0;
    mr_status s = read_name(r, &rule);
    if (s)
        return s;
    skip_space(r, false);
    if (r->text.len - r->at < 3 || memcmp(r->text.data + r->at, "::=", 3) != 0)
        return malformed(r, "::= is expected after the name of a rule");
    if (r->g->rules[rule].body != GBNF_NONE)
        return malformed(r, "this rule is defined twice");
    r->at += 3;
    skip_space(r, true);
    s = open_group(r);
    for (bool done = false; s == MR_OK && !done;) {
        s = read_part(r, &done);
        if (s == MR_OK && !done)
            skip_to_part(r);
    }
    if (s)
        return s;
    if (r->n_open > 1) {
        r->at = r->open[r->n_open - 1].at;
        return malformed(r, "a ( is not closed");
    }
    if (r->at < r->text.len && peek(r) != '\n' && peek(r) != '\r')
        return malformed(r, "a literal, class, name, group or the end of the line is expected");
    s = close_group(r, &body);
    r->g->rules[rule].body = body;
    return s;
}

static mr_status check_rules(reader *r) {
    gbnf *g = r->g;
    for (size_t i = 0; i < g->n_rules; i++) {
        char name[64];
        mr_utf8_printable(g->rules[i].name, name, sizeof name);
        if (g->rules[i].body == GBNF_NONE)
            return mr_err_set(r->err, MR_E_FORMAT, "grammar, line %zu: rule \"%s\" is not defined",
                              line_of(r->text, g->rules[i].at), name);
        if (mr_str_is(g->rules[i].name, "root"))
            g->root = (uint32_t)i;
    }
    if (g->root == GBNF_NONE)
        return mr_err_set(r->err, MR_E_FORMAT, "the grammar has no rule \"root\"");
    return MR_OK;
}

mr_status gbnf_read(mr_str text, gbnf *out, mr_err *err) {
    *out = (gbnf){.root = GBNF_NONE};
    if (text.len > MR_GRAMMAR_MAX_TEXT_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "a grammar of %zu bytes; at most %d are allowed", text.len,
                          MR_GRAMMAR_MAX_TEXT_BYTES);
    reader *r = mr_alloc(sizeof *r);
    out->slots = mr_alloc_array(N_SLOTS, sizeof *out->slots);
    mr_status s = r && out->slots ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a grammar");
    if (s == MR_OK) {
        *r = (reader){.text = text, .g = out, .err = err};
        skip_space(r, true);
        while (s == MR_OK && r->at < text.len) {
            s = read_rule(r);
            skip_space(r, true);
        }
        if (s == MR_OK)
            s = check_rules(r);
        mr_free(r->items);
        mr_free(r->alternatives);
    }
    mr_free(r);
    return s;
}

void gbnf_deinit(gbnf *g) {
    mr_free(g->nodes);
    mr_free(g->children);
    mr_free(g->bytes);
    mr_free(g->ranges);
    mr_free(g->rules);
    mr_free(g->slots);
    *g = (gbnf){0};
}
