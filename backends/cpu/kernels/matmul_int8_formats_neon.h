/* backends/cpu/kernels/matmul_int8_formats_neon.h - how each kind of panel is decoded, and the entry points of the
 * level: LEVEL(name) is the name with the level's suffix. Include after matmul_int8_neon.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_NEON_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_NEON_H

/* op(i, …) gives rows 4i .. 4i + 3. */
#define EACH_ROWS(op, ...)                                                                                             \
    { op(0, __VA_ARGS__), op(1, __VA_ARGS__), op(2, __VA_ARGS__), op(3, __VA_ARGS__) }

MR_INLINE uint8x16_t load_rows(int i, const uint8_t group[MR_PANEL][4]) {
    return vld1q_u8(group[4 * i]);
}

/* --- Bytes of value + 128: Q8_0, X8, X8M ------------------------------------------------------------------------- */

MR_INLINE int8x16_t signed_rows(int i, const uint8_t group[MR_PANEL][4]) {
    return vreinterpretq_s8_u8(veorq_u8(load_rows(i, group), vdupq_n_u8(128)));
}

MR_INLINE v16x4 q8_0_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(signed_rows, ((const mr_panel_q8_0 *)(const void *)block)->q[g]);
}
MR_INLINE v16 q8_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_f16(((const mr_panel_q8_0 *)(const void *)block)->d);
}
MR_INLINE v16x4 x8_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(signed_rows, ((const mr_panel_x8 *)(const void *)block)->q[g]);
}
MR_INLINE v16 x8_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(((const mr_panel_x8 *)(const void *)block)->scale[half]);
}
MR_INLINE v16x4 x8m_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(signed_rows, ((const mr_panel_x8m *)(const void *)block)->q[g]);
}
MR_INLINE v16 x8m_scale(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(((const mr_panel_x8m *)(const void *)block)->scale[half]);
}
MR_INLINE v16 x8m_min(const uint8_t *block, int sub, int half) {
    (void)sub;
    return v16_load(((const mr_panel_x8m *)(const void *)block)->min[half]);
}

static const format Q8_0 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q8_0),
    .n_scales = 1,
    .group = q8_0_group,
    .scale = q8_0_scale,
};
static const format X8 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_x8),
    .n_scales = 2,
    .group = x8_group,
    .scale = x8_scale,
};
static const format X8M = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_x8m),
    .n_scales = 2,
    .n_mins = 2,
    .group = x8m_group,
    .scale = x8m_scale,
    .min = x8m_min,
};

/* --- Nibbles: Q4_0, IQ4_NL, MXFP4, IQ4_XS ------------------------------------------------------------------------ */

/* Rows i of group g of a sub-block of 32 k: 0..15. */
MR_INLINE uint8x16_t nibble_rows(int i, const uint8_t q[4][MR_PANEL][4], int g) {
    uint8x16_t both = load_rows(i, q[g % 4]);
    return g < 4 ? vandq_u8(both, vdupq_n_u8(15)) : vshrq_n_u8(both, 4);
}
MR_INLINE int8x16_t q4_0_rows(int i, const uint8_t q[4][MR_PANEL][4], int g) {
    return vsubq_s8(vreinterpretq_s8_u8(nibble_rows(i, q, g)), vdupq_n_s8(8));
}
/* What the nibbles stand for. */
MR_INLINE int8x16_t table_rows(int i, const uint8_t q[4][MR_PANEL][4], int g, const int8_t values[16]) {
    return vqtbl1q_s8(vld1q_s8(values), nibble_rows(i, q, g));
}

MR_INLINE const mr_panel_q4_0 *q4_0(const uint8_t *block) {
    return (const mr_panel_q4_0 *)(const void *)block;
}
MR_INLINE v16x4 q4_0_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(q4_0_rows, q4_0(block)->q, g);
}
MR_INLINE v16x4 iq4_nl_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(table_rows, q4_0(block)->q, g, mr_iq4_values);
}
MR_INLINE v16 q4_0_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    return v16_load_f16(q4_0(block)->d);
}

MR_INLINE const mr_panel_mxfp4 *mxfp4(const uint8_t *block) {
    return (const mr_panel_mxfp4 *)(const void *)block;
}
MR_INLINE v16x4 mxfp4_group(const uint8_t *block, int sub, int g) {
    (void)sub;
    return (v16x4)EACH_ROWS(table_rows, mxfp4(block)->q, g, mr_mxfp4_values);
}
/* 2^(e - 128): e - 1 in the place of the exponent, and 0 for e < 2. */
MR_INLINE v16 mxfp4_scale(const uint8_t *block, int sub, int half) {
    (void)sub, (void)half;
    uint8x16_t e = vqsubq_u8(vld1q_u8(mxfp4(block)->e), vdupq_n_u8(1));
    uint16x8_t lo = vmovl_u8(vget_low_u8(e)), hi = vmovl_high_u8(e);
    v16i wide = v16i_from_i16(vreinterpretq_s16_u16(lo), vreinterpretq_s16_u16(hi));
    return v16_from_bits((v16i)FOUR_1(to_exponent, wide));
}

MR_INLINE const mr_panel_iq4_xs *iq4_xs(const uint8_t *block) {
    return (const mr_panel_iq4_xs *)(const void *)block;
}
MR_INLINE v16x4 iq4_xs_group(const uint8_t *block, int sub, int g) {
    return (v16x4)EACH_ROWS(table_rows, iq4_xs(block)->q[sub], g, mr_iq4_values);
}
MR_INLINE v16 iq4_xs_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_mul(v16_load_f16(iq4_xs(block)->d), v16_load_i8(iq4_xs(block)->sc[sub]));
}

static const format Q4_0 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q4_0),
    .n_scales = 1,
    .group = q4_0_group,
    .scale = q4_0_scale,
};
static const format IQ4_NL = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_q4_0),
    .n_scales = 1,
    .group = iq4_nl_group,
    .scale = q4_0_scale,
};
static const format MXFP4 = {
    .block_k = 32,
    .block_bytes = sizeof(mr_panel_mxfp4),
    .n_scales = 1,
    .group = mxfp4_group,
    .scale = mxfp4_scale,
};
static const format IQ4_XS = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_iq4_xs),
    .n_scales = 1,
    .group = iq4_xs_group,
    .scale = iq4_xs_scale,
};

/* --- Q4_K, Q5_K: a Q5_K block begins as a Q4_K block does, with its scales and low bits -------------------------- */

MR_INLINE const mr_panel_q4_k *q4_k(const uint8_t *block) {
    return (const mr_panel_q4_k *)(const void *)block;
}
MR_INLINE int8x16_t q4_k_rows(int i, const uint8_t *block, int sub, int g) { /* 0..15 */
    return vreinterpretq_s8_u8(nibble_rows(i, q4_k(block)->q[sub], g));
}
MR_INLINE v16x4 q4_k_group(const uint8_t *block, int sub, int g) {
    return (v16x4)EACH_ROWS(q4_k_rows, block, sub, g);
}
MR_INLINE int8x16_t q5_k_rows(int i, const uint8_t *block, int sub, int g) { /* 0..31 */
    uint8x16_t high = load_rows(i, ((const mr_panel_q5_k *)(const void *)block)->high[sub]);
    uint8x16_t fifth = vandq_u8(vshlq_u8(high, vdupq_n_s8((int8_t)(4 - g))), vdupq_n_u8(16));
    return vorrq_s8(q4_k_rows(i, block, sub, g), vreinterpretq_s8_u8(fifth));
}
MR_INLINE v16x4 q5_k_group(const uint8_t *block, int sub, int g) {
    return (v16x4)EACH_ROWS(q5_k_rows, block, sub, g);
}
MR_INLINE v16 q4_k_scale(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_mul(v16_load_f16(q4_k(block)->d), v16_load_u8(q4_k(block)->scale[sub].sc));
}
MR_INLINE v16 q4_k_min(const uint8_t *block, int sub, int half) {
    (void)half;
    return v16_neg(v16_mul(v16_load_f16(q4_k(block)->dmin), v16_load_u8(q4_k(block)->scale[sub].m)));
}

static const format Q4_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q4_k),
    .n_scales = 1,
    .n_mins = 1,
    .group = q4_k_group,
    .scale = q4_k_scale,
    .min = q4_k_min,
};
static const format Q5_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q5_k),
    .n_scales = 1,
    .n_mins = 1,
    .group = q5_k_group,
    .scale = q4_k_scale,
    .min = q4_k_min,
};

/* --- Q6_K -------------------------------------------------------------------------------------------------------- */

MR_INLINE const mr_panel_q6_k *q6_k(const uint8_t *block) {
    return (const mr_panel_q6_k *)(const void *)block;
}
/* -32..31. Three of the four groups of 16 k lie in the low six bits, the fourth in the high two of all three. */
MR_INLINE int8x16_t q6_k_rows(int i, const uint8_t q[3][MR_PANEL][4], int g) {
    uint8x16_t value;
    if (g < 3) {
        value = vandq_u8(load_rows(i, q[g]), vdupq_n_u8(63));
    } else { /* each is shifted in above the next one */
        uint8x16_t c = vshrq_n_u8(load_rows(i, q[2]), 6), b = vshrq_n_u8(load_rows(i, q[1]), 6);
        value = vsliq_n_u8(vsliq_n_u8(c, b, 2), vshrq_n_u8(load_rows(i, q[0]), 6), 4);
    }
    return vsubq_s8(vreinterpretq_s8_u8(value), vdupq_n_s8(32));
}
MR_INLINE v16x4 q6_k_group(const uint8_t *block, int sub, int g) {
    return (v16x4)EACH_ROWS(q6_k_rows, q6_k(block)->q[sub * 2 + g / 4], g % 4);
}
MR_INLINE v16 q6_k_scale(const uint8_t *block, int sub, int half) {
    return v16_mul(v16_load_f16(q6_k(block)->d), v16_load_i8(q6_k(block)->sc[sub * 2 + half]));
}

static const format Q6_K = {
    .block_k = 256,
    .block_bytes = sizeof(mr_panel_q6_k),
    .n_scales = 2,
    .group = q6_k_group,
    .scale = q6_k_scale,
};

#define LEVEL_KERNEL(name, f) MATMUL_KERNEL(name, f) /* after LEVEL has been resolved */
LEVEL_KERNEL(LEVEL(matmul_q8_0), Q8_0)
LEVEL_KERNEL(LEVEL(matmul_q4_0), Q4_0)
LEVEL_KERNEL(LEVEL(matmul_iq4_nl), IQ4_NL)
LEVEL_KERNEL(LEVEL(matmul_mxfp4), MXFP4)
LEVEL_KERNEL(LEVEL(matmul_q4_k), Q4_K)
LEVEL_KERNEL(LEVEL(matmul_q5_k), Q5_K)
LEVEL_KERNEL(LEVEL(matmul_q6_k), Q6_K)
LEVEL_KERNEL(LEVEL(matmul_iq4_xs), IQ4_XS)
LEVEL_KERNEL(LEVEL(matmul_x8), X8)
LEVEL_KERNEL(LEVEL(matmul_x8m), X8M)

#endif
