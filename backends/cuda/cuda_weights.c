/* backends/cuda/cuda_weights.c - the layout of matrices in the device's memory, and the launch that writes it. */
// SPDX-License-Identifier: Apache-2.0
#include <assert.h>

#include "backends/cuda/cuda_products_float.h"
#include "backends/cuda/cuda_products_int.h"

_Static_assert(sizeof(cuda_repack_panel_args) <= CUDA_MAX_ARGS, "the argument of a kernel");
_Static_assert(sizeof(cuda_repack_float_args) <= CUDA_MAX_ARGS, "the argument of a kernel");

/* A type has a layout as quants, as floats, or none. */
size_t cuda_weight_bytes(mr_type type, int32_t columns, int32_t rows) {
    size_t bytes = cuda_int_bytes(type, columns, rows);
    return bytes ? bytes : cuda_float_bytes(type, columns, rows);
}

void cuda_weight_repack(const cuda_repack *repack, void *args, cuda_launch_desc *desc) {
    if (cuda_int_bytes(repack->type, repack->columns, repack->rows) > 0)
        cuda_int_repack(repack, (cuda_repack_panel_args *)args, desc);
    else
        cuda_float_repack(repack, (cuda_repack_float_args *)args, desc);
}
