// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/node_builder.h"

#include <stdlib.h>

#include "engine/base/mem.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/support/test.h"

enum { RUBBISH = 0xa5, MAX_GRID_Y = 65535 };

void node_builder_deinit(cuda_builder *b) {
    for (int32_t i = 0; i < b->n_scratch; i++)
        free(b->scratch[i]);
    for (int32_t i = 0; i < b->n_shared; i++)
        free(b->shared[i]);
    b->n_scratch = b->n_shared = 0;
}

void node_launch(const cuda_launch_desc *desc) {
    const emulator_kernel *k = emulator_find(desc->kernel);
    if (!k)
        fail_msg("there is no kernel %s", desc->kernel);
    assert_int_equal(emulator_args_bytes(k), desc->args_bytes);
    assert_true(desc->args_bytes <= CUDA_MAX_ARGS);
    assert_true(desc->grid[0] > 0 && desc->grid[1] > 0 && desc->grid[1] <= MAX_GRID_Y);
    emulator_launch(k, (emulator_grid){desc->grid[0], desc->grid[1], desc->shared_bytes}, desc->n_threads, desc->args);
}

mr_status cuda_launch(cuda_builder *b, const cuda_launch_desc *desc, mr_err *err) {
    (void)err;
    node_launch(desc);
    b->n_launches++;
    return MR_OK;
}

const cuda_step *cuda_step_of(const cuda_builder *b) {
    return &b->step;
}

int32_t cuda_processors(const cuda_builder *b) {
    return b->n_processors;
}

static void *make_memory(size_t bytes) {
    size_t rounded = mr_round_up(bytes + 1, CUDA_ALIGNMENT);
    void *memory = aligned_alloc(CUDA_ALIGNMENT, rounded);
    assert_non_null(memory);
    memset(memory, RUBBISH, rounded);
    return memory;
}

mr_status cuda_scratch(cuda_builder *b, size_t bytes, void **out, mr_err *err) {
    (void)err;
    assert_true(b->n_scratch < NODE_BUILDER_MEMORIES);
    *out = b->scratch[b->n_scratch++] = make_memory(bytes);
    return MR_OK;
}

mr_status cuda_shared(cuda_builder *b, const cuda_shared_key *key, size_t bytes, void **out, bool *out_is_first,
                      mr_err *err) {
    (void)err;
    int32_t i = 0;
    while (i < b->n_shared && memcmp(&b->keys[i], key, sizeof *key) != 0)
        i++;
    *out_is_first = i == b->n_shared;
    if (*out_is_first) {
        assert_true(i < NODE_BUILDER_MEMORIES);
        b->keys[i] = *key;
        b->shared[i] = make_memory(bytes);
        b->n_shared++;
    }
    *out = b->shared[i];
    return MR_OK;
}
