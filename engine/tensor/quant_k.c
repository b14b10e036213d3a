/* engine/tensor/quant_k.c - unpacks the types with blocks of 256 elements: K-quants, IQ4_XS and the ternary types
 * TQ. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/f16.h"
#include "engine/tensor/quant_internal.h"

/* Writes the two bits of each element, minus offset. Element 128 h + 32 p + l is in q[32 h + l] at bit 2 p. */
static void unpack_2_bits(const uint8_t q[64], int offset, int8_t out[MR_QK_BLOCK]) {
    for (int part = 0; part < 8; part++)
        for (int l = 0; l < 32; l++)
            out[32 * part + l] = (int8_t)((q[part / 4 * 32 + l] >> (part % 4 * 2) & 3) - offset);
}

void unpack_q2_k(const uint8_t *block, mr_quants *out) {
    const mr_block_q2_k *b = (const mr_block_q2_k *)block;
    float d = mr_f16_to_f32(b->d), dmin = mr_f16_to_f32(b->dmin);
    for (int j = 0; j < 16; j++) {
        out->scale[j] = d * (float)(b->scales[j] & 15);
        out->min[j] = -(dmin * (float)(b->scales[j] >> 4));
    }
    unpack_2_bits(b->q, 0, out->q);
}

void unpack_q3_k(const uint8_t *block, mr_quants *out) {
    const mr_block_q3_k *b = (const mr_block_q3_k *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 16; j++)
        out->scale[j] = d * (float)mr_q3_k_scale(b->scales, j);
    unpack_2_bits(b->q, 4, out->q);
    for (int part = 0; part < 8; part++)
        for (int l = 0; l < 32; l++)
            out->q[32 * part + l] = (int8_t)(out->q[32 * part + l] + (b->high[l] >> part & 1) * 4);
}

/* Writes scales and minima of Q4_K and Q5_K. */
static void unpack_scales_k4(uint16_t d_half, uint16_t dmin_half, const uint8_t scales[12], mr_quants *out) {
    float d = mr_f16_to_f32(d_half), dmin = mr_f16_to_f32(dmin_half);
    for (int j = 0; j < 8; j++) {
        uint8_t sc, m;
        mr_q4_k_scale(scales, j, &sc, &m);
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (float)sc;
        out->min[2 * j] = out->min[2 * j + 1] = -(dmin * (float)m);
    }
}

/* Writes the nibbles of Q4_K and Q5_K. Each pair of sub-blocks has 32 bytes; the first sub-block is in the low
 * nibbles. */
static void unpack_nibbles_k4(const uint8_t q[128], int8_t out[MR_QK_BLOCK]) {
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 32; l++)
            out[32 * j + l] = (int8_t)(q[j / 2 * 32 + l] >> (j % 2 * 4) & 15);
}

void unpack_q4_k(const uint8_t *block, mr_quants *out) {
    const mr_block_q4_k *b = (const mr_block_q4_k *)block;
    unpack_scales_k4(b->d, b->dmin, b->scales, out);
    unpack_nibbles_k4(b->q, out->q);
}

void unpack_q5_k(const uint8_t *block, mr_quants *out) {
    const mr_block_q5_k *b = (const mr_block_q5_k *)block;
    unpack_scales_k4(b->d, b->dmin, b->scales, out);
    unpack_nibbles_k4(b->q, out->q);
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 32; l++)
            out->q[32 * j + l] = (int8_t)(out->q[32 * j + l] | (b->high[l] >> j & 1) << 4);
}

void unpack_q6_k(const uint8_t *block, mr_quants *out) {
    const mr_block_q6_k *b = (const mr_block_q6_k *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 16; j++)
        out->scale[j] = d * (float)b->sc[j];
    for (int i = 0; i < MR_QK_BLOCK; i++)
        out->q[i] = (int8_t)(mr_q6_k_value(b, i) - 32);
}

void unpack_iq4_xs(const uint8_t *block, mr_quants *out) {
    const mr_block_iq4_xs *b = (const mr_block_iq4_xs *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 8; j++) {
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (float)mr_iq4_xs_scale(b, j);
        unpack_nibbles(b->q + 16 * j, out->q + 32 * j);
    }
    for (int i = 0; i < MR_QK_BLOCK; i++)
        out->q[i] = mr_iq4_values[out->q[i]];
}

static void set_scales(mr_quants *out, float scale) {
    for (int j = 0; j < 16; j++)
        out->scale[j] = scale;
}

/* Writes n bytes with n_digits digits each. Digit t of byte i is element i + n * t. */
static void unpack_base_3(const uint8_t *bytes, int n, int n_digits, int8_t *out) {
    for (int i = 0; i < n; i++) {
        uint8_t rest = bytes[i];
        for (int t = 0; t < n_digits; t++, rest = (uint8_t)(rest * 3))
            out[i + n * t] = (int8_t)((rest * 3 >> 8) - 1);
    }
}

void unpack_tq1_0(const uint8_t *block, mr_quants *out) {
    const mr_block_tq1_0 *b = (const mr_block_tq1_0 *)block;
    set_scales(out, mr_f16_to_f32(b->d));
    unpack_base_3(b->q, 32, 5, out->q);
    unpack_base_3(b->q + 32, 16, 5, out->q + 160);
    unpack_base_3(b->high, 4, 4, out->q + 240);
}

void unpack_tq2_0(const uint8_t *block, mr_quants *out) {
    const mr_block_tq2_0 *b = (const mr_block_tq2_0 *)block;
    set_scales(out, mr_f16_to_f32(b->d));
    unpack_2_bits(b->q, 1, out->q);
}
