/* tests/kernels/test_matmul.c - tests every matrix product of every instruction set of this CPU against rule M. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"
#include "engine/base/thread.h"
#include "engine/tensor/quant.h"
#include "test_matmul_reference.h"
#include "tests/support/isa_env.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { MAX_N = 100, MAX_ROWS = 49, GUARD = 0xa5, ALIGN = 64 };
static const int32_t SIZES_N[] = {1, 15, 16, 17, 31, 32, 33, 48, 100};
static const int32_t SIZES_ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 25, 48, 49};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* One matrix and one batch of rows, with the results of rule M before bias and add. */
typedef struct problem {
    mr_type type;
    int32_t k;
    uint8_t *file; /* MAX_N rows in file layout, at an odd address */
    uint8_t *file_block;
    size_t file_row_bytes;
    uint8_t *a;
    size_t a_row_bytes;
    float *want; /* [MAX_ROWS][MAX_N] */
    float bias[MAX_N];
    float add[MAX_ROWS][MAX_N + 3];
} problem;

static mr_matmul_fn *kernel_of(mr_type type, mr_isa isa) {
    return mr_kernels_get(isa)->matmul[mr_panel_of(type)];
}

/* The options of one call. */
typedef struct variant {
    int32_t n, rows;
    bool bias, add, alias, split;
    bool lists; /* row r reads activations a_row_of(r), and its result goes to row y_row_of(r) */
} variant;

/* Some rows are read twice, others never. Each result row is written once, in another order. */
static int32_t a_row_of(const variant *v, int32_t row) {
    return v->lists ? row * 5 / 2 % v->rows : row;
}
static int32_t y_row_of(const variant *v, int32_t row) {
    return v->lists ? v->rows - 1 - row : row;
}

static void *aligned(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, ALIGN, bytes ? bytes : 1) != 0)
        abort();
    return p;
}

static problem *problem_create(mr_type type, int32_t k, values kind, uint64_t seed) {
    problem *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    rng r = {seed};
    const mr_type_info *info = mr_type_get(type);
    p->type = type;
    p->k = k;
    p->file_row_bytes = (size_t)(k / info->block_elems) * (size_t)info->block_bytes;
    p->file_block = aligned(p->file_row_bytes * MAX_N + 1);
    p->file = p->file_block + 1;
    for (size_t n = 0; n < MAX_N; n++)
        random_weights(&r, kind, type, k, p->file + n * p->file_row_bytes);
    p->a_row_bytes = (activation_bytes(type, k) + ALIGN - 1) / ALIGN * ALIGN;
    p->a = aligned(p->a_row_bytes * MAX_ROWS);
    for (size_t row = 0; row < MAX_ROWS; row++)
        random_activations(&r, kind, type, k, p->a + row * p->a_row_bytes);
    p->want = aligned(sizeof(float) * MAX_ROWS * MAX_N);
    for (size_t row = 0; row < MAX_ROWS; row++)
        for (size_t n = 0; n < MAX_N; n++)
            p->want[row * MAX_N + n] =
                reference_dot(type, p->file + n * p->file_row_bytes, p->a + row * p->a_row_bytes, k);
    for (int n = 0; n < MAX_N; n++)
        p->bias[n] = rng_unit(&r);
    for (int row = 0; row < MAX_ROWS; row++)
        for (int n = 0; n < MAX_N + 3; n++)
            p->add[row][n] = rng_unit(&r);
    return p;
}

static void problem_destroy(problem *p) {
    free(p->file_block);
    free(p->a);
    free(p->want);
    free(p);
}

/* Repacks the first n rows into panels. */
static uint8_t *panels_create(const problem *p, int32_t n) {
    int32_t n_panels = (n + MR_PANEL - 1) / MR_PANEL;
    size_t bytes = mr_panel_bytes(p->type, p->k) * (size_t)n_panels;
    uint8_t *w = aligned(bytes);
    memset(w, GUARD, bytes);
    mr_repack_args args = {p->type, p->k, n, p->file, p->file_row_bytes, w, NULL};
    mr_repack(&args, n_panels / 2, n_panels); /* in two calls, as two threads do */
    mr_repack(&args, 0, n_panels / 2);
    return w;
}

static bool same_bits(float a, float b) {
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static float expected(const problem *p, const variant *v, int32_t row, int32_t n) {
    float y = p->want[a_row_of(v, y_row_of(v, row)) * MAX_N + n]; /* y_row_of is its own inverse */
    if (v->bias)
        y += p->bias[n];
    if (v->add)
        y += p->add[row][n];
    return y;
}

/* Rows of v->n values lie 3 floats apart. All floats around them must be unchanged. */
static void check_outputs(const problem *p, const variant *v, const float *y, const float *before, mr_isa isa) {
    size_t stride = (size_t)v->n + 3;
    for (int32_t row = 0; row < v->rows; row++)
        for (int32_t n = 0; n < v->n + 3; n++) {
            float got = y[(size_t)row * stride + (size_t)n];
            float want = n < v->n ? expected(p, v, row, n) : before[(size_t)row * stride + (size_t)n];
            if (!same_bits(got, want))
                fail_msg("%s %s k %d n %d rows %d bias %d add %d alias %d split %d lists %d: y[%d][%d] is %a, "
                         "not %a",
                         mr_type_name(p->type), mr_isa_name(isa), p->k, v->n, v->rows, v->bias, v->add, v->alias,
                         v->split, v->lists, row, n, (double)got, (double)want);
        }
}

static void call(mr_matmul_fn *fn, const mr_matmul_args *args, const variant *v) {
    int32_t n_panels = (v->n + MR_PANEL - 1) / MR_PANEL, panel = v->split ? n_panels / 2 : n_panels;
    int32_t row = v->split ? v->rows / 3 : v->rows;
    fn(args, panel, n_panels, row, v->rows);
    fn(args, 0, panel, row, v->rows);
    fn(args, 0, n_panels, 0, row);
}

static void check_variant(const problem *p, const uint8_t *w, const variant *v, mr_isa isa) {
    size_t stride = (size_t)v->n + 3, bytes = stride * (size_t)v->rows * sizeof(float);
    float *y = malloc(bytes), *before = malloc(bytes);
    if (!y || !before)
        abort();
    memset(y, GUARD, bytes);
    if (v->alias)
        for (int32_t row = 0; row < v->rows; row++)
            memcpy(y + (size_t)row * stride, p->add[row], (size_t)v->n * sizeof(float));
    memcpy(before, y, bytes);
    mr_matmul_args args = {.w = w, .k = p->k, .n = v->n, .a = p->a, .a_row_bytes = p->a_row_bytes};
    args.y = y;
    args.y_row_bytes = stride * sizeof(float);
    args.bias = v->bias ? p->bias : NULL;
    args.add = !v->add ? NULL : v->alias ? y : p->add[0];
    args.add_row_bytes = v->alias ? args.y_row_bytes : sizeof p->add[0];
    int32_t a_rows[MAX_ROWS], y_rows[MAX_ROWS];
    for (int32_t row = 0; row < v->rows; row++) {
        a_rows[row] = a_row_of(v, row);
        y_rows[row] = y_row_of(v, row);
    }
    args.a_rows = v->lists ? a_rows : NULL;
    args.y_rows = v->lists ? y_rows : NULL;
    call(kernel_of(p->type, isa), &args, v);
    check_outputs(p, v, y, before, isa);
    free(y);
    free(before);
}

/* Checks every combination of bias and add, with the panels in one call and in several. */
static void check_size(const problem *p, const uint8_t *w, int32_t n, int32_t rows, mr_isa isa) {
    for (int bits = 0; bits < 16; bits++) {
        variant v = {n, rows, .bias = bits & 1, .add = bits & 2, .alias = bits & 4, .split = bits & 8};
        bool rare = n < MAX_N && rows > 8; /* tests only a few combinations, to save time */
        if ((v.alias && !v.add) || (rare && bits != 0 && bits != 15))
            continue;
        check_variant(p, w, &v, isa);
        v.lists = true;
        if (bits == 0 || bits == 15) /* the others read and write the same at other addresses */
            check_variant(p, w, &v, isa);
    }
}

static void check_problem(mr_type type, int32_t k, values kind) {
    static int n_problems, n_sizes;
    if (share_skips(&n_problems))
        return;
    problem *p = problem_create(type, k, kind, 1 + (uint64_t)k * 64 + (uint64_t)type);
    for (size_t i = 0; i < COUNT(SIZES_N); i++) {
        uint8_t *w = panels_create(p, SIZES_N[i]);
        for (mr_isa isa = MR_ISA_SCALAR; isa <= mr_isa_detect(); isa++)
            for (size_t j = 0; j < COUNT(SIZES_ROWS); j++) {
                if (isa > MR_ISA_SCALAR && kernel_of(type, isa) == kernel_of(type, isa - 1))
                    continue; /* this instruction set has no kernel of its own */
                int32_t n = SIZES_N[i], rows = SIZES_ROWS[j];
                if (isa == MR_ISA_SCALAR && (int64_t)n * rows * k > 300000 && rows != 3)
                    continue;
                if (!share_skips(&n_sizes))
                    check_size(p, w, n, rows, isa);
            }
        free(w);
    }
    problem_destroy(p);
}

static mr_type first_of(mr_panel_type panel) {
    int type = 0;
    while (mr_panel_of((mr_type)type) != panel)
        type++;
    return (mr_type)type;
}

static void check_type(mr_type type) {
    static const int32_t OF_FLOATS[] = {1, 3, 17, 256, 513}, OF_BF16[] = {2, 3, 17, 256, 513},
                         OF_32[] = {32, 64, 288, 512, 1056, 2080}, OF_256[] = {256, 512, 1280, 2304};
    int32_t block = mr_type_get(type)->block_elems;
    const int32_t *ks = type == MR_TYPE_BF16 ? OF_BF16 : block == 1 ? OF_FLOATS : block == 32 ? OF_32 : OF_256;
    bool names_panel = type == first_of(mr_panel_of(type)); /* other types of the same panel differ in mr_repack only */
    size_t n_ks = !names_panel ? 2 : block == 1 ? COUNT(OF_FLOATS) : block == 32 ? COUNT(OF_32) : COUNT(OF_256);
    for (size_t i = 0; i < n_ks; i++) {
        check_problem(type, ks[i], VALUES_PLAIN);
        check_problem(type, ks[i], VALUES_SPECIAL);
    }
}

typedef void type_fn(mr_type type);
static void for_every_weight_type(type_fn *check) {
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        if (info && info->is_weight)
            check((mr_type)type);
    }
}

static void test_every_type_matches_rule_m(void **state) {
    (void)state;
    for_every_weight_type(check_type);
}

/* Rule M computes the product of the weights as mr_dequantize defines them. */
static void check_double(mr_type type) {
    static int count;
    if (share_skips(&count))
        return;
    int32_t block = mr_type_get(type)->block_elems;
    problem *p = problem_create(type, block == 1 ? 513 : 9 * block, VALUES_PLAIN, 99 + (uint64_t)type);
    for (size_t row = 0; row < MAX_ROWS; row++)
        for (size_t n = 0; n < MAX_N; n++) {
            double size,
                want = double_dot(type, p->file + n * p->file_row_bytes, p->a + row * p->a_row_bytes, p->k, &size);
            if (!(fabs((double)p->want[row * MAX_N + n] - want) <= 4e-6 * size))
                fail_msg("%s: %g, in double %g", mr_type_name(type), (double)p->want[row * MAX_N + n], want);
        }
    problem_destroy(p);
}

static void test_rule_m_is_close_to_double(void **state) {
    (void)state;
    for_every_weight_type(check_double);
}

/* Makes a row of activations that is 1 at i and 0 elsewhere. */
static void put_one(mr_type type, int32_t k, int32_t i, uint8_t *a) {
    memset(a, 0, activation_bytes(type, k));
    if (mr_type_activation(type) == MR_TYPE_F32)
        ((float *)(void *)a)[i] = 1;
    else if (type == MR_TYPE_BF16)
        ((uint16_t *)(void *)a)[i] = 0x3f80;
    else {
        a[i] = 1;
        ((float *)(void *)(a + k))[i / 32] = 1;
        ((int32_t *)(void *)(a + k + k / 8))[i / 32] = 1;
    }
}

/* The values in a panel equal those of mr_dequantize to the bit: scale times value, plus the minimum. */
static void check_values(mr_type type) {
    enum { N = 19 };
    int32_t block = mr_type_get(type)->block_elems, k = block == 1 ? 37 : 2 * block;
    problem *p = problem_create(type, k, VALUES_PLAIN, 7 + (uint64_t)type);
    uint8_t *w = panels_create(p, N);
    float y[N], *held = aligned((size_t)(N * k) * sizeof(float));
    for (int32_t n = 0; n < N; n++)
        mr_dequantize(type, p->file + (size_t)n * p->file_row_bytes, held + n * k, k);
    for (int32_t i = 0; i < k; i++) {
        put_one(type, k, i, p->a);
        mr_matmul_args args = {.w = w, .k = k, .n = N, .a = p->a, .a_row_bytes = p->a_row_bytes, .y = y};
        kernel_of(type, MR_ISA_SCALAR)(&args, 0, 2, 0, 1);
        for (int32_t n = 0; n < N; n++)
            if (y[n] != held[n * k + i])
                fail_msg("%s: row %d has %a at %d, not %a", mr_type_name(type), n, (double)y[n], i,
                         (double)held[n * k + i]);
    }
    free(held);
    free(w);
    problem_destroy(p);
}

static void test_panels_hold_the_values(void **state) {
    (void)state;
    for_every_weight_type(check_values);
}

static void test_panel_bytes(void **state) {
    (void)state;
    assert_int_equal(mr_panel_bytes(MR_TYPE_F32, 3), 192);
    assert_int_equal(mr_panel_bytes(MR_TYPE_F16, 3), 96);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q8_0, 64), 2 * 544);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q8_0, 33), 0);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q4_K, 512), 2 * 2368);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q4_K, 128), 0);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q6_K, 512), 2 * 3360);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q6_K, 0), 0);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q4_0, 64), 2 * 288);
    assert_int_equal(mr_panel_bytes(MR_TYPE_TQ1_0, 64), 0);
    assert_int_equal(mr_panel_bytes(MR_TYPE_TQ1_0, 256), 8 * 288);
    assert_int_equal(mr_panel_bytes(MR_TYPE_MXFP4, 32), 272);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q5_K, 256), 2880);
    assert_int_equal(mr_panel_bytes(MR_TYPE_IQ4_XS, 256), 2208);
    assert_int_equal(mr_panel_bytes(MR_TYPE_IQ1_S, 256), 8 * 640);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q5_1, 96), 3 * 768);
    assert_int_equal(mr_panel_bytes(MR_TYPE_BF16, 3), 128);
    assert_int_equal(mr_panel_bytes(MR_TYPE_BF16, 1), 0);
    assert_int_equal(mr_panel_bytes(MR_TYPE_Q8_1, 256), 0);
    for (int type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        assert_int_equal(mr_panel_of((mr_type)type) != MR_PANEL_NONE, info && info->is_weight);
    }
}

static void test_isa_is_capped_by_environment(void **state) {
    (void)state;
    char *saved = isa_env_set(NULL);
    mr_isa best = mr_isa_detect();
    assert_true(mr_isa_is_here(MR_ISA_SCALAR) && mr_isa_is_here(best));
    assert_true(best == MR_ISA_COUNT - 1 || !mr_isa_is_here(MR_ISA_COUNT - 1));
    setenv("MILLRACE_CPU_ISA", "scalar", 1);
    assert_int_equal(mr_isa_detect(), MR_ISA_SCALAR);
    assert_null(mr_isa_env_error());
    setenv("MILLRACE_CPU_ISA", mr_isa_name(MR_ISA_SCALAR + 1), 1);
    assert_int_equal(mr_isa_detect(), best > MR_ISA_SCALAR ? MR_ISA_SCALAR + 1 : MR_ISA_SCALAR);
    setenv("MILLRACE_CPU_ISA", "mmx", 1);
    assert_int_equal(mr_isa_detect(), best);
    assert_string_equal(mr_isa_env_error(), "mmx");
    setenv("MILLRACE_CPU_ISA", "", 1);
    assert_int_equal(mr_isa_detect(), best);
    assert_null(mr_isa_env_error());
    isa_env_restore(saved);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panel_bytes),
        cmocka_unit_test(test_isa_is_capped_by_environment),
        cmocka_unit_test(test_rule_m_is_close_to_double),
        cmocka_unit_test(test_panels_hold_the_values),
        cmocka_unit_test(test_every_type_matches_rule_m),
    };
    mr_thread_set_denormals_flushed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
