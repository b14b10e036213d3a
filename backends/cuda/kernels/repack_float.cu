/* backends/cuda/kernels/repack_float.cu - brings float matrices into panels (cuda_products.h). */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/cuda_products.h"
#include "backends/cuda/kernels/gpu.h"

MR_KERNEL(cuda_repack_float, cuda_repack_float_args, CUDA_REPACK_THREADS) {
    int32_t i = (int32_t)(gpu_block_y() * CUDA_REPACK_THREADS + gpu_thread()), n_halves = (int32_t)(a.row_bytes / 2);
    int32_t n_pieces = (n_halves + 7) / 8, piece = i / CUDA_PANEL,
            row = (int32_t)gpu_block() * CUDA_PANEL + i % CUDA_PANEL;
    if (piece >= n_pieces)
        return;
    row = row < a.n_rows ? row : a.n_rows - 1;
    const uint16_t *from = (const uint16_t *)(a.src + (size_t)row * a.row_bytes) + piece * 8;
    uint32_t words[4];
    MR_UNROLL
    for (int w = 0; w < 4; w++) {
        uint32_t low = piece * 8 + 2 * w < n_halves ? gpu_read(from + 2 * w) : 0u;
        uint32_t high = piece * 8 + 2 * w + 1 < n_halves ? gpu_read(from + 2 * w + 1) : 0u;
        words[w] = low | high << 16;
    }
    *(gpu_int4 *)(a.dst + ((size_t)gpu_block() * (size_t)n_pieces * CUDA_PANEL + (size_t)i) * 16) =
        gpu_int4{(int)words[0], (int)words[1], (int)words[2], (int)words[3]};
}
