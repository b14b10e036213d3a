/* tests/cuda_emulation/node_runner.h - plans one node with tensors in memory of the test, so that its launches run at
 * once (node_builder.h).
 * Threads: one test at a time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_NODE_RUNNER_H
#define MR_TESTS_CUDA_EMULATION_NODE_RUNNER_H

#include "tests/cuda_emulation/node_builder.h"

/* A tensor of this type at data, in a buffer of its own. Rows are row_bytes apart. */
typedef struct node_tensor {
    mr_tensor tensor;
    cuda_buffer buffer;
} node_tensor;
void node_tensor_init(node_tensor *t, mr_type type, int32_t columns, int32_t rows, size_t row_bytes, void *data);

/* Runs the node with n_rows real rows of the step. Ends the test if the op does not support it. in: inputs in the order
 * of the op, NULL where absent; n: how many. */
void node_run(cuda_builder *b, const cuda_op *op, mr_node *node, const node_tensor *const *in, int32_t n,
              const node_tensor *out, int32_t n_rows);

#endif
