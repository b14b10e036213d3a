/* backends/cpu/kernels/axpy_scalar.c - sums of rows by rule S: the specification. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/tensor/quant.h"

void mr_axpy_scalar(const mr_axpy_args *args, int32_t first, int32_t last) {
    const mr_type_info *info = mr_type_get(args->type);
    float w[MR_AXPY_COLUMNS], acc[MR_AXPY_COLUMNS];
    for (int32_t column = first, n; column < last; column += n) {
        n = mr_min_i32(MR_AXPY_COLUMNS, last - column);
        size_t at = (size_t)(column / info->block_elems) * (size_t)info->block_bytes;
        for (int32_t d = 0; d < n; d++)
            acc[d] = 0.0f;
        for (int32_t i = 0; i < args->n; i++) {
            mr_dequantize(args->type, args->w + (size_t)args->neurons[i] * args->w_row_bytes + at, w, n);
            for (int32_t d = 0; d < n; d++)
                acc[d] = fmaf(w[d], args->h[i], acc[d]);
        }
        for (int32_t d = 0; d < n; d++)
            args->y[column + d] = args->y[column + d] + acc[d];
    }
}
