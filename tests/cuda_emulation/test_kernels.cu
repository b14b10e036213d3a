/* tests/cuda_emulation/test_kernels.cu - little kernels for the tests of the emulation. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/test_kernels.h"

#include "backends/cuda/kernels/gpu.h"

MR_KERNEL(test_append, test_append_args, 64) {
    int32_t i = (int32_t)(gpu_block() * 64 + gpu_thread());
    if (i < a.n)
        a.y[i] = a.y[i] * a.factor + (a.x ? a.x[i] : 0);
}
