/* backends/cpu/kernels/matmul_panels.h - the blocks that weight panels consist of, and functions that find rows of
 * activations and results.
 * A panel holds 16 rows of a matrix side by side. A group is 4 consecutive k of all 16 rows and fills one 64-byte
 * register; for floats, a register holds one k. Arrays [..][16][4] below are arrays of groups.
 *
 * Q6_K packs four groups of 6-bit values v0..v3 into three groups of bytes A, B and C. Their low six bits are v0, v1
 * and v2. Their top two bits are bits 5-4, 3-2 and 1-0 of v3. Unpacking 64 values takes 9 operations; the split of the
 * file into nibbles and 2-bit planes takes 13. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_PANELS_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_PANELS_H

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/kernels.h"
#include "engine/tensor/quant.h"
#include "engine/tensor/tensor.h"

typedef struct mr_panel_q8_0 { /* 32 k */
    uint16_t d[MR_PANEL];      /* f16 */
    uint8_t q[8][MR_PANEL][4]; /* value + 128 */
} mr_panel_q8_0;

typedef struct mr_panel_q4_0 { /* 32 k; also IQ4_NL */
    uint16_t d[MR_PANEL];
    uint8_t q[4][MR_PANEL][4]; /* group g: k 4g..4g+3 low, k 16+4g..16+4g+3 high */
} mr_panel_q4_0;

typedef struct mr_panel_mxfp4 { /* 32 k */
    uint8_t e[MR_PANEL];
    uint8_t q[4][MR_PANEL][4];
} mr_panel_mxfp4;

typedef struct mr_panel_x8 {   /* 32 k */
    float scale[2][MR_PANEL];  /* of 16 k each */
    uint8_t q[8][MR_PANEL][4]; /* value + 128 */
} mr_panel_x8;

typedef struct mr_panel_x8m { /* 32 k */
    float scale[2][MR_PANEL], min[2][MR_PANEL];
    uint8_t q[8][MR_PANEL][4]; /* value + 128 */
} mr_panel_x8m;

typedef struct mr_panel_q4_k { /* 256 k */
    uint16_t d[MR_PANEL], dmin[MR_PANEL];
    struct {
        uint8_t sc[MR_PANEL], m[MR_PANEL];
    } scale[8];
    uint8_t q[8][4][MR_PANEL][4]; /* group g of sub-block j: k 4g..4g+3 low, k 16+4g..16+4g+3 high */
} mr_panel_q4_k;

typedef struct mr_panel_q5_k { /* 256 k */
    mr_panel_q4_k low;
    uint8_t high[8][MR_PANEL][4]; /* bit g of byte i: bit 4 of k 4g+i of the sub-block */
} mr_panel_q5_k;

typedef struct mr_panel_iq4_xs { /* 256 k */
    uint16_t d[MR_PANEL];
    int8_t sc[8][MR_PANEL];
    uint8_t q[8][4][MR_PANEL][4];
} mr_panel_iq4_xs;

typedef struct mr_panel_q6_k { /* 256 k */
    uint16_t d[MR_PANEL];
    int8_t sc[16][MR_PANEL];
    uint8_t q[16][3][MR_PANEL][4]; /* sub-block j: A, B, C of its four groups; values + 32 */
} mr_panel_q6_k;

_Static_assert(sizeof(mr_panel_q8_0) == 544, "Q8_0 panel block");
_Static_assert(sizeof(mr_panel_q4_0) == 288, "Q4_0 panel block");
_Static_assert(sizeof(mr_panel_mxfp4) == 272, "MXFP4 panel block");
_Static_assert(sizeof(mr_panel_x8) == 640, "X8 panel block");
_Static_assert(sizeof(mr_panel_x8m) == 768, "X8M panel block");
_Static_assert(sizeof(mr_panel_q5_k) == 2880, "Q5_K panel block");
_Static_assert(sizeof(mr_panel_iq4_xs) == 2208, "IQ4_XS panel block");
_Static_assert(sizeof(mr_panel_q4_k) == 2368, "Q4_K panel block");
_Static_assert(sizeof(mr_panel_q6_k) == 3360, "Q6_K panel block");

/* One row of activations: x[i] = d[i / 32] * q[i]. */
typedef struct a8_row {
    const int8_t *q;
    const float *d;
    const int32_t *sum;
} a8_row;

static inline a8_row a8_row_at(const uint8_t *a, int32_t k) {
    size_t n = (size_t)k;
    return (a8_row){(const int8_t *)a, (const float *)(const void *)(a + n),
                    (const int32_t *)(const void *)(a + n + n / 8)};
}

static inline const uint8_t *matmul_a_row(const mr_matmul_args *args, int32_t row) {
    return args->a + (size_t)(args->a_rows ? args->a_rows[row] : row) * args->a_row_bytes;
}
static inline size_t matmul_result_row(const mr_matmul_args *args, int32_t row) {
    return (size_t)(args->y_rows ? args->y_rows[row] : row);
}
static inline float *matmul_y_row(const mr_matmul_args *args, int32_t row) {
    return (float *)(void *)((uint8_t *)args->y + matmul_result_row(args, row) * args->y_row_bytes);
}
/* NULL when there is nothing to add. */
static inline const float *matmul_add_row(const mr_matmul_args *args, int32_t row) {
    const uint8_t *add = (const uint8_t *)args->add;
    return add ? (const float *)(const void *)(add + matmul_result_row(args, row) * args->add_row_bytes) : NULL;
}

#endif
