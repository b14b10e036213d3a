/* tests/kernels/test_experts.c - experts by rule X, to the bit, against the rule said plainly: ties, rows that no
 * expert or every expert has, matrices that end inside a panel, both layouts, threads, instruction sets. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/fmath.h"
#include "engine/base/thread.h"
#include "engine/graph/graph.h"
#include "test_matmul_reference.h"
#include "tests/support/isa_env.h"
#include "tests/support/test.h"

enum {
    WIDTH = 24,
    FF = 20,
    EXPERTS = 7,
    USED = 3,
    ROWS = 19,
    TIED_A = 2,
    TIED_B = 5,
    ZERO_ROW = 4,
    LARGE_ROW = 8,
    NAN_ROW = 11
};

typedef struct problem {
    float router[EXPERTS][WIDTH], gate[EXPERTS][FF][WIDTH], up[EXPERTS][FF][WIDTH], down[EXPERTS][WIDTH][FF];
    float x[ROWS][WIDTH], add[ROWS][WIDTH], want[ROWS][WIDTH];
    bool is_tied; /* some row uses one of two experts that it likes alike */
} problem;

static void fill(rng *r, void *out, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        ((float *)out)[i] = rng_unit(r);
}

static float dot(const float *w, const float *x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; i++)
        sum = fmaf(w[i], x[i], sum);
    return sum;
}

/* What expert e makes of x. */
static void run_expert(const problem *p, int e, const float x[WIDTH], float y[WIDTH]) {
    float h[FF];
    for (int i = 0; i < FF; i++)
        h[i] = mr_siluf(dot(p->gate[e][i], x, WIDTH)) * dot(p->up[e][i], x, WIDTH);
    for (int i = 0; i < WIDTH; i++)
        y[i] = dot(p->down[e][i], h, FF);
}

static void want_row(problem *p, int row) {
    float logits[EXPERTS], e[USED], y[USED][WIDTH], sum = 0.0f;
    bool is_taken[EXPERTS] = {false};
    float first = 0.0f;
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = dot(p->router[i], p->x[row], WIDTH);
    for (int u = 0; u < USED; u++) {
        int best = -1;
        for (int i = 0; i < EXPERTS; i++)
            if (!is_taken[i] && (best < 0 || logits[i] > logits[best]))
                best = i;
        is_taken[best] = true;
        first = u == 0 ? logits[best] : first;
        e[u] = mr_expf(logits[best] - first);
        sum += e[u];
        run_expert(p, best, p->x[row], y[u]);
    }
    p->is_tied = p->is_tied || (row != ZERO_ROW && is_taken[TIED_A] && !is_taken[TIED_B]);
    assert_true(is_taken[TIED_A] || !is_taken[TIED_B] || isnan(first));
    for (int i = 0; i < WIDTH; i++) {
        float s = 0.0f;
        for (int u = 0; u < USED; u++)
            s = s + e[u] / sum * y[u][i];
        p->want[row][i] = p->add[row][i] + s;
    }
}

static problem *problem_create(void) {
    problem *p = calloc(1, sizeof *p);
    assert_non_null(p);
    rng r = {31};
    fill(&r, p->router, sizeof p->router);
    fill(&r, p->gate, sizeof p->gate);
    fill(&r, p->up, sizeof p->up);
    fill(&r, p->down, sizeof p->down);
    fill(&r, p->x, sizeof p->x);
    fill(&r, p->add, sizeof p->add);
    memcpy(p->router[TIED_B], p->router[TIED_A], sizeof p->router[0]);
    memset(p->x[ZERO_ROW], 0, sizeof p->x[0]); /* likes all experts alike */
    for (int row = 0; row < ROWS; row++)
        p->x[row][0] = row == LARGE_ROW ? 3e38f : row == NAN_ROW ? NAN : 0.0f;
    p->router[0][0] = 3e38f; /* an infinite logit */
    for (int row = 0; row < ROWS; row++)
        want_row(p, row);
    assert_true(p->is_tied && isnan(p->want[LARGE_ROW][0]) && isnan(p->want[NAN_ROW][0]));
    return p;
}

/* --- The graph --------------------------------------------------------------------------------------------------- */

typedef struct setting {
    bool in_file;
    int n_threads;
    const char *isa;
} setting;

enum { N_MATRICES = 4 };

/* n matrices of rows rows, in a buffer of their own. */
static mr_buffer *load(mr_backend *be, const setting *s, mr_graph *g, const float *data, const int32_t shape[3],
                       int32_t *out_id) {
    mr_tensor t;
    mr_buffer *buffer = NULL;
    mr_fence fence;
    int32_t columns = shape[0], rows = shape[1], n = shape[2];
    mr_storage storage = s->in_file ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    assert_true(mr_tensor_init(&t, "matrices", MR_TYPE_F32, columns, rows * n, storage, MR_ROWS_FIXED));
    t.home = be;
    if (s->in_file) {
        assert_int_equal(be->ops->buffer_wrap(be, data, t.bytes, &buffer, NULL), MR_OK);
        t.buffer = buffer;
    } else {
        assert_int_equal(be->ops->weight_bytes(be, t.type, columns, rows, &t.bytes, NULL), MR_OK);
        mr_tensor one = t;
        t.bytes *= (size_t)n;
        one.ne[1] = rows;
        assert_int_equal(be->ops->buffer_create(be, t.bytes, &buffer, NULL), MR_OK);
        one.buffer = t.buffer = buffer;
        for (int32_t i = 0; i < n; i++, one.offset += one.bytes)
            assert_int_equal(be->ops->weight_load(be, &one, (const uint8_t *)(data + i * rows * columns), &fence, NULL),
                             MR_OK);
    }
    *out_id = mr_graph_use(g, &t);
    return buffer;
}

static void compare(const problem *p, const float *got, int32_t n_rows, const setting *s) {
    for (int32_t row = 0; row < n_rows; row++)
        for (int i = 0; i < WIDTH; i++) {
            float a = got[row * WIDTH + i], b = p->want[row][i];
            if (memcmp(&a, &b, sizeof a) != 0 && !(isnan(a) && isnan(b)))
                fail_msg("%d rows, %s, %d threads, in file %d: [%d][%d] is %a, not %a", n_rows, s->isa, s->n_threads,
                         s->in_file, row, i, (double)a, (double)b);
        }
}

static void check(const problem *p, const setting *s) {
    static const int32_t counts[] = {ROWS, 1, 2, ROWS - 1};
    mr_backend *be = NULL;
    mr_graph *g = NULL;
    mr_graph_stats stats;
    mr_err err = {0};
    mr_buffer *buffers[N_MATRICES], *work = NULL;
    float got[ROWS * WIDTH];
    char *saved = isa_env_set(s->isa);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = s->n_threads}, &be, &err), &err);
    isa_env_restore(saved);
    expect_ok(mr_graph_create(ROWS, 1, &g, &err), &err);
    mr_experts_desc desc = {.n = EXPERTS, .n_used = USED};
    buffers[0] = load(be, s, g, p->router[0], (const int32_t[]){WIDTH, EXPERTS, 1}, &desc.router);
    buffers[1] = load(be, s, g, p->gate[0][0], (const int32_t[]){WIDTH, FF, EXPERTS}, &desc.gate);
    buffers[2] = load(be, s, g, p->up[0][0], (const int32_t[]){WIDTH, FF, EXPERTS}, &desc.up);
    buffers[3] = load(be, s, g, p->down[0][0], (const int32_t[]){FF, WIDTH, EXPERTS}, &desc.down);
    int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
    int32_t add = mr_graph_input(g, "add", MR_TYPE_F32, WIDTH, MR_ROWS_STEP);
    int32_t y = mr_graph_experts(g, x, add, &desc);
    mr_graph_output(g, y);
    expect_ok(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), &err);
    expect_ok(be->ops->buffer_create(be, stats.work_bytes[0], &work, &err), &err);
    expect_ok(mr_graph_place(g, &work, &err), &err);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        mr_run run = {.n_rows = {[MR_ROWS_STEP] = counts[i]}};
        expect_ok(mr_graph_set_rows(g, x, p->x, sizeof p->x[0], counts[i], &err), &err);
        expect_ok(mr_graph_set_rows(g, add, p->add, sizeof p->add[0], counts[i], &err), &err);
        expect_ok(mr_graph_run(g, &run, &err), &err);
        expect_ok(mr_graph_get_rows(g, y, 0, counts[i], got, sizeof p->x[0], &err), &err);
        compare(p, got, counts[i], s);
    }
    mr_graph_destroy(g);
    be->ops->buffer_destroy(be, work);
    for (int i = 0; i < N_MATRICES; i++)
        be->ops->buffer_destroy(be, buffers[i]);
    mr_backend_destroy(be);
}

static void test_rule_x(void **state) {
    (void)state;
    problem *p = problem_create();
    for (int isa = 0; isa < MR_ISA_COUNT; isa++)
        for (int n_threads = 1; n_threads <= 3; n_threads++)
            for (int in_file = 0; in_file < 2; in_file++)
                check(p, &(setting){.in_file = in_file != 0, .n_threads = n_threads, .isa = mr_isa_name((mr_isa)isa)});
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule_x)};
    mr_thread_set_denormals_flushed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
