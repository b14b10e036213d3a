/* engine/tensor/quant_32.c - unpacks the quantised types with blocks of 32 elements. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/f16.h"
#include "engine/tensor/quant_internal.h"

const int8_t mr_iq4_values[16] = {MR_IQ4_VALUES};
const int8_t mr_mxfp4_values[16] = {MR_MXFP4_VALUES};

static void set_scale(mr_quants *out, float scale) {
    out->scale[0] = out->scale[1] = scale;
}
static void set_min(mr_quants *out, float min) {
    out->min[0] = out->min[1] = min;
}

void unpack_q4_0(const uint8_t *block, mr_quants *out) {
    const mr_block_q4_0 *b = (const mr_block_q4_0 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    unpack_nibbles(b->q, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(out->q[i] - 8);
}

void unpack_q4_1(const uint8_t *block, mr_quants *out) {
    const mr_block_q4_1 *b = (const mr_block_q4_1 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    set_min(out, mr_f16_to_f32(b->m));
    unpack_nibbles(b->q, out->q);
}

/* Writes nibbles with a fifth bit from high, minus offset. */
static void unpack_5_bits(const uint8_t bytes[16], const uint8_t high[4], int offset, int8_t q[32]) {
    unpack_nibbles(bytes, q);
    for (int byte = 0; byte < 4; byte++)
        for (int i = 0; i < 8; i++)
            q[8 * byte + i] = (int8_t)((q[8 * byte + i] | (high[byte] >> i & 1) << 4) - offset);
}

void unpack_q5_0(const uint8_t *block, mr_quants *out) {
    const mr_block_q5_0 *b = (const mr_block_q5_0 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    unpack_5_bits(b->q, b->high, 16, out->q);
}

void unpack_q5_1(const uint8_t *block, mr_quants *out) {
    const mr_block_q5_1 *b = (const mr_block_q5_1 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    set_min(out, mr_f16_to_f32(b->m));
    unpack_5_bits(b->q, b->high, 0, out->q);
}

void unpack_q8_0(const uint8_t *block, mr_quants *out) {
    const mr_block_q8_0 *b = (const mr_block_q8_0 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    memcpy(out->q, b->q, sizeof b->q);
}

void unpack_iq4_nl(const uint8_t *block, mr_quants *out) {
    const mr_block_q4_0 *b = (const mr_block_q4_0 *)block;
    set_scale(out, mr_f16_to_f32(b->d));
    unpack_nibbles(b->q, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = mr_iq4_values[out->q[i]];
}

void unpack_mxfp4(const uint8_t *block, mr_quants *out) {
    const mr_block_mxfp4 *b = (const mr_block_mxfp4 *)block;
    set_scale(out, mr_mxfp4_scale(b->e));
    unpack_nibbles(b->q, out->q);
    for (int i = 0; i < 32; i++)
        out->q[i] = mr_mxfp4_values[out->q[i]];
}
