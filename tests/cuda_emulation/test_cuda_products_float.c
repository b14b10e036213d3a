/* tests/cuda_emulation/test_cuda_products_float.c - products of float matrices give the bits of the scalar kernels. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/cuda_products_float.h"
#include "tests/cuda_emulation/emulator.h"
#include "tests/cuda_emulation/node_builder.h"
#include "tests/cuda_emulation/product_rig.h"
#include "tests/support/test.h"

static const mr_type TYPES[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_BF16};
enum { SMALL_DEVICE = 1, LARGE_DEVICE = 1000000 }; /* processors; kernels of many rows are for small devices */
#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static void repack(const cuda_repack *r) {
    cuda_repack_float_args args;
    cuda_launch_desc desc;
    cuda_float_repack(r, &args, &desc);
    node_launch(&desc);
}

/* ctx: the name of the kernel that is expected, and the processors of the device. */
typedef struct expectation {
    const char *kernel;
    int32_t n_processors;
} expectation;

static void run(const product_shape *shape, const product_variant *v, cuda_product_args *args, void *ctx) {
    const expectation *e = ctx;
    cuda_product_size size = {shape->type, v->n_rows, v->of == PRODUCT_HEADS ? shape->n_matrices : 1,
                              v->of == PRODUCT_EXPERTS ? shape->n_matrices : 0, e->n_processors};
    cuda_launch_desc desc;
    cuda_float_choose(&size, args, &desc);
    expect_says(desc.kernel, e->kernel);
    node_launch(&desc);
}

static product_problem *create(product_shape shape, values kind) {
    product_layout layout = {cuda_float_bytes(shape.type, shape.k, shape.n), repack};
    assert_true(layout.matrix_bytes > 0);
    return product_problem_create(&shape, layout, kind, 1 + (uint64_t)shape.k);
}

/* Every order of threads in turn. */
static void next_order(void) {
    static int n;
    emulator_set_order((emulator_order)(n % 3), (uint64_t)n);
    n++;
}

/* Rows around those of a block and a warp. */
static void check_rows(const product_problem *p, const int32_t *rows, int n_rows, expectation e) {
    for (int i = 0; i < n_rows; i++)
        for (int bits = 0; bits < 8; bits++) {
            product_variant v = {rows[i], .bias = bits & 1, .add = bits & 2, .alias = bits & 4};
            if ((v.alias && !v.add) || (i % 3 && bits != 0 && bits != 7))
                continue;
            next_order();
            product_check(p, &v, run, &e);
        }
}

static void test_few_and_some_rows(void **state) {
    (void)state;
    static const int32_t K[] = {2, 3, 7, 8, 9, 31, 32, 33, 64, 65, 130, 191, 600}, N[] = {1, 15, 16, 17, 33};
    static const int32_t FEW[] = {1, 2, 7, 8}, SOME[] = {9, 31, 32, 33, 64};
    int count = 0;
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int k = 0; k < COUNT(K); k++, count++)
            for (int kind = VALUES_PLAIN; kind <= VALUES_SPECIAL; kind++) {
                product_shape shape = {TYPES[t], 1, K[k], N[count % COUNT(N)], 64};
                product_problem *p = create(shape, (values)kind);
                check_rows(p, FEW, COUNT(FEW), (expectation){"few", SMALL_DEVICE});
                check_rows(p, SOME, COUNT(SOME), (expectation){"some", LARGE_DEVICE});
                product_problem_destroy(p);
            }
}

static void test_many_rows(void **state) {
    (void)state;
    static const int32_t K[] = {2, 3, 15, 16, 17, 32, 50, 257}, N[] = {127, 16, 129, 64, 1, 128, 17};
    static const int32_t ROWS[] = {33, 63, 64, 65, 129};
    int count = 0;
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int k = 0; k < COUNT(K); k++, count++) {
            product_shape shape = {TYPES[t], 1, K[k], N[count % COUNT(N)], 129};
            product_problem *p = create(shape, count % 2 ? VALUES_SPECIAL : VALUES_PLAIN);
            check_rows(p, ROWS, COUNT(ROWS), (expectation){"many", SMALL_DEVICE});
            product_problem_destroy(p);
        }
}

static void test_heads_and_experts(void **state) {
    (void)state;
    static const struct {
        int32_t n_rows, n_matrices;
        const char *heads, *experts;
    } CASES[] = {{3, 5, "few", "few"}, {8, 70, "few", "few"}, {40, 3, "many", "some"}, {300, 3, "many", "many"}};
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int c = 0; c < COUNT(CASES); c++) {
            product_shape shape = {TYPES[t], CASES[c].n_matrices, 37, 21, CASES[c].n_rows};
            product_problem *p = create(shape, VALUES_PLAIN);
            next_order();
            product_variant heads = {CASES[c].n_rows, .of = PRODUCT_HEADS};
            product_check(p, &heads, run, &(expectation){CASES[c].heads, SMALL_DEVICE});
            product_variant experts = {CASES[c].n_rows, .bias = true, .of = PRODUCT_EXPERTS};
            product_check(p, &experts, run, &(expectation){CASES[c].experts, SMALL_DEVICE});
            product_problem_destroy(p);
        }
}

/* Lanes that read shared memory at once go to different banks, and a matrix is read once. */
static void test_reads(void **state) {
    (void)state;
    static const struct {
        int32_t n_rows;
        const char *kernel;
    } CASES[] = {{1, "few"}, {8, "few"}, {32, "some"}, {64, "many"}};
    for (int t = 0; t < COUNT(TYPES); t++)
        for (int c = 0; c < COUNT(CASES); c++) {
            product_shape shape = {TYPES[t], 1, 512, 128, CASES[c].n_rows};
            product_problem *p = create(shape, VALUES_PLAIN);
            emulator_reset_counts();
            emulator_count_traffic(true);
            product_check(p, &(product_variant){.n_rows = shape.n_rows}, run,
                          &(expectation){CASES[c].kernel, SMALL_DEVICE});
            emulator_counts counts = emulator_get_counts();
            uint64_t blocks = c < 3 ? 4 : 1; /* each reads all activations */
            uint64_t activations = blocks * (uint64_t)shape.n_rows * activation_bytes(shape.type, shape.k);
            assert_int_equal(counts.read_bytes, cuda_float_bytes(shape.type, shape.k, shape.n) + activations);
            assert_int_equal(counts.n_sectors * 32, counts.read_bytes);
            assert_true(counts.n_shared_turns > 0);
            assert_int_equal(counts.n_bank_conflicts, 0);
            product_problem_destroy(p);
        }
    emulator_count_traffic(false);
}

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(cuda_float_bytes(MR_TYPE_F32, 3, 1), 16 * 16);
    assert_int_equal(cuda_float_bytes(MR_TYPE_F16, 9, 17), 2 * 16 * 32);
    assert_int_equal(cuda_float_bytes(MR_TYPE_BF16, 1, 16), 0);
    assert_int_equal(cuda_float_bytes(MR_TYPE_Q8_0, 32, 16), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),     cmocka_unit_test(test_few_and_some_rows),
        cmocka_unit_test(test_many_rows), cmocka_unit_test(test_heads_and_experts),
        cmocka_unit_test(test_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
