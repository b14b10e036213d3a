/* engine/tensor/quant_internal.h - the functions that unpack each type, for the table in quant.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TENSOR_QUANT_INTERNAL_H
#define MR_ENGINE_TENSOR_QUANT_INTERNAL_H

#include "engine/tensor/quant.h"

/* block: one block of the type, at any address. */
typedef void unpack_fn(const uint8_t *block, mr_quants *out);

/* quant_32.c: blocks of 32 */
unpack_fn unpack_q4_0, unpack_q4_1, unpack_q5_0, unpack_q5_1, unpack_q8_0, unpack_iq4_nl, unpack_mxfp4;
/* quant_k.c: blocks of 256 */
unpack_fn unpack_q2_k, unpack_q3_k, unpack_q4_k, unpack_q5_k, unpack_q6_k, unpack_iq4_xs, unpack_tq1_0, unpack_tq2_0;
/* quant_iq.c: blocks of 256, lattice points */
unpack_fn unpack_iq1_s, unpack_iq1_m, unpack_iq2_xxs, unpack_iq2_xs, unpack_iq2_s, unpack_iq3_xxs, unpack_iq3_s;

/* Writes elements 0..31 from 16 bytes of nibbles. */
static inline void unpack_nibbles(const uint8_t bytes[16], int8_t q[32]) {
    for (int i = 0; i < 16; i++) {
        q[i] = bytes[i] & 15;
        q[16 + i] = (int8_t)(bytes[i] >> 4);
    }
}

#endif
