/* mr_dequantize against blocks that the test packs bit by bit from the description of the formats, and against known
 * answers of another program. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/rng.h"
#include "engine/tensor/f16.h"
#include "engine/tensor/quant.h"
#include "tests/support/test.h"

enum { N_BLOCKS = 50, SEED = 20261120 };

static uint64_t counter;

/* 0 .. n - 1 */
static uint32_t pick(uint32_t n) {
    return (uint32_t)(mr_rng_u64(SEED, 0, counter++) >> 11) % n;
}

/* A half by its definition: sign, 5 bits of exponent, 10 of mantissa. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    double v = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
    return h & 0x8000 ? -v : v;
}

/* Finite halves of any size, subnormal ones and zeros of both signs among them. */
static uint16_t pick_half(void) {
    static const uint16_t edges[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3c00};
    return pick(4) ? (uint16_t)(pick(0x7c00) | pick(2) << 15) : edges[pick(sizeof edges / sizeof *edges)];
}

static void put_half(uint8_t *p, uint16_t h) {
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

/* --- One block with its values, for each type -------------------------------------------------------------------- */

/* 2 bytes of scale, then 32 signed bytes. */
static void make_q8_0(uint8_t *block, float *values) {
    uint16_t d = pick_half();
    put_half(block, d);
    for (int i = 0; i < 32; i++) {
        int q = (int)pick(256) - 128;
        block[2 + i] = (uint8_t)q;
        values[i] = (float)half_value(d) * (float)q;
    }
}

/* Low bits of value at [at, at + n) of a byte. */
static void put_bits(uint8_t *byte, int at, int n, int value) {
    *byte = (uint8_t)(*byte | (value & ((1 << n) - 1)) << at);
}

/* d, dmin, 12 bytes of scales and minima, 128 bytes of quants. Scales 0-3 fill the low 6 bits of bytes 0-3, minima 0-3
 * those of bytes 4-7; of scale and minimum j = 4..7 the low 4 bits are the low and the high nibble of byte j + 4, the
 * high 2 bits are the top bits of byte j - 4 and byte j. */
static void make_q4_k(uint8_t *block, float *values) {
    uint16_t d = pick_half(), dmin = pick_half();
    uint8_t *scales = block + 4, *quants = block + 16;
    memset(block, 0, 144);
    put_half(block, d);
    put_half(block + 2, dmin);
    for (int j = 0; j < 8; j++) {
        int sc = (int)pick(64), m = (int)pick(64);
        if (j < 4) {
            put_bits(&scales[j], 0, 6, sc);
            put_bits(&scales[j + 4], 0, 6, m);
        } else {
            put_bits(&scales[j + 4], 0, 4, sc);
            put_bits(&scales[j + 4], 4, 4, m);
            put_bits(&scales[j - 4], 6, 2, sc >> 4);
            put_bits(&scales[j], 6, 2, m >> 4);
        }
        float scale = (float)half_value(d) * (float)sc, min = (float)half_value(dmin) * (float)m;
        for (int l = 0; l < 32; l++) {
            int q = (int)pick(16);
            put_bits(&quants[j / 2 * 32 + l], j % 2 * 4, 4, q);
            values[j * 32 + l] = scale * (float)q - min;
        }
    }
}

/* 128 bytes of low nibbles, 64 of high bit pairs, 16 signed scales, d. Elements 128 h + 32 part + l: the nibble in byte
 * 64 h + 32 (part % 2) + l, low for parts 0 and 1; the pair in byte 32 h + l at bit 2 part. */
static void make_q6_k(uint8_t *block, float *values) {
    uint16_t d = pick_half();
    uint8_t *low = block, *high = block + 128, *scales = block + 192;
    memset(block, 0, 210);
    put_half(block + 208, d);
    for (int j = 0; j < 16; j++)
        scales[j] = (uint8_t)pick(256);
    for (int i = 0; i < 256; i++) {
        int h = i / 128, part = i / 32 % 4, l = i % 32, q = (int)pick(64), sc = scales[i / 16];
        put_bits(&low[64 * h + 32 * (part % 2) + l], part / 2 * 4, 4, q);
        put_bits(&high[32 * h + l], 2 * part, 2, q >> 4);
        float scale = (float)half_value(d) * (float)(sc < 128 ? sc : sc - 256);
        values[i] = scale * (float)(q - 32);
    }
}

static void make_f16(uint8_t *block, float *values) {
    uint16_t h = pick_half();
    put_half(block, h);
    *values = (float)half_value(h);
}

static void make_f32(uint8_t *block, float *values) {
    uint32_t u = pick(UINT32_MAX);
    memcpy(block, &u, 4);
    memcpy(values, &u, 4);
}

typedef void make_fn(uint8_t *block, float *values);
static make_fn *const MAKERS[MR_TYPE_FILE_COUNT] = {
    [MR_TYPE_F32] = make_f32,   [MR_TYPE_F16] = make_f16,   [MR_TYPE_Q8_0] = make_q8_0,
    [MR_TYPE_Q4_K] = make_q4_k, [MR_TYPE_Q6_K] = make_q6_k,
};

/* --- Tests ------------------------------------------------------------------------------------------------------- */

static void check_type(mr_type type, make_fn *make) {
    const mr_type_info *info = mr_type_get(type);
    size_t block_bytes = (size_t)info->block_bytes, block = (size_t)info->block_elems;
    uint8_t *src = malloc(N_BLOCKS * block_bytes);
    float *want = malloc(N_BLOCKS * block * sizeof *want), *got = malloc((N_BLOCKS * block + 1) * sizeof *got);
    assert_true(src && want && got);
    for (size_t b = 0; b < N_BLOCKS; b++)
        make(src + b * block_bytes, want + b * block);
    for (size_t n = 0; n <= N_BLOCKS; n += n < 3 ? 1 : N_BLOCKS - 3) {
        const uint32_t guard = 0x7fc0beef;
        memcpy(got + n * block, &guard, sizeof guard);
        mr_dequantize(type, src, got, (int64_t)(n * block));
        if (memcmp(got, want, n * block * sizeof *got) != 0)
            fail_msg("%s: values of %zu blocks differ", info->name, n);
        if (memcmp(got + n * block, &guard, sizeof guard) != 0)
            fail_msg("%s: more than %zu blocks were written", info->name, n);
    }
    free(src);
    free(want);
    free(got);
}

static void test_described_types(void **state) {
    (void)state;
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        if (info && MAKERS[type])
            check_type((mr_type)type, MAKERS[type]);
    }
}

/* Checks one type of quant_types.bin (made by make_quant_types.py with the Python package gguf 0.19). Returns the
 * position behind the type. */
static const uint8_t *check_recorded(const uint8_t *p, const uint8_t *end, bool seen[MR_TYPE_FILE_COUNT]) {
    int32_t head[3];
    assert_true((size_t)(end - p) >= sizeof head);
    memcpy(head, p, sizeof head);
    p += sizeof head;
    const mr_type_info *info = mr_type_get(head[0]);
    assert_non_null(info);
    assert_int_equal(head[2], head[1] * info->block_elems);
    size_t n = (size_t)head[2], bytes = (size_t)(head[1] * info->block_bytes);
    assert_true((size_t)(end - p) >= bytes + 4 * n);
    float *got = malloc(4 * n), *want = malloc(4 * n);
    assert_true(got && want);
    mr_dequantize((mr_type)head[0], p, got, head[2]);
    memcpy(want, p + bytes, 4 * n);
    for (size_t i = 0; i < n; i++) /* numpy writes zeros with either sign */
        if (got[i] != want[i])
            fail_msg("%s: value %zu is %a, not %a", info->name, i, (double)got[i], (double)want[i]);
    free(got);
    free(want);
    seen[head[0]] = true;
    return p + bytes + 4 * n;
}

static void test_every_weight_type(void **state) {
    (void)state;
    bool seen[MR_TYPE_FILE_COUNT] = {[MR_TYPE_F32] = true};
    static uint8_t data[200 << 10];
    FILE *f = fopen(MILLRACE_SOURCE_DIR "/tests/unit/engine/tensor/quant_types.bin", "rb");
    assert_non_null(f);
    size_t n = fread(data, 1, sizeof data, f);
    fclose(f);
    assert_true(n < sizeof data);
    for (const uint8_t *p = data; p < data + n;)
        p = check_recorded(p, data + n, seen);
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        if (info && info->is_weight && !seen[type])
            fail_msg("type %s is a weight type: record blocks of it", info->name);
    }
}

/* The exponents at both ends: denormal scales are 0 (rule A2). */
static void test_mxfp4_scales(void **state) {
    (void)state;
    assert_true(mr_mxfp4_scale(0) == 0 && mr_mxfp4_scale(1) == 0);
    assert_true(mr_mxfp4_scale(2) == 0x1p-126f && mr_mxfp4_scale(128) == 1 && mr_mxfp4_scale(255) == 0x1p127f);
}

/* Twice the scale gives twice every value. With a scale of 0, twice the minimum gives twice every value. */
static void test_block_set_scale(void **state) {
    (void)state;
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        uint8_t block[256];
        float one[256], two[256], sum = 0;
        if (!info || !info->is_weight || type == MR_TYPE_F32)
            continue;
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = (uint8_t)pick(256);
        mr_block_set_scale((mr_type)type, block, 0x3c00, 0);
        mr_dequantize((mr_type)type, block, one, info->block_elems);
        mr_block_set_scale((mr_type)type, block, 0x4000, 0);
        mr_dequantize((mr_type)type, block, two, info->block_elems);
        for (int i = 0; i < info->block_elems; i++) {
            assert_true(two[i] == 2 * one[i]);
            sum += fabsf(one[i]);
        }
        assert_true(sum > 0);
        if (!mr_has_min((mr_type)type))
            continue;
        mr_block_set_scale((mr_type)type, block, 0, 0x4000);
        mr_dequantize((mr_type)type, block, two, info->block_elems);
        mr_block_set_scale((mr_type)type, block, 0, 0x3c00);
        mr_dequantize((mr_type)type, block, one, info->block_elems);
        for (int i = 0; i < info->block_elems; i++)
            assert_true(two[i] == 2 * one[i]);
    }
}

static void test_bf16_rounding(void **state) {
    (void)state;
    static const struct {
        uint32_t single;
        uint16_t want;
    } cases[] = {{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
                 {0x80000000, 0x8000}, {0x807fffff, 0x8000}, {0x00800000, 0x0080}, {0x7f7fffff, 0x7f80},
                 {0x7f7f7fff, 0x7f7f}, {0xff800000, 0xff80}, {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(mr_f32_to_bf16(mr_bits_f32(cases[i].single)), cases[i].want);
    assert_true(mr_bf16_to_f32(0xbfc0) == -1.5f);
}

/* The sizes that the descriptions above say. */
static void test_block_sizes(void **state) {
    (void)state;
    static const struct {
        mr_type type;
        int64_t elems;
        size_t bytes;
    } cases[] = {{MR_TYPE_F32, 1, 4},
                 {MR_TYPE_F16, 1, 2},
                 {MR_TYPE_Q8_0, 32, 34},
                 {MR_TYPE_Q4_K, 256, 144},
                 {MR_TYPE_Q6_K, 256, 210}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t bytes = 0;
        assert_true(mr_type_bytes(cases[i].type, cases[i].elems * 3, &bytes));
        assert_int_equal(bytes, cases[i].bytes * 3);
        if (cases[i].elems > 1)
            assert_false(mr_type_bytes(cases[i].type, cases[i].elems + 1, &bytes));
        assert_false(mr_type_bytes(cases[i].type, -cases[i].elems, &bytes));
    }
    size_t bytes = 7;
    assert_false(mr_type_bytes(MR_TYPE_F64, INT64_MAX, &bytes));
    assert_int_equal(bytes, 7);
}

/* FNV-1a over the values' bits. Blocks: byte i is (37 i + 11) ^ (i / 8), with the halves given. The sums were made with
 * gguf.quants.dequantize of the Python package gguf 0.19. */
static uint64_t sum_of(mr_type type, size_t half_at, uint16_t half, size_t half2_at, uint16_t half2) {
    const mr_type_info *info = mr_type_get(type);
    uint8_t block[256];
    float values[256];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (uint8_t)((i * 37 + 11) ^ i >> 3);
    put_half(block + half2_at, half2);
    put_half(block + half_at, half);
    mr_dequantize(type, block, values, info->block_elems);
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < (size_t)info->block_elems * sizeof *values; i++)
        h = (h ^ ((const uint8_t *)values)[i]) * 0x100000001b3u;
    return h;
}

static void test_known_answers(void **state) {
    (void)state;
    assert_true(sum_of(MR_TYPE_Q8_0, 0, 0x224c, 0, 0) == 0x4064656ebac13a9u);
    assert_true(sum_of(MR_TYPE_Q4_K, 0, 0x1a93, 2, 0x2574) == 0x52a8edfc2a454e87u);
    assert_true(sum_of(MR_TYPE_Q6_K, 208, 0x924f, 208, 0) == 0x946f6ace301be6d4u);
}

/* A scale that is infinite or no number shows in every value that it touches. */
static void test_scales_that_are_not_finite(void **state) {
    (void)state;
    float values[256];
    mr_block_q8_0 q8 = {.d = 0x7e00, .q = {1}};
    mr_block_q4_k q4 = {.d = 0x7c00, .scales = {1}, .q = {1}};
    mr_block_q6_k q6 = {.d = 0x7c00, .sc = {1}};
    mr_dequantize(MR_TYPE_Q8_0, &q8, values, 32);
    assert_true(isnan(values[0]) && isnan(values[31]));
    mr_dequantize(MR_TYPE_Q4_K, &q4, values, 256);
    assert_true(isinf(values[0]) && isnan(values[255])); /* infinity times a scale of 0 */
    mr_dequantize(MR_TYPE_Q6_K, &q6, values, 256);
    assert_true(isinf(values[0]) && values[0] < 0 && isnan(values[16]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_described_types), cmocka_unit_test(test_every_weight_type),
        cmocka_unit_test(test_mxfp4_scales),    cmocka_unit_test(test_block_set_scale),
        cmocka_unit_test(test_bf16_rounding),   cmocka_unit_test(test_block_sizes),
        cmocka_unit_test(test_known_answers),   cmocka_unit_test(test_scales_that_are_not_finite),
    };
    printf("seed %d\n", SEED);
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
