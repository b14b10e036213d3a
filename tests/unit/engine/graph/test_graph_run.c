/* Placed graphs run on the CPU backend and compute only as many rows as a step has. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/engine/graph/test_graph_support.h"

enum { ROWS = 8, OUT_ROWS = 4, COLUMNS = 40 }; /* 40 floats: rows are padded to 192 bytes */

/* (x + y), and some rows of it. */
typedef struct sums {
    mr_backend *be;
    mr_buffer *work;
    mr_graph *g;
    int32_t x, y, sum, wanted, taken;
    mr_graph_stats stats;
} sums;

static sums sums_make_on(const mr_cpu_options *cpu) {
    sums s = {0};
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(cpu, &s.be, &err), &err);
    s.g = graph_make(ROWS, OUT_ROWS);
    s.x = mr_graph_input(s.g, "x", MR_TYPE_F32, COLUMNS, MR_ROWS_STEP);
    s.y = mr_graph_input(s.g, "y", MR_TYPE_F32, COLUMNS, MR_ROWS_STEP);
    s.wanted = mr_graph_input(s.g, "wanted", MR_TYPE_I32, 1, MR_ROWS_OUT);
    s.sum = mr_graph_add(s.g, s.x, s.y);
    s.taken = mr_graph_take_rows(s.g, s.sum, s.wanted);
    mr_graph_output(s.g, s.sum);
    mr_graph_output(s.g, s.taken);
    expect_ok(mr_graph_finish(s.g, &(mr_backends){.at = {s.be}, .n = 1}, &s.stats, &err), &err);
    expect_ok(s.be->ops->buffer_create(s.be, s.stats.work_bytes[0], &s.work, &err), &err);
    expect_ok(mr_graph_place(s.g, &s.work, &err), &err);
    return s;
}

static sums sums_make(int32_t n_threads) {
    return sums_make_on(&(mr_cpu_options){.n_threads = n_threads});
}

static void sums_free(sums *s) {
    mr_graph_destroy(s->g);
    s->be->ops->buffer_destroy(s->be, s->work);
    mr_backend_destroy(s->be);
}

static float value(int32_t tensor, int32_t row, int32_t column) {
    return (float)(tensor * 1000 + row * 100 + column) * 0.37f;
}

static void set_floats(sums *s, int32_t tensor, int32_t n_rows) {
    float rows[ROWS][COLUMNS];
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t i = 0; i < COLUMNS; i++)
            rows[r][i] = value(tensor, r, i);
    assert_int_equal(mr_graph_set_rows(s->g, tensor, rows, sizeof rows[0], n_rows, NULL), MR_OK);
}

static void count(void *ctx) {
    ++*(int *)ctx;
}

static void run(sums *s, int32_t n_rows, const int32_t *wanted, int32_t n_out) {
    int n_calls = 0;
    mr_run r = {
        .n_rows = {[MR_ROWS_STEP] = n_rows, [MR_ROWS_OUT] = n_out}, .progress = count, .progress_ctx = &n_calls};
    set_floats(s, s->x, n_rows);
    set_floats(s, s->y, n_rows);
    if (n_out > 0)
        assert_int_equal(mr_graph_set_rows(s->g, s->wanted, wanted, sizeof *wanted, n_out, NULL), MR_OK);
    uint64_t allocs = mr_mem_get_stats().n_allocs;
    assert_int_equal(mr_graph_run(s->g, &r, NULL), MR_OK);
    assert_int_equal(mr_mem_get_stats().n_allocs, allocs);
    assert_int_equal(n_calls, s->stats.n_groups);
}

static void expect_row(sums *s, int32_t tensor, int32_t at, int32_t row) {
    float got[COLUMNS];
    assert_int_equal(mr_graph_get_rows(s->g, tensor, at, 1, got, sizeof got, NULL), MR_OK);
    for (int32_t i = 0; i < COLUMNS; i++)
        if (got[i] != value(s->x, row, i) + value(s->y, row, i))
            fail_msg("row %d column %d: %g", at, i, (double)got[i]);
}

static void test_rows_are_added_and_taken(void **state) {
    (void)state;
    static const int32_t wanted[OUT_ROWS] = {2, 0, 2, 1};
    for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
        sums s = sums_make(n_threads);
        for (int32_t n_rows = 3; n_rows <= ROWS; n_rows += 5) {
            for (int32_t n_out = 0; n_out <= OUT_ROWS; n_out += 2) {
                run(&s, n_rows, wanted, n_out);
                for (int32_t r = 0; r < n_rows; r++)
                    expect_row(&s, s.sum, r, r);
                for (int32_t r = 0; r < n_out; r++)
                    expect_row(&s, s.taken, r, wanted[r]);
            }
        }
        sums_free(&s);
    }
}

static int64_t frozen_ns;

/* Runs seem to take 0 to 3 ms, so that trials of other numbers of threads win and lose. */
static void count_and_move_clock(void *ctx) {
    int *n = ctx;
    ++*n;
    frozen_ns = frozen_ns * 75 % 65537;
    mr_clock_freeze(mr_clock_now_ns() + frozen_ns * 46);
}

/* Whichever number of threads a run takes, and whatever other numbers runs took before. */
static void test_threads_that_adapt_give_the_same(void **state) {
    (void)state;
    static const int32_t wanted[OUT_ROWS] = {2, 0, 2, 1};
    sums s = sums_make_on(&(mr_cpu_options){.n_threads = 5, .adapts = true});
    frozen_ns = 1;
    mr_clock_freeze(1);
    for (int i = 0; i < 1500; i++) {
        int32_t n_rows = 1 + i % ROWS;
        int n_calls = 0;
        mr_run r = {.n_rows = {[MR_ROWS_STEP] = n_rows, [MR_ROWS_OUT] = n_rows > 2 ? OUT_ROWS : 0},
                    .progress = count_and_move_clock,
                    .progress_ctx = &n_calls};
        set_floats(&s, s.x, n_rows);
        set_floats(&s, s.y, n_rows);
        assert_int_equal(mr_graph_set_rows(s.g, s.wanted, wanted, sizeof *wanted, OUT_ROWS, NULL), MR_OK);
        uint64_t allocs = mr_mem_get_stats().n_allocs;
        assert_int_equal(mr_graph_run(s.g, &r, NULL), MR_OK);
        assert_int_equal(mr_mem_get_stats().n_allocs, allocs);
        assert_int_equal(n_calls, s.stats.n_groups);
        for (int32_t row = 0; row < n_rows; row++)
            expect_row(&s, s.sum, row, row);
        for (int32_t row = 0; row < r.n_rows[MR_ROWS_OUT]; row++)
            expect_row(&s, s.taken, row, wanted[row]);
    }
    mr_clock_freeze(-1);
    sums_free(&s);
}

/* Rows beyond the real ones are not computed: what an earlier run left there stays. */
static void test_only_real_rows_are_computed(void **state) {
    (void)state;
    sums s = sums_make(1);
    float marks[ROWS][COLUMNS], got[ROWS][COLUMNS];
    run(&s, ROWS, NULL, 0);
    memset(marks, 0x55, sizeof marks);
    assert_int_equal(mr_graph_set_rows(s.g, s.sum, marks, sizeof marks[0], ROWS, NULL), MR_OK);
    run(&s, 5, NULL, 0);
    assert_int_equal(mr_graph_get_rows(s.g, s.sum, 0, ROWS, got, sizeof got[0], NULL), MR_OK);
    expect_row(&s, s.sum, 4, 4);
    assert_memory_equal(got[5], marks[5], 3 * sizeof marks[0]);
    sums_free(&s);
}

/* The norm and the gate that write A8 themselves give the bits of those that do not. */
static void test_fused_and_plain_are_the_same(void **state) {
    (void)state;
    uint8_t plane[2][256];
    for (int fused = 0; fused < 2; fused++) {
        mr_backend *be = NULL;
        mr_buffer *work = NULL, *outside = NULL;
        mr_graph_stats stats;
        float row[WIDTH], weight[WIDTH];
        assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, NULL), MR_OK);
        assert_int_equal(be->ops->buffer_create(be, 65536, &outside, NULL), MR_OK);
        mr_graph *g = graph_make(1, 1);
        int32_t x = add_rows(g);
        mr_tensor v, w;
        assert_true(mr_tensor_init(&v, "norm", MR_TYPE_F32, WIDTH, 1, MR_STORAGE_FILE, MR_ROWS_FIXED));
        assert_true(mr_tensor_init(&w, "matrix", MR_TYPE_Q8_0, WIDTH, 16, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
        v.buffer = w.buffer = outside;
        w.offset = 4096; /* the bytes there are zeros; the test looks at the activations only */
        int32_t h = mr_graph_rms_norm(g, x, mr_graph_use(g, &v), 1e-5f);
        int32_t y = mr_graph_matmul(g, mr_graph_use(g, &w), h, NONE, NONE);
        mr_graph_output(g, y);
        if (!fused)
            mr_graph_output(g, h);
        assert_int_equal(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, NULL), MR_OK);
        assert_int_equal(count_nodes(g, MR_OP_QUANTIZE), fused ? 0 : 1);
        assert_int_equal(be->ops->buffer_create(be, stats.work_bytes[0], &work, NULL), MR_OK);
        assert_int_equal(mr_graph_place(g, &work, NULL), MR_OK);
        for (int i = 0; i < WIDTH; i++) {
            row[i] = (float)(i * i % 37) - 18.0f;
            weight[i] = 0.5f + (float)i / 100.0f;
        }
        mr_fence fence;
        assert_int_equal(be->ops->set(be, outside, 0, weight, sizeof weight, &fence, NULL), MR_OK);
        assert_int_equal(mr_graph_set_rows(g, x, row, sizeof row, 1, NULL), MR_OK);
        assert_int_equal(mr_graph_run(g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = 1}}, NULL), MR_OK);
        int32_t a8 = maker_of(g, y)->in[1];
        size_t bytes;
        assert_true(mr_type_bytes(MR_TYPE_A8, WIDTH, &bytes) && bytes <= sizeof plane[0]);
        assert_int_equal(mr_graph_get_rows(g, a8, 0, 1, plane[fused], bytes, NULL), MR_OK);
        mr_graph_destroy(g);
        be->ops->buffer_destroy(be, work);
        be->ops->buffer_destroy(be, outside);
        mr_backend_destroy(be);
    }
    assert_memory_equal(plane[0], plane[1], WIDTH + 4 * 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_are_added_and_taken),
        cmocka_unit_test(test_threads_that_adapt_give_the_same),
        cmocka_unit_test(test_only_real_rows_are_computed),
        cmocka_unit_test(test_fused_and_plain_are_the_same),
    };
    return cmocka_run_group_tests_name("graph_run", tests, NULL, NULL);
}
