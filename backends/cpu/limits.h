/* backends/cpu/limits.h - measures the peak speed of this machine with loops that only read memory or only multiply.
 * Benchmarks compare the program's speed with these limits.
 * Owns:    nothing. Threads: starts options->n_threads - 1 threads for the time of the call; the caller computes, too.
 * Errors:  MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_LIMITS_H
#define MR_BACKENDS_CPU_LIMITS_H

#include "backends/cpu/cpu_backend.h"

/* Amounts per second of all threads together. A product is a multiplication and the addition of its result. */
typedef struct mr_cpu_limits {
    double read_bytes; /* each thread reads its own part of a block far larger than the caches, once from end to end */
    double int8_products; /* in registers, by the instructions of mr_isa_detect() */
    double f32_products;  /* likewise */
    double core_share;    /* share of the products' time in which the calling thread had a core; 1: all of it */
} mr_cpu_limits;

/* Measures the limits: the best of several runs of each loop. Takes less than a second. */
MR_MUST_USE mr_status mr_cpu_limits_measure(const mr_cpu_options *options, mr_cpu_limits *out, mr_err *err);

/* --- The loops, in kernels/limits_*.c: internal to the CPU backend ----------------------------------------------- */

/* Reads bytes (a multiple of 1024) at p, which is aligned to 64. */
typedef void mr_limit_read_fn(const uint8_t *p, size_t bytes);
/* Computes n rounds of products, and returns the number of products in a round. */
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
