/* engine/tensor/tensor.c - computes the sizes of a tensor, and names the operations. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/tensor.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"

bool mr_tensor_init(mr_tensor *t, const char *name, mr_type type, int64_t columns, int64_t rows, mr_storage storage,
                    mr_row_count row_count) {
    memset(t, 0, sizeof *t);
    if (columns < 1 || columns > INT32_MAX || rows < 1 || rows > INT32_MAX)
        return false;
    snprintf(t->name, sizeof t->name, "%s", name);
    t->type = type;
    t->storage = storage;
    t->row_count = row_count;
    t->ne[0] = (int32_t)columns;
    t->ne[1] = (int32_t)rows;
    if (!mr_type_bytes(type, columns, &t->row_bytes))
        return false;
    bool as_in_file = storage == MR_STORAGE_WEIGHT || storage == MR_STORAGE_FILE || columns == 1;
    if (!as_in_file)
        t->row_bytes = mr_round_up(t->row_bytes, 64);
    return mr_mul_size(t->row_bytes, (size_t)rows, &t->bytes);
}

const char *mr_op_name(mr_op op) {
    static const char *const names[MR_OP_COUNT] = {
        [MR_OP_EMBED] = "embed",
        [MR_OP_ROPE_TABLE] = "rope_table",
        [MR_OP_RMS_NORM] = "rms_norm",
        [MR_OP_QUANTIZE] = "quantize",
        [MR_OP_MATMUL] = "matmul",
        [MR_OP_ROPE] = "rope",
        [MR_OP_KV_WRITE] = "kv_write",
        [MR_OP_ATTENTION] = "attention",
        [MR_OP_GLU] = "glu",
        [MR_OP_GATE_UP] = "gate_up",
        [MR_OP_ADD] = "add",
        [MR_OP_ADD_GATED] = "add_gated",
        [MR_OP_SCALE] = "scale",
        [MR_OP_SOFT_CAP] = "soft_cap",
        [MR_OP_TAKE_ROWS] = "take_rows",
        [MR_OP_TOP] = "top",
        [MR_OP_ROUTE] = "route",
        [MR_OP_EXPERT_ROWS] = "expert_rows",
        [MR_OP_EXPERT_MATMUL] = "expert_matmul",
        [MR_OP_HEAD_MATMUL] = "head_matmul",
        [MR_OP_EXPERT_SUM] = "expert_sum",
        [MR_OP_TABLE_WRITE] = "table_write",
        [MR_OP_KV_COPY] = "kv_copy",
        [MR_OP_RELU] = "relu",
        [MR_OP_ACTIVE] = "active",
        [MR_OP_SPARSE_GATE_UP] = "sparse_gate_up",
        [MR_OP_AXPY] = "axpy",
    };
    return (unsigned)op < MR_OP_COUNT ? names[op] : "?";
}
