/* engine/tensor/relu.h - the units of sparse feed-forward parts, one neuron: rule S of engine/NUMERICS.md. For the CPU
 * and for the kernels of devices.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_RELU_H
#define MR_ENGINE_TENSOR_RELU_H

#include "engine/base/fmath.h"
#include "engine/tensor/tensor.h"

/* +0 for all numbers up to zero. A NaN stays a NaN. */
MR_INLINE float mr_relu(float x) {
    return x <= 0.0f ? 0.0f : x;
}

/* A gate of zero gives +0, whatever up is. So up need not be computed for it. */
MR_INLINE float mr_relu_unit_one(float gate, float up, mr_relu_unit unit) {
    float g = mr_relu(gate);
    if (g == 0.0f || unit == MR_RELU_ALONE)
        return g;
    return g * (unit == MR_RELU_BOTH ? mr_relu(up) : up);
}

/* Whether a neuron with this score is active. One whose score is a NaN is. */
MR_INLINE bool mr_is_active(float score, float threshold) {
    return !(score < threshold);
}

#endif
