// SPDX-License-Identifier: Apache-2.0
#include "test_matmul_reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"

static bool is_special(rng *r, values kind) {
    return kind == VALUES_SPECIAL && rng_next(r) % 10 == 0;
}

/* Makes a scale or a weight in half precision. */
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
        else
            mr_block_set_scale(type, block, d, dmin);
    }
}

size_t activation_bytes(mr_type type, int32_t k) {
    mr_type a = mr_type_activation(type);
    return a == MR_TYPE_F32    ? (size_t)k * 4
           : a == MR_TYPE_BF16 ? ((size_t)k + k % 2) * 2
                               : (size_t)k + (size_t)k / 32 * 8;
}

void random_activations(rng *r, values kind, mr_type type, int32_t k, uint8_t *out_row) {
    if (mr_type_activation(type) != MR_TYPE_A8) {
        for (int32_t i = 0; i < k + k % 2; i++) {
            float x = i < k ? random_float(r, kind) : 0;
            if (type == MR_TYPE_BF16)
                ((uint16_t *)(void *)out_row)[i] = (uint16_t)(mr_f32_bits(x) >> 16);
            else if (i < k)
                ((float *)(void *)out_row)[i] = x;
        }
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

/* --- Rule M ------------------------------------------------------------------------------------------------------ */

typedef struct activations { /* the parts of one A8 row */
    const int8_t *q;
    const float *d;
    const int32_t *sum;
} activations;

/* The number of elements that share a scale in rule M. */
static int32_t elements_of_a_scale(mr_type type) {
    switch (type) {
    case MR_TYPE_Q2_K:
    case MR_TYPE_Q4_1:
    case MR_TYPE_Q5_1:
    case MR_TYPE_IQ1_S:
    case MR_TYPE_IQ1_M:
    case MR_TYPE_IQ2_XXS:
    case MR_TYPE_IQ2_XS:
    case MR_TYPE_IQ2_S:
    case MR_TYPE_IQ3_XXS:
    case MR_TYPE_IQ3_S:
        return 16;
    default:
        return 32;
    }
}

/* Q6_K and Q3_K: the scale of a block of 256, and the integer factors of its 16 sub-blocks. */
static float block_factors(mr_type type, const uint8_t *block, int8_t factors[16]) {
    const mr_block_q6_k *q6 = (const mr_block_q6_k *)block;
    const mr_block_q3_k *q3 = (const mr_block_q3_k *)block;
    for (int i = 0; i < 16; i++)
        factors[i] = type == MR_TYPE_Q6_K ? q6->sc[i] : mr_q3_k_scale(q3->scales, i);
    return mr_f16_to_f32(type == MR_TYPE_Q6_K ? q6->d : q3->d);
}

static float dot_factors(mr_type type, const uint8_t *w, activations a, int32_t k) {
    float acc = 0;
    for (int32_t at = 0; at < k; at += 256, w += mr_type_get(type)->block_bytes) {
        mr_quants u;
        int8_t factors[16];
        float of_block = 0, d = block_factors(type, w, factors);
        mr_unpack(type, w, &u);
        for (int32_t sub = 0; sub < 256; sub += 32) {
            int64_t isum = 0;
            for (int32_t i = sub; i < sub + 32; i++)
                isum += (int64_t)factors[i / 16] * u.q[i] * a.q[at + i];
            of_block = fmaf((float)isum, a.d[(at + sub) / 32], of_block);
        }
        acc = fmaf(of_block, d, acc);
    }
    return acc;
}

static float dot_quants(mr_type type, const uint8_t *w, activations a, int32_t k) {
    int32_t block = mr_type_get(type)->block_elems, n = elements_of_a_scale(type);
    float acc = 0;
    for (int32_t at = 0; at < k; at += n) {
        mr_quants u;
        mr_unpack(type, w + (size_t)(at / block) * (size_t)mr_type_get(type)->block_bytes, &u);
        int32_t isum = 0, sum = 0, in = at % block;
        for (int i = 0; i < n; i++) {
            isum += u.q[in + i] * a.q[at + i];
            sum += a.q[at + i];
        }
        float product = u.scale[in / 16] * a.d[at / 32], weighted_sum = a.d[at / 32] * (float)sum;
        acc = fmaf((float)isum, product, acc);
        if (mr_has_min(type))
            acc = fmaf(u.min[in / 16], weighted_sum, acc);
    }
    return acc;
}

static float dot_bf16(const uint8_t *w, const uint16_t *a, int32_t k) {
    float acc = 0;
    for (int32_t pair = 0; pair < (k + 1) / 2; pair++)
        for (int32_t i = 2 * pair + 1; i >= 2 * pair; i--) {
            uint16_t half = 0;
            if (i < k)
                memcpy(&half, w + (size_t)i * 2, 2);
            acc = fmaf(mr_bf16_to_f32(half), i < k ? mr_bf16_to_f32(a[i]) : 0.0f, acc);
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
    if (type == MR_TYPE_Q6_K || type == MR_TYPE_Q3_K)
        return dot_factors(type, w_row, planes(a_row, k), k);
    if (mr_type_activation(type) == MR_TYPE_A8)
        return dot_quants(type, w_row, planes(a_row, k), k);
    if (type == MR_TYPE_BF16)
        return dot_bf16(w_row, (const uint16_t *)(const void *)a_row, k);
    return dot_float(type, w_row, (const float *)(const void *)a_row, k);
}

static double activation_value(mr_type type, const uint8_t *a_row, int32_t k, int32_t i) {
    activations a8 = planes(a_row, k);
    if (mr_type_activation(type) == MR_TYPE_A8)
        return (double)a8.d[i / 32] * a8.q[i];
    if (type == MR_TYPE_BF16)
        return (double)mr_bf16_to_f32(((const uint16_t *)(const void *)a_row)[i]);
    return (double)((const float *)(const void *)a_row)[i];
}

double double_dot(mr_type type, const uint8_t *w_row, const uint8_t *a_row, int32_t k, double *out_size) {
    float *w = malloc((size_t)k * sizeof *w);
    if (!w)
        abort();
    mr_dequantize(type, w_row, w, k);
    double sum = 0, size = 0;
    for (int32_t i = 0; i < k; i++) {
        double a = activation_value(type, a_row, k, i);
        sum += (double)w[i] * a;
        size += fabs((double)w[i] * a);
    }
    free(w);
    *out_size = size;
    return sum;
}
