/* tests/cuda_emulation/emulator_mma.cpp - products of int8 fragments (PTX ISA, "Matrix Fragments for mma.m16n8k16" and
 * "m16n8k32"). */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/gpu_emulated.h"

enum { ROWS = 16, COLUMNS = 8, LANES = 32, MAX_K = 32 };

/* n_k: 16 or 32. A lane has 4 k of two rows for each 16 k. */
static void multiply(void **slots, int n_k) {
    int8_t a[ROWS][MAX_K], b[COLUMNS][MAX_K];
    for (int l = 0; l < LANES; l++) {
        const emulator_mma *s = (const emulator_mma *)slots[l];
        int g = l / 4, t = l % 4;
        for (int h = 0; h < n_k / 16; h++) {
            memcpy(&a[g][16 * h + 4 * t], &s->a[2 * h], 4);
            memcpy(&a[g + 8][16 * h + 4 * t], &s->a[2 * h + 1], 4);
            memcpy(&b[g][16 * h + 4 * t], &s->b[h], 4);
        }
    }
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            int row = l / 4 + 8 * (i / 2), column = 2 * (l % 4) + i % 2;
            int *c = &((const emulator_mma *)slots[l])->c[i];
            for (int k = 0; k < n_k; k++)
                *c += a[row][k] * b[column][k];
        }
}

void emulator_mma_k32(void **slots) {
    multiply(slots, 32);
}

void emulator_mma_k16(void **slots) {
    multiply(slots, 16);
}
