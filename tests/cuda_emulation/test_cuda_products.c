/* tests/cuda_emulation/test_cuda_products.c - products of quantised matrices give the bits of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>

#include "backends/cuda/cuda_products_int.h"
#include "engine/base/mem.h"
#include "engine/tensor/quant.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_builder.h"
#include "tests/cuda_emulation/product_rig.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

static const mr_type TYPES[] = {
#define PANEL(name, TYPE, ...) MR_TYPE_##TYPE,
#include "backends/cuda/kernels/cuda_panels.def"
#undef PANEL
};
enum { SMALL_DEVICE = 1, LARGE_DEVICE = 1000000 }; /* processors; warps share a panel on large devices */
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static void repack(const cuda_repack *r) {
    cuda_repack_panel_args args;
    cuda_launch_desc desc;
    cuda_int_repack(r, &args, &desc);
    node_launch(&desc);
}

/* ctx: the processors of the device. Counts what the product reads. */
static void run(const product_shape *shape, const product_variant *v, cuda_product_args *args, void *ctx) {
    cuda_product_size size = {shape->type, v->n_rows, v->of == PRODUCT_HEADS ? shape->n_matrices : 1,
                              v->of == PRODUCT_EXPERTS ? shape->n_matrices : 0, *(const int32_t *)ctx};
    cuda_launch_desc desc;
    cuda_int_choose(&size, args, &desc);
    emulator_reset_counts();
    node_launch(&desc);
}

static product_problem *create(product_shape shape, values kind) {
    product_layout layout = {cuda_int_bytes(shape.type, shape.k, shape.n), repack};
    assert_true(layout.matrix_bytes > 0);
    return product_problem_create(&shape, layout, kind, 1 + (uint64_t)shape.k);
}

/* Every order of threads in turn. */
static void next_order(void) {
    static int n;
    emulator_set_order((emulator_order)(n % 3), (uint64_t)n);
    n++;
}

/* Both kinds of kernels for some rows. */
static void check(const product_problem *p, product_variant v) {
    for (int32_t device = SMALL_DEVICE; device <= LARGE_DEVICE; device += LARGE_DEVICE - SMALL_DEVICE) {
        next_order();
        product_check(p, &v, run, &device);
    }
}

static void check_shape(product_shape shape, const int32_t *rows, int n_rows) {
    static int n_shapes;
    for (values kind = VALUES_PLAIN; kind <= VALUES_SPECIAL; kind++) {
        if (share_skips(&n_shapes))
            continue;
        product_problem *p = create(shape, kind);
        for (int i = 0; i < n_rows; i++)
            check(p, (product_variant){rows[i], .bias = i % 2, .add = i % 3 == 1, .alias = i % 4 == 1});
        product_problem_destroy(p);
    }
}

/* Columns around a step of tiles and around the steps that are read ahead. */
static void test_columns(void **state) {
    (void)state;
    static const int32_t OF_32[] = {32, 64, 96, 128, 160, 288, 1024, 1056, 3264, 4192},
                         OF_256[] = {256, 512, 768, 4352}, ROWS[] = {1, 9};
    for (int t = 0; t < COUNT(TYPES); t++) {
        bool of_32 = mr_type_get(TYPES[t])->block_elems == 32;
        for (int i = 0; i < (of_32 ? COUNT(OF_32) : COUNT(OF_256)); i++)
            check_shape((product_shape){TYPES[t], 1, of_32 ? OF_32[i] : OF_256[i], 19, 9}, ROWS, COUNT(ROWS));
    }
}

/* Rows of activations around those of a kernel, and of the matrix around a panel and a block. */
static void test_rows(void **state) {
    (void)state;
    static const int32_t ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 65, 130},
                         N[] = {1, 15, 16, 17, 63, 64, 65};
    for (int t = 0; t < COUNT(TYPES); t++) {
        check_shape((product_shape){TYPES[t], 1, 512, 33, 130}, ROWS, COUNT(ROWS));
        for (int i = 0; i < COUNT(N); i++)
            check_shape((product_shape){TYPES[t], 1, 256, N[i], 17}, (const int32_t[]){1, 17}, 2);
    }
}

static void test_heads_and_experts(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        product_problem *p = create((product_shape){TYPES[t], 5, 256, 40, 33}, VALUES_PLAIN);
        for (int32_t rows = 1; rows <= 33; rows += 16) {
            check(p, (product_variant){rows, .of = PRODUCT_HEADS});
            check(p, (product_variant){rows, .bias = true, .of = PRODUCT_EXPERTS});
            check(p, (product_variant){8 * rows, .of = PRODUCT_EXPERTS});
        }
        product_problem_destroy(p);
    }
}

/* Weights are read once, in whole sectors. The activations of each panel are read with them, and come from the first
 * cache: scales by half a sector. */
static void check_traffic(mr_type type, int32_t n_rows, int32_t device) {
    enum { K = 2048, N = 64 };
    product_problem *p = create((product_shape){type, 1, K, N, n_rows}, VALUES_PLAIN);
    product_check(p, &(product_variant){.n_rows = n_rows}, run, &device);
    product_problem_destroy(p);
    emulator_counts c = emulator_get_counts();
    bool has_min = type == MR_TYPE_Q4_K || type == MR_TYPE_Q5_K;
    uint64_t scales = K / 8 * 2 * (has_min ? 2 : 1);
    uint64_t columns = (uint64_t)(n_rows + n_rows % 2); /* lanes read the scales of two */
    uint64_t activations = N / MR_PANEL * ((uint64_t)n_rows * K + columns * scales);
    uint64_t most = cuda_int_bytes(type, K, N) * 105 / 100 + activations;
    if (32 * c.n_sectors > most)
        fail_msg("%s: %d rows read %llu bytes, more than %llu", mr_type_name(type), n_rows,
                 (unsigned long long)(32 * c.n_sectors), (unsigned long long)most);
    assert_int_equal(c.n_bank_conflicts, 0);
}

static void test_traffic(void **state) {
    (void)state;
    emulator_count_traffic(true);
    for (int t = 0; t < COUNT(TYPES); t++) {
        check_traffic(TYPES[t], 1, SMALL_DEVICE);
        check_traffic(TYPES[t], 1, LARGE_DEVICE);
        check_traffic(TYPES[t], 16, LARGE_DEVICE);
        check_traffic(TYPES[t], 48, SMALL_DEVICE);
    }
    emulator_count_traffic(false);
}

/* MXFP4 has scales from 0 to 2^127: all of them, by activations of 1. */
static void test_every_exponent(void **state) {
    (void)state;
    enum { N = 256 };
    static uint8_t file[N][17], a[64];
    static float y[N];
    for (int n = 0; n < N; n++) {
        file[n][0] = (uint8_t)n;
        file[n][1] = 2; /* the value of nibble 2 is 2 */
    }
    a[0] = 1;
    memcpy(a + 32, &(float){1}, 4);
    size_t bytes = cuda_int_bytes(MR_TYPE_MXFP4, 32, N);
    uint8_t *panels = aligned_alloc(256, mr_round_up(bytes, 256));
    assert_non_null(panels);
    repack(&(cuda_repack){MR_TYPE_MXFP4, 32, N, file[0], panels});
    cuda_product_args args = {.rows = {0, 1}, .k = 32, .n = N, .w = panels, .a = a, .y = (uint8_t *)y};
    run(&(product_shape){.type = MR_TYPE_MXFP4}, &(product_variant){.n_rows = 1}, &args, &(int32_t){SMALL_DEVICE});
    for (int n = 0; n < N; n++)
        assert_true(y[n] == 2 * mr_mxfp4_scale((uint8_t)n));
    free(panels);
}

/* The greatest sums of Q6_K with both signs: 32 products of -32, -128 and 127. */
static void test_greatest_sums(void **state) {
    (void)state;
    enum { K = 256, ROWS = 65 };
    static uint8_t a[ROWS][K + K / 8 * 2];
    mr_block_q6_k block = {.d = 0x3c00}; /* 1; the values are -32 */
    memset(block.sc, -128, sizeof block.sc);
    float want = 0;
    for (int i = 0; i < K / 32; i++)
        want = fmaf(32 * 32 * 128 * 127, 1, want);
    for (int r = 0; r < ROWS; r++) {
        memset(a[r], r % 2 ? -127 : 127, K);
        for (int i = 0; i < K / 32; i++)
            memcpy(a[r] + K + 4 * i, &(float){1}, 4);
    }
    size_t bytes = cuda_int_bytes(MR_TYPE_Q6_K, K, 1);
    uint8_t *panels = aligned_alloc(256, mr_round_up(bytes, 256));
    assert_non_null(panels);
    repack(&(cuda_repack){MR_TYPE_Q6_K, K, 1, (const uint8_t *)&block, panels});
    for (int32_t n_rows = 1; n_rows <= ROWS; n_rows += 32) {
        float y[ROWS] = {0};
        cuda_step step = {.n_rows = {[MR_ROWS_STEP] = n_rows}};
        cuda_product_args args = {.step = &step,
                                  .rows = {MR_ROWS_STEP, -1},
                                  .k = K,
                                  .n = 1,
                                  .w = panels,
                                  .a = a[0],
                                  .y = (uint8_t *)y,
                                  .a_row_bytes = sizeof a[0],
                                  .y_row_bytes = sizeof y[0]};
        run(&(product_shape){.type = MR_TYPE_Q6_K}, &(product_variant){.n_rows = n_rows}, &args,
            &(int32_t){SMALL_DEVICE});
        for (int r = 0; r < n_rows; r++)
            assert_true(y[r] == (r % 2 ? -want : want));
    }
    free(panels);
}

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(cuda_int_bytes(MR_TYPE_Q8_0, 128, 16), 4 * 512 + 128);
    assert_int_equal(cuda_int_bytes(MR_TYPE_Q8_0, 32, 16), 512 + 128);
    assert_int_equal(cuda_int_bytes(MR_TYPE_Q8_0, 128, 17), 2 * cuda_int_bytes(MR_TYPE_Q8_0, 128, 16));
    assert_int_equal(cuda_int_bytes(MR_TYPE_Q8_0, 33, 16), 0);
    assert_int_equal(cuda_int_bytes(MR_TYPE_F16, 32, 16), 0);
    assert_int_equal(cuda_int_bytes(MR_TYPE_A8, 32, 16), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_columns),
        cmocka_unit_test(test_rows),          cmocka_unit_test(test_heads_and_experts),
        cmocka_unit_test(test_traffic),       cmocka_unit_test(test_every_exponent),
        cmocka_unit_test(test_greatest_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
