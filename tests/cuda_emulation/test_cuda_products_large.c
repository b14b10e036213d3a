/* tests/cuda_emulation/test_cuda_products_large.c - integer products of many rows: the bits of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_products_int.h"
#include "backends/cuda/cuda_products_large.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_builder.h"
#include "tests/cuda_emulation/product_rig.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

static const mr_type TYPES[] = {MR_TYPE_Q8_0,   MR_TYPE_Q4_0, MR_TYPE_IQ4_NL, MR_TYPE_MXFP4,
                                MR_TYPE_IQ4_XS, MR_TYPE_Q4_K, MR_TYPE_Q5_K,   MR_TYPE_Q6_K};
enum { SMALL_DEVICE = 1, LARGE_DEVICE = 1000000 }; /* processors; long tiles are for small devices */
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static void repack(const cuda_repack *r) {
    cuda_repack_panel_args args;
    cuda_launch_desc desc;
    cuda_int_repack(r, &args, &desc);
    node_launch(&desc);
}

/* ctx: the processors of the device. */
static void run(const product_shape *shape, const product_variant *v, cuda_product_args *args, void *ctx) {
    const int32_t *n_processors = ctx;
    cuda_product_size size = {shape->type, v->n_rows, v->of == PRODUCT_HEADS ? shape->n_matrices : 1,
                              v->of == PRODUCT_EXPERTS ? shape->n_matrices : 0, *n_processors};
    cuda_launch_desc desc;
    assert_true(cuda_large_choose(&size, args, &desc));
    node_launch(&desc);
}

static void check(const product_problem *p, product_variant v) {
    static int n; /* every order of threads in turn */
    for (int i = 0; i < 2; i++, n++) {
        emulator_set_order((emulator_order)(n % 3), (uint64_t)n);
        product_check(p, &v, run, &(int32_t){i ? SMALL_DEVICE : LARGE_DEVICE});
    }
}

static product_problem *create(product_shape shape, values kind) {
    product_layout layout = {cuda_int_bytes(shape.type, shape.k, shape.n), repack};
    assert_true(layout.matrix_bytes > 0);
    return product_problem_create(&shape, layout, kind, 1 + (uint64_t)(shape.k + shape.n));
}

/* Rows and panels around those of a warp and a block; columns around those of a stage and a step. */
static void test_shapes(void **state) {
    (void)state;
    static const int32_t K[] = {32, 64, 96, 128, 160, 256, 288}, K_256[] = {256, 512, 768};
    static const int32_t N[] = {127, 1, 129, 16, 33, 128, 17}, ROWS[] = {65, 95, 96, 97, 127, 128, 129, 193};
    int count = 0;
    for (int t = 0; t < COUNT(TYPES); t++) {
        bool is_k = mr_type_get(TYPES[t])->block_elems == 256;
        for (int k = 0; k < (is_k ? COUNT(K_256) : COUNT(K)); k++, count++) {
            product_shape shape = {TYPES[t], 1, is_k ? K_256[k] : K[k], N[count % COUNT(N)], 200};
            product_problem *p = create(shape, count % 2 ? VALUES_SPECIAL : VALUES_PLAIN);
            for (int r = (count + share_draw()) % share_get() % COUNT(ROWS); r < COUNT(ROWS); r += share_get())
                check(p, (product_variant){ROWS[r], .bias = (r + count) % 3 == 1, .add = (r + count) % 3,
                                           .alias = (r + count) % 2});
            product_problem_destroy(p);
        }
    }
}

static void test_heads_and_experts(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        product_problem *p = create((product_shape){TYPES[t], 3, 256, 21, 300}, VALUES_PLAIN);
        check(p, (product_variant){90, .of = PRODUCT_HEADS});
        check(p, (product_variant){300, .bias = true, .of = PRODUCT_EXPERTS});
        product_problem_destroy(p);
    }
}

/* Lanes that read shared memory at once go to different banks. */
static void test_banks(void **state) {
    (void)state;
    for (int t = 0; t < COUNT(TYPES); t++) {
        product_problem *p = create((product_shape){TYPES[t], 1, 512, 128, 128}, VALUES_PLAIN);
        emulator_reset_counts();
        emulator_count_traffic(true);
        check(p, (product_variant){.n_rows = 128});
        assert_true(emulator_get_counts().n_shared_turns > 0);
        assert_int_equal(emulator_get_counts().n_bank_conflicts, 0);
        product_problem_destroy(p);
    }
    emulator_count_traffic(false);
}

static void test_few_rows_are_left_to_others(void **state) {
    (void)state;
    cuda_product_args args = {.n = 4096};
    cuda_launch_desc desc;
    assert_false(cuda_large_choose(&(cuda_product_size){MR_TYPE_Q8_0, 64, 1, 0, 132}, &args, &desc));
    assert_false(cuda_large_choose(&(cuda_product_size){MR_TYPE_Q8_0, 256, 1, 4, 132}, &args, &desc));
    assert_true(cuda_large_choose(&(cuda_product_size){MR_TYPE_Q8_0, 512, 1, 0, 132}, &args, &desc));
    assert_string_equal(desc.kernel, "cuda_product_q8_0_large_short");
    assert_true(cuda_large_choose(&(cuda_product_size){MR_TYPE_Q8_0, 1024, 1, 0, 132}, &args, &desc));
    assert_string_equal(desc.kernel, "cuda_product_q8_0_large_long");
    assert_int_equal(desc.grid[0], 32);
    assert_int_equal(desc.grid[1], 8);
    assert_true(cuda_large_choose(&(cuda_product_size){MR_TYPE_Q6_K, 1024, 1, 0, 132}, &args, &desc));
    assert_string_equal(desc.kernel, "cuda_product_q6_k_large_long");
    assert_int_equal(desc.grid[1], 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_rows_are_left_to_others),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_heads_and_experts),
        cmocka_unit_test(test_banks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
