/* tests/bench/bench_cpu.h - shared by bench_matmul and bench_attention: a plain AVX-512 read loop for comparison, the
 * CPU time of a thread, and the median.
 * Threads: thread-safe; each call uses only its arguments. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_BENCH_BENCH_CPU_H
#define MR_TESTS_BENCH_BENCH_CPU_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static volatile int32_t sink; /* receives results, so that the compiler removes no loop */

/* Reads the bytes, 256 in each round. p is aligned to 64 bytes. */
static __attribute__((target("avx512f"))) void read_loop(const uint8_t *p, size_t bytes) {
    __m512i s[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
    for (size_t i = 0; i + 256 <= bytes; i += 256)
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++)
            s[j] = _mm512_xor_si512(s[j], _mm512_load_si512(p + i + j * 64));
    sink = _mm512_reduce_add_epi32(_mm512_xor_si512(_mm512_xor_si512(s[0], s[1]), _mm512_xor_si512(s[2], s[3])));
}

static inline double thread_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of v. Sorts v. */
static inline double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare_doubles);
    return v[n / 2];
}

#endif
