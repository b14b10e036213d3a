/* engine/base/top.h - the first tokens of a row of logits, as a device finds them (op TOP): the highest logits, and the
 * sum of all weights. Most requests are sampled from this, and 128k logits are 512 KB where this is 8 KB. Plain data,
 * and the functions by which devices and the sampler order logits and weigh them.
 * Threads: pure functions. Denormals are flushed where they are called (thread.h). Errors: none. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_TOP_H
#define MR_ENGINE_BASE_TOP_H

#include "engine/base/fmath.h"

enum { MR_TOP_TOKENS = 1024 };

/* The first MR_TOP_TOKENS tokens of a row: by higher logit, then by lower id. A smaller vocabulary has all its tokens
 * here. Entries from n on are zeros. If a logit is NaN, everything is 0. */
typedef struct mr_top {
    uint64_t sum;               /* of the weights of all tokens, with temperature 1 (rule D of engine/NUMERICS.md) */
    int32_t n;                  /* 0: a logit is NaN */
    int32_t unused;             /* 0 */
    int32_t ids[MR_TOP_TOKENS]; /* rising */
    float logits[MR_TOP_TOKENS];
} mr_top;

enum { MR_TOP_COLUMNS = sizeof(mr_top) / sizeof(int32_t) }; /* of a tensor with an mr_top in each row */

/* Returns a number that has the order of the logits. Both zeros, and what is flushed to zero, give the same number. */
MR_INLINE uint32_t mr_logit_key(float logit) {
    uint32_t u = mr_f32_bits(logit + 0.0f);
    return u >> 31 ? ~u : u | UINT32_C(1) << 31;
}
MR_INLINE float mr_key_logit(uint32_t key) {
    return mr_bits_f32(key >> 31 ? key ^ UINT32_C(1) << 31 : ~key);
}

/* Returns the weight of a logit: 2^40 * e^below, to nearest, ties to even. below is at most 0: the logit minus the
 * highest one, divided by the temperature. */
MR_INLINE uint64_t mr_weight_of(float below) {
    /* Adding 2^52 to a number of [0, 2^51] rounds it to the last bit of the mantissa. */
    double shifted = (double)mr_expf(below) * 0x1p40 + 0x1p52;
    uint64_t u;
    memcpy(&u, &shifted, sizeof u);
    return u - UINT64_C(0x4330000000000000);
}

#endif
