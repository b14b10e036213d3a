/* engine/tensor/glu.h - gated linear units, one element: rule G of engine/NUMERICS.md. For the scalar kernel, and for
 * the kernels of devices. Vector kernels repeat these steps lane by lane.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_GLU_H
#define MR_ENGINE_TENSOR_GLU_H

#include "engine/base/fmath.h"
#include "engine/tensor/tensor.h"

#define MR_GLU_GPT_OSS_ALPHA 1.702f

MR_INLINE float mr_glu_one(float gate, float up, mr_glu glu) {
    if (glu.limit > 0.0f) {
        gate = gate > glu.limit ? glu.limit : gate;
        up = up > glu.limit ? glu.limit : up;
        up = up < -glu.limit ? -glu.limit : up;
    }
    switch (glu.kind) {
    case MR_GLU_GELU:
        return mr_geluf(gate) * up;
    case MR_GLU_SIGMOID: /* + 0: a product with 1 is left out by compilers, and flushes nothing */
        return fmaf(mr_sigmoidf(gate), up, 0.0f);
    case MR_GLU_GPT_OSS:
        return gate / (1.0f + mr_expf(-(gate * MR_GLU_GPT_OSS_ALPHA))) * (up + 1.0f);
    default:
        return mr_siluf(gate) * up;
    }
}

#endif
