/* backends/cuda/kernels/gpu_glu.h - gated linear units: rule G of engine/NUMERICS.md. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_GPU_GLU_H
#define MR_BACKENDS_CUDA_KERNELS_GPU_GLU_H

#include "backends/cuda/kernels/gpu.h"
#include "engine/tensor/tensor.h"

#define GPU_GLU_GPT_OSS_ALPHA 1.702f

MR_INLINE float gpu_glu(mr_glu glu, float gate, float up) {
    if (glu.limit > 0.0f) {
        gate = gate > glu.limit ? glu.limit : gate;
        up = up > glu.limit ? glu.limit : up;
        up = up < -glu.limit ? -glu.limit : up;
    }
    switch (glu.kind) {
    case MR_GLU_GELU:
        return mr_geluf(gate) * up;
    case MR_GLU_SIGMOID:
        return fmaf(mr_sigmoidf(gate), up, 0.0f);
    case MR_GLU_GPT_OSS:
        return gate / (1.0f + mr_expf(-(gate * GPU_GLU_GPT_OSS_ALPHA))) * (up + 1.0f);
    default:
        return mr_siluf(gate) * up;
    }
}

#endif
