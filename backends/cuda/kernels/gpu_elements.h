/* backends/cuda/kernels/gpu_elements.h - which element a thread computes. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_ELEMENTS_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_ELEMENTS_H

#include "backends/cuda/kernels/cuda_elements.h"
#include "backends/cuda/kernels/gpu_rows.h"

MR_INLINE int32_t gpu_element() {
    return (int32_t)(gpu_block_y() * CUDA_ELEMENT_THREADS + gpu_thread());
}

#endif
