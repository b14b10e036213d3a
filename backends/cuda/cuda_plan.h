/* backends/cuda/cuda_plan.h - what ops share when they are planned. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_PLAN_H
#define MR_BACKENDS_CUDA_CUDA_PLAN_H

#include "backends/cuda/cuda_internal.h"

enum {
    CUDA_MAX_GRID_Y = 65535,        /* blocks of a grid's second dimension; the first one may have 2^31 - 1 */
    CUDA_MAX_ROW_COLUMNS = 1 << 22, /* so that the blocks of a row, of at least 64 columns each, fit into the second */
};

/* Whether t has rows of this type, which follow the rows of the step: a grid has some blocks for each. */
static inline bool cuda_is_rows(const mr_tensor *t, mr_type type) {
    return t->type == type && t->row_count != MR_ROWS_FIXED && t->ne[0] <= CUDA_MAX_ROW_COLUMNS;
}
/* Whether t is a list of the step: a number in each row, one behind the other. */
static inline bool cuda_is_list(const mr_tensor *t, mr_type type) {
    return t->type == type && t->ne[0] == 1 && t->row_bytes == sizeof(int32_t);
}

/* Whether the kernels can write t: rows of activations of any type. A single column of BF16 has no room for the zero
 * that follows an odd number of them; no product reads it. */
static inline bool cuda_is_activations(const mr_tensor *t) {
    return cuda_is_rows(t, MR_TYPE_F32) || (cuda_is_rows(t, MR_TYPE_BF16) && t->ne[0] > 1) ||
           cuda_is_rows(t, MR_TYPE_A8);
}

/* Rows of f32 in the device's memory. */
typedef struct cuda_floats {
    const uint8_t *data;
    uint32_t row_bytes;
} cuda_floats;
/* Adds the gated unit of a node, from gate and up to its result (cuda_rows.c). */
MR_MUST_USE mr_status cuda_plan_glu(cuda_builder *b, const cuda_node *n, const cuda_floats *gate, const cuda_floats *up,
                                    mr_err *err);

/* Blocks that have n items, per_block each. */
static inline uint32_t cuda_count_blocks(int32_t n, int32_t per_block) {
    return (uint32_t)((n + per_block - 1) / per_block);
}

/* Adds the launch with n_blocks blocks for each row of rows. */
MR_MUST_USE static inline mr_status cuda_launch_rows(cuda_builder *b, cuda_launch_desc launch, uint32_t n_blocks,
                                                     const mr_tensor *rows, mr_err *err) {
    launch.grid[0] = (uint32_t)rows->ne[1];
    launch.grid[1] = n_blocks;
    return cuda_launch(b, &launch, err);
}

#endif
