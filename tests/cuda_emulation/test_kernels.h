/* tests/cuda_emulation/test_kernels.h - arguments of the kernels of test_kernels.cu. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_TEST_KERNELS_H
#define MR_TESTS_CUDA_EMULATION_TEST_KERNELS_H

#include <stdint.h>

/* y[i] = y[i] * factor + x[i], for [n]; x may be NULL: 0. The order of two launches shows. */
typedef struct test_append_args {
    const uint32_t *x;
    uint32_t *y;
    uint32_t factor;
    int32_t n;
} test_append_args;

#endif
