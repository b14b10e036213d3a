/* engine/graph/build.c - creates a graph and adds its tensors and nodes. Every shape is checked here, so later passes
 * rely on shapes that fit. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/top.h"
#include "engine/graph/graph_internal.h"

mr_status mr_graph_create(int32_t max_rows, int32_t max_out_rows, mr_graph **out, mr_err *err) {
    if (max_rows < 1 || max_out_rows < 1)
        return mr_err_set(err, MR_E_INVALID, "a graph needs at least one row (got %d and %d)", max_rows, max_out_rows);
    mr_graph *g = mr_alloc(sizeof *g);
    if (!g)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a graph");
    g->max_rows[MR_ROWS_FIXED] = 1;
    g->max_rows[MR_ROWS_STEP] = max_rows;
    g->max_rows[MR_ROWS_OUT] = max_out_rows;
    g->max_rows[MR_ROWS_TOP] = max_out_rows < MR_GRAPH_TOP_ROWS ? max_out_rows : MR_GRAPH_TOP_ROWS;
    g->max_rows[MR_ROWS_HIDDEN] = max_rows;
    *out = g;
    return MR_OK;
}

void mr_graph_destroy(mr_graph *g) {
    if (!g)
        return;
    graph_debug_destroy(g);
    for (int32_t s = 0; s < g->n_splits; s++) {
        mr_backend *be = g->backends.at[g->splits[s].backend];
        if (g->splits[s].program)
            be->ops->program_destroy(be, g->splits[s].program);
    }
    mr_graph_flight_destroy(g->flight);
    mr_free(g->works);
    mr_free(g->splits);
    mr_free(g->copies);
    mr_free(g->issue);
    mr_free(g->links);
    mr_free(g->tensors);
    mr_free(g->nodes);
    mr_free(g);
}

int32_t graph_fail(mr_graph *g, mr_status status, const char *text) {
    if (g->err.status == MR_OK)
        mr_err_set(&g->err, status, "graph: %s", text);
    return MR_NO_TENSOR;
}

bool graph_grow(void **array, int32_t n, int32_t *cap, size_t size) {
    if (n < *cap)
        return true;
    int32_t wanted = *cap ? *cap * 2 : 64;
    void *p = mr_realloc(*array, (size_t)wanted * size);
    if (!p)
        return false;
    *array = p;
    *cap = wanted;
    return true;
}

int32_t graph_add_tensor(mr_graph *g, const mr_tensor *t) {
    if (g->err.status != MR_OK)
        return MR_NO_TENSOR;
    int32_t cap = g->cap_tensors; /* links and tensors have the same capacity */
    if (!graph_grow((void **)&g->links, g->n_tensors, &cap, sizeof *g->links) ||
        !graph_grow((void **)&g->tensors, g->n_tensors, &g->cap_tensors, sizeof *g->tensors))
        return graph_fail(g, MR_E_NO_MEMORY, "no memory for tensors");
    g->tensors[g->n_tensors] = *t;
    g->links[g->n_tensors] = (graph_link){.also = MR_NO_TENSOR};
    return g->n_tensors++;
}

mr_node *graph_add_node(mr_graph *g, mr_op op, int32_t out) {
    if (g->err.status != MR_OK)
        return NULL;
    if (!graph_grow((void **)&g->nodes, g->n_nodes, &g->cap_nodes, sizeof *g->nodes)) {
        graph_fail(g, MR_E_NO_MEMORY, "no memory for nodes");
        return NULL;
    }
    mr_node *node = &g->nodes[g->n_nodes++];
    memset(node, 0, sizeof *node);
    node->op = op;
    node->out = out;
    for (int i = 0; i < MR_MAX_INPUTS; i++)
        node->in[i] = MR_NO_TENSOR;
    return node;
}

int32_t graph_new_tensor(mr_graph *g, const char *name, mr_type type, int64_t columns, mr_row_count rows,
                         mr_storage storage) {
    mr_tensor t;
    if (!mr_tensor_init(&t, name, type, columns, g->max_rows[rows], storage, rows))
        return graph_fail(g, MR_E_INVALID, "a shape does not fit its type");
    return graph_add_tensor(g, &t);
}

int32_t graph_result(mr_graph *g, mr_op op, int32_t columns, mr_row_count rows) {
    char name[64];
    snprintf(name, sizeof name, "%s.%d", mr_op_name(op), g->n_nodes);
    return graph_new_tensor(g, name, MR_TYPE_F32, columns, rows, MR_STORAGE_WORK);
}

int32_t mr_graph_use(mr_graph *g, const mr_tensor *t) {
    return graph_add_tensor(g, t);
}

void mr_graph_use_also(mr_graph *g, int32_t id, const mr_tensor *t) {
    int32_t copy = graph_add_tensor(g, t);
    if (copy == MR_NO_TENSOR)
        return;
    if (id < 0 || id >= copy || g->tensors[id].type != t->type || g->tensors[id].ne[0] != t->ne[0] ||
        g->tensors[id].ne[1] != t->ne[1]) {
        graph_fail(g, MR_E_INVALID, "a copy differs from its tensor in type or shape");
        return;
    }
    g->links[copy].also = g->links[id].also;
    g->links[id].also = copy;
}

void mr_graph_matrix_source(mr_graph *g, int32_t id, const uint8_t *rows) {
    if (g->err.status == MR_OK && id >= 0 && id < g->n_tensors)
        g->links[id].source = rows;
}

int32_t mr_graph_input(mr_graph *g, const char *name, mr_type type, int32_t columns, mr_row_count rows) {
    return graph_new_tensor(g, name, type, columns, rows, MR_STORAGE_INPUT);
}

void mr_graph_output(mr_graph *g, int32_t tensor) {
    if (g->err.status == MR_OK && tensor >= 0 && tensor < g->n_tensors && g->tensors[tensor].storage == MR_STORAGE_WORK)
        g->tensors[tensor].storage = MR_STORAGE_OUTPUT;
    else
        graph_fail(g, MR_E_INVALID, "an output is not the result of a node");
}

const mr_tensor *graph_want(mr_graph *g, int32_t id, mr_type type, int32_t columns, const char *what) {
    if (g->err.status != MR_OK)
        return NULL;
    if (id < 0 || id >= g->n_tensors) {
        mr_err_set(&g->err, MR_E_INVALID, "graph: %s is no tensor", what);
        return NULL;
    }
    const mr_tensor *t = &g->tensors[id];
    if (t->type != type || (columns > 0 && t->ne[0] != columns)) {
        mr_err_set(&g->err, MR_E_INVALID, "graph: %s: tensor '%s' is %s with %d columns, wanted %s with %d", what,
                   t->name, mr_type_name(t->type), t->ne[0], mr_type_name(type), columns);
        return NULL;
    }
    return t;
}

const mr_tensor *graph_want_beside(mr_graph *g, int32_t b, int32_t a, mr_type type, int32_t columns, const char *what) {
    const mr_tensor *t = graph_want(g, b, type, columns, what);
    if (!t || t->row_count == g->tensors[a].row_count)
        return t;
    mr_err_set(&g->err, MR_E_INVALID, "graph: %s: tensor '%s' has other rows than '%s'", what, t->name,
               g->tensors[a].name);
    return NULL;
}

int32_t mr_graph_embed(mr_graph *g, int32_t table, int32_t ids) {
    if (!graph_want(g, ids, MR_TYPE_I32, 1, "ids of embed"))
        return MR_NO_TENSOR;
    if (table < 0 || table >= g->n_tensors)
        return graph_fail(g, MR_E_INVALID, "table of embed is no tensor");
    int32_t out = graph_result(g, MR_OP_EMBED, g->tensors[table].ne[0], g->tensors[ids].row_count);
    mr_node *n = graph_add_node(g, MR_OP_EMBED, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = table;
    n->in[1] = ids;
    return out;
}

int32_t mr_graph_rope_table(mr_graph *g, int32_t angles, int32_t positions, float magnitude) {
    const mr_tensor *f = graph_want(g, angles, MR_TYPE_F32, 0, "angles of rope_table");
    if (!f || !graph_want(g, positions, MR_TYPE_I32, 1, "positions of rope_table"))
        return MR_NO_TENSOR;
    if (f->ne[1] != MR_ROPE_ROWS)
        return graph_fail(g, MR_E_INVALID, "rope_table: angles do not have the rows of rule R");
    int32_t out = graph_result(g, MR_OP_ROPE_TABLE, f->ne[0] * 2, MR_ROWS_STEP);
    mr_node *n = graph_add_node(g, MR_OP_ROPE_TABLE, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = angles;
    n->in[1] = positions;
    n->params.rope.magnitude = magnitude;
    return out;
}

/* n_kept: -1 for all columns but those of the weight. */
static int32_t rms_norm(mr_graph *g, int32_t x, int32_t weight, float eps, int32_t n_kept) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of rms_norm");
    const mr_tensor *w = t ? graph_want(g, weight, MR_TYPE_F32, 0, "weight of rms_norm") : NULL;
    if (!w)
        return MR_NO_TENSOR;
    n_kept = n_kept < 0 ? t->ne[0] - w->ne[0] : n_kept;
    if (n_kept < 0 || (t->ne[0] - n_kept) % w->ne[0] != 0)
        return graph_fail(g, MR_E_INVALID, "rms_norm: the columns of x do not fit those of the weight");
    int32_t out = graph_result(g, MR_OP_RMS_NORM, t->ne[0], t->row_count);
    mr_node *n = graph_add_node(g, MR_OP_RMS_NORM, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    n->in[1] = weight;
    n->params.norm.eps = eps;
    n->params.norm.n_kept = n_kept;
    return out;
}

int32_t mr_graph_rms_norm(mr_graph *g, int32_t x, int32_t weight, float eps) {
    return rms_norm(g, x, weight, eps, 0);
}

int32_t mr_graph_rms_norm_first(mr_graph *g, int32_t x, int32_t weight, float eps) {
    return rms_norm(g, x, weight, eps, -1);
}

int32_t graph_activations(mr_graph *g, int32_t x, mr_type type) {
    if (type == MR_TYPE_F32)
        return x;
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op == MR_OP_QUANTIZE && g->nodes[i].in[0] == x && g->tensors[g->nodes[i].out].type == type)
            return g->nodes[i].out;
    mr_tensor t = g->tensors[x];
    if (!mr_tensor_init(&t, "quantize", type, t.ne[0], t.ne[1], MR_STORAGE_WORK, t.row_count))
        return graph_fail(g, MR_E_INVALID, "quantize: columns are no multiple of 32");
    int32_t out = graph_add_tensor(g, &t);
    mr_node *n = graph_add_node(g, MR_OP_QUANTIZE, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    return out;
}

int32_t mr_graph_matmul(mr_graph *g, int32_t w, int32_t x, int32_t bias, int32_t add) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of matmul");
    if (!t)
        return MR_NO_TENSOR;
    if (w < 0 || w >= g->n_tensors || !graph_is_matrix(&g->tensors[w]) || g->tensors[w].ne[0] != t->ne[0])
        return graph_fail(g, MR_E_INVALID, "matmul: w is no weight with as many columns as x");
    mr_row_count rows = t->row_count;
    int32_t n_out = g->tensors[w].ne[1];
    if (bias != MR_NO_TENSOR && !graph_want(g, bias, MR_TYPE_F32, n_out, "bias of matmul"))
        return MR_NO_TENSOR;
    if (add != MR_NO_TENSOR && !graph_want_beside(g, add, x, MR_TYPE_F32, n_out, "add of matmul"))
        return MR_NO_TENSOR;
    mr_type type = mr_type_activation(g->tensors[w].type);
    int32_t a = graph_activations(g, x, type);
    int32_t out = graph_result(g, MR_OP_MATMUL, n_out, rows);
    mr_node *n = graph_add_node(g, MR_OP_MATMUL, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = w;
    n->in[1] = a;
    n->in[2] = bias;
    n->in[3] = add;
    return out;
}

int32_t mr_graph_head_matmul(mr_graph *g, int32_t w, int32_t x, int32_t n_heads) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of head_matmul");
    if (!t)
        return MR_NO_TENSOR;
    if (w < 0 || w >= g->n_tensors || !graph_is_matrix(&g->tensors[w]))
        return graph_fail(g, MR_E_INVALID, "head_matmul: w is no weight");
    const mr_tensor *m = &g->tensors[w];
    if (n_heads < 1 || t->ne[0] % n_heads != 0 || m->ne[1] % n_heads != 0 || t->ne[0] / n_heads < m->ne[0])
        return graph_fail(g, MR_E_INVALID,
                          "head_matmul: w needs a matrix for each head, with no more columns than the head");
    int64_t width = (int64_t)m->ne[1] + t->ne[0] - (int64_t)n_heads * m->ne[0];
    if (width > INT32_MAX)
        return graph_fail(g, MR_E_INVALID, "head_matmul: the result is too wide");
    int32_t out = graph_result(g, MR_OP_HEAD_MATMUL, (int32_t)width, t->row_count);
    mr_node *n = graph_add_node(g, MR_OP_HEAD_MATMUL, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = w;
    n->in[1] = x;
    n->params.heads.n = n_heads;
    return out;
}

int32_t mr_graph_rope(mr_graph *g, int32_t x, int32_t table, const mr_rope_desc *desc) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of rope");
    if (!t || !graph_want_beside(g, table, x, MR_TYPE_F32, desc->n_rot, "table of rope"))
        return MR_NO_TENSOR;
    if (desc->first < 0 || desc->n_rot < 2 || desc->n_rot > desc->head_dim - desc->first || desc->n_rot % 2 != 0 ||
        t->ne[0] % desc->head_dim != 0)
        return graph_fail(g, MR_E_INVALID, "rope: n_rot, head size and columns of x do not fit together");
    int32_t out = graph_result(g, MR_OP_ROPE, t->ne[0], t->row_count);
    mr_node *n = graph_add_node(g, MR_OP_ROPE, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    n->in[1] = table;
    n->params.rope.head_dim = desc->head_dim;
    n->params.rope.first = desc->first;
    n->params.rope.n_rot = desc->n_rot;
    n->params.rope.pairs = desc->pairs;
    return out;
}

static bool is_state(const mr_graph *g, int32_t id) {
    return id >= 0 && id < g->n_tensors && g->tensors[id].storage == MR_STORAGE_STATE;
}

/* Checks the numbers of heads, the tensors of the KV store, and the inputs that say where each row belongs. */
static bool attention_desc_is_good(mr_graph *g, int32_t q, const mr_attention_desc *desc) {
    if (desc->n_kv_heads < 1 || desc->k_dim < 1 || desc->v_dim < 1 || desc->n_heads < 1 ||
        desc->n_heads % desc->n_kv_heads != 0) {
        graph_fail(g, MR_E_INVALID, "attention: heads are no multiple of KV heads");
        return false;
    }
    if (!is_state(g, desc->k_state) || !is_state(g, desc->v_state) || !is_state(g, desc->block_table)) {
        graph_fail(g, MR_E_INVALID, "attention: keys, values or block table are no state");
        return false;
    }
    if (desc->window < 0 || !(desc->soft_cap >= 0.0f)) {
        graph_fail(g, MR_E_INVALID, "attention: a window or soft cap below zero");
        return false;
    }
    if (desc->temperature.length < 0 || !(desc->temperature.growth >= 0.0f && desc->temperature.growth <= FLT_MAX)) {
        graph_fail(g, MR_E_INVALID, "attention: a temperature that is no finite number from zero on");
        return false;
    }
    if (desc->sinks != MR_NO_TENSOR && !graph_want(g, desc->sinks, MR_TYPE_F32, desc->n_heads, "sinks of attention"))
        return false;
    return graph_want_beside(g, desc->slots, q, MR_TYPE_I32, 1, "slots of attention") &&
           graph_want_beside(g, desc->row_seq, q, MR_TYPE_I32, 1, "row_seq of attention") &&
           graph_want_beside(g, desc->row_position, q, MR_TYPE_I32, 1, "row_position of attention");
}

int32_t mr_graph_attention(mr_graph *g, int32_t q, int32_t k, int32_t v, const mr_attention_desc *desc) {
    int32_t v_width = desc->n_kv_heads == 1 ? 0 : desc->n_kv_heads * desc->v_dim;
    if (!graph_want(g, q, MR_TYPE_F32, desc->n_heads * desc->k_dim, "q of attention") ||
        !graph_want_beside(g, k, q, MR_TYPE_F32, desc->n_kv_heads * desc->k_dim, "k of attention") ||
        !graph_want_beside(g, v, q, MR_TYPE_F32, v_width, "v of attention") || !attention_desc_is_good(g, q, desc))
        return MR_NO_TENSOR;
    if (g->tensors[v].ne[0] < desc->n_kv_heads * desc->v_dim)
        return graph_fail(g, MR_E_INVALID, "attention: v has fewer columns than the values");
    mr_op_params params = {.attention = {.n_heads = desc->n_heads,
                                         .n_kv_heads = desc->n_kv_heads,
                                         .k_dim = desc->k_dim,
                                         .v_dim = desc->v_dim,
                                         .scale = desc->scale,
                                         .soft_cap = desc->soft_cap,
                                         .temperature = desc->temperature,
                                         .window = desc->window}};
    mr_node *write = graph_add_node(g, MR_OP_KV_WRITE, MR_NO_TENSOR);
    if (!write)
        return MR_NO_TENSOR;
    write->params = params;
    const int32_t write_in[] = {k, v, desc->slots, desc->k_state, desc->v_state};
    memcpy(write->in, write_in, sizeof write_in);

    int32_t out = graph_result(g, MR_OP_ATTENTION, desc->n_heads * desc->v_dim, g->tensors[q].row_count);
    mr_node *n = graph_add_node(g, MR_OP_ATTENTION, out);
    if (!n)
        return MR_NO_TENSOR;
    n->params = params;
    const int32_t in[MR_MAX_INPUTS] = {
        q, desc->k_state, desc->v_state, desc->row_seq, desc->row_position, desc->block_table, desc->sinks};
    memcpy(n->in, in, sizeof in);
    return out;
}

/* Adds a node whose two inputs and result all have the same shape. */
static int32_t pairwise(mr_graph *g, mr_op op, int32_t a, int32_t b) {
    const mr_tensor *t = graph_want(g, a, MR_TYPE_F32, 0, mr_op_name(op));
    if (!t || !graph_want_beside(g, b, a, MR_TYPE_F32, t->ne[0], mr_op_name(op)))
        return MR_NO_TENSOR;
    int32_t out = graph_result(g, op, t->ne[0], t->row_count);
    mr_node *n = graph_add_node(g, op, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = a;
    n->in[1] = b;
    return out;
}

int32_t mr_graph_glu(mr_graph *g, int32_t gate, int32_t up, mr_glu glu) {
    if ((unsigned)glu.kind >= MR_GLU_KINDS || !(glu.limit >= 0.0f && glu.limit <= FLT_MAX))
        return graph_fail(g, MR_E_INVALID, "glu: an unknown kind, or a limit that is below zero or infinite");
    int32_t out = pairwise(g, MR_OP_GLU, gate, up);
    if (out != MR_NO_TENSOR)
        g->nodes[g->n_nodes - 1].params.glu = glu;
    return out;
}

int32_t mr_graph_add(mr_graph *g, int32_t a, int32_t b) {
    return pairwise(g, MR_OP_ADD, a, b);
}

int32_t mr_graph_add_gated(mr_graph *g, int32_t a, int32_t b, int32_t gate) {
    if (!graph_want(g, a, MR_TYPE_F32, 0, "a of add_gated") ||
        !graph_want_beside(g, gate, a, MR_TYPE_F32, 1, "gate of add_gated"))
        return MR_NO_TENSOR;
    int32_t out = pairwise(g, MR_OP_ADD_GATED, a, b);
    if (out != MR_NO_TENSOR)
        g->nodes[g->n_nodes - 1].in[2] = gate;
    return out;
}

/* A node with one input and a number, and a result of the input's shape. */
static int32_t by_factor(mr_graph *g, mr_op op, int32_t x, float factor) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, mr_op_name(op));
    if (!t)
        return MR_NO_TENSOR;
    int32_t out = graph_result(g, op, t->ne[0], t->row_count);
    mr_node *n = graph_add_node(g, op, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    n->params.scale.factor = factor;
    return out;
}

int32_t mr_graph_scale(mr_graph *g, int32_t x, float factor) {
    if (!(factor >= -FLT_MAX && factor <= FLT_MAX))
        return graph_fail(g, MR_E_INVALID, "scale: the factor is not finite");
    return by_factor(g, MR_OP_SCALE, x, factor);
}

int32_t mr_graph_soft_cap(mr_graph *g, int32_t x, float cap) {
    if (!(cap >= FLT_MIN && cap <= FLT_MAX))
        return graph_fail(g, MR_E_INVALID, "soft_cap: the cap is no finite number above zero");
    return by_factor(g, MR_OP_SOFT_CAP, x, cap);
}

int32_t mr_graph_take_rows(mr_graph *g, int32_t x, int32_t rows) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of take_rows");
    if (!t || !graph_want(g, rows, MR_TYPE_I32, 1, "rows of take_rows"))
        return MR_NO_TENSOR;
    mr_row_count count = g->tensors[rows].row_count;
    if (count != MR_ROWS_OUT && count != MR_ROWS_HIDDEN)
        return graph_fail(g, MR_E_INVALID, "take_rows: rows must have the row count of outputs or of hidden rows");
    int32_t out = graph_result(g, MR_OP_TAKE_ROWS, t->ne[0], count);
    mr_node *n = graph_add_node(g, MR_OP_TAKE_ROWS, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    n->in[1] = rows;
    return out;
}

int32_t mr_graph_top(mr_graph *g, int32_t logits) {
    const mr_tensor *t = graph_want(g, logits, MR_TYPE_F32, 0, "logits of top");
    if (!t)
        return MR_NO_TENSOR;
    if (t->row_count != MR_ROWS_OUT)
        return graph_fail(g, MR_E_INVALID, "top: the logits must have the row count of outputs");
    int32_t out = graph_new_tensor(g, "top", MR_TYPE_I32, MR_TOP_COLUMNS, MR_ROWS_TOP, MR_STORAGE_WORK);
    mr_node *n = graph_add_node(g, MR_OP_TOP, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = logits;
    return out;
}
