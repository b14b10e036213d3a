/* backends/cuda/cuda_kv_write.c - plans KV_WRITE. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_kv.h"

static bool supports(const mr_tensor *tensors, const mr_node *n) {
    const mr_tensor *k = &tensors[n->in[0]], *v = &tensors[n->in[1]], *slots = &tensors[n->in[2]];
    const mr_tensor *table = n->in[5] == MR_NO_TENSOR ? NULL : &tensors[n->in[5]];
    int32_t n_heads = n->params.attention.n_kv_heads;
    return k->type == MR_TYPE_F32 && v->type == MR_TYPE_F32 && slots->type == MR_TYPE_I32 &&
           k->ne[0] == n_heads * n->params.attention.k_dim && v->ne[0] >= n_heads * n->params.attention.v_dim &&
           cuda_kv_is_supported(&tensors[n->in[3]], n->params.attention.k_dim) &&
           cuda_kv_is_supported(&tensors[n->in[4]], n->params.attention.v_dim) &&
           tensors[n->in[3]].type == tensors[n->in[4]].type && (!table || table->type == MR_TYPE_F32);
}

static mr_status plan(cuda_builder *b, const cuda_node *n, mr_err *err) {
    const mr_tensor *k = n->in[0], *v = n->in[1], *table = n->in[5];
    mr_type type = n->in[3]->type;
    int32_t k_dim = n->node->params.attention.k_dim, v_dim = n->node->params.attention.v_dim;
    cuda_kv_write_args args = {
        .step = cuda_step_of(b),
        .rows = cuda_rows_of(k),
        .k = cuda_data(k),
        .v = cuda_data(v),
        .k_row_bytes = (uint32_t)k->row_bytes,
        .v_row_bytes = (uint32_t)v->row_bytes,
        .slots = (const int32_t *)(const void *)cuda_data(n->in[2]),
        .k_store = cuda_data(n->in[3]),
        .v_store = cuda_data(n->in[4]),
        .k_block_bytes = n->in[3]->row_bytes,
        .v_block_bytes = n->in[4]->row_bytes,
        .k_head_bytes = cuda_kv_head_bytes(type, k_dim),
        .v_head_bytes = cuda_kv_head_bytes(type, v_dim),
        .k_dim = k_dim,
        .v_dim = v_dim,
        .turn = {.table = cuda_data(table),
                 .row_bytes = table ? (uint32_t)table->row_bytes : 0,
                 .first = n->node->params.attention.rope_first,
                 .n_rot = n->node->params.attention.n_rot,
                 .interleaved = n->node->params.attention.pairs == MR_ROPE_INTERLEAVED},
    };
    return cuda_launch(b,
                       &(cuda_launch_desc){.kernel = CUDA_KV_KERNEL(type, "cuda_kv_write_", ""),
                                           .grid = {(uint32_t)k->ne[1], (uint32_t)n->node->params.attention.n_kv_heads},
                                           .n_threads = CUDA_KV_WRITE_THREADS,
                                           .args = &args,
                                           .args_bytes = sizeof args},
                       err);
}

const cuda_op cuda_op_kv_write = {.supports = supports, .plan = plan};
