/* tests/support/rng.h - random numbers for tests that draw one after the other: the upper half of a linear congruential
 * generator modulo 2^64. The same seed gives the same numbers on every machine.
 *
 *     rng r = {.state = seed};
 *     float x = rng_unit(&r);
 *
 * Use engine/base/rng.h where a random number must depend on an index alone. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_RNG_H
#define MR_TESTS_SUPPORT_RNG_H

#include <stdint.h>

typedef struct rng {
    uint64_t state; /* the seed before the first call */
} rng;

static inline uint32_t rng_next(rng *r) {
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(r->state >> 32);
}

/* 0 .. n - 1 */
static inline int32_t rng_below(rng *r, int32_t n) {
    return (int32_t)(rng_next(r) % (uint32_t)n);
}

/* -1 .. 1 */
static inline float rng_unit(rng *r) {
    return (float)(int32_t)rng_next(r) * 0x1p-31f;
}

#endif
