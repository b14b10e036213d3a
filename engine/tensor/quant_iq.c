/* engine/tensor/quant_iq.c - unpacks the IQ1, IQ2 and IQ3 types, whose blocks hold indices of lattice points.
 * IQ2 and IQ3: x = scale * value * sign. IQ1: x = scale * (value + shift), where shift is 1/8 or -1/8. For IQ1 the
 * values are multiplied by eight, so that they are integers, and the scale is divided by eight; both are exact. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/f16.h"
#include "engine/tensor/quant_internal.h"
#include "engine/tensor/quant_iq_grids.h"

static const int8_t IQ2_VALUES[4] = {8, 25, 43, 0}; /* no point has the index 3 */
static const int8_t IQ3_XXS_VALUES[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const int8_t IQ3_S_VALUES[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Adds the eighth sign, which makes the number of minus signs even. */
static uint8_t signs_of_7_bits(uint32_t bits) {
    bits &= 127;
    return (uint8_t)(bits | (uint32_t)__builtin_parity(bits) << 7);
}

/* Element i is negative if bit i of signs is set. */
static void put_point_8(uint16_t point, const int8_t values[4], uint8_t signs, int8_t q[8]) {
    for (int i = 0; i < 8; i++) {
        int8_t v = values[point >> (2 * i) & 3];
        q[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}
static void put_point_4(uint16_t point, const int8_t values[8], uint8_t signs, int8_t q[4]) {
    for (int i = 0; i < 4; i++) {
        int8_t v = values[point >> (3 * i) & 7];
        q[i] = (int8_t)(signs >> i & 1 ? -v : v);
    }
}

void unpack_iq2_xxs(const uint8_t *block, mr_quants *out) {
    const mr_block_iq2_xxs *b = (const mr_block_iq2_xxs *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 8; j++) {
        uint32_t signs = MR_LE32(b->sub[j].signs);
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (0.5f + (float)(signs >> 28)) * 0.25f;
        for (int p = 0; p < 4; p++)
            put_point_8(mr_iq2_xxs_grid[b->sub[j].idx[p]], IQ2_VALUES, signs_of_7_bits(signs >> (7 * p)),
                        out->q + 32 * j + 8 * p);
    }
}

/* Scale j of 16 elements is a nibble of scales. */
static float iq2_scale(float d, const uint8_t scales[8], int j) {
    return d * (0.5f + (float)(scales[j / 2] >> (j % 2 * 4) & 15)) * 0.25f;
}

void unpack_iq2_xs(const uint8_t *block, mr_quants *out) {
    const mr_block_iq2_xs *b = (const mr_block_iq2_xs *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 16; j++)
        out->scale[j] = iq2_scale(d, b->scales, j);
    for (int p = 0; p < 32; p++) {
        uint16_t q = MR_LE16(b->q[p]);
        put_point_8(mr_iq2_xs_grid[q & 511], IQ2_VALUES, signs_of_7_bits(q >> 9), out->q + 8 * p);
    }
}

void unpack_iq2_s(const uint8_t *block, mr_quants *out) {
    const mr_block_iq2_s *b = (const mr_block_iq2_s *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 16; j++)
        out->scale[j] = iq2_scale(d, b->scales, j);
    for (int p = 0; p < 32; p++) {
        int idx = b->idx[p] | (b->idx_high[p / 4] >> (p % 4 * 2) & 3) << 8;
        put_point_8(mr_iq2_s_grid[idx], IQ2_VALUES, b->signs[p], out->q + 8 * p);
    }
}

void unpack_iq3_xxs(const uint8_t *block, mr_quants *out) {
    const mr_block_iq3_xxs *b = (const mr_block_iq3_xxs *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 8; j++) {
        uint32_t all = MR_LE32(b->signs[j]);
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (0.5f + (float)(all >> 28)) * 0.5f;
        for (int p = 0; p < 8; p++) {
            uint8_t signs = signs_of_7_bits(all >> (7 * (p / 2)));
            put_point_4(mr_iq3_xxs_grid[b->idx[8 * j + p]], IQ3_XXS_VALUES, (uint8_t)(signs >> (p % 2 * 4)),
                        out->q + 32 * j + 4 * p);
        }
    }
}

void unpack_iq3_s(const uint8_t *block, mr_quants *out) {
    const mr_block_iq3_s *b = (const mr_block_iq3_s *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 8; j++) {
        int scale = b->scales[j / 2] >> (j % 2 * 4) & 15;
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (float)(1 + 2 * scale);
    }
    for (int p = 0; p < 64; p++) {
        int idx = b->idx[p] | (b->idx_high[p / 8] >> (p % 8) & 1) << 8;
        put_point_4(mr_iq3_s_grid[idx], IQ3_S_VALUES, (uint8_t)(b->signs[p / 2] >> (p % 2 * 4)), out->q + 4 * p);
    }
}

/* Writes a point of the IQ1 lattice with its shift, times eight. */
static void put_point_iq1(int idx, bool minus, int8_t q[8]) {
    for (int i = 0; i < 8; i++)
        q[i] = (int8_t)(8 * ((mr_iq1_grid[idx] >> (2 * i) & 3) - 1) + (minus ? -1 : 1));
}

void unpack_iq1_s(const uint8_t *block, mr_quants *out) {
    const mr_block_iq1_s *b = (const mr_block_iq1_s *)block;
    float d = mr_f16_to_f32(b->d);
    for (int j = 0; j < 8; j++) {
        uint16_t high = MR_LE16(b->high[j]);
        out->scale[2 * j] = out->scale[2 * j + 1] = d * (float)(2 * (high >> 12 & 7) + 1) * 0.125f;
        for (int p = 0; p < 4; p++)
            put_point_iq1(b->idx[4 * j + p] | (high >> (3 * p) & 7) << 8, high >> 15, out->q + 32 * j + 8 * p);
    }
}

void unpack_iq1_m(const uint8_t *block, mr_quants *out) {
    const mr_block_iq1_m *b = (const mr_block_iq1_m *)block;
    uint16_t half = 0;
    for (int i = 0; i < 4; i++)
        half = (uint16_t)(half | MR_LE16(b->scales[i]) >> 12 << (4 * i));
    float d = mr_f16_to_f32(half);
    for (int j = 0; j < 16; j++)
        out->scale[j] = d * (float)(2 * (MR_LE16(b->scales[j / 4]) >> (j % 4 * 3) & 7) + 1) * 0.125f;
    for (int p = 0; p < 32; p++) {
        int high = b->high[p / 2] >> (p % 2 * 4);
        put_point_iq1(b->idx[p] | (high & 7) << 8, high & 8, out->q + 8 * p);
    }
}
