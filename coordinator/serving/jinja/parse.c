/* coordinator/serving/jinja/parse.c - parses the statements of a template into nodes. parse_expr.c parses the
 * expressions. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/parse.h"

#include "engine/base/mem.h"
#include "engine/text/utf8.h"

enum { PARSE_ARENA_BYTES = 128 << 20, SYMBOLS_CAP = 64 };

static jnode *parse_body(parser *p, const char *const *ends);

/* ---- tokens ---- */

bool parse_advance(parser *p) {
    if (p->has_next) {
        p->now = p->next;
        p->has_next = false;
    } else if (!lex_next(&p->lex, &p->now)) {
        return false;
    }
    p->x->line = p->now.line;
    return true;
}

static void describe(const tok *t, char *out, size_t size) {
    static const char *const names[] = {[T_END] = "the end of the template",
                                        [T_DATA] = "text",
                                        [T_VARIABLE_BEGIN] = "{{",
                                        [T_VARIABLE_END] = "}}",
                                        [T_BLOCK_BEGIN] = "{%",
                                        [T_BLOCK_END] = "%}",
                                        [T_STRING] = "a string",
                                        [T_NUMBER] = "a number"};
    static const char ops[] = "fpe!gl", *const texts[] = {"//", "**", "==", "!=", ">=", "<="};
    if (t->type == T_NAME) {
        char name[48];
        mr_utf8_printable((mr_str){t->value.s->data, t->value.s->len}, name, sizeof name);
        snprintf(out, size, "'%s'", name);
    } else if (t->type == T_OP) {
        const char *at = strchr(ops, t->op);
        if (at)
            snprintf(out, size, "'%s'", texts[at - ops]);
        else
            snprintf(out, size, "'%c'", t->op);
    } else {
        snprintf(out, size, "%s", names[t->type]);
    }
}

bool parse_fail(parser *p, const char *what) {
    char found[64];
    describe(&p->now, found, sizeof found);
    return jx_fail(p->x, MR_E_FORMAT, "%s at %s", what, found);
}

bool parse_skip_op(parser *p, char op, bool *out_was) {
    *out_was = parse_at_op(p, op);
    return !*out_was || parse_advance(p);
}

bool parse_skip_name(parser *p, const char *name, bool *out_was) {
    *out_was = parse_at_name(p, name);
    return !*out_was || parse_advance(p);
}

bool parse_expect_op(parser *p, char op) {
    char what[24];
    if (parse_at_op(p, op))
        return parse_advance(p);
    snprintf(what, sizeof what, "expected '%c'", op);
    return parse_fail(p, what);
}

static bool parse_expect_name(parser *p, const char *name) {
    char what[40];
    if (parse_at_name(p, name))
        return parse_advance(p);
    snprintf(what, sizeof what, "expected '%s'", name);
    return parse_fail(p, what);
}

bool parse_take_name(parser *p, jv *out) {
    if (p->now.type != T_NAME)
        return parse_fail(p, "expected a name");
    *out = p->now.value;
    return parse_advance(p);
}

static bool expect(parser *p, tok_type type, const char *what) {
    return p->now.type == type ? parse_advance(p) : parse_fail(p, what);
}

/* ---- nodes ---- */

jnode *parse_node(parser *p, jnode_type type) {
    jnode *node = jx_alloc(p->x, 1, sizeof *node);
    if (node) {
        node->type = (uint8_t)type;
        node->line = p->now.line;
    }
    return node;
}

jnode *parse_node_2(parser *p, jnode_type type, char op, jnode *a, jnode *b) {
    jnode *node = parse_node(p, type);
    if (node) {
        node->op = op;
        node->a = a;
        node->b = b;
        if (a)
            node->line = a->line;
    }
    return node;
}

bool parse_push(parser *p, jnodes *list, jnode *item) {
    if (!item)
        return false;
    if (list->n == list->cap) {
        int32_t cap = list->cap ? 2 * list->cap : 4;
        jnode **items = jx_alloc(p->x, (size_t)cap, sizeof *items);
        if (!items)
            return false;
        if (list->n)
            memcpy(items, list->items, (size_t)list->n * sizeof *items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = item;
    return true;
}

static uint64_t name_hash(const jstr *s) {
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < s->len; i++)
        h = (h ^ (unsigned char)s->data[i]) * 1099511628211u;
    return h;
}

static int32_t *symbol_place(parser *p, const jstr *name) {
    size_t i = name_hash(name) & (p->symbol_cap - 1);
    for (; p->symbol_table[i] >= 0; i = (i + 1) & (p->symbol_cap - 1)) {
        const jstr *s = p->symbols->items[p->symbol_table[i]].s;
        if (mr_str_equal((mr_str){s->data, s->len}, (mr_str){name->data, name->len}))
            break;
    }
    return &p->symbol_table[i];
}

static bool grow_symbols(parser *p) {
    p->symbol_cap = p->symbol_cap ? 2 * p->symbol_cap : SYMBOLS_CAP;
    p->symbol_table = jx_alloc(p->x, p->symbol_cap, sizeof *p->symbol_table);
    if (!p->symbol_table)
        return false;
    memset(p->symbol_table, 0xFF, p->symbol_cap * sizeof *p->symbol_table);
    for (size_t i = 0; i < p->symbols->n; i++)
        *symbol_place(p, p->symbols->items[i].s) = (int32_t)i;
    return true;
}

bool parse_symbol(parser *p, const jstr *name, int32_t *out) {
    if (2 * p->symbols->n >= p->symbol_cap && !grow_symbols(p))
        return false;
    int32_t *place = symbol_place(p, name);
    if (*place < 0) {
        jv v;
        if (!jv_str(p->x, name->data, name->len, &v) || !jlist_push(p->x, p->symbols, v))
            return false;
        *place = (int32_t)p->symbols->n - 1;
    }
    *out = *place;
    return true;
}

/* ---- statements ---- */

static jnode *parse_for(parser *p) {
    static const char *const body_ends[] = {"endfor", "else", NULL}, *const ends[] = {"endfor", NULL};
    jnode *node = parse_node(p, N_FOR);
    bool has_test, otherwise;
    if (!node || !parse_advance(p) || !(node->a = parse_target(p, false, "in")) || !parse_expect_name(p, "in") ||
        !(node->b = parse_tuple(p, false, "recursive")) || !parse_skip_name(p, "if", &has_test) ||
        (has_test && !(node->c = parse_expression(p))) || !parse_skip_name(p, "recursive", &node->recursive))
        return NULL;
    p->n_loops++;
    node->body = parse_body(p, body_ends);
    p->n_loops--;
    if (!node->body || !parse_skip_name(p, "else", &otherwise))
        return NULL;
    if (otherwise && !(node->otherwise = parse_body(p, ends)))
        return NULL;
    return parse_expect_name(p, "endfor") ? node : NULL;
}

/* An elif becomes an N_IF in `otherwise` of the node before it. */
static jnode *parse_if(parser *p) {
    static const char *const body_ends[] = {"elif", "else", "endif", NULL}, *const ends[] = {"endif", NULL};
    jnode *first = NULL, *last = NULL;
    for (;;) {
        jnode *node = parse_node(p, N_IF);
        if (!node || !parse_advance(p) || !(node->a = parse_tuple(p, false, NULL)) ||
            !(node->body = parse_body(p, body_ends)))
            return NULL;
        if (last)
            last->otherwise = node;
        else
            first = node;
        last = node;
        if (!parse_at_name(p, "elif"))
            break;
    }
    bool otherwise;
    if (!parse_skip_name(p, "else", &otherwise) || (otherwise && !(last->otherwise = parse_body(p, ends))))
        return NULL;
    return parse_expect_name(p, "endif") ? first : NULL;
}

static jnode *parse_set(parser *p) {
    static const char *const ends[] = {"endset", NULL};
    jnode *node = parse_node(p, N_SET);
    bool assigned;
    if (!node || !parse_advance(p) || !(node->a = parse_target(p, true, NULL)) || !parse_skip_op(p, '=', &assigned))
        return NULL;
    if (assigned)
        return (node->b = parse_tuple(p, true, NULL)) ? node : NULL;
    node->type = N_SET_BLOCK;
    if (parse_at_op(p, '|')) {
        if (!parse_advance(p) || !(node->b = parse_filters(p, NULL)))
            return NULL;
    }
    node->body = parse_body(p, ends);
    return node->body && parse_expect_name(p, "endset") ? node : NULL;
}

/* Reads the parameters of a macro, such as (a, b=1), into the kids of node. */
static bool parse_signature(parser *p, jnode *node) {
    jnodes params = {0};
    bool has_default, seen_default = false;
    if (!parse_expect_op(p, '('))
        return false;
    while (!parse_at_op(p, ')')) {
        jv name = {0};
        jnode *param = parse_node(p, N_PARAM);
        if (!param || (params.n && !parse_expect_op(p, ',')) || !parse_take_name(p, &name) ||
            !parse_symbol(p, name.s, &param->symbol) || !parse_skip_op(p, '=', &has_default) ||
            (has_default && !(param->a = parse_expression(p))) || !parse_push(p, &params, param))
            return false;
        if (!has_default && seen_default)
            return parse_fail(p, "a parameter without a default follows one with a default");
        seen_default |= has_default;
    }
    parse_finish_list(node, &params);
    return parse_advance(p);
}

static bool parse_macro_body(parser *p, jnode *node, const char *end) {
    const char *ends[] = {end, NULL};
    int32_t n_loops = p->n_loops;
    p->n_loops = 0;
    node->otherwise = p->macro;
    p->macro = node;
    node->body = parse_body(p, ends);
    p->macro = node->otherwise;
    node->otherwise = NULL;
    p->n_loops = n_loops;
    return node->body && parse_expect_name(p, end);
}

static jnode *parse_macro(parser *p) {
    jnode *node = parse_node(p, N_MACRO);
    jv name = {0};
    if (!node || !parse_advance(p) || !parse_take_name(p, &name) || !parse_symbol(p, name.s, &node->symbol) ||
        !parse_signature(p, node))
        return NULL;
    return parse_macro_body(p, node, "endmacro") ? node : NULL;
}

static jnode *parse_call_block(parser *p) {
    jnode *node = parse_node(p, N_CALL_BLOCK);
    if (!node || !parse_advance(p) || (parse_at_op(p, '(') && !parse_signature(p, node)) ||
        !(node->a = parse_expression(p)))
        return NULL;
    if (node->a->type != N_CALL)
        return parse_fail_node(p, "expected a call");
    node->symbol = SYM_CALLER;
    return parse_macro_body(p, node, "endcall") ? node : NULL;
}

static jnode *parse_filter_block(parser *p) {
    static const char *const ends[] = {"endfilter", NULL};
    jnode *node = parse_node(p, N_FILTER_BLOCK);
    if (!node || !parse_advance(p) || !(node->a = parse_filters(p, NULL)) || !(node->body = parse_body(p, ends)))
        return NULL;
    return parse_expect_name(p, "endfilter") ? node : NULL;
}

static jnode *parse_with(parser *p) {
    static const char *const ends[] = {"endwith", NULL};
    jnode *node = parse_node(p, N_WITH);
    jnodes sets = {0};
    if (!node || !parse_advance(p))
        return NULL;
    while (p->now.type != T_BLOCK_END) {
        jnode *set = parse_node(p, N_SET);
        if (!set || (sets.n && !parse_expect_op(p, ',')) || !(set->a = parse_with_target(p)) ||
            !parse_expect_op(p, '=') || !(set->b = parse_expression(p)) || !parse_push(p, &sets, set))
            return NULL;
    }
    parse_finish_list(node, &sets);
    return (node->body = parse_body(p, ends)) && parse_expect_name(p, "endwith") ? node : NULL;
}

/* {% generation %} marks the text of the model, for training. A render treats the block as plain text in a new
 * scope. */
static jnode *parse_generation(parser *p) {
    static const char *const ends[] = {"endgeneration", NULL};
    jnode *node = parse_node(p, N_SCOPE);
    if (!node || !parse_advance(p) || !(node->body = parse_body(p, ends)))
        return NULL;
    return parse_expect_name(p, "endgeneration") ? node : NULL;
}

static jnode *parse_print(parser *p) {
    jnode *block = parse_node(p, N_BLOCK);
    jnodes list = {0};
    if (!block || !parse_advance(p))
        return NULL;
    while (p->now.type != T_BLOCK_END) {
        jnode *node = parse_node(p, N_OUTPUT);
        if (!node || (list.n && !parse_expect_op(p, ',')) || !(node->a = parse_expression(p)) ||
            !parse_push(p, &list, node))
            return NULL;
    }
    return parse_finish_list(block, &list);
}

static jnode *parse_jump(parser *p, jnode_type type) {
    jnode *node = parse_node(p, type);
    if (!p->n_loops)
        return parse_fail_node(p, "outside of a loop");
    return node && parse_advance(p) ? node : NULL;
}

static jnode *parse_break(parser *p) {
    return parse_jump(p, N_BREAK);
}

static jnode *parse_continue(parser *p) {
    return parse_jump(p, N_CONTINUE);
}

static jnode *parse_statement(parser *p) {
    static const struct {
        const char *word;
        jnode *(*parse)(parser *);
    } statements[] = {{"for", parse_for},
                      {"if", parse_if},
                      {"set", parse_set},
                      {"macro", parse_macro},
                      {"call", parse_call_block},
                      {"filter", parse_filter_block},
                      {"with", parse_with},
                      {"print", parse_print},
                      {"generation", parse_generation},
                      {"break", parse_break},
                      {"continue", parse_continue}};
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (parse_at_name(p, statements[i].word))
            return statements[i].parse(p);
    return parse_fail_node(p, "unknown tag");
}

/* Reads one piece: text, a variable or a statement. out_end: the next tag is one of `ends`, and no piece was read. */
static bool parse_piece(parser *p, const char *const *ends, jnodes *list, bool *out_end) {
    *out_end = false;
    if (p->now.type == T_DATA) {
        jnode *node = parse_node(p, N_DATA);
        if (!node)
            return false;
        node->value = p->now.value;
        return (!node->value.s->len || parse_push(p, list, node)) && parse_advance(p);
    }
    if (p->now.type == T_VARIABLE_BEGIN) {
        jnode *node = parse_node(p, N_OUTPUT);
        return node && parse_advance(p) && (node->a = parse_tuple(p, true, NULL)) && parse_push(p, list, node) &&
               expect(p, T_VARIABLE_END, "expected the end of the print statement");
    }
    if (p->now.type != T_BLOCK_BEGIN)
        return parse_fail(p, "unexpected");
    if (!parse_advance(p))
        return false;
    for (; ends && *ends; ends++)
        if (parse_at_name(p, *ends)) {
            *out_end = true;
            return true;
        }
    return parse_push(p, list, parse_statement(p)) && expect(p, T_BLOCK_END, "expected the end of the statement");
}

/* Reads pieces up to a tag of `ends`, whose name is then the current token. ends NULL: up to the end of the
 * template. */
static jnode *parse_pieces(parser *p, const char *const *ends) {
    jnode *node = parse_node(p, N_BLOCK);
    jnodes list = {0};
    bool end = false;
    if (!node)
        return NULL;
    while (!end && p->now.type != T_END)
        if (!parse_piece(p, ends, &list, &end))
            return NULL;
    if (ends && !end) {
        char what[48];
        snprintf(what, sizeof what, "expected '%s'", *ends);
        return parse_fail_node(p, what);
    }
    return parse_finish_list(node, &list);
}

static jnode *parse_body(parser *p, const char *const *ends) {
    if (parse_at_op(p, ':') && !parse_advance(p))
        return NULL;
    if (!expect(p, T_BLOCK_END, "expected the end of the statement") || !jx_enter(p->x))
        return NULL;
    jnode *node = parse_pieces(p, ends);
    jx_leave(p->x);
    return node;
}

/* ---- a template ---- */

static bool finish(parser *p, mr_jinja *t) {
    t->n_symbols = (int32_t)p->symbols->n;
    t->symbols = jx_alloc(p->x, p->symbols->n, sizeof *t->symbols);
    for (int32_t i = 0; t->symbols && i < t->n_symbols; i++)
        t->symbols[i] = p->symbols->items[i].s;
    return t->symbols != NULL;
}

static bool parse_template(parser *p, mr_str source, mr_jinja *t) {
    static const char *const fixed[N_FIXED_SYMBOLS] = {"loop", "caller", "varargs", "kwargs"};
    p->symbols = jlist_new(p->x, SYMBOLS_CAP);
    if (!p->symbols || !lex_init(&p->lex, p->x, source))
        return false;
    for (int i = 0; i < N_FIXED_SYMBOLS; i++) {
        int32_t symbol;
        if (!parse_symbol(p, &(jstr){fixed[i], strlen(fixed[i]), -1}, &symbol))
            return false;
    }
    return parse_advance(p) && (t->root = parse_pieces(p, NULL)) && finish(p, t);
}

mr_status mr_jinja_parse(mr_str source, mr_jinja **out, mr_err *err) {
    if (source.len > MR_JINJA_MAX_SOURCE_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "the template has %zu bytes, more than %d", source.len,
                          MR_JINJA_MAX_SOURCE_BYTES);
    jx x = {.err = err, .depth_left = PARSE_MAX_DEPTH, .steps_left = UINT64_MAX};
    mr_jinja *t = mr_alloc(sizeof *t);
    parser *p = mr_alloc(sizeof *p);
    mr_status status = MR_OK;
    if (!t || !p)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a template");
    else
        status = mr_arena_create(0, PARSE_ARENA_BYTES, &t->arena, err);
    if (status == MR_OK) {
        x.arena = t->arena;
        p->x = &x;
        if (!parse_template(p, source, t))
            status = x.status;
    }
    mr_free(p);
    if (status == MR_OK)
        *out = t;
    else
        mr_jinja_destroy(t);
    return status;
}

void mr_jinja_destroy(mr_jinja *t) {
    if (!t)
        return;
    mr_arena_destroy(t->arena);
    mr_free(t);
}
