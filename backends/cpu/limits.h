/* backends/cpu/limits.h - what this machine can do at most, read by loops that do nothing else: the yardstick of
 * benchmarks.
 * Owns:    nothing. Threads: starts those it is told to for the time of the call; the caller's thread is one of them.
 * Errors:  MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_LIMITS_H
#define MR_BACKENDS_CPU_LIMITS_H

#include "backends/cpu/cpu_backend.h"

/* A second, of all threads together. A product is a multiplication and the addition of its result. */
typedef struct mr_cpu_limits {
    double read_bytes; /* each thread reads its own part of a block far larger than the caches, once from end to end */
    double int8_products; /* in registers, by the instructions of mr_isa_detect() */
    double f32_products;  /* likewise */
    double core_share;    /* of the products' time that the calling thread had a core; 1: nobody disturbed it */
} mr_cpu_limits;

/* The best of several runs of each loop; takes less than a second. */
MR_MUST_USE mr_status mr_cpu_limits_measure(const mr_cpu_options *options, mr_cpu_limits *out, mr_err *err);

/* --- The loops, in kernels/limits_*.c: internal to the CPU backend ----------------------------------------------- */

/* Reads bytes (a multiple of 1024) at p, which is aligned to 64. */
typedef void mr_limit_read_fn(const uint8_t *p, size_t bytes);
/* Does some products for each of n rounds, and returns how many there were in a round. */
typedef int32_t mr_limit_product_fn(int64_t n);

mr_limit_read_fn mr_limit_read_scalar;
mr_limit_product_fn mr_limit_int8_scalar, mr_limit_f32_scalar;
#if defined(__x86_64__)
mr_limit_read_fn mr_limit_read_avx2, mr_limit_read_avx512;
mr_limit_product_fn mr_limit_int8_avx2, mr_limit_int8_avx512, mr_limit_f32_avx2, mr_limit_f32_avx512;
#elif defined(__aarch64__)
mr_limit_read_fn mr_limit_read_neon;
mr_limit_product_fn mr_limit_int8_neon, mr_limit_int8_dotprod, mr_limit_f32_neon;
#endif

#endif
