/* backends/cuda/cuda_rope.c - plans ROPE_TABLE and ROPE. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_rope.h"

#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/kernels/cuda_elements.h"

static bool supports_rope_table(const mr_tensor *tensors, const mr_node *node) {
    return tensors[node->in[0]].type == MR_TYPE_F32 && cuda_is_list(&tensors[node->in[1]], MR_TYPE_I32) &&
           cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static mr_status plan_rope_table(cuda_builder *b, const cuda_node *n, mr_err *err) {
    int32_t half = n->in[0]->ne[0];
    cuda_rope_table_args args = {.step = cuda_step_of(b),
                                 .rows = cuda_rows_of(n->out),
                                 .half = half,
                                 .magnitude = n->node->params.rope.magnitude,
                                 .angles = cuda_data(n->in[0]),
                                 .position = (const int32_t *)(const void *)cuda_data(n->in[1]),
                                 .y = cuda_data(n->out),
                                 .angles_row_bytes = (uint32_t)n->in[0]->row_bytes,
                                 .y_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {"cuda_rope_table", .n_threads = CUDA_ROPE_TABLE_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(half, CUDA_ROPE_TABLE_THREADS), n->out, err);
}

static bool supports_rope(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_rows(&tensors[node->in[1]], MR_TYPE_F32) &&
           cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static mr_status plan_rope(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_rope_args args = {.step = cuda_step_of(b),
                           .rows = cuda_rows_of(n->out),
                           .n = n->out->ne[0],
                           .head_dim = n->node->params.rope.head_dim,
                           .first = n->node->params.rope.first,
                           .n_rot = n->node->params.rope.n_rot,
                           .pairs = n->node->params.rope.pairs,
                           .x = cuda_data(n->in[0]),
                           .table = cuda_data(n->in[1]),
                           .y = cuda_data(n->out),
                           .x_row_bytes = (uint32_t)n->in[0]->row_bytes,
                           .table_row_bytes = (uint32_t)n->in[1]->row_bytes,
                           .y_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {"cuda_rope", .n_threads = CUDA_ELEMENT_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ELEMENT_THREADS), n->out, err);
}

const cuda_op cuda_op_rope_table = {.supports = supports_rope_table, .plan = plan_rope_table};
const cuda_op cuda_op_rope = {.supports = supports_rope, .plan = plan_rope};
