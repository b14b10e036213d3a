/* backends/cuda/cuda_order.c - finds the edges of a program's graph. Nodes are few thousands at most, so each one is
 * compared with all earlier nodes that it does not wait for already. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_order.h"

#include <string.h>

#include "engine/base/mem.h"

typedef struct ordered_node {
    cuda_use uses[CUDA_MAX_USES];
    int32_t n_uses;
} ordered_node;

struct cuda_order {
    int32_t n, n_words;
    ordered_node *nodes; /* [n_nodes] */
    uint64_t *earlier;   /* [n_nodes][n_words] bit j: the node waits for node j, or for one that does */
};

mr_status cuda_order_create(int32_t n_nodes, cuda_order **out, mr_err *err) {
    size_t n_words = ((size_t)n_nodes + 63) / 64;
    cuda_order *o = mr_alloc(sizeof *o);
    if (o) {
        o->n_words = (int32_t)n_words;
        o->nodes = mr_alloc_array((size_t)n_nodes, sizeof *o->nodes);
        o->earlier = mr_alloc_array((size_t)n_nodes, n_words * sizeof *o->earlier);
    }
    if (!o || !o->nodes || !o->earlier) {
        cuda_order_destroy(o);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the order of %d nodes", n_nodes);
    }
    *out = o;
    return MR_OK;
}

void cuda_order_destroy(cuda_order *o) {
    if (!o)
        return;
    mr_free(o->nodes);
    mr_free(o->earlier);
    mr_free(o);
}

/* Whether two nodes use the same bytes, and one of them writes there. */
static bool conflict(const ordered_node *a, const ordered_node *b) {
    for (int32_t i = 0; i < a->n_uses; i++)
        for (int32_t k = 0; k < b->n_uses; k++) {
            const cuda_use *x = &a->uses[i], *y = &b->uses[k];
            if ((x->is_written || y->is_written) && x->first < y->first + y->bytes && y->first < x->first + x->bytes)
                return true;
        }
    return false;
}

int32_t cuda_order_add(cuda_order *o, const cuda_use *uses, int32_t n_uses, int32_t *out_before) {
    int32_t n_before = 0, i = o->n++;
    ordered_node *node = &o->nodes[i];
    uint64_t *earlier = &o->earlier[(size_t)i * (size_t)o->n_words];
    memcpy(node->uses, uses, (size_t)n_uses * sizeof *uses);
    node->n_uses = n_uses;
    for (int32_t j = i - 1; j >= 0; j--) {
        if ((earlier[j / 64] >> j % 64 & 1) || !conflict(node, &o->nodes[j]))
            continue;
        const uint64_t *more = &o->earlier[(size_t)j * (size_t)o->n_words];
        for (int32_t w = 0; w <= j / 64; w++)
            earlier[w] |= more[w];
        earlier[j / 64] |= UINT64_C(1) << j % 64;
        out_before[n_before++] = j;
    }
    return n_before;
}
