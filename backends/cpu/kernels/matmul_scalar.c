/* backends/cpu/kernels/matmul_scalar.c - rule M of engine/NUMERICS.md in plain C, without regard to speed.
 * This is the specification: every other matrix product computes the same bits. Panels have the layouts of
 * matmul_panels.h. Lane r of a panel is one output row, and k ascends. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/matmul_panels.h"
#include "engine/tensor/f16.h"

/* acc[r] += row r of panel w times one activation row a of k elements; acc starts at +0. */
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

/* Pairs of k, the odd k first, as VDPBF16PS adds them. After an odd last k, weight and activation are +0. */
static void panel_bf16(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const uint16_t *weights = (const uint16_t *)(const void *)w, *x = (const uint16_t *)(const void *)a;
    for (int32_t i = 0; i < k; i += 2, weights += 2 * MR_PANEL)
        for (int r = 0; r < MR_PANEL; r++) {
            acc[r] = fmaf(mr_bf16_to_f32(weights[2 * r + 1]), mr_bf16_to_f32(x[i + 1]), acc[r]);
            acc[r] = fmaf(mr_bf16_to_f32(weights[2 * r]), mr_bf16_to_f32(x[i]), acc[r]);
        }
}

static int32_t dot(const int8_t *q, const int8_t *a, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += q[i] * a[i];
    return sum;
}

/* The 32 values of lane r in 8 groups of bytes, or in 4 groups of nibbles. */
static void lane_bytes(const uint8_t groups[8][MR_PANEL][4], int r, int8_t q[32]) {
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(groups[i / 4][r][i % 4] - 128);
}
static void lane_nibbles(const uint8_t groups[4][MR_PANEL][4], int r, int8_t q[32]) {
    for (int i = 0; i < 16; i++) {
        uint8_t byte = groups[i / 4][r][i % 4];
        q[i] = byte & 15;
        q[16 + i] = (int8_t)(byte >> 4);
    }
}

static void panel_q8_0(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q8_0 *p = (const mr_panel_q8_0 *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_bytes(p->q, r, q);
            acc[r] = fmaf((float)dot(q, x.q + b * 32, 32), mr_f16_to_f32(p->d[r]) * x.d[b], acc[r]);
        }
}

/* values[i]: the value of nibble i. */
static void panel_nibbles(const uint8_t *w, const uint8_t *a, int32_t k, const int8_t values[16], float acc[MR_PANEL]) {
    const mr_panel_q4_0 *p = (const mr_panel_q4_0 *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_nibbles(p->q, r, q);
            for (int i = 0; i < 32; i++)
                q[i] = values[q[i]];
            acc[r] = fmaf((float)dot(q, x.q + b * 32, 32), mr_f16_to_f32(p->d[r]) * x.d[b], acc[r]);
        }
}

static void panel_q4_0(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    static const int8_t values[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    panel_nibbles(w, a, k, values, acc);
}

static void panel_iq4_nl(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    panel_nibbles(w, a, k, mr_iq4_values, acc);
}

static void panel_mxfp4(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_mxfp4 *p = (const mr_panel_mxfp4 *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_nibbles(p->q, r, q);
            for (int i = 0; i < 32; i++)
                q[i] = mr_mxfp4_values[q[i]];
            acc[r] = fmaf((float)dot(q, x.q + b * 32, 32), mr_mxfp4_scale(p->e[r]) * x.d[b], acc[r]);
        }
}

/* Adds the products of sub-block j of lane r (Q4_K; its values are q) and block b of the activations to acc. */
static float add_q4_k(const mr_panel_q4_k *p, int j, int r, const int8_t q[32], a8_row x, int32_t b, float acc) {
    float scale = mr_f16_to_f32(p->d[r]) * (float)p->scale[j].sc[r];
    float min = mr_f16_to_f32(p->dmin[r]) * (float)p->scale[j].m[r];
    acc = fmaf((float)dot(q, x.q + b * 32, 32), scale * x.d[b], acc);
    return fmaf(-min, x.d[b] * (float)x.sum[b], acc);
}

static void panel_q4_k(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q4_k *p = (const mr_panel_q4_k *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++) {
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_nibbles(p[b / 8].q[b % 8], r, q);
            acc[r] = add_q4_k(&p[b / 8], b % 8, r, q, x, b, acc[r]);
        }
    }
}

static void panel_q5_k(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q5_k *p = (const mr_panel_q5_k *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++) {
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_nibbles(p[b / 8].low.q[b % 8], r, q);
            for (int i = 0; i < 32; i++)
                q[i] = (int8_t)(q[i] | (p[b / 8].high[b % 8][r][i % 4] >> (i / 4) & 1) << 4);
            acc[r] = add_q4_k(&p[b / 8].low, b % 8, r, q, x, b, acc[r]);
        }
    }
}

/* The value (-32..31) of element i of sub-block j in lane r. */
static int8_t q6_k_value(const mr_panel_q6_k *p, int j, int r, int i) {
    int group = i / 4, byte = i % 4;
    uint8_t a = p->q[j][0][r][byte], b = p->q[j][1][r][byte], c = p->q[j][2][r][byte];
    if (group == 3)
        return (int8_t)(((a >> 6) << 4 | (b >> 6) << 2 | c >> 6) - 32);
    return (int8_t)((p->q[j][group][r][byte] & 63) - 32);
}

/* Sub-blocks 2j and 2j + 1 of lane r times 32 activations: at most 2 * 128 * 16 * 32 * 127 < 2^24. */
static int32_t q6_k_dot(const mr_panel_q6_k *p, int j, int r, const int8_t *a) {
    int32_t sum = 0;
    for (int i = 0; i < 32; i++)
        sum += p->sc[2 * j + i / 16][r] * q6_k_value(p, 2 * j + i / 16, r, i % 16) * a[i];
    return sum;
}

static void panel_q6_k(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_q6_k *p = (const mr_panel_q6_k *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b += 8, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            float sum = 0; /* of the block, without its scale */
            for (int j = 0; j < 8; j++)
                sum = fmaf((float)q6_k_dot(p, j, r, x.q + (b + j) * 32), x.d[b + j], sum);
            acc[r] = fmaf(sum, mr_f16_to_f32(p->d[r]), acc[r]);
        }
}

static void panel_iq4_xs(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_iq4_xs *p = (const mr_panel_iq4_xs *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++) {
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_nibbles(p[b / 8].q[b % 8], r, q);
            for (int i = 0; i < 32; i++)
                q[i] = mr_iq4_values[q[i]];
            float scale = mr_f16_to_f32(p[b / 8].d[r]) * (float)p[b / 8].sc[b % 8][r];
            acc[r] = fmaf((float)dot(q, x.q + b * 32, 32), scale * x.d[b], acc[r]);
        }
    }
}

static void panel_x8(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    const mr_panel_x8 *p = (const mr_panel_x8 *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_bytes(p->q, r, q);
            for (int h = 0; h < 2; h++)
                acc[r] = fmaf((float)dot(q + 16 * h, x.q + b * 32 + 16 * h, 16), p->scale[h][r] * x.d[b], acc[r]);
        }
}

static void panel_x8m(const uint8_t *w, const uint8_t *a, int32_t k, float acc[MR_PANEL]) {
    static const int8_t ones[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const mr_panel_x8m *p = (const mr_panel_x8m *)(const void *)w;
    a8_row x = a8_row_at(a, k);
    for (int32_t b = 0; b < k / 32; b++, p++)
        for (int r = 0; r < MR_PANEL; r++) {
            int8_t q[32];
            lane_bytes(p->q, r, q);
            for (int h = 0; h < 2; h++) {
                const int8_t *xq = x.q + b * 32 + 16 * h;
                acc[r] = fmaf((float)dot(q + 16 * h, xq, 16), p->scale[h][r] * x.d[b], acc[r]);
                acc[r] = fmaf(p->min[h][r], x.d[b] * (float)dot(ones, xq, 16), acc[r]);
            }
        }
}

static void matmul(const mr_matmul_args *args, mr_panel_type type, panel_fn *panel, const int32_t range[4]) {
    size_t panel_bytes = mr_panel_type_bytes(type, args->k);
    for (int32_t p = range[0]; p < range[1]; p++)
        for (int32_t row = range[2]; row < range[3]; row++) {
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

#define MATMUL(name, panel_type, panel)                                                                                \
    void mr_matmul_##name##_scalar(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,                \
                                   int32_t row_first, int32_t row_last) {                                              \
        const int32_t range[4] = {panel_first, panel_last, row_first, row_last};                                       \
        matmul(args, panel_type, panel, range);                                                                        \
    }
MATMUL(f32, MR_PANEL_F32, panel_f32)
MATMUL(f16, MR_PANEL_F16, panel_f16)
MATMUL(bf16, MR_PANEL_BF16, panel_bf16)
MATMUL(q8_0, MR_PANEL_Q8_0, panel_q8_0)
MATMUL(q4_0, MR_PANEL_Q4_0, panel_q4_0)
MATMUL(iq4_nl, MR_PANEL_IQ4_NL, panel_iq4_nl)
MATMUL(mxfp4, MR_PANEL_MXFP4, panel_mxfp4)
MATMUL(q4_k, MR_PANEL_Q4_K, panel_q4_k)
MATMUL(q5_k, MR_PANEL_Q5_K, panel_q5_k)
MATMUL(q6_k, MR_PANEL_Q6_K, panel_q6_k)
MATMUL(iq4_xs, MR_PANEL_IQ4_XS, panel_iq4_xs)
MATMUL(x8, MR_PANEL_X8, panel_x8)
MATMUL(x8m, MR_PANEL_X8M, panel_x8m)
