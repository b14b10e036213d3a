/* The choice of matrix products that run on another backend than the CPU, from invented times. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "tests/support/test.h"
#include "worker/stage/products.h"

enum { MAX_ROWS = 300, MAX_ASKED = 64 };

/* Backends that are only told apart, and how long they take: a start and a time for each row. */
typedef struct fake {
    mr_backend backends[3];
    double start[3], each[3];
    double extra_f16[3]; /* factor of the time for F16 */
    int64_t cost_ns;     /* time of one measurement on the simulated clock */
    mr_status failure;
    int32_t asked[MAX_ASKED]; /* row counts that backend 0 was asked to measure */
    int n_asked;
} fake;

static void describe(const mr_backend *be, mr_device_info *out) {
    (void)be;
    *out = (mr_device_info){.name = "fake", .host_addressable = true};
}
static const mr_backend_ops OPS = {.describe = describe};

static int index_of(const fake *f, const mr_backend *be) {
    return (int)(be - f->backends);
}

static mr_status fake_timer(void *ctx, mr_backend *be, const mr_product_sample *s, int32_t n_rows, double *out_seconds,
                            mr_err *err) {
    fake *f = ctx;
    int b = index_of(f, be);
    if (f->failure != MR_OK)
        return mr_err_set(err, f->failure, "broken");
    if (b == 0 && f->n_asked < MAX_ASKED)
        f->asked[f->n_asked++] = n_rows;
    mr_clock_freeze(mr_clock_now_ns() + f->cost_ns);
    double factor = s->type == MR_TYPE_F16 && f->extra_f16[b] > 0 ? f->extra_f16[b] : 1;
    *out_seconds = (f->start[b] + f->each[b] * n_rows) * factor;
    return MR_OK;
}

static mr_backends list_of(fake *f, int32_t n) {
    mr_backends list = {.n = n};
    for (int32_t b = 0; b < n; b++) {
        f->backends[b].ops = &OPS;
        list.at[b] = &f->backends[b];
    }
    return list;
}

static const mr_product_sample SAMPLES[] = {{.type = MR_TYPE_F32, .k = 64, .n = 64},
                                            {.type = MR_TYPE_F16, .k = 64, .n = 64}};

static void choose(fake *f, mr_backends *list, int32_t max_rows) {
    mr_err err = {0};
    mr_clock_freeze(1000);
    expect_ok(mr_products_choose(list, SAMPLES, 2, max_rows, fake_timer, f, &err), &err);
}

/* A device that has to be started: it pays from some rows on, for each type its own. */
static void test_rows_from_which_it_pays(void **state) {
    (void)state;
    fake f = {.start = {50, 0}, .each = {1, 2}, .extra_f16 = {1.5, 1}};
    mr_backends list = list_of(&f, 2);
    choose(&f, &list, MAX_ROWS);
    /* F32: 50 + r against 2 r is 5 % faster from 56 rows on. F16: 75 + 1.5 r is faster from 188 rows on. */
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], 64);
    assert_int_equal(list.min_rows[0][MR_TYPE_F16], 256);
    assert_int_equal(list.min_rows[0][MR_TYPE_Q8_0], MR_NO_ROWS); /* no sample of that type */
    static const int32_t buckets[] = {300, 256, 128, 64, 32, 300, 256, 128};
    assert_int_equal(f.n_asked, 8);
    assert_memory_equal(f.asked, buckets, sizeof buckets);
}

static void test_ends_of_the_range(void **state) {
    (void)state;
    fake f = {.each = {1, 2}, .extra_f16 = {3, 1}};
    mr_backends list = list_of(&f, 2);
    choose(&f, &list, MAX_ROWS);
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], 1);
    assert_int_equal(list.min_rows[0][MR_TYPE_F16], MR_NO_ROWS);
    f.each[0] = 1.96; /* the gain is less than 5 % */
    choose(&f, &list, MAX_ROWS);
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], MR_NO_ROWS);
    f.each[0] = 1;
    choose(&f, &list, 1);
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], 1);
}

static void test_each_backend_is_compared_with_the_last(void **state) {
    (void)state;
    fake f = {.start = {100, 10, 0}, .each = {1, 1, 2}};
    mr_backends list = list_of(&f, 3);
    choose(&f, &list, 256);
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], 128);
    assert_int_equal(list.min_rows[1][MR_TYPE_F32], 16);
    assert_int_equal(list.min_rows[2][MR_TYPE_F32], 0);
}

/* A slow machine: what could not be measured in time stays on the CPU. */
static void test_the_time_is_bounded(void **state) {
    (void)state;
    fake f = {.each = {1, 2}, .cost_ns = 60 * MR_NS_PER_S / 1000};
    mr_backends list = list_of(&f, 2);
    choose(&f, &list, 256);
    assert_int_equal(list.min_rows[0][MR_TYPE_F32], 32); /* measures 256, 128, 64 and 32 rows, 120 ms each */
    assert_int_equal(list.min_rows[0][MR_TYPE_F16], MR_NO_ROWS);
    assert_true(mr_clock_now_ns() - 1000 < MR_NS_PER_S / 2);
}

static void test_a_backend_that_breaks(void **state) {
    (void)state;
    fake f = {.failure = MR_E_DEVICE};
    mr_backends list = list_of(&f, 2);
    mr_err err = {0};
    assert_int_equal(mr_products_choose(&list, SAMPLES, 2, 8, fake_timer, &f, &err), MR_E_DEVICE);
    assert_string_equal(err.text, "broken");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_from_which_it_pays),
        cmocka_unit_test(test_ends_of_the_range),
        cmocka_unit_test(test_each_backend_is_compared_with_the_last),
        cmocka_unit_test(test_the_time_is_bounded),
        cmocka_unit_test(test_a_backend_that_breaks),
    };
    return cmocka_run_group_tests_name("products", tests, NULL, NULL);
}
