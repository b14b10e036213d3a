/* backends/cpu/kernels/matmul_int8_formats_avx2.h - how 32 k of each kind of panel are decoded, and the entry points of
 * the level: LEVEL(name) is the name with the level's suffix. Include after matmul_int8_avx2.h. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_AVX2_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_FORMATS_AVX2_H

#ifdef MR_VNNI
enum { SIGNED_OFFSET = 128, IS_SIGNED = 0, X8_OFFSET = 128 };
#else
enum { SIGNED_OFFSET = 0, IS_SIGNED = 1, X8_OFFSET = 64 };
#endif

ALWAYS_INLINE __m256i load_side(const uint8_t group[MR_PANEL][4], int side) {
    return _mm256_loadu_si256((const void *)group[8 * side]);
}
ALWAYS_INLINE __m256 halves(const uint16_t *p, int side) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8 * side)));
}
ALWAYS_INLINE __m256 bytes_u8(const uint8_t *p, int side) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8 * side))));
}
ALWAYS_INLINE __m256 bytes_i8(const int8_t *p, int side) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8 * side))));
}
ALWAYS_INLINE __m256 negated(__m256 x) {
    return _mm256_xor_ps(x, _mm256_set1_ps(-0.0f));
}

/* Bytes of value + 128 as value + plus. */
ALWAYS_INLINE void decode_bytes(const uint8_t groups[8][MR_PANEL][4], int plus, step *out) {
    for (int g = 0; g < 8; g++)
        for (int side = 0; side < 2; side++)
            out->q[g][side] = _mm256_sub_epi8(load_side(groups[g], side), _mm256_set1_epi8((char)(128 - plus)));
}

ALWAYS_INLINE void decode_nibbles(const uint8_t groups[4][MR_PANEL][4], step *out) {
    __m256i low = _mm256_set1_epi8(15);
    for (int g = 0; g < 4; g++)
        for (int side = 0; side < 2; side++) {
            __m256i x = load_side(groups[g], side);
            out->q[g][side] = _mm256_and_si256(x, low);
            out->q[g + 4][side] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
        }
}

/* What the nibbles stand for, plus an offset. */
ALWAYS_INLINE void look_up(const int8_t values[16], int plus, step *out) {
    __m128i table = _mm_add_epi8(_mm_loadu_si128((const void *)values), _mm_set1_epi8((char)plus));
    for (int g = 0; g < 8; g++)
        for (int side = 0; side < 2; side++)
            out->q[g][side] = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), out->q[g][side]);
}

ALWAYS_INLINE void decode_q8_0(const uint8_t *block, int sub, step *out) {
    const mr_panel_q8_0 *p = (const mr_panel_q8_0 *)(const void *)block;
    (void)sub;
    decode_bytes(p->q, SIGNED_OFFSET, out);
    for (int side = 0; side < 2; side++)
        out->scale[0][side] = halves(p->d, side);
}

ALWAYS_INLINE void decode_q4_0(const uint8_t *block, int sub, step *out) {
    const mr_panel_q4_0 *p = (const mr_panel_q4_0 *)(const void *)block;
    (void)sub;
    decode_nibbles(p->q, out);
    for (int side = 0; side < 2; side++)
        out->scale[0][side] = halves(p->d, side);
}

ALWAYS_INLINE void decode_iq4_nl(const uint8_t *block, int sub, step *out) {
    decode_q4_0(block, sub, out);
    look_up(mr_iq4_values, SIGNED_OFFSET, out);
}

/* 2^(e - 128): e - 1 in the place of the exponent, and 0 for e < 2. */
ALWAYS_INLINE __m256 mxfp4_scales(const uint8_t *e, int side) {
    __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(e + 8 * side)));
    x = _mm256_max_epi32(_mm256_sub_epi32(x, _mm256_set1_epi32(1)), _mm256_setzero_si256());
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 23));
}

enum { MXFP4_OFFSET = 12 }; /* values -12..12 become 0..24 */

ALWAYS_INLINE void decode_mxfp4(const uint8_t *block, int sub, step *out) {
    const mr_panel_mxfp4 *p = (const mr_panel_mxfp4 *)(const void *)block;
    (void)sub;
    decode_nibbles(p->q, out);
    look_up(mr_mxfp4_values, MXFP4_OFFSET, out);
    for (int side = 0; side < 2; side++)
        out->scale[0][side] = mxfp4_scales(p->e, side);
}

ALWAYS_INLINE void decode_q4_k(const uint8_t *block, int sub, step *out) {
    const mr_panel_q4_k *p = (const mr_panel_q4_k *)(const void *)block;
    decode_nibbles(p->q[sub], out);
    for (int side = 0; side < 2; side++) {
        out->scale[0][side] = _mm256_mul_ps(halves(p->d, side), bytes_u8(p->scale[sub].sc, side));
        out->min[0][side] = negated(_mm256_mul_ps(halves(p->dmin, side), bytes_u8(p->scale[sub].m, side)));
    }
}

ALWAYS_INLINE void decode_q5_k(const uint8_t *block, int sub, step *out) {
    const mr_panel_q5_k *p = (const mr_panel_q5_k *)(const void *)block;
    __m256i bit = _mm256_set1_epi8(16);
    decode_q4_k(block, sub, out);
    for (int side = 0; side < 2; side++) {
        __m256i high = load_side(p->high[sub], side);
        for (int g = 0; g < 8; g++) {
            __m256i moved = g < 4 ? _mm256_slli_epi16(high, 4 - g) : _mm256_srli_epi16(high, g - 4);
            out->q[g][side] = _mm256_or_si256(out->q[g][side], _mm256_and_si256(moved, bit));
        }
    }
}

ALWAYS_INLINE void decode_q6_k(const uint8_t *block, int sub, step *out) {
    const mr_panel_q6_k *p = (const mr_panel_q6_k *)(const void *)block;
    __m256i low = _mm256_set1_epi8(63);
    for (int h = 0; h < 2; h++)
        for (int side = 0; side < 2; side++) {
            int j = 2 * sub + h;
            __m256i a = load_side(p->q[j][0], side), b = load_side(p->q[j][1], side), c = load_side(p->q[j][2], side);
            out->q[4 * h][side] = _mm256_and_si256(a, low);
            out->q[4 * h + 1][side] = _mm256_and_si256(b, low);
            out->q[4 * h + 2][side] = _mm256_and_si256(c, low);
            a = _mm256_and_si256(_mm256_srli_epi16(a, 2), _mm256_set1_epi8(0x30));
            b = _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(0x0c));
            c = _mm256_and_si256(_mm256_srli_epi16(c, 6), _mm256_set1_epi8(0x03));
            out->q[4 * h + 3][side] = _mm256_or_si256(_mm256_or_si256(a, b), c);
            out->scale[h][side] = _mm256_mul_ps(halves(p->d, side), bytes_i8(p->sc[j], side));
        }
}

ALWAYS_INLINE void decode_iq4_xs(const uint8_t *block, int sub, step *out) {
    const mr_panel_iq4_xs *p = (const mr_panel_iq4_xs *)(const void *)block;
    decode_nibbles(p->q[sub], out);
    look_up(mr_iq4_values, SIGNED_OFFSET, out);
    for (int side = 0; side < 2; side++)
        out->scale[0][side] = _mm256_mul_ps(halves(p->d, side), bytes_i8(p->sc[sub], side));
}

/* Values are within -62..62: with 64 added they are positive and small. */
ALWAYS_INLINE void decode_x8(const uint8_t *block, int sub, step *out) {
    const mr_panel_x8 *p = (const mr_panel_x8 *)(const void *)block;
    (void)sub;
    decode_bytes(p->q, X8_OFFSET, out);
    for (int h = 0; h < 2; h++)
        for (int side = 0; side < 2; side++)
            out->scale[h][side] = _mm256_loadu_ps(p->scale[h] + 8 * side);
}

/* Values are within 0..31. */
ALWAYS_INLINE void decode_x8m(const uint8_t *block, int sub, step *out) {
    const mr_panel_x8m *p = (const mr_panel_x8m *)(const void *)block;
    (void)sub;
    decode_bytes(p->q, 0, out);
    for (int h = 0; h < 2; h++)
        for (int side = 0; side < 2; side++) {
            out->scale[h][side] = _mm256_loadu_ps(p->scale[h] + 8 * side);
            out->min[h][side] = _mm256_loadu_ps(p->min[h] + 8 * side);
        }
}

#define MATMUL(name, k, scales, plus, adds, with_sign, with_min)                                                       \
    void LEVEL(mr_matmul_##name)(const mr_matmul_args *args, int32_t panel_first, int32_t panel_last,                  \
                                 int32_t row_first, int32_t row_last) {                                                \
        const format f = {.block_k = k,                                                                                \
                          .block_bytes = sizeof(mr_panel_##name),                                                      \
                          .n_scales = scales,                                                                          \
                          .offset = plus,                                                                              \
                          .run = adds,                                                                                 \
                          .is_signed = with_sign,                                                                      \
                          .has_min = with_min,                                                                         \
                          .decode = decode_##name};                                                                    \
        matmul(&f, args, panel_first, panel_last, row_first, row_last);                                                \
    }

typedef mr_panel_q4_0 mr_panel_iq4_nl;
MATMUL(q8_0, 32, 1, SIGNED_OFFSET, 1, IS_SIGNED, false)
MATMUL(q4_0, 32, 1, 8, 4, false, false)
MATMUL(iq4_nl, 32, 1, SIGNED_OFFSET, 1, IS_SIGNED, false)
MATMUL(mxfp4, 32, 1, MXFP4_OFFSET, 4, false, false)
MATMUL(q4_k, 256, 1, 0, 4, false, true)
MATMUL(q5_k, 256, 1, 0, 4, false, true)
MATMUL(q6_k, 256, 2, 32, 2, false, false)
MATMUL(iq4_xs, 256, 1, SIGNED_OFFSET, 1, IS_SIGNED, false)
MATMUL(x8, 32, 2, X8_OFFSET, 1, false, false)
MATMUL(x8m, 32, 2, 0, 4, false, true)

#endif
