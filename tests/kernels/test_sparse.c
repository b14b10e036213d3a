/* tests/kernels/test_sparse.c - sparse feed-forward parts by rule S, to the bit, against the rule said plainly: units,
 * types of weights, numbers of neurons around a partition, few and all of them active, weights that are no numbers,
 * rows in any company, threads, instruction sets. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "backends/cpu/kernels.h"
#include "engine/base/thread.h"
#include "engine/graph/graph.h"
#include "engine/tensor/quant.h"
#include "test_matmul_reference.h"
#include "tests/support/isa_env.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { ROWS = 21, MAX_WIDTH = 544, MAX_NEURONS = 600, HIDDEN = 256 };

typedef struct variant {
    mr_type type;
    int32_t width, n_neurons;
    mr_relu_unit unit;
    float threshold;
    values kind; /* of the weights of gate, up and down */
} variant;

static const variant VARIANTS[] = {
    {MR_TYPE_F16, 300, 257, MR_RELU_GATE, 0.0f, VALUES_PLAIN},
    {MR_TYPE_F16, 544, 600, MR_RELU_BOTH, 0.01f, VALUES_PLAIN},
    {MR_TYPE_F16, 33, 1, MR_RELU_ALONE, -INFINITY, VALUES_PLAIN},
    {MR_TYPE_F16, 256, 512, MR_RELU_GATE, 0.02f, VALUES_SPECIAL},
    {MR_TYPE_F32, 257, 256, MR_RELU_GATE, 0.2f, VALUES_PLAIN},
    {MR_TYPE_F32, 31, 600, MR_RELU_BOTH, INFINITY, VALUES_PLAIN},
    {MR_TYPE_F32, 96, 255, MR_RELU_BOTH, 0.3f, VALUES_SPECIAL},
    {MR_TYPE_BF16, 48, 300, MR_RELU_GATE, 0.03f, VALUES_PLAIN},
    {MR_TYPE_Q8_0, 320, 513, MR_RELU_GATE, 0.0f, VALUES_PLAIN},
    {MR_TYPE_Q8_0, 64, 300, MR_RELU_ALONE, 0.1f, VALUES_SPECIAL},
    {MR_TYPE_Q4_0, 288, 600, MR_RELU_BOTH, 0.0f, VALUES_PLAIN},
    {MR_TYPE_Q4_0, 544, 257, MR_RELU_GATE, -INFINITY, VALUES_SPECIAL},
    {MR_TYPE_Q4_K, 512, 300, MR_RELU_GATE, 0.0f, VALUES_PLAIN},
    {MR_TYPE_Q6_K, 256, 270, MR_RELU_BOTH, 0.0f, VALUES_PLAIN},
    {MR_TYPE_IQ4_NL, 96, 260, MR_RELU_GATE, 0.0f, VALUES_PLAIN},
};

typedef struct problem {
    const variant *v;
    uint8_t *weights[5]; /* predict_in, predict_out, gate, up, down */
    float x[ROWS * MAX_WIDTH], h[ROWS * MAX_WIDTH], add[ROWS * MAX_WIDTH], want[ROWS * MAX_WIDTH]; /* [rows][width] */
    int32_t n_active; /* in all rows together */
} problem;

static size_t row_bytes(mr_type type, int32_t n) {
    size_t bytes = 0;
    assert_true(mr_type_bytes(type, n, &bytes));
    return bytes;
}

static uint8_t *make_matrix(rng *r, values kind, mr_type type, int32_t columns, int32_t rows) {
    size_t bytes = row_bytes(type, columns);
    uint8_t *data = malloc(bytes * (size_t)rows);
    assert_non_null(data);
    for (int32_t i = 0; i < rows; i++)
        random_weights(r, kind, type, columns, data + bytes * (size_t)i);
    return data;
}

/* x as the activations that a product with weights of the type takes. */
static void activations(mr_type type, const float *x, int32_t n, uint8_t *out) {
    mr_type a = mr_type_activation(type);
    if (a == MR_TYPE_A8)
        mr_kernels_get(MR_ISA_SCALAR)->quantize(x, out, n);
    else if (a == MR_TYPE_BF16)
        mr_kernels_get(MR_ISA_SCALAR)->round_bf16(x, (uint16_t *)(void *)out, n);
    else
        memcpy(out, x, (size_t)n * sizeof *x);
}

static float relu(float x) {
    return x <= 0.0f ? 0.0f : x;
}

/* The activations of a row for each kind of product. */
typedef struct row_inputs {
    _Alignas(64) uint8_t x[4 * MAX_WIDTH], h[4 * MAX_WIDTH], hidden[4 * HIDDEN];
} row_inputs;

static float product(const problem *p, int matrix, int32_t columns, int32_t row, const uint8_t *a) {
    return reference_dot(p->v->type, p->weights[matrix] + row_bytes(p->v->type, columns) * (size_t)row, a, columns);
}

/* The unit of a neuron by rule S; +0 for one that is not active. */
static float unit_of(problem *p, const row_inputs *in, int32_t neuron) {
    const variant *v = p->v;
    if (product(p, 1, HIDDEN, neuron, in->hidden) < v->threshold)
        return 0.0f;
    p->n_active++;
    float gate = relu(product(p, 2, v->width, neuron, in->h));
    if (gate == 0.0f || v->unit == MR_RELU_ALONE)
        return gate;
    float up = product(p, 3, v->width, neuron, in->h);
    return gate * (v->unit == MR_RELU_BOTH ? relu(up) : up);
}

static void compute_row(problem *p, int row) {
    const variant *v = p->v;
    row_inputs in;
    float hidden[HIDDEN], acc[MAX_WIDTH], w[MAX_WIDTH], *y = p->want + row * v->width;
    activations(v->type, p->x + row * v->width, v->width, in.x);
    activations(v->type, p->h + row * v->width, v->width, in.h);
    for (int32_t i = 0; i < HIDDEN; i++)
        hidden[i] = relu(product(p, 0, v->width, i, in.x));
    activations(v->type, hidden, HIDDEN, in.hidden);
    memset(y, 0, (size_t)v->width * sizeof *y);
    for (int32_t first = 0; first < v->n_neurons; first += 256) {
        bool any = false;
        memset(acc, 0, sizeof acc);
        for (int32_t n = first; n < first + 256 && n < v->n_neurons; n++) {
            float h = unit_of(p, &in, n);
            if (h == 0.0f)
                continue;
            any = true;
            mr_dequantize(v->type, p->weights[4] + row_bytes(v->type, v->width) * (size_t)n, w, v->width);
            for (int32_t d = 0; d < v->width; d++)
                acc[d] = fmaf(w[d], h, acc[d]);
        }
        for (int32_t d = 0; d < v->width && any; d++)
            y[d] = y[d] + acc[d];
    }
    for (int32_t d = 0; d < v->width; d++)
        y[d] = y[d] + p->add[row * v->width + d];
}

static problem *problem_create(const variant *v, uint64_t seed) {
    problem *p = calloc(1, sizeof *p);
    rng r = {.state = seed};
    assert_non_null(p);
    p->v = v;
    p->weights[0] = make_matrix(&r, VALUES_PLAIN, v->type, v->width, HIDDEN);
    p->weights[1] = make_matrix(&r, VALUES_PLAIN, v->type, HIDDEN, v->n_neurons);
    for (int i = 2; i < 5; i++)
        p->weights[i] = make_matrix(&r, v->kind, v->type, v->width, v->n_neurons);
    for (int row = 0; row < ROWS; row++) {
        for (int32_t i = 0; i < v->width; i++) {
            int32_t at = row * v->width + i;
            p->x[at] = rng_unit(&r) * (row % 5 == 2 ? 0.0f : 1.0f);
            p->h[at] = rng_unit(&r) * (row % 7 == 3 ? 0x1p-100f : 1.0f);
            p->add[at] = row % 4 == 1 ? -0.0f : rng_unit(&r);
        }
        compute_row(p, row);
    }
    return p;
}

static void problem_destroy(problem *p) {
    for (int i = 0; i < 5; i++)
        free(p->weights[i]);
    free(p);
}

/* --- The graph --------------------------------------------------------------------------------------------------- */

typedef struct setting {
    int n_threads;
    const char *isa;
} setting;

static int32_t use_matrix(mr_graph *g, mr_backend *be, const problem *p, int matrix, mr_buffer **out) {
    int32_t columns = matrix == 1 ? HIDDEN : p->v->width, rows = matrix == 0 ? HIDDEN : p->v->n_neurons;
    mr_tensor t;
    assert_true(mr_tensor_init(&t, "matrix", p->v->type, columns, rows, MR_STORAGE_FILE, MR_ROWS_FIXED));
    assert_int_equal(be->ops->buffer_wrap(be, p->weights[matrix], t.bytes, out, NULL), MR_OK);
    t.home = be;
    t.buffer = *out;
    return mr_graph_use(g, &t);
}

static void compare(const problem *p, const float *got, int32_t first, int32_t n_rows, const setting *s) {
    for (int32_t row = first; row < first + n_rows; row++, got += p->v->width)
        for (int32_t d = 0; d < p->v->width; d++) {
            float want = p->want[row * p->v->width + d];
            if (memcmp(&got[d], &want, sizeof want) != 0 && !(isnan(got[d]) && isnan(want)))
                fail_msg("%s, %d x %d, unit %d, %s, %d threads, rows %d to %d: [%d][%d] is %a, not %a",
                         mr_type_name(p->v->type), p->v->width, p->v->n_neurons, (int)p->v->unit, s->isa, s->n_threads,
                         first, first + n_rows - 1, row, d, (double)got[d], (double)want);
        }
}

/* Runs rows [first, first + n_rows) as one step. */
static void run_rows(mr_graph *g, const int32_t inputs[3], int32_t y, const problem *p, int32_t first, int32_t n_rows,
                     const setting *s) {
    static float got[ROWS * MAX_WIDTH];
    mr_err err = {0};
    int32_t at = first * p->v->width;
    size_t bytes = (size_t)p->v->width * sizeof(float);
    expect_ok(mr_graph_set_rows(g, inputs[0], p->x + at, bytes, n_rows, &err), &err);
    expect_ok(mr_graph_set_rows(g, inputs[1], p->h + at, bytes, n_rows, &err), &err);
    expect_ok(mr_graph_set_rows(g, inputs[2], p->add + at, bytes, n_rows, &err), &err);
    expect_ok(mr_graph_run(g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = n_rows}}, &err), &err);
    expect_ok(mr_graph_get_rows(g, y, 0, n_rows, got, bytes, &err), &err);
    compare(p, got, first, n_rows, s);
}

static void check(const problem *p, const setting *s) {
    mr_backend *be = NULL;
    mr_graph *g = NULL;
    mr_graph_stats stats;
    mr_err err = {0};
    mr_buffer *buffers[5] = {NULL}, *work = NULL;
    int32_t inputs[3], width = p->v->width;
    char *saved = isa_env_set(s->isa);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = s->n_threads}, &be, &err), &err);
    isa_env_restore(saved);
    expect_ok(mr_graph_create(ROWS, 1, &g, &err), &err);
    mr_sparse_desc desc = {.threshold = p->v->threshold, .unit = p->v->unit, .up = MR_NO_TENSOR};
    desc.predict_in = use_matrix(g, be, p, 0, &buffers[0]);
    desc.predict_out = use_matrix(g, be, p, 1, &buffers[1]);
    desc.gate = use_matrix(g, be, p, 2, &buffers[2]);
    if (desc.unit != MR_RELU_ALONE)
        desc.up = use_matrix(g, be, p, 3, &buffers[3]);
    desc.down = use_matrix(g, be, p, 4, &buffers[4]);
    for (int i = 0; i < 3; i++)
        inputs[i] = mr_graph_input(g, "input", MR_TYPE_F32, width, MR_ROWS_STEP);
    int32_t y = mr_graph_sparse(g, inputs[0], inputs[1], inputs[2], &desc);
    mr_graph_output(g, y);
    expect_ok(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), &err);
    expect_ok(be->ops->buffer_create(be, stats.work_bytes[0], &work, &err), &err);
    expect_ok(mr_graph_place(g, &work, &err), &err);
    run_rows(g, inputs, y, p, 0, ROWS, s);
    for (int32_t first = 0, n = 1; first < ROWS; first += n, n = n % 3 + 1)
        run_rows(g, inputs, y, p, first, n < ROWS - first ? n : ROWS - first, s);
    mr_graph_destroy(g);
    be->ops->buffer_destroy(be, work);
    for (int i = 0; i < 5; i++)
        be->ops->buffer_destroy(be, buffers[i]);
    mr_backend_destroy(be);
}

static void test_rule_s(void **state) {
    (void)state;
    int n_cases = 0;
    for (size_t v = 0; v < sizeof VARIANTS / sizeof *VARIANTS; v++) {
        if (share_skips(&n_cases))
            continue;
        problem *p = problem_create(&VARIANTS[v], 100 + v);
        print_message("%s, %d neurons: %.1f %% active\n", mr_type_name(p->v->type), p->v->n_neurons,
                      100.0 * p->n_active / (double)ROWS / p->v->n_neurons);
        for (int isa = 0; isa < MR_ISA_COUNT; isa++)
            for (int n_threads = 1; n_threads <= 3; n_threads++)
                check(p, &(setting){n_threads, mr_isa_name((mr_isa)isa)});
        problem_destroy(p);
    }
}

/* A part that does not fit together is refused when it is built. */
static void test_refused(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        mr_graph *g = NULL;
        mr_graph_stats stats;
        mr_backend *be = NULL;
        mr_err err = {0};
        mr_tensor predict, row;
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &be, &err), &err);
        expect_ok(mr_graph_create(4, 1, &g, &err), &err);
        assert_true(mr_tensor_init(&predict, "p", MR_TYPE_F32, 32, 32, MR_STORAGE_FILE, MR_ROWS_FIXED));
        assert_true(mr_tensor_init(&row, "w", MR_TYPE_F32, i == 1 ? 48 : 32, i == 2 ? 31 : 32,
                                   i == 3 ? MR_STORAGE_WEIGHT : MR_STORAGE_FILE, MR_ROWS_FIXED));
        mr_sparse_desc desc = {.predict_in = mr_graph_use(g, &predict),
                               .predict_out = mr_graph_use(g, &predict),
                               .gate = mr_graph_use(g, &predict),
                               .up = i == 4 ? MR_NO_TENSOR : mr_graph_use(g, &predict),
                               .down = mr_graph_use(g, &row),
                               .threshold = i == 0 ? NAN : 0.0f,
                               .unit = MR_RELU_GATE};
        int32_t x = mr_graph_input(g, "x", MR_TYPE_F32, 32, MR_ROWS_STEP);
        assert_int_equal(mr_graph_sparse(g, x, x, x, &desc), MR_NO_TENSOR);
        assert_int_equal(mr_graph_finish(g, &(mr_backends){.at = {be}, .n = 1}, &stats, &err), MR_E_INVALID);
        assert_non_null(strstr(err.text, "sparse"));
        mr_graph_destroy(g);
        mr_backend_destroy(be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rule_s), cmocka_unit_test(test_refused)};
    mr_thread_set_denormals_flushed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
