/* backends/cpu/kernels/listed_vec.h - products of listed rows by rule M, with the same bits as listed_scalar.c.
 * Lanes are rows of the matrix: 16 rows by 8 columns are transposed in registers, and each column is multiplied. So
 * no weight goes through memory again, as it does when rows are repacked into panels: with one row of activations,
 * that takes longer than the product. Rows begin anywhere in memory, so those of the next lanes are prefetched.
 * Include it behind transpose_16x8, which gives the columns as floats, and vec_avx512.h or the like. Threads: pure
 * functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_LISTED_VEC_H
#define MR_BACKENDS_CPU_KERNELS_LISTED_VEC_H

#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/tensor/f16.h"

/* The addresses of rows list[first .. first + 16). Behind the last one, it stands again; its results are not used. */
MR_ALWAYS_INLINE void listed_find(const mr_listed_args *args, int32_t first, const uint8_t *out[16]) {
    for (int32_t i = 0; i < 16; i++)
        out[i] = args->w + (size_t)args->list[mr_min_i32(first + i, args->n - 1)] * args->w_row_bytes;
}

MR_ALWAYS_INLINE const float *listed_row(const mr_listed_args *args, int r) {
    return (const float *)(const void *)((const uint8_t *)args->a + (size_t)r * args->a_row_bytes);
}

/* Prefetches part idx of n of 16 rows. A part is 16 lines side by side: memory gives them faster than lines of 16
 * rows. */
MR_ALWAYS_INLINE void listed_prefetch(const uint8_t *const rows[16], int32_t idx, int32_t n) {
    for (int32_t line = 16 * idx, i = 0; i < 16 && n > 0; i++, line++)
        __builtin_prefetch(rows[mr_min_i32(line / n, 15)] + 64 * (size_t)(line % n), 0, 2);
}

/* Columns behind the last eight: gathered one by one. */
MR_ALWAYS_INLINE v16 listed_column(const uint8_t *const rows[16], int32_t k) {
    float w[16];
    for (int i = 0; i < 16; i++) {
        uint16_t half;
        memcpy(&half, rows[i] + 2 * (size_t)k, sizeof half);
        w[i] = mr_f16_to_f32(half);
    }
    return v16_load(w);
}

/* 16 rows of the matrix by n_rows rows of activations, a constant. */
MR_ALWAYS_INLINE void listed_panel(const mr_listed_args *args, int32_t first, int n_rows) {
    const uint8_t *rows[16], *next[16];
    v16 acc[MR_LISTED_ROWS], w[8];
    int32_t k = 0;
    listed_find(args, first, rows);
    listed_find(args, first + 16, next);
    for (int r = 0; r < n_rows; r++)
        acc[r] = v16_set1(0.0f);
    for (; k + 8 <= args->k; k += 8) {
        if (k % 32 == 0)
            listed_prefetch(next, k / 32, args->k / 32);
        transpose_16x8(rows, k, w);
        for (int c = 0; c < 8; c++)
            for (int r = 0; r < n_rows; r++)
                acc[r] = v16_fma(w[c], v16_set1(listed_row(args, r)[k + c]), acc[r]);
    }
    for (; k < args->k; k++)
        for (int r = 0; r < n_rows; r++)
            acc[r] = v16_fma(listed_column(rows, k), v16_set1(listed_row(args, r)[k]), acc[r]);
    for (int r = 0; r < n_rows; r++) {
        float *y = (float *)(void *)((uint8_t *)args->y + (size_t)r * args->y_row_bytes);
        v16_store_n(y + first, acc[r], mr_min_i32(16, args->n - first));
    }
}

MR_ALWAYS_INLINE void listed_vec(const mr_listed_args *args) {
    for (int32_t first = 0; first < args->n; first += 16)
        if (args->n_rows == 1)
            listed_panel(args, first, 1);
        else if (args->n_rows == 2)
            listed_panel(args, first, 2);
        else if (args->n_rows == 3)
            listed_panel(args, first, 3);
        else
            listed_panel(args, first, 4);
}

#endif
