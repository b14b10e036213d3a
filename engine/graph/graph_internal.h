/* engine/graph/graph_internal.h - the arrays behind a graph, shared by the passes of this folder. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GRAPH_GRAPH_INTERNAL_H
#define MR_ENGINE_GRAPH_GRAPH_INTERNAL_H

#include "engine/graph/graph.h"

struct mr_graph {
    int32_t max_rows[MR_ROWS_KINDS];
    mr_tensor *tensors;
    int32_t n_tensors, cap_tensors;
    mr_node *nodes;
    int32_t n_nodes, cap_nodes;
    mr_backend *backend;
    mr_program *program;
    mr_err err; /* the first error of building */
};

/* A new tensor or node; MR_NO_TENSOR or NULL after an error. */
int32_t graph_add_tensor(mr_graph *g, const mr_tensor *t);
mr_node *graph_add_node(mr_graph *g, mr_op op, int32_t out);

/* Lets the producer of a row write A8 itself where only a QUANTIZE node reads it. */
void graph_fuse(mr_graph *g);
/* Numbers nodes by the longest chain before them, and sorts them by that number. */
mr_status graph_group(mr_graph *g, mr_err *err);
/* Gives work tensors their offsets; out_bytes: what all of them need, out_unshared: their plain sum. */
mr_status graph_plan_memory(mr_graph *g, size_t alignment, size_t *out_bytes, size_t *out_unshared, mr_err *err);

/* Tensors that live in the work buffer. */
static inline bool graph_is_work(const mr_tensor *t) {
    return t->storage == MR_STORAGE_WORK || t->storage == MR_STORAGE_INPUT || t->storage == MR_STORAGE_OUTPUT;
}

#endif
