// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_runner.h"

#include "tests/support/test.h"

void node_tensor_init(node_tensor *t, mr_type type, int32_t columns, int32_t rows, size_t row_bytes, void *data) {
    memset(t, 0, sizeof *t);
    t->buffer.address = (cuda_address)(uintptr_t)data;
    t->tensor = (mr_tensor){.type = type,
                            .storage = MR_STORAGE_WORK,
                            .row_count = MR_ROWS_STEP,
                            .ne = {columns, rows},
                            .row_bytes = row_bytes,
                            .bytes = row_bytes * (size_t)rows,
                            .buffer = &t->buffer.base};
}

void node_run(cuda_builder *b, const cuda_op *op, mr_node *node, const node_tensor *const *in, int32_t n,
              const node_tensor *out, int32_t n_rows) {
    mr_tensor tensors[MR_MAX_INPUTS + 1];
    cuda_node planned = {.node = node, .out = out ? &out->tensor : NULL};
    mr_err err;
    for (int32_t i = 0; i < MR_MAX_INPUTS; i++) {
        node->in[i] = i < n && in[i] ? i : MR_NO_TENSOR;
        if (i < n && in[i]) {
            planned.in[i] = &in[i]->tensor;
            tensors[i] = in[i]->tensor;
        }
    }
    node->out = out ? MR_MAX_INPUTS : MR_NO_TENSOR;
    if (out)
        tensors[MR_MAX_INPUTS] = out->tensor;
    assert_true(op->supports(tensors, node));
    b->step.n_rows[MR_ROWS_STEP] = n_rows;
    assert_int_equal(op->plan(b, &planned, &err), MR_OK);
}
