/* tests/kernels/test_file_matmul.c - tests that a matrix in the layout of the file gives the bits of the repacked
 * matrix, for every weight type, with bias and add, and for numbers of rows around the panels. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/graph/graph.h"
#include "test_matmul_reference.h"
#include "tests/support/test.h"

enum { K = 512, MAX_N = 100, ROWS = 7, ODD = 1 };
static const int32_t SIZES_N[] = {1, 2, 15, 16, 17, 33, MAX_N};

typedef struct problem {
    mr_type type;
    int32_t n;
    uint8_t *file; /* n rows, at an odd address */
    float x[ROWS][K], add[ROWS][MAX_N], bias[MAX_N];
} problem;

static void fill(rng *r, float *out, size_t n) {
    for (size_t i = 0; i < n; i++)
        out[i] = rng_unit(r);
}

/* Places a tensor at the start of a new buffer. */
static mr_buffer *new_tensor(mr_backend *be, mr_tensor *t, mr_type type, int32_t columns, int32_t rows,
                             mr_storage storage) {
    size_t bytes = 0;
    mr_buffer *buffer = NULL;
    assert_true(mr_tensor_init(t, "t", type, columns, rows, storage, MR_ROWS_FIXED));
    if (storage == MR_STORAGE_WEIGHT)
        assert_int_equal(be->ops->weight_bytes(be, type, columns, rows, &bytes, NULL), MR_OK);
    bytes = bytes > t->bytes ? bytes : t->bytes;
    assert_int_equal(be->ops->buffer_create(be, bytes, &buffer, NULL), MR_OK);
    t->buffer = buffer;
    t->home = be;
    return buffer;
}

/* Computes out = x times the matrix + bias + add, in rows of n floats. */
static void run(const problem *p, bool in_file, int32_t n_threads, float out[ROWS * MAX_N]) {
    mr_backend *be = NULL;
    mr_graph *g = NULL;
    mr_tensor w, bias;
    mr_fence fence;
    mr_err err = {0};
    mr_graph_stats stats;
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = n_threads}, &be, &err), &err);
    mr_buffer *weights = new_tensor(be, &w, p->type, K, p->n, in_file ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT);
    if (in_file) { /* the buffer wraps the memory, as with a mapped file */
        be->ops->buffer_destroy(be, weights);
        expect_ok(be->ops->buffer_wrap(be, p->file - ODD, w.bytes + ODD, &weights, &err), &err);
        w.buffer = weights;
        w.offset = ODD;
    } else {
        expect_ok(be->ops->weight_load(be, &w, p->file, &fence, &err), &err);
    }
    mr_buffer *biases = new_tensor(be, &bias, MR_TYPE_F32, p->n, 1, MR_STORAGE_FILE), *work = NULL;
    expect_ok(be->ops->set(be, biases, 0, p->bias, (size_t)p->n * sizeof(float), &fence, &err), &err);

    expect_ok(mr_graph_create(ROWS, 1, &g, &err), &err);
    int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, K, MR_ROWS_STEP);
    int32_t add = mr_graph_input(g, "add", MR_TYPE_F32, p->n, MR_ROWS_STEP);
    int32_t y = mr_graph_matmul(g, mr_graph_use(g, &w), x, mr_graph_use(g, &bias), add);
    mr_graph_output(g, y);
    expect_ok(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), &err);
    expect_ok(be->ops->buffer_create(be, stats.work_bytes[0], &work, &err), &err);
    expect_ok(mr_graph_place(g, &work, &err), &err);
    expect_ok(mr_graph_set_rows(g, x, p->x, sizeof p->x[0], ROWS, &err), &err);
    size_t row_bytes = (size_t)p->n * sizeof(float);
    for (int32_t n_rows = ROWS; n_rows >= 1; n_rows -= ROWS - 1) { /* seven rows, then the first row alone */
        expect_ok(mr_graph_set_rows(g, add, p->add, row_bytes, n_rows, &err), &err);
        expect_ok(mr_graph_run(g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = n_rows}}, &err), &err);
        expect_ok(mr_graph_get_rows(g, y, 0, n_rows, out, row_bytes, &err), &err);
    }
    mr_graph_destroy(g);
    be->ops->buffer_destroy(be, work);
    be->ops->buffer_destroy(be, weights);
    be->ops->buffer_destroy(be, biases);
    mr_backend_destroy(be);
}

static void check_type(problem *p) {
    static float want[ROWS * MAX_N], got[ROWS * MAX_N];
    size_t row_bytes = 0;
    assert_true(mr_type_bytes(p->type, K, &row_bytes));
    rng r = {(uint64_t)p->type + 1};
    uint8_t *block = malloc(row_bytes * MAX_N + ODD);
    assert_non_null(block);
    p->file = block + ODD;
    for (size_t n = 0; n < MAX_N; n++)
        random_weights(&r, VALUES_PLAIN, p->type, K, p->file + n * row_bytes);
    for (size_t i = 0; i < sizeof SIZES_N / sizeof SIZES_N[0]; i++) {
        p->n = SIZES_N[i];
        memset(want, 0, sizeof want);
        run(p, false, 1, want);
        for (int32_t n_threads = 1; n_threads <= 3; n_threads++) {
            memset(got, 0, sizeof got);
            run(p, true, n_threads, got);
            if (memcmp(got, want, sizeof want) != 0)
                fail_msg("%s, %d rows, %d threads", mr_type_name(p->type), p->n, n_threads);
        }
        assert_true(want[p->n - 1] != 0.0f && want[(ROWS - 1) * p->n] != 0.0f);
    }
    free(block);
}

static void test_every_type(void **state) {
    (void)state;
    static problem p;
    rng r = {99};
    int n_types = 0;
    fill(&r, p.x[0], sizeof p.x / sizeof(float));
    fill(&r, p.add[0], sizeof p.add / sizeof(float));
    fill(&r, p.bias, MAX_N);
    for (int32_t type = 0; type < MR_TYPE_FILE_COUNT; type++) {
        const mr_type_info *info = mr_type_get(type);
        if (!info || !info->is_weight)
            continue;
        p.type = (mr_type)type;
        check_type(&p);
        n_types++;
    }
    print_message("%d types\n", n_types);
    assert_true(n_types >= 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_type)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
