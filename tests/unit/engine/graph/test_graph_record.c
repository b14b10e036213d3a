/* The i32 inputs of a graph as one record, and inputs that several memories hold. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_rig.h"

/* x, and rows of it that the device and the host take, by one list, and by a list for each. */
typedef struct takes {
    rig rig;
    int32_t x, both, of_device, of_host;
    int32_t out[4]; /* device: both, its own; host: both, its own */
} takes;

static int32_t on_device(rig *r, int32_t matrix, int32_t x, int32_t rows) {
    int32_t y = mr_graph_take_rows(r->g, mr_graph_matmul(r->g, matrix, x, NONE, NONE), rows);
    return mr_graph_matmul(r->g, matrix, y, NONE, NONE);
}

static int32_t on_host(rig *r, int32_t x, int32_t rows) {
    return mr_graph_soft_cap(r->g, mr_graph_take_rows(r->g, mr_graph_soft_cap(r->g, x, 900.0f), rows), 900.0f);
}

static takes takes_make(uint32_t device_ops) {
    takes t = {.rig = rig_make(device_ops, 0)};
    rig *r = &t.rig;
    t.x = add_rows(r->g);
    t.of_host = mr_graph_input(r->g, "of_host", MR_TYPE_I32, 1, MR_ROWS_OUT);
    t.both = mr_graph_input(r->g, "both", MR_TYPE_I32, 1, MR_ROWS_OUT);
    t.of_device = mr_graph_input(r->g, "of_device", MR_TYPE_I32, 1, MR_ROWS_OUT);
    int32_t matrix = maker_of(r->g, carry(r, 0, t.x))->in[0];
    t.out[0] = on_device(r, matrix, t.x, t.both);
    t.out[1] = on_device(r, matrix, t.x, t.of_device);
    t.out[2] = on_host(r, t.x, t.both);
    t.out[3] = on_host(r, t.x, t.of_host);
    for (int i = 0; i < 4; i++)
        mr_graph_output(r->g, t.out[i]);
    rig_finish(r);
    rig_place(r);
    return t;
}

/* Where the rows of the input come from in the record. */
static int32_t *at(const takes *t, int32_t *record, int32_t input) {
    return record + mr_graph_record_offset(t->rig.g, input) / sizeof *record;
}

static void expect_rows(takes *t, int32_t out, const int32_t *rows, float value, bool capped) {
    float got[ROWS][WIDTH];
    assert_int_equal(mr_graph_get_rows(t->rig.g, out, 0, ROWS, got, sizeof got[0], NULL), MR_OK);
    for (int i = 0; i < ROWS * WIDTH; i++) {
        float plain = value + (float)(rows[i / WIDTH] * WIDTH + i % WIDTH);
        float difference = got[i / WIDTH][i % WIDTH] - plain;
        if (capped ? difference > 0 || difference < -20.0f : difference != 0)
            fail_msg("tensor %d, element %d is %g, wanted about %g", out, i, (double)got[i / WIDTH][i % WIDTH],
                     (double)plain);
    }
}

/* One set writes the record to each memory that reads any of it, and what the lists hold arrives where it is read. */
static void test_one_set_for_each_memory(void **state) {
    (void)state;
    static const int32_t lists[2][3][ROWS] = {{{3, 1, 0, 2}, {0, 0, 2, 1}, {1, 2, 3, 3}},
                                              {{0, 0, 0, 3}, {2, 1, 1, 0}, {3, 0, 3, 0}}};
    takes t = takes_make(BIT(MR_OP_MATMUL) | BIT(MR_OP_TAKE_ROWS));
    mr_backend *device = t.rig.backends.at[0];
    int32_t *record = calloc(1, t.rig.stats.record_bytes);
    mr_err err = {0};
    assert_non_null(record);
    for (int i = 0; i < 4; i++)
        assert_int_equal(maker_of(t.rig.g, t.out[i])->backend, i / 2);
    for (int run = 0; run < 2; run++) {
        const int32_t inputs[] = {t.both, t.of_device, t.of_host};
        for (int i = 0; i < 3; i++)
            memcpy(at(&t, record, inputs[i]), lists[run][i], sizeof lists[run][i]);
        test_device_reset(device, 0);
        set_all(&t.rig, t.x, (float)run);
        assert_int_equal(test_device_get_stats(device).n_sets, 1); /* x */
        expect_ok(mr_graph_set_record(t.rig.g, record, &err), &err);
        assert_int_equal(test_device_get_stats(device).n_sets, 2);
        expect_ok(mr_graph_run(t.rig.g, &(mr_run){.n_rows = {1, ROWS, ROWS}}, &err), &err);
        assert_int_equal(test_device_get_stats(device).n_sets, 2); /* no input is copied in the run */
        assert_int_equal(test_device_get_stats(device).n_gets, 0);
        expect_rows(&t, t.out[0], lists[run][0], (float)run, false);
        expect_rows(&t, t.out[1], lists[run][1], (float)run, false);
        expect_rows(&t, t.out[2], lists[run][0], (float)run, true);
        expect_rows(&t, t.out[3], lists[run][2], (float)run, true);
    }
    free(record);
    rig_destroy(&t.rig);
}

/* An input that is written by itself arrives in every memory, too. */
static void test_inputs_by_themselves(void **state) {
    (void)state;
    static const int32_t both[ROWS] = {2, 2, 0, 1}, own[ROWS] = {3, 0, 1, 1};
    takes t = takes_make(BIT(MR_OP_MATMUL) | BIT(MR_OP_TAKE_ROWS));
    mr_err err = {0};
    set_all(&t.rig, t.x, 9.0f);
    expect_ok(mr_graph_set_rows(t.rig.g, t.both, both, sizeof *both, ROWS, &err), &err);
    expect_ok(mr_graph_set_rows(t.rig.g, t.of_device, own, sizeof *own, ROWS, &err), &err);
    expect_ok(mr_graph_set_rows(t.rig.g, t.of_host, own, sizeof *own, ROWS, &err), &err);
    expect_ok(mr_graph_run(t.rig.g, &(mr_run){.n_rows = {1, ROWS, ROWS}}, &err), &err);
    expect_rows(&t, t.out[0], both, 9.0f, false);
    expect_rows(&t, t.out[1], own, 9.0f, false);
    expect_rows(&t, t.out[2], both, 9.0f, true);
    expect_rows(&t, t.out[3], own, 9.0f, true);
    rig_destroy(&t.rig);
}

/* The parts of a record lie apart, at places that any of the backends can read; on the host alone, too. */
static void test_layout(void **state) {
    (void)state;
    for (int with_device = 0; with_device < 2; with_device++) {
        takes t = takes_make(with_device ? BIT(MR_OP_MATMUL) | BIT(MR_OP_TAKE_ROWS) : 0);
        size_t alignment = with_device ? 256 : 64;
        const int32_t inputs[] = {t.of_host, t.both, t.of_device}; /* in the order in which they were added */
        for (size_t i = 0; i < 3; i++)
            assert_int_equal(mr_graph_record_offset(t.rig.g, inputs[i]), i * alignment);
        assert_int_equal(t.rig.stats.record_bytes, 3 * alignment);
        for (int32_t b = 0; b < t.rig.backends.n; b++)
            assert_true(t.rig.stats.work_bytes[b] >= t.rig.stats.record_bytes);
        rig_destroy(&t.rig);
    }
}

static void test_a_graph_without_a_record(void **state) {
    (void)state;
    rig r = rig_make(0, 0);
    int32_t x = add_rows(r.g), y = mr_graph_add(r.g, x, x);
    mr_graph_output(r.g, y);
    rig_finish(&r);
    rig_place(&r);
    assert_int_equal(r.stats.record_bytes, 0);
    assert_int_equal(mr_graph_set_record(r.g, NULL, NULL), MR_OK);
    rig_destroy(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_set_for_each_memory),
        cmocka_unit_test(test_inputs_by_themselves),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_a_graph_without_a_record),
    };
    return cmocka_run_group_tests_name("graph_record", tests, NULL, NULL);
}
