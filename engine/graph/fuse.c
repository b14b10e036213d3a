/* engine/graph/fuse.c - merges nodes, where the backend that would run a node supports the merged form. Each merge
 * saves a pass over memory and a barrier:
 * - a product whose backend takes float32 activations needs no QUANTIZE node;
 * - a norm or gate whose result is only quantised writes A8 (or BF16) itself;
 * - KV_WRITE rotates the keys (RoPE) while it writes them into the store;
 * - the products of gate and up and silu(gate) * up become one node. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/graph_internal.h"

static int count_readers(const mr_graph *g, int32_t tensor) {
    int n = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            n += g->nodes[i].in[k] == tensor;
    return n;
}

static mr_node *find_producer(mr_graph *g, int32_t before, int32_t tensor) {
    for (int32_t i = before - 1; i >= 0; i--)
        if (g->nodes[i].out == tensor)
            return &g->nodes[i];
    return NULL;
}

/* Lets a product read float32 activations if a backend takes them, and no backend in front of it in the list takes the
 * quantised activations. A product that a device would be sent keeps the quantised ones, which the device takes. */
static void feed_floats(mr_graph *g, int32_t at) {
    mr_node *n = &g->nodes[at];
    const mr_node *quantize = n->op == MR_OP_MATMUL ? find_producer(g, at, n->in[1]) : NULL;
    if (!quantize || quantize->op != MR_OP_QUANTIZE)
        return;
    mr_node other = *n;
    other.in[1] = quantize->in[0];
    for (int32_t b = 0; b < g->backends.n && !graph_can_run(g, b, n); b++)
        if (graph_can_run(g, b, &other)) {
            if (graph_offload_to(g, n, b) == b)
                *n = other;
            return;
        }
}

/* Removes a QUANTIZE node whose result is no longer read. */
static void drop_unread(mr_node *n, const mr_graph *g) {
    if (n->op != MR_OP_QUANTIZE || count_readers(g, n->out) > 0)
        return;
    n->op = MR_OP_COUNT;
    n->in[0] = MR_NO_TENSOR; /* so that it does not count as a reader */
}

/* The first backend that runs the node; the last one if none does. */
static int32_t first_backend(const mr_graph *g, const mr_node *n) {
    int32_t b = 0;
    while (b < g->backends.n - 1 && !graph_can_run(g, b, n))
        b++;
    return b;
}

/* Lets the node that computes a row also quantise it, if only the QUANTIZE node `at` reads the floats. */
static bool fuse_into_producer(mr_graph *g, int32_t at) {
    mr_node *n = &g->nodes[at];
    int32_t x = n->op == MR_OP_QUANTIZE ? n->in[0] : MR_NO_TENSOR;
    if (x == MR_NO_TENSOR || g->tensors[x].storage != MR_STORAGE_WORK || count_readers(g, x) != 1)
        return false;
    mr_node *producer = find_producer(g, at, x);
    if (!producer || (producer->op != MR_OP_RMS_NORM && producer->op != MR_OP_GLU))
        return false;
    int32_t b = first_backend(g, producer);
    producer->out = n->out; /* x is no longer computed, and gets no memory */
    if (graph_can_run(g, b, producer))
        return true;
    producer->out = x;
    return false;
}

/* Lets a KV_WRITE node rotate the keys itself, if only this node reads the result of the ROPE node. */
static void fuse_rope(mr_graph *g, int32_t at) {
    mr_node *n = &g->nodes[at], old = *n;
    if (n->op != MR_OP_KV_WRITE || n->in[5] != MR_NO_TENSOR || g->tensors[n->in[0]].storage != MR_STORAGE_WORK ||
        count_readers(g, n->in[0]) != 1)
        return;
    mr_node *rope = find_producer(g, at, n->in[0]);
    if (!rope || rope->op != MR_OP_ROPE)
        return;
    int32_t b = first_backend(g, n);
    n->in[0] = rope->in[0];
    n->in[5] = rope->in[1];
    n->params.attention.rope_first = rope->params.rope.first;
    n->params.attention.n_rot = rope->params.rope.n_rot;
    n->params.attention.pairs = rope->params.rope.pairs;
    if (graph_can_run(g, b, n))
        rope->op = MR_OP_COUNT; /* its result is no longer computed */
    else
        *n = old;
}

/* The product that computes x, if only node `at` reads x and the product has no bias and no summand. Else NULL. */
static mr_node *plain_product(mr_graph *g, int32_t at, int32_t x) {
    mr_node *n = g->tensors[x].storage == MR_STORAGE_WORK && count_readers(g, x) == 1 ? find_producer(g, at, x) : NULL;
    bool is_plain = n && n->op == MR_OP_MATMUL && n->in[2] == MR_NO_TENSOR && n->in[3] == MR_NO_TENSOR;
    return is_plain ? n : NULL;
}

/* Whether products of backend b may later move to a faster backend (offload.c). */
static bool may_move(const mr_graph *g, int32_t b) {
    for (int32_t other = 0; other < g->backends.n; other++)
        if (other != b && g->backends.rates[other].products_per_s > 0)
            return true;
    return false;
}

/* Makes one GATE_UP node of a gated unit and its two products. The results of the products then need no memory. */
static void fuse_gate_up(mr_graph *g, int32_t at) {
    mr_node *n = &g->nodes[at];
    mr_node *gate = n->op == MR_OP_GLU ? plain_product(g, at, n->in[0]) : NULL;
    mr_node *up = gate ? plain_product(g, at, n->in[1]) : NULL;
    if (!up || gate->in[1] != up->in[1])
        return;
    int32_t b = first_backend(g, gate);
    mr_node both = *n;
    both.op = MR_OP_GATE_UP;
    both.in[0] = gate->in[0];
    both.in[1] = up->in[0];
    both.in[2] = gate->in[1];
    if (first_backend(g, up) != b || may_move(g, b) || !graph_can_run(g, b, &both))
        return;
    *n = both;
    gate->op = up->op = MR_OP_COUNT;
}

void graph_fuse(mr_graph *g) {
    int32_t kept = 0;
    for (int32_t i = 0; i < g->n_nodes; i++)
        feed_floats(g, i);
    for (int32_t i = 0; i < g->n_nodes; i++)
        drop_unread(&g->nodes[i], g);
    for (int32_t i = 0; i < g->n_nodes; i++) {
        if (fuse_into_producer(g, i))
            g->nodes[i].op = MR_OP_COUNT;
        fuse_rope(g, i);
    }
    for (int32_t i = 0; i < g->n_nodes; i++)
        fuse_gate_up(g, i);
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].op != MR_OP_COUNT)
            g->nodes[kept++] = g->nodes[i];
    g->n_nodes = kept;
}
