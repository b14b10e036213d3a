/* backends/cpu/kernels/matmul_scalar.c - rule M of engine/NUMERICS.md, as plainly as it can be said.
 * This is the specification: every other matrix product equals it to the bit. Panels are read in the layouts of
 * matmul_panels.h; lane r of a panel is one output row, and k ascends. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"
#include "engine/tensor/f16.h"

/* acc[r] = row r of panel w times one activation row a of k elements. */
typedef void panel_fn(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]);

static void panel_f32(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const float *weights = (const float *)(const void *)w, *x = (const float *)(const void *)a;
    for (int32_t i = 0; i < k; i++, weights += MR_PANEL)
        for (int r = 0; r < MR_PANEL; r++)
            acc[r] = fmaf(weights[r], x[i], acc[r]);
}

static void panel_f16(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const uint16_t *weights = (const uint16_t *)(const void *)w;
    const float *x = (const float *)(const void *)a;
    for (int32_t i = 0; i < k; i++, weights += MR_PANEL)
        for (int r = 0; r < MR_PANEL; r++)
            acc[r] = fmaf(mr_f16_to_f32(weights[r]), x[i], acc[r]);
}

static void panel_q8_0(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q8_0 *p = (const mr_panel_q8_0 *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int32_t isum = 0;
            for (int i = 0; i < 32; i++)
                isum += (p->q[i / 4][r][i % 4] - 128) * x.q[b * 32 + i];
            acc[r] = fmaf((float)isum, mr_f16_to_f32(p->d[r]) * x.d[b], acc[r]);
        }
}

static void panel_q4_k(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q4_k *p = (const mr_panel_q4_k *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++) {
        int j = b % 8; /* sub-block */
        const int8_t *xq = x.q + b * 32;
        for (int r = 0; r < MR_PANEL; r++) {
            int32_t isum = 0;
            for (int i = 0; i < 16; i++) {
                uint8_t q = p->q[j][i / 4][r][i % 4];
                isum += (q & 15) * xq[i] + (q >> 4) * xq[16 + i];
            }
            float scale = mr_f16_to_f32(p->d[r]) * (float)p->scale[j].sc[r];
            float min = mr_f16_to_f32(p->dmin[r]) * (float)p->scale[j].m[r];
            acc[r] = fmaf((float)isum, scale * x.d[b], acc[r]);
            acc[r] = fmaf(-min, x.d[b] * (float)x.sum[b], acc[r]);
        }
        p += j == 7;
    }
}

/* The value (0..63) of element i of sub-block j in lane r. */
static int32_t q6_k_value(const mr_panel_q6_k *p, int j, int r, int i) {
    int group = i / 4, byte = i % 4;
    uint8_t a = p->q[j][0][r][byte], b = p->q[j][1][r][byte], c = p->q[j][2][r][byte];
    if (group == 3)
        return (a >> 6) << 4 | (b >> 6) << 2 | c >> 6;
    return p->q[j][group][r][byte] & 63;
}

static void panel_q6_k(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q6_k *p = (const mr_panel_q6_k *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 16; b++) {
        int j = b % 16; /* sub-block */
        for (int r = 0; r < MR_PANEL; r++) {
            int32_t isum = 0;
            for (int i = 0; i < 16; i++)
                isum += (q6_k_value(p, j, r, i) - 32) * x.q[b * 16 + i];
            float scale = mr_f16_to_f32(p->d[r]) * (float)p->sc[j][r];
            acc[r] = fmaf((float)isum, scale * x.d[b / 2], acc[r]);
        }
        p += j == 15;
    }
}

static void matmul(const mr_matmul_args *args, size_t panel_bytes, panel_fn *panel, int32_t panel_first,
                   int32_t panel_last, int32_t row_first, int32_t row_last) {
    for (int32_t p = panel_first; p < panel_last; p++)
        for (int32_t row = row_first; row < row_last; row++) {
            float acc[MR_PANEL] = {0};
            panel(args->w + (size_t)p * panel_bytes, matmul_a_row(args, row), args->k, acc);
            float *y = matmul_y_row(args, row);
            const float *add = matmul_add_row(args, row);
            for (int32_t n = p * MR_PANEL; n < args->n && n < (p + 1) * MR_PANEL; n++) {
                float v = acc[n % MR_PANEL];
                if (args->bias)
                    v += args->bias[n];
                if (add)
                    v += add[n];
                y[n] = v;
            }
        }
}

void mr_matmul_f32_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                          int32_t row_last) {
    matmul(args, mr_panel_bytes(MR_TYPE_F32, args->k), panel_f32, panel_first, panel_last, row_first, row_last);
}

void mr_matmul_f16_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                          int32_t row_last) {
    matmul(args, mr_panel_bytes(MR_TYPE_F16, args->k), panel_f16, panel_first, panel_last, row_first, row_last);
}

void mr_matmul_q8_0_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    matmul(args, mr_panel_bytes(MR_TYPE_Q8_0, args->k), panel_q8_0, panel_first, panel_last, row_first, row_last);
}

void mr_matmul_q4_k_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    matmul(args, mr_panel_bytes(MR_TYPE_Q4_K, args->k), panel_q4_k, panel_first, panel_last, row_first, row_last);
}

void mr_matmul_q6_k_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last, int32_t row_first,
                           int32_t row_last) {
    matmul(args, mr_panel_bytes(MR_TYPE_Q6_K, args->k), panel_q6_k, panel_first, panel_last, row_first, row_last);
}
