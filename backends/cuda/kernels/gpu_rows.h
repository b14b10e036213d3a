/* backends/cuda/kernels/gpu_rows.h - rows of tensors, for kernels. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ROWS_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ROWS_H

#include "backends/cuda/kernels/cuda_step.h"
#include "backends/cuda/kernels/gpu.h"

MR_INLINE int32_t gpu_real_rows(const cuda_step *step, cuda_rows rows) {
    return rows.kind == 0 ? rows.n_fixed : step->n_rows[rows.kind];
}

template <class T, class Byte> MR_INLINE T *gpu_row(Byte *base, int32_t row, uint32_t row_bytes) {
    return (T *)(base + (size_t)row * row_bytes);
}

#endif
