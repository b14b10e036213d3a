/* tests/cuda_emulation/emulator_mma.cpp - products of fragments of bytes (PTX ISA, "Matrix Fragments for
 * mma.m16n8k32"). */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/gpu_emulated.h"

enum { ROWS = 16, COLUMNS = 8, LANES = 32, K = 32 };

/* A lane has 4 k of two rows for each half of k. */
void emulator_multiply(void **slots) {
    uint8_t a[ROWS][K];
    int8_t b[COLUMNS][K];
    for (int l = 0; l < LANES; l++) {
        const emulator_mma *s = (const emulator_mma *)slots[l];
        int g = l / 4, t = l % 4;
        for (int h = 0; h < 2; h++) {
            memcpy(&a[g][16 * h + 4 * t], &s->a[2 * h], 4);
            memcpy(&a[g + 8][16 * h + 4 * t], &s->a[2 * h + 1], 4);
            memcpy(&b[g][16 * h + 4 * t], &s->b[h], 4);
        }
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            const emulator_mma *s = (const emulator_mma *)slots[l];
            int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
            for (int k = 0; k < K; k++)
                s->c[i] += (s->unsigned_a ? a[row][k] : (int8_t)a[row][k]) * b[column][k];
        }
}
