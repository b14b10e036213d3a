/* engine/graph/offload.c - moves products of many rows to a faster device although their matrix lies in another memory.
 * Each step then loads the matrix from the file into the device. A product moves only if the measured rates predict
 * that the faster product outweighs the time of the copy. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/graph_internal.h"

/* A product moves if the predicted time is below this part of the present time. The margin is there because the rates
 * were measured on an idle bus. */
static const double WORTHWHILE = 0.9;

static double seconds_of_product(const mr_graph *g, const mr_node *n, int32_t b) {
    const mr_tensor *w = &g->tensors[n->in[0]];
    double products = (double)w->ne[0] * w->ne[1] * g->tensors[n->out].ne[1];
    return products / g->backends.rates[b].products_per_s;
}

/* The matrix is copied in the format of the file. The activations and the result are counted as copied, too, as if all
 * neighbours of the node were on another backend. */
static double seconds_of_copies(const mr_graph *g, const mr_node *n, int32_t b) {
    const mr_tensor *w = &g->tensors[n->in[0]];
    size_t row_bytes = 0;
    if (!mr_type_bytes(w->type, w->ne[0], &row_bytes))
        return 1e30;
    double bytes = (double)row_bytes * w->ne[1] + (double)g->tensors[n->in[1]].bytes + (double)g->tensors[n->out].bytes;
    return bytes / g->backends.rates[b].copied_bytes_per_s;
}

static bool may_run(const mr_graph *g, const mr_node *n, int32_t b) {
    const mr_tensor *w = &g->tensors[n->in[0]];
    mr_backend *be = g->backends.at[b];
    const mr_rates *r = &g->backends.rates[b];
    size_t bytes;
    return r->products_per_s > 0 && r->copied_bytes_per_s > 0 && !g->is_host[b] &&
           graph_reach(g, b, n->in[0]) == MR_NO_TENSOR &&
           be->ops->weight_bytes(be, w->type, w->ne[0], w->ne[1], &bytes, NULL) == MR_OK &&
           be->ops->supports(be, g->tensors, n);
}

int32_t graph_offload_to(const mr_graph *g, const mr_node *n, int32_t from) {
    int32_t to = from;
    if (n->op != MR_OP_MATMUL || !g->links[n->in[0]].source || g->backends.rates[from].products_per_s <= 0)
        return from;
    double best = seconds_of_product(g, n, from) * WORTHWHILE;
    for (int32_t b = 0; b < g->backends.n; b++) {
        if (!may_run(g, n, b))
            continue;
        double seconds = seconds_of_product(g, n, b) + seconds_of_copies(g, n, b);
        if (seconds < best) {
            best = seconds;
            to = b;
        }
    }
    return to;
}

void graph_offload(mr_graph *g) {
    for (int32_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].backend = graph_offload_to(g, &g->nodes[i], g->nodes[i].backend);
}
