/* engine/tensor/quant.h - the block formats of GGUF, and their values in float: the specification of every weight type.
 * Source: the GGUF specification and the public block structures of ggml; K-quants by I. Kawrakow (ggml PR 1684).
 * All halves are little-endian. A block may lie at any address. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_QUANT_H
#define MR_ENGINE_TENSOR_QUANT_H

#include <stdint.h>

#include "engine/tensor/type.h"

enum { MR_Q8_0_BLOCK = 32, MR_QK_BLOCK = 256 };

/* x[i] = d * q[i] */
typedef struct __attribute__((packed)) mr_block_q8_0 {
    uint16_t d; /* f16 */
    int8_t q[32];
} mr_block_q8_0;

/* Eight sub-blocks of 32: x = d * sc[j] * q - dmin * m[j], q of 4 bits.
 * q: for each pair of sub-blocks (2p, 2p + 1) 32 bytes, the low nibbles are sub-block 2p, the high ones 2p + 1. */
typedef struct __attribute__((packed)) mr_block_q4_k {
    uint16_t d, dmin;   /* f16 */
    uint8_t scales[12]; /* eight 6-bit sc and eight 6-bit m, packed: mr_q4_k_scale */
    uint8_t q[128];
} mr_block_q4_k;

/* Sixteen sub-blocks of 16: x = d * sc[j] * (q - 32), q of 6 bits: four in ql, two in qh. For each half h of 128 elements,
 * and l in 0..31: element h*128 + l      = ql[h*64 + l] low,       qh[h*32 + l] bits 0-1
 *                         h*128 + l + 32 = ql[h*64 + l + 32] low,  bits 2-3
 *                         h*128 + l + 64 = ql[h*64 + l] high,      bits 4-5
 *                         h*128 + l + 96 = ql[h*64 + l + 32] high, bits 6-7 */
typedef struct __attribute__((packed)) mr_block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t sc[16];
    uint16_t d; /* f16 */
} mr_block_q6_k;

_Static_assert(sizeof(mr_block_q8_0) == 34, "Q8_0 block");
_Static_assert(sizeof(mr_block_q4_k) == 144, "Q4_K block");
_Static_assert(sizeof(mr_block_q6_k) == 210, "Q6_K block");

/* The 6-bit scale and minimum of sub-block j, 0..7. */
static inline void mr_q4_k_scale(const uint8_t scales[12], int j, uint8_t *out_sc, uint8_t *out_m) {
    if (j < 4) {
        *out_sc = scales[j] & 63;
        *out_m = scales[j + 4] & 63;
    } else {
        *out_sc = (uint8_t)((scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4);
        *out_m = (uint8_t)((scales[j + 4] >> 4) | (scales[j] >> 6) << 4);
    }
}
/* The 6-bit value (0..63) of element i, 0..255. */
static inline uint8_t mr_q6_k_value(const mr_block_q6_k *b, int i) {
    int h = i / 128, part = i % 128 / 32, l = i % 32;
    uint8_t low = b->ql[h * 64 + (part & 1) * 32 + l];
    return (uint8_t)((part < 2 ? low & 15 : low >> 4) | (b->qh[h * 32 + l] >> (2 * part) & 3) << 4);
}
/* The 4-bit value (0..15) of element i, 0..255. */
static inline uint8_t mr_q4_k_value(const mr_block_q4_k *b, int i) {
    uint8_t byte = b->q[i / 64 * 32 + i % 32];
    return (uint8_t)(i % 64 < 32 ? byte & 15 : byte >> 4);
}

/* out[n] = the values of n elements at src (file layout, n a multiple of the block). Products round in the order written
 * above. Types with is_weight in the type table. */
void mr_dequantize(mr_type type, const void *src, float *out, int64_t n);

#endif
