/* engine/tensor/quant.h - the block formats of GGUF and the values of their elements in float. This is the
 * specification of every weight type. The kernels of devices use the blocks and the functions that are MR_INLINE.
 * Source: the GGUF specification and the public block structures of ggml; K-quants and IQ types by I. Kawrakow (ggml PR
 * 1684 and later), TQ by Compilade, MXFP4 by the Open Compute Project's microscaling formats.
 * All f16 numbers are little-endian. A block may lie at any address. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_QUANT_H
#define MR_ENGINE_TENSOR_QUANT_H

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/fmath.h"
#include "engine/base/le.h"
#include "engine/tensor/type.h"

enum { MR_Q8_0_BLOCK = 32, MR_QK_BLOCK = 256 };

/* Types of 4 bits hold 32 elements in 16 bytes: byte i has element i in the low and 16 + i in the high nibble. */

/* x = d * (q - 8); for IQ4_NL x = d * mr_iq4_values[q] */
typedef struct __attribute__((packed)) mr_block_q4_0 {
    uint16_t d; /* f16, like every d, m and dmin below */
    uint8_t q[16];
} mr_block_q4_0;

/* x = d * q + m */
typedef struct __attribute__((packed)) mr_block_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
} mr_block_q4_1;

/* x = d * (q - 16), where bit 4 of q[i] is bit i of high */
typedef struct __attribute__((packed)) mr_block_q5_0 {
    uint16_t d;
    uint8_t high[4], q[16];
} mr_block_q5_0;

/* x = d * q + m */
typedef struct __attribute__((packed)) mr_block_q5_1 {
    uint16_t d, m;
    uint8_t high[4], q[16];
} mr_block_q5_1;

/* x = mr_mxfp4_scale(e) * mr_mxfp4_values[q] */
typedef struct mr_block_mxfp4 {
    uint8_t e, q[16];
} mr_block_mxfp4;

/* Sixteen sub-blocks of 16: x = d * sc[j] * q - dmin * m[j]. sc[j] is the low and m[j] the high nibble of scales[j]. q
 * has 2 bits: element 128 h + 32 p + l is in q[32 h + l] at bit 2 p. */
typedef struct __attribute__((packed)) mr_block_q2_k {
    uint8_t scales[16], q[64];
    uint16_t d, dmin;
} mr_block_q2_k;

/* Sixteen sub-blocks of 16: x = d * (sc[j] - 32) * q, q in -4..3. q is the two bits as in Q2_K, minus 4 if the
 * element's bit of high is 0. That bit is bit i / 32 of high[i % 32]. */
typedef struct __attribute__((packed)) mr_block_q3_k {
    uint8_t high[32], q[64], scales[12]; /* read by mr_q3_k_scale */
    uint16_t d;
} mr_block_q3_k;

/* x[i] = d * q[i] */
typedef struct __attribute__((packed)) mr_block_q8_0 {
    uint16_t d; /* f16 */
    int8_t q[32];
} mr_block_q8_0;

/* Eight sub-blocks of 32: x = d * sc[j] * q - dmin * m[j], q of 4 bits. Each pair of sub-blocks (2p, 2p + 1) has 32
 * bytes of q: the low nibbles are sub-block 2p, the high ones sub-block 2p + 1. */
typedef struct __attribute__((packed)) mr_block_q4_k {
    uint16_t d, dmin;   /* f16 */
    uint8_t scales[12]; /* eight 6-bit sc and eight 6-bit m, packed; read by mr_q4_k_scale */
    uint8_t q[128];
} mr_block_q4_k;

/* Like Q4_K, but q has 5 bits: bit 4 of element i is bit i / 32 of high[i % 32]. */
typedef struct __attribute__((packed)) mr_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12], high[32], q[128];
} mr_block_q5_k;

/* Sixteen sub-blocks of 16: x = d * sc[j] * (q - 32), q of 6 bits: four in ql, two in qh. For each half h of 128
 * elements, and l in 0..31: element h*128 + l      = ql[h*64 + l] low,       qh[h*32 + l] bits 0-1
 *                         h*128 + l + 32 = ql[h*64 + l + 32] low,  bits 2-3
 *                         h*128 + l + 64 = ql[h*64 + l] high,      bits 4-5
 *                         h*128 + l + 96 = ql[h*64 + l + 32] high, bits 6-7 */
typedef struct __attribute__((packed)) mr_block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t sc[16];
    uint16_t d; /* f16 */
} mr_block_q6_k;

/* Eight sub-blocks of 32: x = d * (sc[j] - 32) * mr_iq4_values[q], with nibbles as in Q4_0. mr_iq4_xs_scale returns sc
 * - 32. */
typedef struct __attribute__((packed)) mr_block_iq4_xs {
    uint16_t d;
    uint16_t scales_high; /* little-endian */
    uint8_t scales_low[4], q[128];
} mr_block_iq4_xs;

/* x = d * (q - 1), where q in 0..2 is a digit of base 3. A byte is the fraction 0.ttttt (base 3) times 256, rounded up,
 * so multiplying by 3 carries the next digit out. Digit t of byte i is element i + 32 t for bytes 0..31, and 160 + i +
 * 16 t for the next 16 bytes. high holds elements 240 + i + 4 t. */
typedef struct __attribute__((packed)) mr_block_tq1_0 {
    uint8_t q[48], high[4];
    uint16_t d;
} mr_block_tq1_0;

/* x = d * (q - 1), where q has two bits as in Q2_K */
typedef struct __attribute__((packed)) mr_block_tq2_0 {
    uint8_t q[64];
    uint16_t d;
} mr_block_tq2_0;

/* The IQ1, IQ2 and IQ3 types store indices of lattice points with 8 or 4 elements: see quant_iq.c. All numbers are
 * little-endian. */
typedef struct __attribute__((packed)) mr_block_iq2_xxs {
    uint16_t d;
    struct __attribute__((packed)) {
        uint8_t idx[4];
        uint32_t signs; /* four times 7 bits of signs, scale in the top 4 bits */
    } sub[8];
} mr_block_iq2_xxs;
typedef struct __attribute__((packed)) mr_block_iq2_xs {
    uint16_t d;
    uint16_t q[32]; /* 9 bits of index, 7 bits of signs */
    uint8_t scales[8];
} mr_block_iq2_xs;
typedef struct __attribute__((packed)) mr_block_iq2_s {
    uint16_t d;
    uint8_t idx[32], signs[32], idx_high[8], scales[8];
} mr_block_iq2_s;
typedef struct __attribute__((packed)) mr_block_iq3_xxs {
    uint16_t d;
    uint8_t idx[64];
    uint32_t signs[8]; /* as in IQ2_XXS */
} mr_block_iq3_xxs;
typedef struct __attribute__((packed)) mr_block_iq3_s {
    uint16_t d;
    uint8_t idx[64], idx_high[8], signs[32], scales[4];
} mr_block_iq3_s;
typedef struct __attribute__((packed)) mr_block_iq1_s {
    uint16_t d;
    uint8_t idx[32];
    uint16_t high[8]; /* four times 3 bits of index, 3 bits of scale, sign of the shift */
} mr_block_iq1_s;
typedef struct __attribute__((packed)) mr_block_iq1_m {
    uint8_t idx[32], high[16];
    uint16_t scales[4]; /* four times 3 bits of scale; the top 4 bits of all four are d */
} mr_block_iq1_m;

static_assert(sizeof(mr_block_q4_0) == 18 && sizeof(mr_block_q4_1) == 20, "Q4_0, Q4_1, IQ4_NL blocks");
static_assert(sizeof(mr_block_q5_0) == 22 && sizeof(mr_block_q5_1) == 24, "Q5_0, Q5_1 blocks");
static_assert(sizeof(mr_block_mxfp4) == 17, "MXFP4 block");
static_assert(sizeof(mr_block_q8_0) == 34, "Q8_0 block");
static_assert(sizeof(mr_block_q2_k) == 84 && sizeof(mr_block_q3_k) == 110, "Q2_K, Q3_K blocks");
static_assert(sizeof(mr_block_q5_k) == 176 && sizeof(mr_block_iq4_xs) == 136, "Q5_K, IQ4_XS blocks");
static_assert(sizeof(mr_block_tq1_0) == 54 && sizeof(mr_block_tq2_0) == 66, "TQ blocks");
static_assert(sizeof(mr_block_iq2_xxs) == 66 && sizeof(mr_block_iq2_xs) == 74, "IQ2_XXS, IQ2_XS blocks");
static_assert(sizeof(mr_block_iq2_s) == 82 && sizeof(mr_block_iq3_xxs) == 98, "IQ2_S, IQ3_XXS blocks");
static_assert(sizeof(mr_block_iq3_s) == 110 && sizeof(mr_block_iq1_s) == 50, "IQ3_S, IQ1_S blocks");
static_assert(sizeof(mr_block_iq1_m) == 56, "IQ1_M block");
static_assert(sizeof(mr_block_q4_k) == 144, "Q4_K block");
static_assert(sizeof(mr_block_q6_k) == 210, "Q6_K block");

/* Returns the 6-bit scale and minimum of sub-block j, 0..7. */
MR_INLINE void mr_q4_k_scale(const uint8_t scales[12], int j, uint8_t *out_sc, uint8_t *out_m) {
    if (j < 4) {
        *out_sc = scales[j] & 63;
        *out_m = scales[j + 4] & 63;
    } else {
        *out_sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *out_m = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6) << 4);
    }
}
/* Returns the 6-bit value (0..63) of element i, 0..255. */
MR_INLINE uint8_t mr_q6_k_value(const mr_block_q6_k *b, int i) {
    int h = i / 128, part = i % 128 / 32, l = i % 32;
    uint8_t low = b->ql[h * 64 + (part & 1) * 32 + l];
    return (uint8_t)((part < 2 ? low & 15 : low >> 4) | (b->qh[h * 32 + l] >> (2 * part) & 3) << 4);
}
/* Returns the 4-bit value (0..15) of element i, 0..255. */
MR_INLINE uint8_t mr_q4_k_value(const mr_block_q4_k *b, int i) {
    uint8_t byte = b->q[i / 64 * 32 + i % 32];
    return (uint8_t)(i % 64 < 32 ? byte & 15 : byte >> 4);
}

/* Returns the scale of sub-block j, 0..15, of Q3_K: -32..31. */
MR_INLINE int8_t mr_q3_k_scale(const uint8_t scales[12], int j) {
    int low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
    return (int8_t)((low | high << 4) - 32);
}
/* Returns the scale of sub-block j, 0..7, of IQ4_XS: -32..31. */
MR_INLINE int8_t mr_iq4_xs_scale(const mr_block_iq4_xs *b, int j) {
    int low = b->scales_low[j / 2] >> (j % 2 * 4) & 15, high = MR_LE16(b->scales_high) >> (2 * j) & 3;
    return (int8_t)((low | high << 4) - 32);
}
/* 2^(e - 128), or 0 for the two values of e whose scale is denormal (rule A2). */
MR_INLINE float mr_mxfp4_scale(uint8_t e) {
    return mr_bits_f32(e < 2 ? 0 : (uint32_t)(e - 1) << 23);
}

/* The values of nibbles: for IQ4_NL and IQ4_XS, and for MXFP4. */
#define MR_IQ4_VALUES -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113
#define MR_MXFP4_VALUES 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
extern const int8_t mr_iq4_values[16];
extern const int8_t mr_mxfp4_values[16]; /* twice the values of E2M1, with 0 instead of -0 */

/* One unpacked block of a quantised type: x[i] = scale[i / 16] * q[i] + min[i / 16], each operation rounded. */
typedef struct mr_quants {
    int8_t q[MR_QK_BLOCK];
    float scale[MR_QK_BLOCK / 16], min[MR_QK_BLOCK / 16];
} mr_quants;

/* Unpacks a block of any quantised weight type. Writes only block_elems elements, and min only for types that have a
 * minimum (mr_has_min). */
void mr_unpack(mr_type type, const uint8_t *block, mr_quants *out);
bool mr_has_min(mr_type type);

/* Writes the values of n elements at src to out[n]. src has the layout of the file; n is a multiple of the type's
 * block. Products are rounded in the order written above. For types with is_weight in the type table. */
void mr_dequantize(mr_type type, const void *src, float *out, int64_t n);

/* Sets the scale of a block, and the factor of its minimum if the type has one. This makes valid blocks of random
 * bytes. d and min are f16; MXFP4 takes the exponent of d alone. For quantised weight types and F16; BF16 gets d as its
 * value. */
void mr_block_set_scale(mr_type type, uint8_t *block, uint16_t d, uint16_t min);

#endif
