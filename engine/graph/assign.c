/* engine/graph/assign.c - chooses a backend for each node. Nodes with matrices or state go to a backend that can read
 * them. The other nodes go where the fewest bytes have to be copied between memories. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

/* BORDER_BYTES: the fixed cost of a copy between memories, expressed in bytes. A fence and its wait take some 10 us. */
enum { BORDER_BYTES = 64 << 10, MAX_SWEEPS = 8 };

/* Whether input k of n is a matrix, a table or state. These are never copied for a step: the node runs on a backend
 * that can read them in place. */
static bool is_bound(const mr_graph *g, const mr_node *n, int k) {
    mr_storage storage = g->tensors[n->in[k]].storage;
    bool is_matrix = (k == 0 && (n->op == MR_OP_MATMUL || n->op == MR_OP_EXPERT_MATMUL || n->op == MR_OP_HEAD_MATMUL ||
                                 n->op == MR_OP_EMBED || n->op == MR_OP_AXPY)) ||
                     (k < 2 && (n->op == MR_OP_GATE_UP || n->op == MR_OP_SPARSE_GATE_UP));
    return storage == MR_STORAGE_WEIGHT || storage == MR_STORAGE_STATE || (is_matrix && storage == MR_STORAGE_FILE);
}

/* Whether n is a product with so few rows that, by mr_backends.min_rows, a later backend of the list takes it. */
static bool has_too_few_rows(const mr_graph *g, int32_t b, const mr_node *n) {
    mr_type type = n->op == MR_OP_MATMUL ? g->tensors[n->in[0]].type : MR_TYPE_FILE_COUNT;
    return type < MR_TYPE_FILE_COUNT && b < g->backends.n - 1 && g->is_host[b] &&
           g->tensors[n->out].ne[1] < g->backends.min_rows[b][type];
}

bool graph_can_run(const mr_graph *g, int32_t b, const mr_node *node) {
    mr_node n = *node;
    if (has_too_few_rows(g, b, node))
        return false;
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        if (n.in[k] == MR_NO_TENSOR || !is_bound(g, node, k))
            continue;
        n.in[k] = graph_reach(g, b, n.in[k]);
        if (n.in[k] == MR_NO_TENSOR)
            return false;
    }
    return g->backends.at[b]->ops->supports(g->backends.at[b], g->tensors, &n);
}

/* The error for a node that no backend runs. */
static mr_status unsupported(const mr_graph *g, const mr_node *n, mr_err *err) {
    const mr_tensor *t = &g->tensors[n->in[0] != MR_NO_TENSOR ? n->in[0] : n->out];
    if (n->op == MR_OP_KV_WRITE || n->op == MR_OP_ATTENTION) {
        const mr_tensor *keys = &g->tensors[n->in[n->op == MR_OP_ATTENTION ? 1 : 3]];
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "no backend runs %s on tensor '%s' with heads of %d elements (values of %d) and keys in %s",
                          mr_op_name(n->op), t->name, n->params.attention.k_dim, n->params.attention.v_dim,
                          mr_type_name(keys->type));
    }
    return mr_err_set(err, MR_E_UNSUPPORTED, "no backend runs %s on tensor '%s' of type %s", mr_op_name(n->op), t->name,
                      mr_type_name(t->type));
}

/* Which node computes each tensor, and which nodes read it (a linked list of inputs). */
typedef struct edges {
    int32_t *producer;     /* [n_tensors]: node, or -1 */
    int32_t *first_reader; /* [n_tensors]: node * MR_MAX_INPUTS + input, or -1 */
    int32_t *next_reader;  /* [n_nodes * MR_MAX_INPUTS] the next input in the list, or -1 */
    uint8_t *may;          /* [n_nodes]: bit b: backend b can run the node */
    bool *is_free;         /* [n_nodes]: several backends can run the node, and it reads no matrix and no state */
} edges;

static mr_status edges_init(edges *e, const mr_graph *g, mr_err *err) {
    size_t n_tensors = (size_t)g->n_tensors + 1, n_nodes = (size_t)g->n_nodes + 1;
    e->producer = mr_alloc_array(n_tensors, sizeof *e->producer);
    e->first_reader = mr_alloc_array(n_tensors, sizeof *e->first_reader);
    e->next_reader = mr_alloc_array(n_nodes * MR_MAX_INPUTS, sizeof *e->next_reader);
    e->may = mr_alloc_array(n_nodes, sizeof *e->may);
    e->is_free = mr_alloc_array(n_nodes, sizeof *e->is_free);
    if (!e->producer || !e->first_reader || !e->next_reader || !e->may || !e->is_free)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to share out %d nodes", g->n_nodes);
    for (int32_t t = 0; t < g->n_tensors; t++)
        e->producer[t] = e->first_reader[t] = -1;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].out != MR_NO_TENSOR)
            e->producer[g->nodes[i].out] = i;
        for (int k = 0; k < MR_MAX_INPUTS; k++) {
            int32_t t = g->nodes[i].in[k];
            if (t == MR_NO_TENSOR)
                continue;
            e->next_reader[i * MR_MAX_INPUTS + k] = e->first_reader[t];
            e->first_reader[t] = i * MR_MAX_INPUTS + k;
        }
    }
    return MR_OK;
}

static void edges_deinit(edges *e) {
    mr_free(e->producer);
    mr_free(e->first_reader);
    mr_free(e->next_reader);
    mr_free(e->may);
    mr_free(e->is_free);
}

/* Puts every node on the first backend that can run the node, and finds the nodes that may move. */
static mr_status choose_first(mr_graph *g, edges *e, mr_err *err) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        mr_node *n = &g->nodes[i];
        n->backend = -1;
        for (int32_t b = g->backends.n - 1; b >= 0; b--)
            if (graph_can_run(g, b, n)) {
                e->may[i] |= (uint8_t)(1u << b);
                n->backend = b;
            }
        if (n->backend < 0)
            return unsupported(g, n, err);
        e->is_free[i] = (e->may[i] & (e->may[i] - 1)) != 0;
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            if (n->in[k] != MR_NO_TENSOR && is_bound(g, n, k))
                e->is_free[i] = false;
    }
    return MR_OK;
}

/* The memories in which nodes other than i read tensor t: bit m for memory m. */
static unsigned read_in(const mr_graph *g, const edges *e, int32_t t, int32_t i) {
    unsigned memories = 0;
    for (int32_t r = e->first_reader[t]; r >= 0; r = e->next_reader[r])
        if (r / MR_MAX_INPUTS != i)
            memories |= 1u << g->memory[g->nodes[r / MR_MAX_INPUTS].backend];
    return memories;
}

/* Bytes that have to be copied if node i runs on backend b and its neighbours stay on their backends. A memory gets one
 * copy of a tensor, whatever the number of its readers there. */
static int64_t border_bytes(const mr_graph *g, const edges *e, int32_t i, int32_t b) {
    const mr_node *n = &g->nodes[i];
    unsigned here = 1u << g->memory[b];
    int64_t bytes = 0;
    for (int k = 0; k < MR_MAX_INPUTS; k++) {
        int32_t t = n->in[k];
        if (t == MR_NO_TENSOR)
            continue;
        int32_t p = e->producer[t];
        bool crosses = p >= 0 ? g->memory[g->nodes[p].backend] != g->memory[b]
                              : g->tensors[t].storage != MR_STORAGE_INPUT && graph_reach(g, b, t) == MR_NO_TENSOR;
        if (crosses && !(read_in(g, e, t, i) & here))
            bytes += BORDER_BYTES + (int64_t)g->tensors[t].bytes;
    }
    unsigned readers = n->out == MR_NO_TENSOR ? 0 : read_in(g, e, n->out, i) & ~here;
    for (; readers; readers &= readers - 1)
        bytes += BORDER_BYTES + (int64_t)g->tensors[n->out].bytes;
    return bytes;
}

/* First guess for a free node: the backend that computes the largest of its inputs; of inputs of one size the last one
 * that is computed, so that a sum follows the layer, not what the layer began with. */
static void follow_inputs(mr_graph *g, const edges *e) {
    for (int32_t i = 0; i < g->n_nodes; i++) {
        mr_node *n = &g->nodes[i];
        size_t most = 0;
        int32_t from = -1;
        for (int k = 0; k < MR_MAX_INPUTS && e->is_free[i]; k++) {
            int32_t p = n->in[k] == MR_NO_TENSOR ? -1 : e->producer[n->in[k]];
            if (p < 0 || !(e->may[i] >> g->nodes[p].backend & 1))
                continue;
            size_t bytes = g->tensors[n->in[k]].bytes;
            if (bytes < most || (bytes == most && p < from))
                continue;
            most = bytes;
            from = p;
            n->backend = g->nodes[p].backend;
        }
    }
}

/* Moves node i to the backend with the fewest copied bytes; with equal bytes, to the one that comes first in the list.
 * Every move makes the sum of bytes smaller or the backend's index lower, so the moves come to an end. MAX_SWEEPS
 * bounds them in any case. */
static bool settle(mr_graph *g, const edges *e, int32_t i) {
    mr_node *n = &g->nodes[i];
    int32_t best = n->backend;
    int64_t least = border_bytes(g, e, i, best);
    for (int32_t b = 0; b < g->backends.n && e->is_free[i]; b++) {
        int64_t bytes = (e->may[i] >> b & 1) ? border_bytes(g, e, i, b) : INT64_MAX;
        if (bytes < least || (bytes == least && b < best)) {
            least = bytes;
            best = b;
        }
    }
    bool moved = best != n->backend;
    n->backend = best;
    return moved;
}

mr_status graph_assign(mr_graph *g, mr_err *err) {
    edges e = {0};
    mr_status status = edges_init(&e, g, err);
    if (status == MR_OK)
        status = choose_first(g, &e, err);
    if (status == MR_OK && g->backends.n > 1) {
        graph_offload(g);
        follow_inputs(g, &e);
        bool moved = true;
        for (int sweep = 0; sweep < MAX_SWEEPS && moved; sweep++) {
            moved = false;
            for (int32_t i = 0; i < g->n_nodes; i++) /* forwards and backwards in turn */
                moved |= settle(g, &e, sweep % 2 ? g->n_nodes - 1 - i : i);
        }
    }
    edges_deinit(&e);
    return status;
}
