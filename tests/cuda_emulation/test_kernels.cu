/* tests/cuda_emulation/test_kernels.cu - little kernels for the tests of the emulation. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/test_kernels.h"

#include "backends/cuda/kernels/gpu.h"

MR_KERNEL(test_append, test_append_args, 64) {
    int32_t i = (int32_t)(gpu_block() * 64 + gpu_thread());
    if (i < a.n)
        a.y[i] = a.y[i] * a.factor + (a.x ? a.x[i] : 0);
}

MR_KERNEL(test_read, test_read_args, TEST_READ_THREADS) {
    MR_SHARED gpu_int4 tile[TEST_READ_BYTES / 16];
    for (int i = (int)gpu_thread(); i < TEST_READ_BYTES / 16; i += TEST_READ_THREADS)
        tile[i] = ((const gpu_int4 *)a.x)[i];
    gpu_sync();
    int sum = 0;
    for (int r = 0; r < a.n_reads && (int)gpu_lane() < a.n_lanes; r++) {
        size_t at = gpu_lane() * (size_t)a.stride_bytes + (size_t)(r * a.read_bytes);
        const uint8_t *shared = (const uint8_t *)tile + at;
        if (a.kind == TEST_READ_4)
            sum += gpu_read((const int *)(a.x + at));
        else if (a.kind == TEST_READ_16)
            sum += gpu_read((const gpu_int4 *)(a.x + at)).x;
        else if (a.kind == TEST_COPY_16)
            gpu_copy16((uint8_t *)tile + at, a.x + at);
        else if (a.kind == TEST_SHARED_4)
            sum += gpu_read_shared((const int *)shared);
        else if (a.kind == TEST_SHARED_8)
            sum += gpu_read_shared((const gpu_int2 *)shared).x;
        else
            sum += gpu_read_shared((const gpu_int4 *)shared).x;
    }
    gpu_copy_commit();
    gpu_copy_wait<0>();
    a.y[gpu_thread()] = sum;
}
