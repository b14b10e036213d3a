/* backends/cpu/kernels/rows_vec.h - the operations on single rows on 16 lanes: rules Q, N, R, G and K, with the same
 * bits as rows_scalar.c. Include it after vec_avx512.h or the like.
 * Lane i of a sum is virtual lane i of rule S1. An absent element of the tail is loaded as +0; adding 0 * 0 leaves its
 * lane as it is. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_ROWS_VEC_H
#define MR_BACKENDS_CPU_KERNELS_ROWS_VEC_H

#include <float.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "backends/cpu/kernels/vec_exp.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/glu.h"

/* Rule Q: planes q[n], d[n / 32], sum[n / 32]. */
MR_ALWAYS_INLINE void quantize_vec(const float *x, uint8_t *a8, int32_t n) {
    int8_t *q = (int8_t *)a8;
    float *d = (float *)(a8 + n);
    int32_t *sum = (int32_t *)(a8 + n + n / 32 * 4);
    for (int32_t b = 0; b < n / 32; b++, x += 32, q += 32) {
        v16 x0 = v16_load(x), x1 = v16_load(x + 16);
        int32_t max = v16i_reduce_max(v16i_max(v16_abs_bits(x0), v16_abs_bits(x1)));
        float amax = mr_bits_f32((uint32_t)max), scale = amax / 127.0f;
        bool finite = amax <= FLT_MAX;
        if (!finite || scale < FLT_MIN) {
            d[b] = finite ? 0.0f : NAN;
            sum[b] = 0;
            memset(q, 0, 32);
            continue;
        }
        v16 inverse = v16_set1(127.0f / amax), magic = v16_set1(MR_EXPF_MAGIC);
        v16 q0 = v16_sub(v16_add(v16_mul(x0, inverse), magic), magic);
        v16 q1 = v16_sub(v16_add(v16_mul(x1, inverse), magic), magic);
        float xq = v16_tree(v16_fma(x1, q1, v16_mul(x0, q0)));
        float qq = v16_tree(v16_fma(q1, q1, v16_mul(q0, q0))); /* integers below 2^24: exact */
        v16i i0 = v16_round(q0), i1 = v16_round(q1);
        d[b] = xq / qq;
        sum[b] = v16i_reduce_add(v16i_add(i0, i1));
        v16i_store_i8(q, i0);
        v16i_store_i8(q + 16, i1);
    }
}

/* Rule M: rounds activations for BF16 weights. The compiler vectorises the loop. */
MR_ALWAYS_INLINE void round_bf16_vec(const float *x, uint16_t *bf16, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        bf16[i] = mr_f32_to_bf16(x[i]);
    if (n % 2)
        bf16[n] = 0;
}

/* Rule N on one group of n elements. */
MR_ALWAYS_INLINE void norm_group_vec(const float *x, const float *w, float *y, int32_t n, float eps) {
    int32_t full = n / 16 * 16, tail = n - full;
    v16 lanes = v16_set1(0.0f);
    for (int32_t i = 0; i < full; i += 16) {
        v16 e = v16_load(x + i);
        lanes = v16_add(lanes, v16_mul(e, e));
    }
    if (tail) {
        v16 e = v16_load_n(x + full, tail);
        lanes = v16_add(lanes, v16_mul(e, e));
    }
    v16 s = v16_set1(1.0f / sqrtf(v16_tree(lanes) / (float)n + eps));
    for (int32_t i = 0; i < full; i += 16)
        v16_store(y + i, v16_mul(v16_mul(v16_load(x + i), s), v16_load(w + i)));
    if (tail)
        v16_store_n(y + full, v16_mul(v16_mul(v16_load_n(x + full, tail), s), v16_load_n(w + full, tail)), tail);
}

MR_ALWAYS_INLINE void rms_norm_vec(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {
    for (int32_t i = 0; i < n; i += m)
        norm_group_vec(x + i, w, y + i, m, eps);
}

/* Rule G. */
MR_ALWAYS_INLINE v16 glu_16(v16 g, v16 u, const mr_glu_kind kind, const bool is_limited, float limit) {
    if (is_limited) {
        g = v16_min(v16_set1(limit), g);
        u = v16_max(v16_set1(-limit), v16_min(v16_set1(limit), u));
    }
    switch (kind) {
    case MR_GLU_GELU:
        return v16_mul(v16_gelu(g), u);
    case MR_GLU_SIGMOID:
        return v16_fma(v16_logistic(v16_set1(1.0f), g), u, v16_set1(0.0f)); /* + 0 as in glu.h */
    case MR_GLU_GPT_OSS:
        g = v16_logistic(g, v16_mul(g, v16_set1(MR_GLU_GPT_OSS_ALPHA)));
        return v16_mul(g, v16_add(u, v16_set1(1.0f)));
    default:
        return v16_mul(v16_logistic(g, g), u);
    }
}

MR_ALWAYS_INLINE void glu_row(const float *gate, const float *up, float *y, int32_t n, const mr_glu_kind kind,
                              const bool is_limited, float limit) {
    int32_t full = n / 16 * 16, tail = n - full;
    for (int32_t i = 0; i < full; i += 16)
        v16_store(y + i, glu_16(v16_load(gate + i), v16_load(up + i), kind, is_limited, limit));
    if (tail)
        v16_store_n(y + full,
                    glu_16(v16_load_n(gate + full, tail), v16_load_n(up + full, tail), kind, is_limited, limit), tail);
}

/* A loop for each kind, with and without a limit. */
MR_ALWAYS_INLINE void glu_row_of(const float *gate, const float *up, float *y, int32_t n, const mr_glu_kind kind,
                                 float limit) {
    if (limit > 0.0f)
        glu_row(gate, up, y, n, kind, true, limit);
    else
        glu_row(gate, up, y, n, kind, false, limit);
}

MR_ALWAYS_INLINE void glu_vec(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {
    switch (glu.kind) {
    case MR_GLU_GELU:
        glu_row_of(gate, up, y, n, MR_GLU_GELU, glu.limit);
        return;
    case MR_GLU_SIGMOID:
        glu_row_of(gate, up, y, n, MR_GLU_SIGMOID, glu.limit);
        return;
    case MR_GLU_GPT_OSS:
        glu_row_of(gate, up, y, n, MR_GLU_GPT_OSS, glu.limit);
        return;
    default:
        glu_row_of(gate, up, y, n, MR_GLU_SILU, glu.limit);
    }
}

/* Rule C. */
MR_ALWAYS_INLINE void soft_cap_vec(const float *x, float *y, int32_t n, float cap) {
    v16 all = v16_set1(cap), inverse = v16_set1(1.0f / cap);
    int32_t full = n / 16 * 16, tail = n - full;
    for (int32_t i = 0; i < full; i += 16)
        v16_store(y + i, v16_mul(all, v16_tanh(v16_mul(v16_load(x + i), inverse))));
    if (tail)
        v16_store_n(y + full, v16_mul(all, v16_tanh(v16_mul(v16_load_n(x + full, tail), inverse))), tail);
}

/* Rule R for pairs of elements i and i + half. */
MR_ALWAYS_INLINE void rope_halves_vec(float *x, int32_t half, const float *table) {
    for (int32_t i = 0; i < half; i += 16) {
        int32_t n = half - i < 16 ? half - i : 16;
        v16 x0 = v16_load_n(x + i, n), x1 = v16_load_n(x + half + i, n);
        v16 c = v16_load_n(table + i, n), s = v16_load_n(table + half + i, n);
        v16_store_n(x + i, v16_fma(x0, c, v16_neg(v16_mul(x1, s))), n);
        v16_store_n(x + half + i, v16_fma(x0, s, v16_mul(x1, c)), n);
    }
}

/* Rule R for pairs of elements 2i and 2i + 1, n <= 16 elements. cs holds c0 s0 c1 s1 …, sc holds s0 c0 s1 c1 …
 * Even lanes: fma(x0, c, -(x1 * s)); odd lanes: fma(x0, s, x1 * c). */
MR_ALWAYS_INLINE void rope_pairs_vec(float *x, v16 cs, v16 sc, int32_t n) {
    v16 e = v16_load_n(x, n);
    v16_store_n(x, v16_fmaddsub(v16_dup_even(e), cs, v16_mul(v16_dup_odd(e), sc)), n);
}

MR_ALWAYS_INLINE void rope_vec(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,
                               const float *table) {
    int32_t half = n_rot / 2;
    if (pairs == MR_ROPE_HALVES) {
        for (int32_t h = 0; h < n_heads; h++)
            rope_halves_vec(x + (int64_t)h * head_dim, half, table);
        return;
    }
    for (int32_t i = 0; i < half; i += 8) {
        int32_t n_pairs = half - i < 8 ? half - i : 8;
        float cs[16] = {0}, sc[16] = {0};
        for (int32_t p = 0; p < n_pairs; p++) {
            cs[2 * p] = sc[2 * p + 1] = table[i + p];
            cs[2 * p + 1] = sc[2 * p] = table[half + i + p];
        }
        v16 vcs = v16_load(cs), vsc = v16_load(sc);
        for (int32_t h = 0; h < n_heads; h++)
            rope_pairs_vec(x + (int64_t)h * head_dim + 2 * i, vcs, vsc, 2 * n_pairs);
    }
}

/* Rule K for 32 head elements in q8_0. Returns the scale. */
MR_ALWAYS_INLINE uint16_t kv_quantize(const float *x, int8_t q[32]) {
    v16 x0 = v16_load(x), x1 = v16_load(x + 16);
    float amax = mr_bits_f32((uint32_t)v16i_reduce_max(v16i_max(v16_abs_bits(x0), v16_abs_bits(x1))));
    uint16_t half = mr_f32_to_f16(amax / 127.0f);
    float d = mr_f16_to_f32(half);
    memset(q, 0, 32);
    if (amax <= FLT_MAX && d <= FLT_MAX && d > 0.0f) {
        v16 inverse = v16_set1(1.0f / d), most = v16_set1(127.0f), least = v16_set1(-127.0f);
        v16i_store_i8(q, v16_round(v16_max(v16_min(v16_mul(x0, inverse), most), least)));
        v16i_store_i8(q + 16, v16_round(v16_max(v16_min(v16_mul(x1, inverse), most), least)));
    }
    return amax <= FLT_MAX && d <= FLT_MAX ? half : MR_F16_NAN;
}
/* Rule K for one head of one row, which goes into column t of a q8_0 block. */
MR_ALWAYS_INLINE void kv_write_q8_0(const float *x, int32_t dim, void *store, int32_t t, const bool is_key) {
    uint16_t *scales = (uint16_t *)(void *)((char *)store + dim * MR_KV_BLOCK) + t;
    int8_t q[32], *to = store;
    for (int32_t i = 0; i < dim; i += 32) {
        scales[i / 32 * MR_KV_BLOCK] = kv_quantize(x + i, q);
        for (int32_t j = 0; is_key && j < 32; j += 4)
            memcpy(to + mr_kv_key_at(i + j, t), q + j, 4);
        for (int32_t j = 0; !is_key && j < 32; j++)
            to[mr_kv_value_at(i + j, t, dim)] = q[j];
    }
}
/* Writes n <= 16 halves of k into a column of keys. */
MR_ALWAYS_INLINE void kv_write_column(const float *k, const int32_t n, uint16_t *column) {
    uint16_t half[16];
    v16_store_f16(half, n == 16 ? v16_load(k) : v16_load_n(k, n));
    for (int32_t j = 0; j < n; j++)
        column[j * MR_KV_BLOCK] = half[j];
}
/* Rule K for one head of one row: k goes into column t of the keys [dim][16]. */
MR_ALWAYS_INLINE void kv_write_key(const mr_type type, const float *k, int32_t dim, void *store, int32_t t) {
    if (type == MR_TYPE_F32) {
        for (int32_t i = 0; i < dim; i++)
            ((float *)store)[i * MR_KV_BLOCK + t] = k[i];
    } else if (type == MR_TYPE_F16) {
        uint16_t *column = (uint16_t *)store + t;
        int32_t whole = dim / 16 * 16;
        for (int32_t i = 0; i < whole; i += 16)
            kv_write_column(k + i, 16, column + i * MR_KV_BLOCK);
        if (whole < dim)
            kv_write_column(k + whole, dim - whole, column + whole * MR_KV_BLOCK);
    } else {
        kv_write_q8_0(k, dim, store, t, true);
    }
}
/* The same for v, which goes into row t of the values [16][dim]. */
MR_ALWAYS_INLINE void kv_write_value(const mr_type type, const float *v, int32_t dim, void *store, int32_t t) {
    if (type == MR_TYPE_F32) {
        memcpy((float *)store + t * dim, v, (size_t)dim * 4);
    } else if (type == MR_TYPE_F16) {
        uint16_t half[16], *row = (uint16_t *)store + t * dim;
        int32_t whole = dim / 16 * 16;
        for (int32_t i = 0; i < whole; i += 16)
            v16_store_f16(row + i, v16_load(v + i));
        if (whole < dim) {
            v16_store_f16(half, v16_load_n(v + whole, dim - whole));
            memcpy(row + whole, half, (size_t)(dim - whole) * sizeof *half);
        }
    } else {
        kv_write_q8_0(v, dim, store, t, false);
    }
}

MR_ALWAYS_INLINE void kv_write_vec(const mr_kv_write_args *a, int32_t row_first, int32_t row_last) {
    size_t k_bytes = mr_kv_head_bytes(a->kv_type, a->k_dim), v_bytes = mr_kv_head_bytes(a->kv_type, a->v_dim);
    for (int32_t r = row_first; r < row_last; r++) {
        const float *k = (const float *)((const char *)a->k + (size_t)r * a->k_row_bytes);
        const float *v = (const float *)((const char *)a->v + (size_t)r * a->v_row_bytes);
        size_t block = (size_t)(a->slots[r] / MR_KV_BLOCK);
        char *k_store = (char *)a->k_store + block * a->k_block_bytes;
        char *v_store = (char *)a->v_store + block * a->v_block_bytes;
        int32_t t = a->slots[r] % MR_KV_BLOCK;
        for (int32_t h = 0; h < a->n_kv_heads; h++, k_store += k_bytes, v_store += v_bytes) {
            kv_write_key(a->kv_type, k + h * a->k_dim, a->k_dim, k_store, t);
            kv_write_value(a->kv_type, v + h * a->v_dim, a->v_dim, v_store, t);
        }
    }
}

/* Defines the kernels of kernels.h for an instruction set. */
// clang-format off
#define MR_ROWS_OF(isa)                                                                                                \
    void mr_quantize_##isa(const float *x, uint8_t *a8, int32_t n) {                                                   \
        quantize_vec(x, a8, n);                                                                                        \
    }                                                                                                                  \
    void mr_round_bf16_##isa(const float *x, uint16_t *bf16, int32_t n) {                                              \
        round_bf16_vec(x, bf16, n);                                                                                    \
    }                                                                                                                  \
    void mr_rms_norm_##isa(const float *x, const float *w, float *y, int32_t n, int32_t m, float eps) {                \
        rms_norm_vec(x, w, y, n, m, eps);                                                                              \
    }                                                                                                                  \
    void mr_rope_##isa(float *x, int32_t n_heads, int32_t head_dim, int32_t n_rot, mr_rope_pairs pairs,                \
                       const float *table) {                                                                           \
        rope_vec(x, n_heads, head_dim, n_rot, pairs, table);                                                           \
    }                                                                                                                  \
    void mr_glu_##isa(const float *gate, const float *up, float *y, int32_t n, mr_glu glu) {                           \
        glu_vec(gate, up, y, n, glu);                                                                                  \
    }                                                                                                                  \
    void mr_soft_cap_##isa(const float *x, float *y, int32_t n, float cap) {                                           \
        soft_cap_vec(x, y, n, cap);                                                                                    \
    }                                                                                                                  \
    void mr_kv_write_##isa(const mr_kv_write_args *args, int32_t row_first, int32_t row_last) {                        \
        kv_write_vec(args, row_first, row_last);                                                                       \
    }
// clang-format on

#endif
