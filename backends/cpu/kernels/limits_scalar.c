/* backends/cpu/kernels/limits_scalar.c - the loops of limits.h in plain C, as fast as the compiler makes them. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/limits.h"

enum { N = 64 };

/* Tells the compiler that the value is read and changed here, so the compiler can neither remove a loop nor compute its
 * result in advance. */
#define KEEP(x) __asm__ volatile("" : "+m"(x))

void mr_limit_read_scalar(const uint8_t *p, size_t bytes) {
    uint64_t sum[8] = {0};
    for (const uint64_t *q = (const uint64_t *)(const void *)p, *end = q + bytes / sizeof *q; q < end; q += 8)
        for (int i = 0; i < 8; i++)
            sum[i] ^= q[i];
    KEEP(sum);
}

int32_t mr_limit_int8_scalar(int64_t n) {
    int8_t a[N] = {3}, b[N] = {5};
    int32_t sum = 0;
    for (int64_t r = 0; r < n; r++) {
        KEEP(a);
        for (int i = 0; i < N; i++)
            sum += a[i] * b[i];
        KEEP(sum);
    }
    return N;
}

int32_t mr_limit_f32_scalar(int64_t n) {
    float a[N] = {1}, sum[N] = {0};
    for (int64_t r = 0; r < n; r++) {
        KEEP(a);
        for (int i = 0; i < N; i++)
            sum[i] += a[i] * 0.5f;
        KEEP(sum);
    }
    return N;
}
