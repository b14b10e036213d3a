/* tests/unit/engine/graph/test_graph_support.h - what the tests of the graph share: a backend that computes nothing,
 * and the layer of a made-up model.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_ENGINE_GRAPH_TEST_GRAPH_SUPPORT_H
#define MR_TESTS_UNIT_ENGINE_GRAPH_TEST_GRAPH_SUPPORT_H

#include "engine/graph/graph.h"

enum { NONE = MR_NO_TENSOR, WIDTH = 64, HEADS = 4, KV_HEADS = 2, HEAD_DIM = 16, KV_WIDTH = 32 };

/* Supports everything but one op, or but one op with an A8 result. */
typedef struct fake_backend {
    mr_backend base;
    size_t alignment;
    mr_op refused;    /* the backend refuses this operation; MR_OP_COUNT: none */
    mr_op refused_a8; /* likewise with A8 output; MR_OP_COUNT: none */
    bool refuses_turned_keys;
    bool refuses_rounded; /* refuses products with A8 and BF16 activations */
    int n_programs;       /* programs that were created and not destroyed */
} fake_backend;
fake_backend fake_backend_make(void);

mr_graph *graph_make(int32_t max_rows, int32_t max_out_rows);
/* Ids of new tensors that live outside, not placed. */
int32_t add_weight(mr_graph *g, mr_type type, int32_t columns, int32_t rows);
int32_t add_vector(mr_graph *g, int32_t n);
int32_t add_state(mr_graph *g);
int32_t add_table(mr_graph *g); /* of blocks */
int32_t add_rows(mr_graph *g);  /* a float input [WIDTH, step rows] */

/* Rule G with silu. */
static inline int32_t silu_mul(mr_graph *g, int32_t gate, int32_t up) {
    return mr_graph_glu(g, gate, up, (mr_glu){.kind = MR_GLU_SILU});
}

/* The inputs that every layer reads, and a RoPE table. */
typedef struct layer_inputs {
    mr_attention_desc attention; /* the states are those of the next layer */
    int32_t positions, rope_table;
} layer_inputs;
layer_inputs add_layer_inputs(mr_graph *g);
/* Norm, q, k, v, RoPE, attention, output + x, norm, gate, up, down + x, with new states; its result. */
int32_t add_layer(mr_graph *g, layer_inputs *in, mr_type weights, int32_t x);

/* Finishes the graph, which must succeed. Returns the statistics. */
mr_graph_stats finish_ok(mr_graph *g, fake_backend *be);
/* The node that makes tensor id, or NULL. */
const mr_node *maker_of(const mr_graph *g, int32_t id);
/* Nodes of that op. */
int count_nodes(const mr_graph *g, mr_op op);

#endif
