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

typedef enum test_read_kind {
    TEST_READ_4,
    TEST_READ_16,
    TEST_COPY_16,
    TEST_SHARED_4,
    TEST_SHARED_8,
    TEST_SHARED_16,
} test_read_kind;

/* Each of the n_lanes first lanes of a warp reads n_reads times at lane * stride_bytes + read * read_bytes of x, by the
 * function and the size that kind names. y: [64] sums, so that nothing is left out. */
typedef struct test_read_args {
    const uint8_t *x; /* TEST_READ_BYTES, in the device's memory */
    int32_t *y;
    int32_t kind, n_lanes, n_reads, stride_bytes, read_bytes;
} test_read_args;

enum { TEST_READ_THREADS = 64, TEST_READ_BYTES = 8192 };

#endif
