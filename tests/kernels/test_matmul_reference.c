// SPDX-License-Identifier: Apache-2.0
#include "test_matmul_reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

uint32_t rng_next(rng *r) {
    r->state = r->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint32_t x = (uint32_t)(r->state >> 32);
    return x ^ x >> 15;
}

float rng_unit(rng *r) {
    return (float)(int32_t)rng_next(r) * 0x1p-31f;
}

static bool is_special(rng *r, values kind) {
    return kind == VALUES_SPECIAL && rng_next(r) % 10 == 0;
}

/* A scale or a half-precision weight. */
static uint16_t random_half(rng *r, values kind) {
    static const uint16_t SPECIAL[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e01};
    if (is_special(r, kind))
        return SPECIAL[rng_next(r) % (sizeof SPECIAL / sizeof SPECIAL[0])];
    return mr_f32_to_f16(rng_unit(r) * 0.05f);
}

static float random_float(rng *r, values kind) {
    static const float SPECIAL[] = {0.0f, -0.0f, 1e-40f, -1e-42f, 1.2e-38f, 3e38f, -3e38f, INFINITY, -INFINITY, NAN};
    if (is_special(r, kind))
        return SPECIAL[rng_next(r) % (sizeof SPECIAL / sizeof SPECIAL[0])];
    return rng_unit(r);
}

static void random_bytes(rng *r, void *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)out)[i] = (uint8_t)rng_next(r);
}

void random_weights(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row) {
    const mr_type_info *info = mr_type_get(type);
    size_t size = (size_t)info->block_bytes;
    for (int32_t i = 0; i < k / info->block_elems; i++) {
        uint8_t *block = out_row + (size_t)i * size;
        random_bytes(r, block, size);
        if (is_special(r, kind))
            memset(block, rng_next(r) % 2 ? 0 : 0xff, size);
        uint16_t d = random_half(r, kind), dmin = random_half(r, kind);
        float f = random_float(r, kind);
        if (type == MR_TYPE_F32)
            memcpy(block, &f, 4);
        else if (type == MR_TYPE_Q6_K)
            memcpy(block + offsetof(mr_block_q6_k, d), &d, 2);
        else
            memcpy(block, &d, 2);
        if (type == MR_TYPE_Q4_K)
            memcpy(block + 2, &dmin, 2);
    }
}

static bool is_float(mr_type type) {
    return type == MR_TYPE_F32 || type == MR_TYPE_F16;
}

size_t activation_bytes(mr_type type, int32_t k) {
    return is_float(type) ? (size_t)k * 4 : (size_t)k + (size_t)k / 32 * 8;
}

void random_activations(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row) {
    if (is_float(type)) {
        for (int32_t i = 0; i < k; i++)
            ((float *)(void *)out_row)[i] = random_float(r, kind);
        return;
    }
    int8_t *q = (int8_t *)out_row;
    float *d = (float *)(void *)(out_row + k);
    int32_t *sum = (int32_t *)(void *)(out_row + k + k / 8);
    for (int32_t b = 0; b < k / 32; b++) {
        int extreme = (int)(rng_next(r) % 16); /* blocks of -127, 127 and 0 reach the limits of the integer sums */
        sum[b] = 0;
        d[b] = fabsf(random_float(r, kind));
        for (int i = 0; i < 32; i++) {
            int v = extreme == 0 ? -127 : extreme == 1 ? 127 : extreme == 2 ? 0 : (int)(rng_next(r) % 255) - 127;
            q[b * 32 + i] = (int8_t)v;
            sum[b] += v;
        }
    }
}

/* --- Rule M ------------------------------------------------------------------------------------------------------- */

typedef struct activations { /* planes of one A8 row */
    const int8_t *q;
    const float *d;
    const int32_t *sum;
} activations;

static float dot_q8_0(const uint8_t *w, activations a, int32_t k) {
    float acc = 0;
    for (int32_t b = 0; b < k / 32; b++) {
        mr_block_q8_0 block;
        memcpy(&block, w + (size_t)b * sizeof block, sizeof block);
        int32_t isum = 0;
        for (int i = 0; i < 32; i++)
            isum += block.q[i] * a.q[b * 32 + i];
        float scale = mr_f16_to_f32(block.d) * a.d[b];
        acc = fmaf((float)isum, scale, acc);
    }
    return acc;
}

static float dot_q4_k(const uint8_t *w, activations a, int32_t k) {
    float acc = 0;
    for (int32_t b = 0; b < k / 32; b++) {
        mr_block_q4_k block;
        memcpy(&block, w + (size_t)(b / 8) * sizeof block, sizeof block);
        int32_t isum = 0;
        for (int i = 0; i < 32; i++)
            isum += mr_q4_k_value(&block, b % 8 * 32 + i) * a.q[b * 32 + i];
        uint8_t sc, m;
        mr_q4_k_scale(block.scales, b % 8, &sc, &m);
        float scale = mr_f16_to_f32(block.d) * (float)sc, min = mr_f16_to_f32(block.dmin) * (float)m;
        float product = scale * a.d[b], weighted_sum = a.d[b] * (float)a.sum[b];
        acc = fmaf((float)isum, product, acc);
        acc = fmaf(-min, weighted_sum, acc);
    }
    return acc;
}

static float dot_q6_k(const uint8_t *w, activations a, int32_t k) {
    float acc = 0;
    for (int32_t b = 0; b < k / 16; b++) {
        mr_block_q6_k block;
        memcpy(&block, w + (size_t)(b / 16) * sizeof block, sizeof block);
        int32_t isum = 0;
        for (int i = 0; i < 16; i++)
            isum += (mr_q6_k_value(&block, b % 16 * 16 + i) - 32) * a.q[b * 16 + i];
        float scale = mr_f16_to_f32(block.d) * (float)block.sc[b % 16];
        float product = scale * a.d[b / 2];
        acc = fmaf((float)isum, product, acc);
    }
    return acc;
}

static float dot_float(mr_type type, const uint8_t *w, const float *a, int32_t k) {
    float acc = 0;
    for (int32_t i = 0; i < k; i++) {
        uint16_t half;
        float weight;
        memcpy(&half, w + (size_t)i * 2, 2);
        if (type == MR_TYPE_F32)
            memcpy(&weight, w + (size_t)i * 4, 4);
        else
            weight = mr_f16_to_f32(half);
        acc = fmaf(weight, a[i], acc);
    }
    return acc;
}

static activations planes(const uint8_t *a_row, int32_t k) {
    return (activations){(const int8_t *)a_row, (const float *)(const void *)(a_row + k),
                         (const int32_t *)(const void *)(a_row + k + k / 8)};
}

float reference_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k) {
    if (type == MR_TYPE_Q8_0)
        return dot_q8_0(w_row, planes(a_row, k), k);
    if (type == MR_TYPE_Q4_K)
        return dot_q4_k(w_row, planes(a_row, k), k);
    if (type == MR_TYPE_Q6_K)
        return dot_q6_k(w_row, planes(a_row, k), k);
    return dot_float(type, w_row, (const float *)(const void *)a_row, k);
}

double double_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k, double *out_size) {
    float *w = malloc((size_t)k * sizeof *w);
    if (!w)
        abort();
    mr_dequantize(type, w_row, w, k);
    activations a8 = planes(a_row, k);
    double sum = 0, size = 0;
    for (int32_t i = 0; i < k; i++) {
        double a = is_float(type) ? (double)((const float *)(const void *)a_row)[i] : (double)a8.d[i / 32] * a8.q[i];
        sum += (double)w[i] * a;
        size += fabs((double)w[i] * a);
    }
    free(w);
    *out_size = size;
    return sum;
}
