/* backends/cpu/kernels/axpy_vec.h - sums of rows by rule S on 16 lanes, with the same bits as axpy_scalar.c. Lanes are
 * columns. Include it after vec_avx512.h or the like. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_AXPY_VEC_H
#define MR_BACKENDS_CPU_KERNELS_AXPY_VEC_H

#include "backends/cpu/kernels.h"
#include "engine/tensor/quant.h"

enum {
    AXPY_AHEAD = 2,      /* the row of so many neurons behind is prefetched */
    AXPY_COLUMNS = 1024, /* whose sums fit into the first cache */
};

/* Columns [column, column + 16) of a row as numbers. column is a multiple of 16. */
MR_ALWAYS_INLINE v16 axpy_weights(mr_type type, const uint8_t *row, int32_t column) {
    if (type == MR_TYPE_F32)
        return v16_load((const float *)(const void *)row + column);
    if (type == MR_TYPE_F16)
        return v16_load_f16((const uint16_t *)(const void *)row + column);
    if (type == MR_TYPE_Q8_0) {
        const mr_block_q8_0 *b = (const mr_block_q8_0 *)(const void *)row + column / 32;
        return v16_mul(v16_set1_f16(b->d), v16_load_i8(b->q + column % 32));
    }
    const mr_block_q4_0 *b = (const mr_block_q4_0 *)(const void *)row + column / 32;
    uint8_t q[16];
    for (int i = 0; i < 16; i++)
        q[i] = column % 32 ? b->q[i] >> 4 : b->q[i] & 15;
    return v16_mul(v16_set1_f16(b->d), v16_sub(v16_load_u8(q), v16_set1(8.0f)));
}

/* Sums columns [first, last), whose number is a multiple of 32: of blocks of Q8_0. The sums stay in the first cache, so
 * that a row is read in one long piece. Meanwhile the same piece of a later row is prefetched. */
MR_ALWAYS_INLINE void axpy_piece(const mr_axpy_args *args, mr_type type, int32_t first, int32_t last) {
    float acc[AXPY_COLUMNS], *y = args->y + first;
    size_t bytes = (size_t)mr_type_get(type)->block_bytes * 32 / (size_t)mr_type_get(type)->block_elems;
    for (int32_t d = 0; d < last - first; d += 16)
        v16_store(acc + d, v16_set1(0.0f));
    for (int32_t i = 0; i < args->n; i++) {
        int32_t later = args->neurons[mr_min_i32(i + AXPY_AHEAD, args->n - 1)];
        const uint8_t *row = args->w + (size_t)args->neurons[i] * args->w_row_bytes;
        const uint8_t *ahead = args->w + (size_t)later * args->w_row_bytes + (size_t)(first / 32) * bytes;
        v16 h = v16_set1(args->h[i]);
        for (int32_t d = 0; d < last - first; d += 32, ahead += bytes) {
            __builtin_prefetch(ahead);
            v16 low = v16_fma(axpy_weights(type, row, first + d), h, v16_load(acc + d));
            v16 high = v16_fma(axpy_weights(type, row, first + d + 16), h, v16_load(acc + d + 16));
            v16_store(acc + d, low);
            v16_store(acc + d + 16, high);
        }
    }
    for (int32_t d = 0; d < last - first; d += 16)
        v16_store(y + d, v16_add(v16_load(y + d), v16_load(acc + d)));
}

MR_ALWAYS_INLINE void axpy_type(const mr_axpy_args *args, mr_type type, int32_t first, int32_t last) {
    for (int32_t next; last - first >= 32; first = next) {
        next = first + mr_min_i32(AXPY_COLUMNS, (last - first) / 32 * 32);
        axpy_piece(args, type, first, next);
    }
    if (first < last)
        mr_axpy_scalar(args, first, last);
}

/* The other types: each row is dequantised first. */
MR_ALWAYS_INLINE void axpy_any(const mr_axpy_args *args, int32_t first, int32_t last) {
    const mr_type_info *info = mr_type_get(args->type);
    float w[MR_AXPY_COLUMNS], acc[MR_AXPY_COLUMNS];
    for (int32_t column = first, n; column < last; column += n) {
        n = mr_min_i32(MR_AXPY_COLUMNS, last - column) / 16 * 16;
        if (n == 0) {
            mr_axpy_scalar(args, column, last);
            return;
        }
        size_t at = (size_t)(column / info->block_elems) * (size_t)info->block_bytes;
        for (int32_t d = 0; d < n; d += 16)
            v16_store(acc + d, v16_set1(0.0f));
        for (int32_t i = 0; i < args->n; i++) {
            v16 h = v16_set1(args->h[i]);
            mr_dequantize(args->type, args->w + (size_t)args->neurons[i] * args->w_row_bytes + at, w, n);
            for (int32_t d = 0; d < n; d += 16)
                v16_store(acc + d, v16_fma(v16_load(w + d), h, v16_load(acc + d)));
        }
        for (int32_t d = 0; d < n; d += 16)
            v16_store(args->y + column + d, v16_add(v16_load(args->y + column + d), v16_load(acc + d)));
    }
}

MR_ALWAYS_INLINE void axpy_vec(const mr_axpy_args *args, int32_t first, int32_t last) {
    if (args->type == MR_TYPE_F16)
        axpy_type(args, MR_TYPE_F16, first, last);
    else if (args->type == MR_TYPE_F32)
        axpy_type(args, MR_TYPE_F32, first, last);
    else if (args->type == MR_TYPE_Q8_0)
        axpy_type(args, MR_TYPE_Q8_0, first, last);
    else if (args->type == MR_TYPE_Q4_0)
        axpy_type(args, MR_TYPE_Q4_0, first, last);
    else
        axpy_any(args, first, last);
}

#endif
