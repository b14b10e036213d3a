/* tests/cuda_emulation/node_builder.h - a builder of programs for tests of single nodes: defines the functions that the
 * plans of ops call (backends/cuda/cuda_internal.h). A launch runs at once on the emulation.
 *
 *     cuda_builder b = {.n_processors = 4, .step = …};
 *     expect_ok(cuda_op_add.plan(&b, &node, &err), &err);
 *     node_builder_deinit(&b);
 *
 * Owns:    the scratch memory of its nodes. Threads: one test at a time. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_NODE_BUILDER_H
#define MR_TESTS_CUDA_EMULATION_NODE_BUILDER_H

#include "backends/cuda/cuda_internal.h"

enum { NODE_BUILDER_MEMORIES = 4 };

/* Further nodes may be planned with one builder: they share memory as the nodes of a program. */
struct cuda_builder {
    cuda_step step;
    int32_t n_processors;
    void *scratch[NODE_BUILDER_MEMORIES], *shared[NODE_BUILDER_MEMORIES]; /* filled with rubbish at first */
    cuda_shared_key keys[NODE_BUILDER_MEMORIES];                          /* of shared */
    int32_t n_scratch, n_shared, n_launches;
};

void node_builder_deinit(cuda_builder *b);
/* Runs a launch on the emulation, as soon as it may run: the device's limits of a grid are checked. */
void node_launch(const cuda_launch_desc *desc);

#endif
