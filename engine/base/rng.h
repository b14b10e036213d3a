/* engine/base/rng.h - counter-based random numbers: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", 2011. A number is a pure function of its arguments, so a sequence can be replayed
 * without saved state.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_RNG_H
#define MR_ENGINE_BASE_RNG_H

#include <stdint.h>

typedef struct mr_philox {
    uint32_t word[4];
} mr_philox;

/* Ten rounds of Philox on the counter, with the key. */
mr_philox mr_philox4x32(mr_philox counter, uint32_t key0, uint32_t key1);

/* Returns 64 uniform bits: the first word of the output above the second. The key is the seed, low half first. The
 * counter is counter and then stream, low halves first. */
uint64_t mr_rng_u64(uint64_t seed, uint64_t stream, uint64_t counter);
/* Uniform in [0, 1), a multiple of 2^-24: the top 24 bits of mr_rng_u64. */
float mr_rng_f32(uint64_t seed, uint64_t stream, uint64_t counter);

#endif
