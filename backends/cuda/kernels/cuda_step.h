/* backends/cuda/kernels/cuda_step.h - what kernels know of a step. A graph is built once for a row bucket, so the
 * number of real rows lies in the device's memory: the first kernel of the graph writes it there. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_STEP_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_STEP_H

#include <stdint.h>

enum { CUDA_ROW_COUNTS = 8 }; /* at least MR_ROWS_KINDS of engine/tensor/tensor.h */

typedef struct cuda_step {
    int32_t n_rows[CUDA_ROW_COUNTS]; /* real rows, by mr_row_count; that of MR_ROWS_FIXED is not used */
} cuda_step;

/* The rows that a kernel computes: n_rows[kind] of the step, or n_fixed where kind is MR_ROWS_FIXED (0). */
typedef struct cuda_rows {
    int32_t kind, n_fixed;
} cuda_rows;

#endif
