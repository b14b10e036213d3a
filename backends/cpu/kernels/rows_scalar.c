/* backends/cpu/kernels/rows_scalar.c - the operations on single rows in plain C: rules Q, N, R, G and K. They are the
 * specification of rows_vec.h. Order of accumulation: sums of rule N have the 16 lanes of rule S1, rule Q names its own
 * lanes, and all else is element by element. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <stdbool.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/vec_scalar.h"
#include "engine/base/fmath.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/glu.h"

/* The largest |x| of 32 elements by their bits: a NaN counts as larger than infinity, and denormals are not flushed. */
static float max_abs_32(const float *x) {
    uint32_t max = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u = mr_f32_bits(x[i]) & 0x7fffffffu;
        max = u > max ? u : max;
    }
    return mr_bits_f32(max);
}

/* Rule Q on one block of 32. Writes q and *out_sum, and returns d. */
static float quantize_block(const float x[32], int8_t q[32], int32_t *out_sum) {
    float amax = max_abs_32(x), xq[MR_LANES] = {0}, r[32];
    int32_t sum = 0, qq = 0;
    if (!(amax <= FLT_MAX) || amax / 127.0f < FLT_MIN) {
        memset(q, 0, 32);
        *out_sum = 0;
        return amax <= FLT_MAX ? 0.0f : NAN;
    }
    for (int i = 0; i < 32; i++) {
        r[i] = round_even(x[i] * (127.0f / amax));
        q[i] = (int8_t)r[i];
        sum += q[i];
        qq += q[i] * q[i];
    }
    for (int i = 0; i < MR_LANES; i++)
        xq[i] = fmaf(x[i + 16], r[i + 16], x[i] * r[i]);
    *out_sum = sum;
    return lanes_tree(xq) / (float)qq;
}

/* Rule Q: planes q[n], d[n / 32], sum[n / 32]. */
void mr_quantize_scalar(const float *x, uint8_t *a8, int32_t n) {
    float *d = (float *)(a8 + n);
    int32_t *sum = (int32_t *)(a8 + n + n / 32 * 4);
    for (int32_t b = 0; b < n / 32; b++)
        d[b] = quantize_block(x + b * 32, (int8_t *)a8 + b * 32, &sum[b]);
}

/* Rule M: rounds activations for BF16 weights. */
void mr_round_bf16_scalar(const float *x, uint16_t *bf16, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        bf16[i] = mr_f32_to_bf16(x[i]);
    if (n % 2)
        bf16[n] = 0;
}

/* Rule N on one group of n elements. */
static void norm_group(const float *x, const float *w, float *y, int32_t n, float eps) {
    float lane[MR_LANES] = {0};
    for (int32_t i = 0; i < n; i++)
        lane[i % MR_LANES] += x[i] * x[i];
    float s = 1.0f / sqrtf(lanes_tree(lane) / (float)n + eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (x[i] * s) * w[i];
}

void mr_rms_norm_scalar(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    for (int32_t i = 0; i < n; i += m)
        norm_group(x + i, w, y + i, m, eps);
}

/* Rule R: out is cos[half], sin[half]. */
void mr_rope_table_scalar(const float *const angles[MR_ROPE_ROWS], int32_t half, int32_t position, float magnitude,
                          float *out) {
    float theta = (float)position;
    for (int32_t i = 0; i < half; i++) {
        double s, c;
        theta *= angles[MR_ROPE_STEP][i];
        float own = theta / angles[MR_ROPE_FACTOR][i];
        mr_sincos((double)(own * angles[MR_ROPE_SLOW][i] + own * angles[MR_ROPE_KEEP][i]), &s, &c);
        out[i] = (float)c * magnitude;
        out[half + i] = (float)s * magnitude;
    }
}

void mr_rope_scalar(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                    const float *table) {
    int32_t half = n_rot / 2, step = pairs == MR_ROPE_INTERLEAVED ? 2 : 1, apart = step == 2 ? 1 : half;
    for (int32_t h = 0; h < n_heads; h++, x += head_dim)
        for (int32_t i = 0; i < half; i++) {
            float *p0 = x + i * step, *p1 = p0 + apart, x0 = *p0, x1 = *p1;
            float c = table[i], s = table[half + i];
            *p0 = fmaf(x0, c, -(x1 * s));
            *p1 = fmaf(x0, s, x1 * c);
        }
}

/* Rule G. */
void mr_glu_scalar(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    for (int32_t i = 0; i < n; i++)
        y[i] = mr_glu_one(gate[i], up[i], glu);
}

/* Rule C. */
void mr_soft_cap_scalar(const float *x, float *y, int32_t n, float cap) {
    for (int32_t i = 0; i < n; i++)
        y[i] = cap * mr_tanhf(x[i] * (1.0f / cap));
}

/* Writes element i of an F16 or F32 store. */
static void kv_put(void *store, int32_t i, float x, mr_type type) {
    if (type == MR_TYPE_F16)
        ((uint16_t *)store)[i] = mr_f32_to_f16(x);
    else
        ((float *)store)[i] = x;
}

/* Rule K for 32 head elements in q8_0. Returns the scale. */
static uint16_t kv_quantize(const float x[32], int8_t q[32]) {
    float amax = max_abs_32(x);
    uint16_t half = mr_f32_to_f16(amax / 127.0f);
    float d = mr_f16_to_f32(half);
    bool is_number = amax <= FLT_MAX && d <= FLT_MAX;
    for (int32_t i = 0; i < 32; i++) {
        float r = is_number && d > 0.0f ? x[i] * (1.0f / d) : 0.0f;
        r = r > 127.0f ? 127.0f : r < -127.0f ? -127.0f : r;
        q[i] = (int8_t)round_even(r);
    }
    return is_number ? half : MR_F16_NAN;
}

/* Writes one head of one row into column t of a q8_0 block. */
static void kv_put_q8_0(const float *x, int32_t dim, uint8_t *store, int32_t t, bool is_key) {
    uint16_t *scales = (uint16_t *)(void *)(store + dim * MR_KV_BLOCK) + t;
    int8_t q[32];
    for (int32_t i = 0; i < dim; i++) {
        if (i % 32 == 0)
            scales[i / 32 * MR_KV_BLOCK] = kv_quantize(x + i, q);
        ((int8_t *)store)[is_key ? mr_kv_key_at(i, t) : mr_kv_value_at(i, t, dim)] = q[i % 32];
    }
}

/* Writes one head of one row into column t of the keys [dim][16] or row t of the values [16][dim]. */
static void kv_put_head(mr_type type, const float *x, int32_t dim, uint8_t *store, int32_t t, bool is_key) {
    if (type == MR_TYPE_Q8_0) {
        kv_put_q8_0(x, dim, store, t, is_key);
        return;
    }
    for (int32_t i = 0; i < dim; i++)
        kv_put(store, is_key ? i * MR_KV_BLOCK + t : t * dim + i, x[i], type);
}

/* Rule K. */
void mr_kv_write_scalar(const mr_kv_write_args *a, int32_t row_first, int32_t row_last) {
    size_t k_bytes = mr_kv_head_bytes(a->kv_type, a->k_dim), v_bytes = mr_kv_head_bytes(a->kv_type, a->v_dim);
    for (int32_t r = row_first; r < row_last; r++) {
        const float *k = (const float *)((const char *)a->k + (size_t)r * a->k_row_bytes);
        const float *v = (const float *)((const char *)a->v + (size_t)r * a->v_row_bytes);
        size_t block = (size_t)(a->slots[r] / MR_KV_BLOCK);
        uint8_t *k_store = (uint8_t *)a->k_store + block * a->k_block_bytes;
        uint8_t *v_store = (uint8_t *)a->v_store + block * a->v_block_bytes;
        int32_t t = a->slots[r] % MR_KV_BLOCK;
        for (int32_t h = 0; h < a->n_kv_heads; h++) {
            kv_put_head(a->kv_type, k + h * a->k_dim, a->k_dim, k_store + (size_t)h * k_bytes, t, true);
            kv_put_head(a->kv_type, v + h * a->v_dim, a->v_dim, v_store + (size_t)h * v_bytes, t, false);
        }
    }
}
