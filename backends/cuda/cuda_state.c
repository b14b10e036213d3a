/* backends/cuda/cuda_state.c - plans the ops that change block tables and copy KV blocks: TABLE_WRITE and KV_COPY. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_state.h"

#include "backends/cuda/cuda_plan.h"

enum { PIECE_BYTES = 16, MAX_COPY_BLOCKS = 1024 }; /* of a thread at a time; of a part */

static const int32_t *ints_of(const mr_tensor *t) {
    return (const int32_t *)(const void *)cuda_data(t);
}

static bool supports_table_write(const mr_tensor *tensors, const mr_node *node) {
    for (int i = 0; i < 3; i++)
        if (!cuda_is_list(&tensors[node->in[i]], MR_TYPE_I32))
            return false;
    return tensors[node->in[3]].type == MR_TYPE_I32;
}

static mr_status plan_table_write(cuda_builder *b, const cuda_node *n, mr_err *err) {
    cuda_table_write_args args = {.step = cuda_step_of(b),
                                  .rows = cuda_rows_of(n->in[0]),
                                  .slot = ints_of(n->in[0]),
                                  .index = ints_of(n->in[1]),
                                  .block = ints_of(n->in[2]),
                                  .table = cuda_data(n->in[3]),
                                  .table_row_bytes = (uint32_t)n->in[3]->row_bytes};
    const cuda_launch_desc launch = {"cuda_table_write", {1, 1}, CUDA_TABLE_THREADS, &args, .args_bytes = sizeof args};
    return cuda_launch(b, &launch, err);
}

static bool supports_kv_copy(const mr_tensor *tensors, const mr_node *node) {
    const mr_tensor *parts = &tensors[node->in[3]];
    return cuda_is_list(&tensors[node->in[0]], MR_TYPE_I32) && cuda_is_list(&tensors[node->in[1]], MR_TYPE_I32) &&
           parts->type == MR_TYPE_I32 && parts->ne[0] <= CUDA_MAX_GRID_Y;
}

static mr_status plan_kv_copy(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *store = n->in[2];
    int32_t n_parts = n->in[3]->ne[0];
    cuda_kv_copy_args args = {.step = cuda_step_of(b),
                              .rows = cuda_rows_of(n->in[0]),
                              .n_blocks = store->ne[1],
                              .from = ints_of(n->in[0]),
                              .to = ints_of(n->in[1]),
                              .parts = ints_of(n->in[3]),
                              .store = cuda_data(store)};
    /* As many threads as pieces in a part of middle length; threads go on where a part is longer. */
    size_t n_blocks = store->row_bytes / (size_t)n_parts / (PIECE_BYTES * CUDA_COPY_THREADS) + 1;
    const cuda_launch_desc launch = {
        .kernel = "cuda_kv_copy",
        .grid = {(uint32_t)(n_blocks < MAX_COPY_BLOCKS ? n_blocks : MAX_COPY_BLOCKS), (uint32_t)n_parts},
        .n_threads = CUDA_COPY_THREADS,
        .args = &args,
        .args_bytes = sizeof args};
    return cuda_launch(b, &launch, err);
}

const cuda_op cuda_op_table_write = {.supports = supports_table_write, .plan = plan_table_write};
const cuda_op cuda_op_kv_copy = {.supports = supports_kv_copy, .plan = plan_kv_copy};
