/* Tests of the row kernels (rules Q, N, R, G, K): every instruction set gives the bits of the scalar kernel, and the
 * scalar kernel is close to a computation in doubles. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "engine/tensor/f16.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"

enum { MAX_N = 4096, GUARD = 16 };
static const uint32_t GUARD_BITS = 0x7fabcdefu;

static rng numbers = {.state = 1};

typedef enum fill { PLAIN, ZERO, DENORMAL, TINY, LARGE, TIES, INFINITE, NANS, ANY_BITS, FILLS } fill;

static float next_of(fill how) {
    float x = rng_unit(&numbers);
    switch (how) {
    case ZERO:
        return x < 0 ? -0.0f : 0.0f;
    case DENORMAL:
        return mr_bits_f32(rng_next(&numbers) & 0x807fffffu);
    case TINY:
        return x * (rng_next(&numbers) % 4 ? 1e-37f : 1e-35f);
    case LARGE:
        return x * (rng_next(&numbers) % 4 ? 1e18f : 3e38f);
    case TIES: /* with 127 as the largest value, products are halfway between integers */
        return (float)((int32_t)(rng_next(&numbers) % 509) - 254) * 0.5f;
    case INFINITE:
        return rng_next(&numbers) % 16 ? x : x < 0 ? -INFINITY : INFINITY;
    case NANS:
        return rng_next(&numbers) % 16 ? x : mr_bits_f32(rng_next(&numbers) | 0x7f800001u);
    case ANY_BITS:
        return mr_bits_f32(rng_next(&numbers));
    default:
        return x * 4.0f;
    }
}

static void fill_with(float *x, int32_t n, fill how) {
    for (int32_t i = 0; i < n; i++)
        x[i] = next_of(how);
}

static bool is_same(float a, float b) {
    return mr_f32_bits(a) == mr_f32_bits(b) || (a != a && b != b);
}

static void assert_same(const float *a, const float *b, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!is_same(a[i], b[i]))
            fail_msg("element %d of %d: %.9g (%08x), scalar has %.9g (%08x)", i, n, (double)a[i], mr_f32_bits(a[i]),
                     (double)b[i], mr_f32_bits(b[i]));
}

/* An output of at most MAX_N floats between guard bytes. */
typedef struct guarded {
    float before[GUARD], x[MAX_N], after[GUARD];
} guarded;

static void guard_set(guarded *g) {
    float *p = g->before;
    for (int32_t i = 0; i < MAX_N + 2 * GUARD; i++)
        p[i] = mr_bits_f32(GUARD_BITS);
}

static void assert_guards(const guarded *g, int32_t n) {
    const float *x = g->x; /* the floats from x[n] on may be guards */
    for (int32_t i = 0; i < GUARD; i++)
        assert_true(mr_f32_bits(g->before[i]) == GUARD_BITS && mr_f32_bits(x[n + i]) == GUARD_BITS);
}

static const int32_t SIZES[] = {1, 2, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 40, 63, 64, 65, 80, 100, 128, 2048};
enum { N_SIZES = sizeof SIZES / sizeof SIZES[0] };

static float xs[MAX_N + 1], ws[MAX_N + 1], want[MAX_N];
static guarded out;

/* Calls check for each vector instruction set of this CPU, each kind of input and many sizes. */
static void for_each_case(void (*check)(const mr_kernels *k, fill how, int32_t n)) {
    for (int isa = MR_ISA_SCALAR + 1; isa <= (int)mr_isa_detect(); isa++)
        for (fill how = PLAIN; how < FILLS; how++)
            for (int i = 0; i < N_SIZES; i++)
                for (int round = 0; round < 3; round++)
                    check(mr_kernels_get((mr_isa)isa), how, SIZES[i]);
}

static const mr_kernels *scalar(void) {
    return mr_kernels_get(MR_ISA_SCALAR);
}

static void check_quantize(const mr_kernels *k, fill how, int32_t n) {
    n *= 32;
    if (n + n / 32 * 8 > MAX_N * 4 || n > MAX_N)
        return;
    fill_with(xs + 1, n, how); /* x is not aligned */
    scalar()->quantize(xs + 1, (uint8_t *)want, n);
    guard_set(&out);
    k->quantize(xs + 1, (uint8_t *)out.x, n);
    assert_memory_equal(out.x, want, (size_t)n);
    assert_same(out.x + n / 4, want + n / 4, n / 32);
    assert_memory_equal(out.x + n / 4 + n / 32, want + n / 4 + n / 32, (size_t)n / 32 * 4);
    assert_guards(&out, n / 4 + n / 16);
}

static void test_quantize_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_quantize);
}

static void check_round_bf16(const mr_kernels *k, fill how, int32_t n) {
    fill_with(xs + 1, n, how);
    guard_set(&out);
    memcpy(want, out.x, sizeof want);
    scalar()->round_bf16(xs + 1, (uint16_t *)want, n);
    k->round_bf16(xs + 1, (uint16_t *)out.x, n);
    assert_memory_equal(out.x, want, sizeof want);
    assert_guards(&out, (n + 1) / 2);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(((const uint16_t *)out.x)[i], mr_f32_to_bf16(xs[1 + i]));
    if (n % 2)
        assert_int_equal(((const uint16_t *)out.x)[n], 0);
}

static void test_round_bf16_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_round_bf16);
}

static void check_rms_norm(const mr_kernels *k, fill how, int32_t n) {
    int32_t groups = 1 + (int32_t)(rng_next(&numbers) % 2);
    fill_with(xs + 1, n * groups, how);
    fill_with(ws + 1, n, PLAIN);
    scalar()->rms_norm(xs + 1, ws + 1, want, n * groups, n, 1e-5f);
    guard_set(&out);
    k->rms_norm(xs + 1, ws + 1, out.x, n * groups, n, 1e-5f);
    assert_same(out.x, want, n * groups);
    assert_guards(&out, n * groups);
    k->rms_norm(xs + 1, ws + 1, xs + 1, n * groups, n, 1e-5f);
    assert_same(xs + 1, want, n * groups);
}

static void test_rms_norm_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_rms_norm);
}

static void check_glu(const mr_kernels *k, fill how, int32_t n) {
    fill_with(xs + 1, n, how);
    fill_with(ws + 1, n, rng_next(&numbers) % 2 ? PLAIN : how);
    for (int32_t i = 0; i < n && how == LARGE; i++) /* values around the ends of the range of exp */
        xs[1 + i] = rng_next(&numbers) % 4 ? rng_unit(&numbers) * 95.0f : xs[1 + i];
    for (int i = 0; i < 2 * MR_GLU_KINDS; i++) {
        mr_glu glu = {.kind = (mr_glu_kind)(i / 2), .limit = i % 2 ? 1.5f : 0.0f};
        scalar()->glu(xs + 1, ws + 1, want, n, glu);
        guard_set(&out);
        k->glu(xs + 1, ws + 1, out.x, n, glu);
        assert_same(out.x, want, n);
        assert_guards(&out, n);
        memcpy(out.x, xs + 1, (size_t)n * sizeof(float)); /* in place */
        k->glu(out.x, ws + 1, out.x, n, glu);
        assert_same(out.x, want, n);
    }
}

static void test_glu_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_glu);
}

static void check_soft_cap(const mr_kernels *k, fill how, int32_t n) {
    float cap = how % 2 ? 30.0f : 0.7f;
    fill_with(xs + 1, n, how);
    scalar()->soft_cap(xs + 1, want, n, cap);
    guard_set(&out);
    k->soft_cap(xs + 1, out.x, n, cap);
    assert_same(out.x, want, n);
    assert_guards(&out, n);
    k->soft_cap(xs + 1, xs + 1, n, cap);
    assert_same(xs + 1, want, n);
}

static void test_soft_cap_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_soft_cap);
}

static void check_rope(const mr_kernels *k, fill how, int32_t n) {
    static const int32_t DIMS[] = {2, 4, 14, 16, 18, 32, 64, 80, 96, 128, 256};
    int32_t dim = DIMS[rng_next(&numbers) % (sizeof DIMS / sizeof DIMS[0])], heads = 1 + n % 5;
    int32_t n_rot = rng_next(&numbers) % 2 ? dim : 2 * (1 + (int32_t)(rng_next(&numbers) % (uint32_t)(dim / 2)));
    mr_rope_pairs pairs = rng_next(&numbers) % 2 ? MR_ROPE_INTERLEAVED : MR_ROPE_HALVES;
    guard_set(&out);
    fill_with(out.x, heads * dim, how);
    fill_with(ws + 1, n_rot, rng_next(&numbers) % 8 ? PLAIN : how);
    memcpy(want, out.x, sizeof want);
    scalar()->rope(want, heads, dim, n_rot, pairs, ws + 1);
    k->rope(out.x, heads, dim, n_rot, pairs, ws + 1);
    assert_same(out.x, want, heads * dim);
    assert_guards(&out, heads * dim);
}

static void test_rope_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_rope);
}

enum { KV_ROWS = 5, KV_HEADS = 2, KV_BLOCKS = 3 };

/* The stored value of element d of the last head at a slot. */
static float kv_read(const mr_kv_write_args *a, const void *store, int32_t slot, int32_t d, bool is_key) {
    int32_t t = slot % MR_KV_BLOCK, dim = is_key ? a->k_dim : a->v_dim;
    size_t block_bytes = is_key ? a->k_block_bytes : a->v_block_bytes;
    const char *head = (const char *)store + (size_t)(slot / MR_KV_BLOCK) * block_bytes +
                       (KV_HEADS - 1) * mr_kv_head_bytes(a->kv_type, dim);
    int32_t at = is_key ? d * MR_KV_BLOCK + t : t * dim + d;
    int32_t byte_at = is_key ? d / 4 * 64 + t * 4 + d % 4 : t / 4 * dim * 4 + d * 4 + t % 4;
    if (a->kv_type == MR_TYPE_F32)
        return ((const float *)(const void *)head)[at];
    if (a->kv_type == MR_TYPE_F16)
        return mr_f16_to_f32(((const uint16_t *)(const void *)head)[at]);
    const uint16_t *scales = (const uint16_t *)(const void *)(head + dim * MR_KV_BLOCK);
    return mr_f16_to_f32(scales[d / 32 * MR_KV_BLOCK + t]) * (float)((const int8_t *)head)[byte_at];
}

/* Whether the store may hold y for x. amax: the largest magnitude of the 32 values with the same scale. */
static bool is_stored_as(mr_type type, float x, float y, float amax) {
    if (type == MR_TYPE_F32)
        return is_same(x, y);
    if (type == MR_TYPE_F16)
        return is_same(mr_f16_to_f32(mr_f32_to_f16(x)), y);
    float d = amax / 127.0f;
    if (!(d < 65520.0f))
        return y != y;
    return fabsf(x - y) <= d * 0.5001f + amax * 0x1p-11f + 0x1p-18f; /* errors of rounding q, d, and a subnormal d */
}

/* Writes rows of keys and values, dims[0] and dims[1] elements a head, into the slots of a small store. */
static void check_kv_write_type(const mr_kernels *k, fill how, mr_type type, const int32_t dims[2]) {
    static float store[4][KV_BLOCKS * KV_HEADS * 256 * MR_KV_BLOCK + 16];
    static float kv[2][KV_ROWS * (KV_HEADS * 256 + 3)];
    int32_t slots[KV_ROWS];
    for (int32_t i = 0; i < KV_ROWS; i++)
        slots[i] = (int32_t)((rng_next(&numbers) % 3 + (uint32_t)i * 9) % (KV_BLOCKS * MR_KV_BLOCK));
    for (int i = 0; i < 2; i++)
        fill_with(kv[i], KV_ROWS * (KV_HEADS * dims[i] + 3), how);
    memset(store, 0x5a, sizeof store);
    mr_kv_write_args a = {.k = kv[0],
                          .v = kv[1],
                          .k_row_bytes = (size_t)(KV_HEADS * dims[0] + 3) * 4,
                          .v_row_bytes = (size_t)(KV_HEADS * dims[1] + 1) * 4,
                          .slots = slots,
                          .k_store = store[0],
                          .v_store = store[1],
                          .k_block_bytes = KV_HEADS * mr_kv_head_bytes(type, dims[0]) + 16,
                          .v_block_bytes = KV_HEADS * mr_kv_head_bytes(type, dims[1]) + 16,
                          .kv_type = type,
                          .n_kv_heads = KV_HEADS,
                          .k_dim = dims[0],
                          .v_dim = dims[1]};
    scalar()->kv_write(&a, 0, KV_ROWS);
    a.k_store = store[2], a.v_store = store[3];
    k->kv_write(&a, 0, 2);
    k->kv_write(&a, 2, KV_ROWS);
    for (size_t j = 0; j < sizeof store[0]; j++) /* any NaN would do, but the kernels write the same bits */
        if (((uint8_t *)store[0])[j] != ((uint8_t *)store[2])[j] ||
            ((uint8_t *)store[1])[j] != ((uint8_t *)store[3])[j])
            fail_msg("byte %zu of the %s store differs", j, mr_type_name(type));
    /* The stored values of the last head of the last row. */
    int32_t last = KV_ROWS - 1, h = KV_HEADS - 1;
    for (int i = 0; i < 2; i++)
        for (int32_t d = 0, dim = dims[i]; d < dim; d++) {
            const float *row = kv[i] + last * (KV_HEADS * dim + (i ? 1 : 3)) + h * dim;
            float amax = 0, read = kv_read(&a, store[i], slots[last], d, i == 0);
            for (int32_t e = d / 32 * 32; e < d / 32 * 32 + 32 && e < dim; e++)
                amax = amax != amax || fabsf(row[e]) <= amax ? amax : fabsf(row[e]);
            if (!is_stored_as(type, row[d], read, amax))
                fail_msg("%s: %g of a block up to %g is read back as %g", mr_type_name(type), (double)row[d],
                         (double)amax, (double)read);
        }
}

static void check_kv_write(const mr_kernels *k, fill how, int32_t n) {
    const int32_t dims[] = {16 * (1 + n % 8), 16 * (1 + n % 5)}, even[] = {2 + 2 * (n % 49), 2 + 2 * (n % 47)};
    const int32_t dims_q8[] = {32 * (1 + n % 4), 32 * (1 + n % 3)};
    check_kv_write_type(k, how, MR_TYPE_F16, dims);
    check_kv_write_type(k, how, MR_TYPE_F32, dims);
    check_kv_write_type(k, how, MR_TYPE_F16, even);
    check_kv_write_type(k, how, MR_TYPE_F32, even);
    check_kv_write_type(k, how, MR_TYPE_Q8_0, dims_q8);
}

static void test_kv_write_equals_scalar(void **state) {
    (void)state;
    for_each_case(check_kv_write);
}

/* --- Scalar against its meaning ------------------------------------------------------------------------------------
 */

static void test_quantize_rounds_to_nearest_even(void **state) {
    (void)state;
    float x[32] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, 125.5f, 0.49f, -127.0f, 3.0f};
    static const int8_t WANT[32] = {127, 0, 2, 2, 0, -2, -2, 126, 126, 0, -127, 3};
    float row[10];
    scalar()->quantize(x, (uint8_t *)row, 32);
    assert_memory_equal(row, WANT, 32);
    assert_true(row[8] == 1.0f);
    int32_t sum = 0, got;
    for (int i = 0; i < 32; i++)
        sum += WANT[i];
    memcpy(&got, row + 9, 4);
    assert_int_equal(got, sum);
}

static void test_quantize_edges(void **state) {
    (void)state;
    static const int8_t NONE[32];
    static const float EDGES[] = {0.0f, 1e-39f, 1e-37f, INFINITY, NAN};
    for (int e = 0; e < 5; e++) {
        float x[32] = {0}, row[10];
        x[17] = EDGES[e];
        scalar()->quantize(x, (uint8_t *)row, 32);
        assert_memory_equal(row, NONE, 32);
        assert_true(e < 3 ? row[8] == 0.0f : isnan(row[8]));
        assert_memory_equal(row + 9, NONE, 4);
    }
    float x[32] = {[5] = 3e38f, [6] = -2e38f}, row[10];
    scalar()->quantize(x, (uint8_t *)row, 32);
    assert_int_equal(((int8_t *)row)[5], 127);
    assert_int_equal(((int8_t *)row)[6], -85);
}

/* The largest |x| of a block of 32. */
static double largest(const float *x) {
    double amax = 0;
    for (int i = 0; i < 32; i++)
        amax = fabs((double)x[i]) > amax ? fabs((double)x[i]) : amax;
    return amax;
}

/* Each q is the nearest integer for a step of amax / 127, and the squared error with d is not larger than with that
 * step. */
static void test_quantize_error_is_the_least(void **state) {
    (void)state;
    float x[256], row[256 / 4 + 16];
    for (int round = 0; round < 200; round++) {
        fill_with(x, 256, PLAIN);
        scalar()->quantize(x, (uint8_t *)row, 256);
        for (int b = 0; b < 8; b++) {
            double step = largest(x + b * 32) / 127, error = 0, plain = 0;
            for (int i = b * 32; i < b * 32 + 32; i++) {
                double q = ((int8_t *)row)[i], e = (double)x[i] - (double)row[64 + b] * q, p = (double)x[i] - step * q;
                assert_true(fabs(p) <= step * 0.50002);
                error += e * e;
                plain += p * p;
            }
            assert_true(error <= plain * 1.00001);
        }
    }
}

static void test_rms_norm_is_close_to_double(void **state) {
    (void)state;
    for (int i = 0; i < N_SIZES; i++) {
        int32_t n = SIZES[i];
        fill_with(xs, n, PLAIN);
        fill_with(ws, n, PLAIN);
        scalar()->rms_norm(xs, ws, want, n, n, 1e-6f);
        double ss = 0;
        for (int32_t j = 0; j < n; j++)
            ss += (double)xs[j] * (double)xs[j];
        for (int32_t j = 0; j < n; j++) {
            double y = (double)xs[j] / sqrt(ss / n + 1e-6) * (double)ws[j];
            assert_true(fabs((double)want[j] - y) <= 2e-6 * fabs(y));
        }
    }
}

static void test_rope_is_close_to_double(void **state) {
    (void)state;
    enum { HALF = 32 };
    float step[HALF], factor[HALF], slow[HALF], keep[HALF];
    const float *angles[MR_ROPE_ROWS] = {step, factor, slow, keep};
    for (int i = 0; i < HALF; i++) {
        step[i] = i ? (float)pow(10000.0, -1 / (double)HALF) : 1.0f;
        factor[i] = 1.0f + (float)i / 8;
        slow[i] = 0.25f;
        keep[i] = (float)i / HALF;
    }
    for (int32_t position = 0; position < 100000; position = position * 3 + 1)
        for (mr_rope_pairs pairs = MR_ROPE_INTERLEAVED; pairs <= MR_ROPE_HALVES; pairs++) {
            float table[2 * HALF], x[80], y[80];
            fill_with(x, 80, PLAIN);
            memcpy(y, x, sizeof y);
            scalar()->rope_table(angles, HALF, position, 1.25f, table);
            scalar()->rope(y, 1, 80, 2 * HALF, pairs, table);
            float theta = (float)position;
            for (int i = 0; i < HALF; i++) {
                theta *= step[i];
                float own = theta / factor[i];
                double angle = (double)(own * slow[i] + own * keep[i]);
                int a = pairs == MR_ROPE_HALVES ? i : 2 * i, b = pairs == MR_ROPE_HALVES ? i + HALF : 2 * i + 1;
                double c = 1.25 * cos(angle), s = 1.25 * sin(angle);
                assert_true(fabs((double)y[a] - ((double)x[a] * c - (double)x[b] * s)) < 3e-6);
                assert_true(fabs((double)y[b] - ((double)x[a] * s + (double)x[b] * c)) < 3e-6);
            }
            assert_memory_equal(x + 64, y + 64, 64);
        }
}

static void test_glu_is_close_to_double(void **state) {
    (void)state;
    for (int round = 0; round < 100000; round++) {
        float g = rng_unit(&numbers) * 80.0f, u = rng_unit(&numbers), y;
        scalar()->glu(&g, &u, &y, 1, (mr_glu){.kind = MR_GLU_SILU});
        double exact = (double)g / (1 + exp(-(double)g)) * (double)u;
        assert_true(fabs((double)y - exact) <= 1e-6 * fabs(exact));
    }
    float edge[4] = {INFINITY, -200.0f, NAN, mr_bits_f32(0x7fffffffu)}, one[4] = {1, 1, 1, 1}, y[4];
    scalar()->glu(edge, one, y, 4, (mr_glu){.kind = MR_GLU_SILU});
    assert_true(y[0] == INFINITY && y[1] <= 0.0f && y[1] > -1e-30f && isnan(y[2]) && isnan(y[3]));
}

/* Rule G in doubles, as the models that use each kind define it. */
static double exact_glu(mr_glu glu, double g, double u) {
    if (glu.limit > 0.0f) {
        g = fmin(g, (double)glu.limit);
        u = fmax(fmin(u, (double)glu.limit), -(double)glu.limit);
    }
    switch (glu.kind) {
    case MR_GLU_GELU:
        return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g))) * u;
    case MR_GLU_SIGMOID:
        return u / (1 + exp(-g));
    case MR_GLU_GPT_OSS:
        return g / (1 + exp(-1.702 * g)) * (u + 1);
    default:
        return g / (1 + exp(-g)) * u;
    }
}

static void test_each_glu_is_close_to_double(void **state) {
    (void)state;
    for (int round = 0; round < 100000; round++) {
        mr_glu glu = {.kind = (mr_glu_kind)(round % MR_GLU_KINDS), .limit = round / 8 % 2 ? 7.0f : 0.0f};
        float g = rng_unit(&numbers) * (round % 3 ? 4.0f : 12.0f), u = rng_unit(&numbers) * 12.0f, y;
        scalar()->glu(&g, &u, &y, 1, glu);
        double exact = exact_glu(glu, (double)g, (double)u);
        if (!(fabs((double)y - exact) <= 1e-5 * fabs(exact) + 1e-12))
            fail_msg("kind %d, limit %g, gate %a, up %a: %a, not %a", (int)glu.kind, (double)glu.limit, (double)g,
                     (double)u, (double)y, exact);
    }
    float edge[4] = {INFINITY, -200.0f, NAN, 1e30f}, one[4] = {1, 1, 1, -1e30f}, y[4];
    scalar()->glu(edge, one, y, 4, (mr_glu){.kind = MR_GLU_GELU});
    assert_true(y[0] == INFINITY && y[1] <= 0.0f && y[1] > -1e-30f && isnan(y[2]));
    scalar()->glu(edge, one, y, 4, (mr_glu){.kind = MR_GLU_GPT_OSS, .limit = 7.0f});
    assert_true(y[0] > 13.99f && y[0] < 14.0f && y[1] <= 0.0f && isnan(y[2]) && y[3] < -41.99f && y[3] > -42.0f);
}

static void test_soft_cap_is_close_to_double(void **state) {
    (void)state;
    for (int round = 0; round < 100000; round++) {
        float x = rng_unit(&numbers) * 100.0f, y;
        scalar()->soft_cap(&x, &y, 1, 30.0f);
        double exact = 30 * tanh((double)x / 30);
        assert_true(fabs((double)y - exact) <= 1e-6 * fabs(exact));
    }
    float edge[3] = {INFINITY, -1e30f, NAN}, y[3];
    scalar()->soft_cap(edge, y, 3, 30.0f);
    assert_true(y[0] == 30.0f && y[1] == -30.0f && isnan(y[2]));
}

static int set_mode(void **state) {
    (void)state;
    mr_thread_set_denormals_flushed();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantize_equals_scalar),
        cmocka_unit_test(test_round_bf16_equals_scalar),
        cmocka_unit_test(test_rms_norm_equals_scalar),
        cmocka_unit_test(test_glu_equals_scalar),
        cmocka_unit_test(test_soft_cap_equals_scalar),
        cmocka_unit_test(test_rope_equals_scalar),
        cmocka_unit_test(test_kv_write_equals_scalar),
        cmocka_unit_test(test_quantize_rounds_to_nearest_even),
        cmocka_unit_test(test_quantize_edges),
        cmocka_unit_test(test_quantize_error_is_the_least),
        cmocka_unit_test(test_rms_norm_is_close_to_double),
        cmocka_unit_test(test_rope_is_close_to_double),
        cmocka_unit_test(test_glu_is_close_to_double),
        cmocka_unit_test(test_each_glu_is_close_to_double),
        cmocka_unit_test(test_soft_cap_is_close_to_double),
    };
    return cmocka_run_group_tests(tests, set_mode, NULL);
}
