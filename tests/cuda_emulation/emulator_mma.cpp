/* tests/cuda_emulation/emulator_mma.cpp - products of fragments of bytes (PTX ISA, "Matrix Fragments for
 * mma.m16n8k32"). Most of the time of a large product on an emulated GPU is spent here. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/gpu_emulated.h"

enum { ROWS = 16, COLUMNS = 8, LANES = 32, K = 32 };

/* Of 16 bits, so that compilers find the instruction of the CPU that adds products of pairs. The sanitizers would keep
 * them from it, and have nothing to find in these constant bounds. */
__attribute__((no_sanitize("address", "undefined"), noinline)) static int32_t dot(const int16_t *a, const int16_t *b) {
    int32_t sum = 0;
    for (int k = 0; k < K; k++)
        sum += a[k] * b[k];
    return sum;
}

/* A lane has 4 k of two rows for each half of k. All lanes have the same unsigned_a. */
void emulator_multiply(void **slots) {
    int16_t a[ROWS][K], b[COLUMNS][K];
    for (int l = 0; l < LANES; l++) {
        const emulator_mma *s = (const emulator_mma *)slots[l];
        int g = l / 4, t = l % 4;
        for (int h = 0; h < 2; h++)
            for (int i = 0; i < 4; i++) {
                int k = 16 * h + 4 * t + i;
                uint8_t low = (uint8_t)(s->a[2 * h] >> 8 * i), high = (uint8_t)(s->a[2 * h + 1] >> 8 * i);
                a[g][k] = s->unsigned_a ? low : (int8_t)low;
                a[g + 8][k] = s->unsigned_a ? high : (int8_t)high;
                b[g][k] = (int8_t)(s->b[h] >> 8 * i);
            }
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            const emulator_mma *s = (const emulator_mma *)slots[l];
            s->c[i] += dot(a[l / 4 + 8 * (i / 2)], b[2 * (l % 4) + i % 2]);
        }
}
