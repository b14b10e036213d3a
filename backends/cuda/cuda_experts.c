/* backends/cuda/cuda_experts.c - plans the ops around the products of experts: ROUTE, EXPERT_ROWS and EXPERT_SUM. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_experts.h"

#include "backends/cuda/cuda_plan.h"
#include "backends/cuda/kernels/cuda_elements.h"

static bool supports_route(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *logits = &tensors[node->in[0]];
    bool has_bias = node->in[1] != MR_NO_TENSOR;
    return cuda_is_rows(logits, MR_TYPE_F32) && cuda_is_rows(&tensors[node->out], MR_TYPE_I32) &&
           (!has_bias || tensors[node->in[1]].type == MR_TYPE_F32);
}

static size_t route_shared_bytes(const mr_tensor *tensors, const mr_node *node) {
    (void)tensors;
    return (size_t)node->params.experts.n * CUDA_ROUTE_BYTES;
}

static mr_status plan_route(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_route_args args = {.step = cuda_step_of(b),
                            .rows = cuda_rows_of(n->out),
                            .n = n->node->params.experts.n,
                            .n_used = n->node->params.experts.n_used,
                            .routing = n->node->params.experts.routing,
                            .logits = cuda_data(n->in[0]),
                            .bias = (const float *)(const void *)cuda_data(n->in[1]),
                            .routes = cuda_data(n->out),
                            .logits_row_bytes = (uint32_t)n->in[0]->row_bytes,
                            .routes_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {.kernel = "cuda_route",
                                     .n_threads = CUDA_ROUTE_THREADS,
                                     .args = &args,
                                     .args_bytes = sizeof args,
                                     .shared_bytes = (uint32_t)args.n * CUDA_ROUTE_BYTES};
    return cuda_launch_rows(b, launch, 1, n->out, err);
}

static bool supports_expert_rows(const mr_tensor *tensors, const mr_node *node) {
    bool has_places = node->in[1] != MR_NO_TENSOR;
    return cuda_is_rows(&tensors[node->in[0]], MR_TYPE_I32) && tensors[node->out].type == MR_TYPE_I32 &&
           (!has_places || tensors[node->in[1]].type == MR_TYPE_I32);
}

static mr_status plan_expert_rows(cuda_builder *b, const cuda_node *n, mr_err *err) {
    int32_t n_experts = n->node->params.experts.n;
    mr_expert_rows lists = mr_expert_rows_at(cuda_data(n->out), n_experts, (n->out->ne[0] - n_experts - 1) / 2);
    cuda_expert_rows_args args = {.step = cuda_step_of(b),
                                  .rows = cuda_rows_of(n->in[0]),
                                  .n = n_experts,
                                  .n_used = n->node->params.experts.n_used,
                                  .routes = cuda_data(n->in[0]),
                                  .places = (const int32_t *)(const void *)cuda_data(n->in[1]),
                                  .routes_row_bytes = (uint32_t)n->in[0]->row_bytes,
                                  .first = lists.first,
                                  .slots = lists.slots,
                                  .of_rows = lists.rows};
    const cuda_launch_desc launch = {.kernel = "cuda_expert_rows",
                                     .grid = {cuda_count_blocks(n_experts, CUDA_LIST_EXPERTS), 1},
                                     .n_threads = CUDA_LIST_THREADS,
                                     .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch(b, &launch, err);
}

static bool supports_expert_sum(const mr_tensor *tensors, const mr_node *node) {
    bool has_shared = node->in[3] != MR_NO_TENSOR, has_others = node->in[5] != MR_NO_TENSOR;
    return tensors[node->in[0]].type == MR_TYPE_F32 && cuda_is_rows(&tensors[node->in[1]], MR_TYPE_I32) &&
           cuda_is_rows(&tensors[node->in[2]], MR_TYPE_F32) &&
           (!has_shared || cuda_is_rows(&tensors[node->in[3]], MR_TYPE_F32)) &&
           (!has_others || (tensors[node->in[4]].type == MR_TYPE_F32 && tensors[node->in[5]].type == MR_TYPE_I32)) &&
           cuda_is_rows(&tensors[node->out], MR_TYPE_F32);
}

static mr_status plan_expert_sum(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *shared = n->in[3], *others = n->in[4];
    cuda_expert_sum_args args = {.step = cuda_step_of(b),
                                 .rows = cuda_rows_of(n->out),
                                 .n = n->out->ne[0],
                                 .n_used = n->node->params.experts.n_used,
                                 .y = cuda_data(n->in[0]),
                                 .routes = cuda_data(n->in[1]),
                                 .add = cuda_data(n->in[2]),
                                 .shared = cuda_data(shared),
                                 .others = cuda_data(others),
                                 .places = (const int32_t *)(const void *)cuda_data(n->in[5]),
                                 .out = cuda_data(n->out),
                                 .y_row_bytes = (uint32_t)n->in[0]->row_bytes,
                                 .routes_row_bytes = (uint32_t)n->in[1]->row_bytes,
                                 .add_row_bytes = (uint32_t)n->in[2]->row_bytes,
                                 .shared_row_bytes = shared ? (uint32_t)shared->row_bytes : 0,
                                 .others_row_bytes = others ? (uint32_t)others->row_bytes : 0,
                                 .out_row_bytes = (uint32_t)n->out->row_bytes};
    const cuda_launch_desc launch = {"cuda_expert_sum", .n_threads = CUDA_ELEMENT_THREADS, .args = &args,
                                     .args_bytes = sizeof args};
    return cuda_launch_rows(b, launch, cuda_count_blocks(n->out->ne[0], CUDA_ELEMENT_THREADS), n->out, err);
}

const cuda_op cuda_op_route = {.supports = supports_route, .plan = plan_route, .shared_bytes = route_shared_bytes};
const cuda_op cuda_op_expert_rows = {.supports = supports_expert_rows, .plan = plan_expert_rows};
const cuda_op cuda_op_expert_sum = {.supports = supports_expert_sum, .plan = plan_expert_sum};
