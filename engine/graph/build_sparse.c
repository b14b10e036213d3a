/* engine/graph/build_sparse.c - adds the nodes of sparse feed-forward parts: rule S of engine/NUMERICS.md. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/graph/graph_internal.h"

static int32_t sparse_node(mr_graph *g, mr_op op, const mr_sparse_desc *desc, const int32_t in[4], int32_t out) {
    mr_node *n = graph_add_node(g, op, out);
    if (!n)
        return MR_NO_TENSOR;
    memcpy(n->in, in, 4 * sizeof *in);
    n->params.sparse.threshold = desc->threshold;
    n->params.sparse.unit = desc->unit;
    return out;
}

/* Whether tensor id is a matrix of the file [columns, rows]. */
static bool is_file_matrix(const mr_graph *g, int32_t id, int32_t columns, int32_t rows) {
    const mr_tensor *t = id >= 0 && id < g->n_tensors ? &g->tensors[id] : NULL;
    return t && t->storage == MR_STORAGE_FILE && t->ne[0] == columns && t->ne[1] == rows;
}

static bool neurons_fit(const mr_graph *g, const mr_neurons_desc *m, int32_t n_neurons, int32_t width) {
    return is_file_matrix(g, m->gate, width, n_neurons) && is_file_matrix(g, m->down, width, n_neurons) &&
           (m->up == MR_NO_TENSOR ||
            (is_file_matrix(g, m->up, width, n_neurons) &&
             mr_type_activation(g->tensors[m->up].type) == mr_type_activation(g->tensors[m->gate].type)));
}

static int32_t rows_of(const mr_graph *g, int32_t id) {
    return id >= 0 && id < g->n_tensors ? g->tensors[id].ne[1] : 0;
}

static bool desc_is_good(mr_graph *g, int32_t n_neurons, int32_t width, const mr_sparse_desc *desc) {
    bool has_up = desc->unit != MR_RELU_ALONE;
    if ((unsigned)desc->unit >= MR_RELU_UNITS || desc->threshold != desc->threshold ||
        has_up != (desc->up != MR_NO_TENSOR) || (desc->cold && has_up != (desc->cold->up != MR_NO_TENSOR))) {
        graph_fail(g, MR_E_INVALID,
                   "sparse: an unknown unit, a unit with a wrong number of matrices, or a threshold "
                   "that is no number");
        return false;
    }
    const mr_neurons_desc hot = {desc->gate, desc->up, desc->down};
    int32_t n_cold = desc->cold ? rows_of(g, desc->cold->gate) : 0, n_hot = n_neurons - n_cold;
    bool fits = neurons_fit(g, &hot, n_hot, width) &&
                (!desc->cold || (n_hot % MR_PARTITION == 0 && neurons_fit(g, desc->cold, n_cold, width)));
    if (!fits)
        graph_fail(g, MR_E_INVALID, "sparse: the matrices do not fit each other, or are not in the layout of the file");
    return fits;
}

int32_t mr_graph_relu(mr_graph *g, int32_t x) {
    const mr_tensor *t = graph_want(g, x, MR_TYPE_F32, 0, "x of relu");
    if (!t)
        return MR_NO_TENSOR;
    int32_t out = graph_result(g, MR_OP_RELU, t->ne[0], t->row_count);
    mr_node *n = graph_add_node(g, MR_OP_RELU, out);
    if (!n)
        return MR_NO_TENSOR;
    n->in[0] = x;
    return out;
}

/* Some neurons, from `first` on, and their matrices. add, start: inputs of AXPY. */
typedef struct neurons {
    mr_neurons_desc matrices;
    int32_t first, add, start;
} neurons;

/* Adds the nodes that list the active ones of the neurons, compute their units, and add up their rows. */
static int32_t add_neurons(mr_graph *g, int32_t scores, int32_t h, const mr_sparse_desc *desc, const neurons *n) {
    const mr_neurons_desc *m = &n->matrices;
    int32_t n_neurons = g->tensors[m->gate].ne[1], width = g->tensors[m->gate].ne[0];
    int32_t active = graph_new_tensor(g, "active", MR_TYPE_I32, mr_active_ints(n_neurons, g->max_rows[MR_ROWS_STEP]),
                                      MR_ROWS_FIXED, MR_STORAGE_WORK);
    const int32_t of_scores[] = {scores, MR_NO_TENSOR, MR_NO_TENSOR, MR_NO_TENSOR};
    active = sparse_node(g, MR_OP_ACTIVE, desc, of_scores, active);
    if (active == MR_NO_TENSOR)
        return MR_NO_TENSOR;
    g->nodes[g->n_nodes - 1].params.sparse.first = n->first;
    g->nodes[g->n_nodes - 1].params.sparse.n = n_neurons;
    int32_t a = graph_activations(g, h, mr_type_activation(g->tensors[m->gate].type));
    int32_t units = graph_result(g, MR_OP_SPARSE_GATE_UP, n_neurons, MR_ROWS_STEP);
    units = sparse_node(g, MR_OP_SPARSE_GATE_UP, desc, (const int32_t[]){m->gate, m->up, a, active}, units);
    int32_t out = graph_result(g, MR_OP_AXPY, width, MR_ROWS_STEP);
    return sparse_node(g, MR_OP_AXPY, desc, (const int32_t[]){m->down, units, n->add, n->start}, out);
}

int32_t mr_graph_sparse(mr_graph *g, int32_t x, int32_t h, int32_t add, const mr_sparse_desc *desc) {
    const mr_tensor *t = graph_want(g, h, MR_TYPE_F32, 0, "input of sparse");
    if (!t || (add != MR_NO_TENSOR && !graph_want_beside(g, add, h, MR_TYPE_F32, t->ne[0], "add of sparse")))
        return MR_NO_TENSOR;
    if (t->row_count != MR_ROWS_STEP)
        return graph_fail(g, MR_E_INVALID, "sparse: the input must have the rows of the step");
    int32_t width = t->ne[0];
    int32_t hidden = mr_graph_relu(g, mr_graph_matmul(g, desc->predict_in, x, MR_NO_TENSOR, MR_NO_TENSOR));
    int32_t scores = mr_graph_matmul(g, desc->predict_out, hidden, MR_NO_TENSOR, MR_NO_TENSOR);
    if (!graph_want_beside(g, scores, h, MR_TYPE_F32, 0, "scores of neurons") ||
        !desc_is_good(g, g->tensors[scores].ne[0], width, desc))
        return MR_NO_TENSOR;
    const neurons hot = {{desc->gate, desc->up, desc->down}, 0, desc->cold ? MR_NO_TENSOR : add, MR_NO_TENSOR};
    int32_t sum = add_neurons(g, scores, h, desc, &hot);
    if (!desc->cold || sum == MR_NO_TENSOR)
        return sum;
    const neurons cold = {*desc->cold, rows_of(g, desc->gate), MR_NO_TENSOR, sum};
    sum = add_neurons(g, scores, h, desc, &cold);
    return add == MR_NO_TENSOR || sum == MR_NO_TENSOR ? sum : mr_graph_add(g, sum, add);
}
