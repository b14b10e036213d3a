/* backends/cuda/cuda_ops.c - the list of the ops that the backend runs. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_device.h"

const cuda_op *cuda_op_find(mr_op op) {
    static const cuda_op *const ops[MR_OP_COUNT] = {
        [MR_OP_EMBED] = &cuda_op_embed,
        [MR_OP_ROPE_TABLE] = &cuda_op_rope_table,
        [MR_OP_RMS_NORM] = &cuda_op_rms_norm,
        [MR_OP_QUANTIZE] = &cuda_op_quantize,
        [MR_OP_MATMUL] = &cuda_op_matmul,
        [MR_OP_ROPE] = &cuda_op_rope,
        [MR_OP_KV_WRITE] = &cuda_op_kv_write,
        [MR_OP_ATTENTION] = &cuda_op_attention,
        [MR_OP_GLU] = &cuda_op_glu,
        [MR_OP_GATE_UP] = &cuda_op_gate_up,
        [MR_OP_ADD] = &cuda_op_add,
        [MR_OP_ADD_GATED] = &cuda_op_add_gated,
        [MR_OP_SCALE] = &cuda_op_scale,
        [MR_OP_SOFT_CAP] = &cuda_op_soft_cap,
        [MR_OP_TAKE_ROWS] = &cuda_op_take_rows,
        [MR_OP_TOP] = &cuda_op_top,
        [MR_OP_ROUTE] = &cuda_op_route,
        [MR_OP_EXPERT_ROWS] = &cuda_op_expert_rows,
        [MR_OP_EXPERT_MATMUL] = &cuda_op_expert_matmul,
        [MR_OP_HEAD_MATMUL] = &cuda_op_head_matmul,
        [MR_OP_EXPERT_SUM] = &cuda_op_expert_sum,
        [MR_OP_TABLE_WRITE] = &cuda_op_table_write,
        [MR_OP_KV_COPY] = &cuda_op_kv_copy,
        [MR_OP_RELU] = &cuda_op_relu,
        [MR_OP_ACTIVE] = &cuda_op_active,
        [MR_OP_SPARSE_GATE_UP] = &cuda_op_sparse_gate_up,
        [MR_OP_AXPY] = &cuda_op_axpy,
    };
    return ops[op];
}
