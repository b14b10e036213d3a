// SPDX-License-Identifier: Apache-2.0
/* Profiles: parts of reports become layers, a wrong part is refused, and counts give an order. */
#include "coordinator/planning/profile.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

#include <string.h>

static const uint64_t COUNTS[] = {3, 9, 0, 9, 4, 3, 10};
enum { N = sizeof COUNTS / sizeof COUNTS[0], N_ROWS = 10 };

static mr_profile_part part_of(int32_t layer, int32_t first, int32_t n) {
    return (mr_profile_part){
        .layer = layer, .n = N, .n_rows = N_ROWS, .first = first, .n_counts = n, .counts = COUNTS + first};
}

/* Ten layers, of which 2, 5 and 9 have experts. */
static mr_model_info model(void) {
    mr_model_info info = {.n_layers = 10, .n_experts = N, .n_shapes = 2};
    info.shapes[1].has_experts = true;
    info.shape_of[2] = info.shape_of[5] = info.shape_of[9] = 1;
    return info;
}

static void test_collect(void **state) {
    (void)state;
    mr_profile p = {0};
    mr_err err = {0};
    const mr_profile_part parts[] = {part_of(5, 0, 3), part_of(2, 0, N), part_of(5, 3, 4), part_of(9, 0, N)};
    mr_model_info info = model();
    expect_fails(mr_profile_check_model(&p, &info, &err), MR_E_FORMAT, &err, "layer 2 has 7 experts, and there are");
    for (int i = 0; i < 4; i++) {
        expect_ok(mr_profile_add(&p, &parts[i], &err), &err);
        if (i == 1)
            expect_fails(mr_profile_check_model(&p, &info, &err), MR_E_FORMAT, &err, "there are counts of 3");
    }
    expect_ok(mr_profile_check_model(&p, &info, &err), &err);
    info.n_layers = 9;
    expect_fails(mr_profile_check_model(&p, &info, &err), MR_E_FORMAT, &err, "counts of layer 9, which has neither");
    info = model();
    info.n_experts++;
    expect_fails(mr_profile_check_model(&p, &info, &err), MR_E_FORMAT, &err, "layer 2 has 8 experts");
    info = model();
    info.shapes[1] = (mr_layer_info){.n_predictor = 4, .n_ff = N};
    expect_fails(mr_profile_check_model(&p, &info, &err), MR_E_FORMAT, &err, "layer 2 has 7 neurons");
    p.is_neurons = true;
    expect_ok(mr_profile_check_model(&p, &info, &err), &err);
    p.is_neurons = false;
    assert_true(p.n_layers == 3 && p.n_rows == N_ROWS && !p.is_neurons);
    const int32_t layers[] = {2, 5, 9};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(p.layers[i].layer, layers[i]);
        assert_memory_equal(p.layers[i].counts, COUNTS, sizeof COUNTS);
    }
    assert_ptr_equal(mr_profile_find_layer(&p, 5), &p.layers[1]);
    assert_null(mr_profile_find_layer(&p, 4));
    assert_null(mr_profile_find_layer(&p, 10));
    mr_profile_deinit(&p);
}

static void expect_refused(mr_profile *p, mr_profile_part part, const char *words) {
    mr_err err = {0};
    expect_fails(mr_profile_add(p, &part, &err), MR_E_PROTOCOL, &err, words);
    assert_true(p->n_layers == 1 && p->layers[0].n_known == 3);
}

static void test_wrong_parts(void **state) {
    (void)state;
    mr_profile p = {0};
    mr_err err = {0};
    mr_profile_part good = part_of(1, 0, 3), wrong = part_of(1, 4, 3);
    expect_ok(mr_profile_add(&p, &good, &err), &err);
    expect_refused(&p, wrong, "layer 1: counts 4 to 6 of 7 do not follow the 3 before");
    wrong = part_of(1, 3, 4);
    wrong.n = 8;
    expect_refused(&p, wrong, "layer 1: counts 3 to 6 of 8");
    expect_refused(&p, good, "counts 0 to 2");
    wrong = part_of(2, 1, 2);
    expect_refused(&p, wrong, "layer 2: counts 1 to 2 of 7 do not follow the 0 before");
    wrong = part_of(2, 0, 3);
    wrong.n_rows++;
    expect_refused(&p, wrong, "layer 2 has the counts of 11 rows of experts, other layers of 10 rows of experts");
    wrong = part_of(2, 0, 3);
    wrong.is_neurons = true;
    expect_refused(&p, wrong, "10 rows of neurons");
    wrong = part_of(1, 3, 5);
    expect_refused(&p, wrong, "counts 3 to 7 of 7");
    mr_profile_deinit(&p);
}

static void test_order(void **state) {
    (void)state;
    mr_profile p = {0};
    mr_err err = {0};
    const mr_profile_part part = part_of(0, 0, N);
    const int32_t want[N] = {6, 1, 3, 4, 0, 5, 2};
    int32_t order[N];
    expect_ok(mr_profile_add(&p, &part, &err), &err);
    expect_ok(mr_profile_order(&p.layers[0], order, &err), &err);
    assert_memory_equal(order, want, sizeof want);
    assert_int_equal(mr_profile_sum(&p.layers[0]), 38);
    assert_int_equal(mr_profile_n_hottest(&p.layers[0], 10), 1);
    assert_int_equal(mr_profile_n_hottest(&p.layers[0], 50), 4);
    assert_int_equal(mr_profile_n_hottest(&p.layers[0], 100), 7);
    mr_profile_deinit(&p);
}

static void test_no_memory(void **state) {
    (void)state;
    mr_err err = {0};
    for (int64_t n = 0, failed = 1; failed; n++) {
        mr_profile p = {0};
        int32_t order[N];
        mr_status status = MR_OK;
        mr_mem_fail_at(n);
        for (int32_t l = 0; l < 3 && status == MR_OK; l++) {
            const mr_profile_part part = part_of(2 - l, 0, N);
            status = mr_profile_add(&p, &part, &err);
        }
        if (status == MR_OK)
            status = mr_profile_order(&p.layers[0], order, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        failed = status != MR_OK;
        mr_profile_deinit(&p);
        assert_true(n < 20);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collect), cmocka_unit_test(test_wrong_parts),
                                       cmocka_unit_test(test_order), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
