/* backends/cuda/cuda_elements.c - plans the ops that compute element by element: ADD, ADD_GATED, SCALE and SOFT_CAP. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_elements.h"

#include "backends/cuda/cuda_plan.h"

static mr_status launch_elements(cuda_builder *b, cuda_launch_desc launch, const cuda_node *n, mr_err *err) {
    launch.n_threads = CUDA_ELEMENT_THREADS;
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ELEMENT_THREADS), n->out, err);
}

static bool supports_two(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_rows(&tensors[node->in[1]], MR_TYPE_F32) &&
           cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static cuda_add_args add_args(const cuda_builder *b, const cuda_node *n) {
    return (cuda_add_args){.step = cuda_step_of(b),
                           .rows = cuda_rows_of(n->out),
                           .n = n->out->ne[0],
                           .a = cuda_data(n->in[0]),
                           .b = cuda_data(n->in[1]),
                           .y = cuda_data(n->out),
                           .a_row_bytes = (uint32_t)n->in[0]->row_bytes,
                           .b_row_bytes = (uint32_t)n->in[1]->row_bytes,
                           .y_row_bytes = (uint32_t)n->out->row_bytes};
}

static mr_status plan_add(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_add_args args = add_args(b, n);
    return launch_elements(b, (cuda_launch_desc){"cuda_add", .args = &args, .args_bytes = sizeof args}, n, err);
}

static bool supports_add_gated(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *gate = &tensors[node->in[2]];
    return supports_two(tensors, node) && cuda_is_list(gate, MR_TYPE_F32) && gate->row_count != MR_ROWS_FIXED;
}

static mr_status plan_add_gated(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_add_gated_args args = {add_args(b, n), (const float *)(const void *)cuda_data(n->in[2])};
    return launch_elements(b, (cuda_launch_desc){"cuda_add_gated", .args = &args, .args_bytes = sizeof args}, n, err);
}

static bool supports_scale(const mr_tensor *tensors, const mr_node *node) {
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_F32) && cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static mr_status launch_scale(cuda_builder *b, const char *kernel, const cuda_node *n, mr_err *err) {
    cuda_scale_args args = {.step = cuda_step_of(b),
                            .rows = cuda_rows_of(n->out),
                            .n = n->out->ne[0],
                            .factor = n->node->params.scale.factor,
                            .x = cuda_data(n->in[0]),
                            .y = cuda_data(n->out),
                            .x_row_bytes = (uint32_t)n->in[0]->row_bytes,
                            .y_row_bytes = (uint32_t)n->out->row_bytes};
    return launch_elements(b, (cuda_launch_desc){kernel, .args = &args, .args_bytes = sizeof args}, n, err);
}

static mr_status plan_scale(cuda_builder *b, const cuda_node *n, mr_err *err) {
    return launch_scale(b, "cuda_scale", n, err);
}

static mr_status plan_soft_cap(cuda_builder *b, const cuda_node *n, mr_err *err) {
    return launch_scale(b, "cuda_soft_cap", n, err);
}

const cuda_op cuda_op_add = {.supports = supports_two, .plan = plan_add};
const cuda_op cuda_op_add_gated = {.supports = supports_add_gated, .plan = plan_add_gated};
const cuda_op cuda_op_scale = {.supports = supports_scale, .plan = plan_scale};
const cuda_op cuda_op_soft_cap = {.supports = supports_scale, .plan = plan_soft_cap};
