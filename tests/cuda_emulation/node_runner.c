/* tests/cuda_emulation/node_runner.c - runs launches when they are planned. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_runner.h"

#include <stdlib.h>

#include "engine/base/mem.h"
#include "tests/cuda_emulation/emulator.h"
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
    b->scratch = NULL;
    assert_int_equal(op->plan(b, &planned, &err), MR_OK);
}

mr_status cuda_launch(cuda_builder *b, const cuda_launch_desc *desc, mr_err *err) {
    (void)b;
    (void)err;
    const emulator_kernel *k = emulator_find(desc->kernel);
    if (!k)
        fail_msg("there is no kernel %s", desc->kernel);
    assert_int_equal(emulator_args_bytes(k), desc->args_bytes);
    assert_true(desc->args_bytes <= CUDA_MAX_ARGS);
    emulator_launch(k, (emulator_grid){desc->grid[0], desc->grid[1], 1}, desc->n_threads, desc->args);
    return MR_OK;
}

const cuda_step *cuda_step_of(const cuda_builder *b) {
    return &b->step;
}

int32_t cuda_processors(const cuda_builder *b) {
    return b->n_processors;
}

mr_status cuda_scratch(cuda_builder *b, size_t bytes, void **out, mr_err *err) {
    (void)err;
    assert_null(b->scratch);
    b->scratch = aligned_alloc(CUDA_ALIGNMENT, mr_round_up(bytes, CUDA_ALIGNMENT));
    assert_non_null(b->scratch);
    memset(b->scratch, 0xa5, bytes); /* as fresh memory of a device, it holds rubbish */
    *out = b->scratch;
    return MR_OK;
}
