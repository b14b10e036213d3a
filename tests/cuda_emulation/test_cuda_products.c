/* tests/cuda_emulation/test_cuda_products.c - products of quantised matrices give the bits of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "backends/cuda/cuda_products_int.h"
#include "tests/cuda_emulation/emulator.h"
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
    product_launch(&desc);
}

/* ctx: the processors of the device. */
static void run(const product_shape *shape, const product_variant *v, cuda_product_args *args, void *ctx) {
    cuda_product_size size = {shape->type, v->n_rows, v->of == PRODUCT_HEADS ? shape->n_matrices : 1,
                              v->of == PRODUCT_EXPERTS ? shape->n_matrices : 0, *(const int32_t *)ctx};
    cuda_launch_desc desc;
    cuda_int_choose(&size, args, &desc);
    product_launch(&desc);
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
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_columns),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_heads_and_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
