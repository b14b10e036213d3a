/* Splits of host and devices that work at the same time, on the simulated clock of the test devices: how long graphs
 * with independent branches take, whoever runs them, and the bits that come out of it. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/engine/graph/test_graph_support.h"

/* SIDE: of the square matrices: large enough for a split of their own in graphs of ROWS rows. */
enum { ROWS = 4, SIDE = 128, MAX_MATRICES = 64, SEED = 5 };

/* A graph over devices and a host, all of them test devices; or over the CPU alone. */
typedef struct rig {
    test_clock *clock;
    mr_backends backends;
    int32_t host;
    mr_buffer *work[MR_MAX_BACKENDS], *matrices[MAX_MATRICES];
    int32_t matrix_homes[MAX_MATRICES], n_matrices;
    mr_graph *g;
    mr_graph_stats stats;
} rig;

/* A product takes as many nanoseconds as the name of its matrix says; everything else takes none. */
static int64_t cost_by_name(void *ctx, const mr_program_desc *p, const mr_run *run) {
    (void)ctx;
    (void)run;
    int64_t ns = 0;
    for (int32_t i = 0; i < p->n_nodes; i++)
        switch (p->nodes[i].op) {
        case MR_OP_MATMUL:
        case MR_OP_EXPERT_MATMUL:
        case MR_OP_SPARSE_GATE_UP:
        case MR_OP_AXPY:
            ns += strtol(p->tensors[p->nodes[i].in[0]].name, NULL, 10);
            break;
        default:
            break;
        }
    return ns;
}

/* n_devices < 0: the CPU alone. */
static rig rig_make(int32_t n_devices) {
    rig r = {.clock = test_clock_create(1), .host = n_devices < 0 ? 0 : n_devices, .g = graph_make(ROWS, ROWS)};
    mr_err err = {0};
    for (int32_t b = 0; b <= n_devices; b++) {
        test_device_options o = {.ops = TEST_DEVICE_ALL_OPS,
                                 .host_addressable = b == n_devices,
                                 .costs = {.program_ns = cost_by_name},
                                 .clock = r.clock};
        expect_ok(test_device_create(&o, &r.backends.at[b], &err), &err);
    }
    r.backends.n = r.host + 1;
    if (n_devices < 0)
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &r.backends.at[0], &err), &err);
    return r;
}

static void rig_destroy(rig *r) {
    mr_graph_destroy(r->g);
    for (int32_t b = 0; b < r->backends.n; b++)
        r->backends.at[b]->ops->buffer_destroy(r->backends.at[b], r->work[b]);
    for (int32_t i = 0; i < r->n_matrices; i++) {
        mr_backend *be = r->backends.at[r->matrix_homes[i]];
        be->ops->buffer_destroy(be, r->matrices[i]);
    }
    for (int32_t b = 0; b < r->backends.n; b++)
        mr_backend_destroy(r->backends.at[b]);
    test_clock_destroy(r->clock);
}

/* A matrix [columns, rows] of random numbers, the same ones in every graph for the matrix with this number. On the CPU
 * alone every matrix is at home there. */
static int32_t matrix_in(rig *r, mr_storage storage, int32_t home, int64_t cost_ns, int32_t columns, int32_t rows) {
    mr_err err = {0};
    mr_tensor t;
    char name[32];
    mr_fence fence;
    home = home < r->backends.n ? home : 0;
    mr_backend *be = r->backends.at[home];
    snprintf(name, sizeof name, "%lld", (long long)cost_ns);
    assert_true(mr_tensor_init(&t, name, MR_TYPE_F32, columns, rows, storage, MR_ROWS_FIXED));
    if (storage == MR_STORAGE_WEIGHT)
        expect_ok(be->ops->weight_bytes(be, t.type, columns, rows, &t.bytes, &err), &err);
    expect_ok(be->ops->buffer_create(be, t.bytes, &t.buffer, &err), &err);
    t.home = be;
    float *values = malloc((size_t)columns * (size_t)rows * sizeof *values);
    for (int32_t i = 0; i < columns * rows; i++)
        values[i] = (float)(mr_rng_u64(SEED, (uint64_t)r->n_matrices, (uint64_t)i) >> 50) / 8192.0f - 1.0f;
    if (storage == MR_STORAGE_WEIGHT)
        expect_ok(be->ops->weight_load(be, &t, (const uint8_t *)values, &fence, &err), &err);
    else
        expect_ok(be->ops->set(be, t.buffer, 0, values, t.bytes, &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, INT64_MAX, &err), &err);
    free(values);
    assert_true(r->n_matrices < MAX_MATRICES);
    r->matrices[r->n_matrices] = t.buffer;
    r->matrix_homes[r->n_matrices++] = home;
    return mr_graph_use(r->g, &t);
}

static int32_t matrix(rig *r, int32_t home, int64_t cost_ns, int32_t columns, int32_t rows) {
    return matrix_in(r, MR_STORAGE_WEIGHT, home, cost_ns, columns, rows);
}

static int32_t product(rig *r, int32_t home, int64_t cost_ns, int32_t x) {
    return mr_graph_matmul(r->g, matrix(r, home, cost_ns, SIDE, SIDE), x, NONE, NONE);
}

static int32_t input(rig *r) {
    return mr_graph_input(r->g, "x", MR_TYPE_F32, SIDE, MR_ROWS_STEP);
}

/* Runs the graph with random rows in x. Returns the simulated time of the run. */
static int64_t run(rig *r, int32_t x) {
    mr_err err = {0};
    float rows[ROWS][SIDE];
    for (int i = 0; i < ROWS * SIDE; i++)
        rows[i / SIDE][i % SIDE] = (float)(mr_rng_u64(SEED, 1000, (uint64_t)i) >> 50) / 8192.0f - 1.0f;
    expect_ok(mr_graph_finish(r->g, &r->backends, &r->stats, &err), &err);
    for (int32_t b = 0; b < r->backends.n; b++)
        if (r->stats.work_bytes[b] > 0)
            expect_ok(
                r->backends.at[b]->ops->buffer_create(r->backends.at[b], r->stats.work_bytes[b], &r->work[b], &err),
                &err);
    expect_ok(mr_graph_place(r->g, r->work, &err), &err);
    expect_ok(mr_graph_set_rows(r->g, x, rows, sizeof rows[0], ROWS, &err), &err);
    int64_t start_ns = test_clock_now_ns(r->clock);
    expect_ok(mr_graph_run(r->g, &(mr_run){.n_rows = {[MR_ROWS_STEP] = ROWS}}, &err), &err);
    return test_clock_now_ns(r->clock) - start_ns;
}

static void get_rows(rig *r, int32_t y, float out[ROWS][SIDE]) {
    assert_int_equal(mr_graph_get_rows(r->g, y, 0, ROWS, out, sizeof out[0], NULL), MR_OK);
}

/* --- Two branches ------------------------------------------------------------------------------------------------ */

/* Each runs where the array says: a product, two branches of one product each, and a product of their sum. */
typedef struct fork {
    bool has_trunk;
    int32_t trunk, left, right, join;
} fork_homes;

enum { TRUNK_NS = 100, LEFT_NS = 3000, RIGHT_NS = 1000, JOIN_NS = 10 };

static int64_t run_fork(int32_t n_devices, const fork_homes *at, float out[ROWS][SIDE], int32_t *out_splits) {
    rig r = rig_make(n_devices);
    int32_t in = input(&r), x = in;
    if (at->has_trunk)
        x = product(&r, at->trunk, TRUNK_NS, in);
    int32_t left = product(&r, at->left, LEFT_NS, x), right = product(&r, at->right, RIGHT_NS, x);
    int32_t y = product(&r, at->join, JOIN_NS, mr_graph_add(r.g, left, right));
    mr_graph_output(r.g, y);
    int64_t ns = run(&r, in);
    get_rows(&r, y, out);
    *out_splits = r.stats.n_splits;
    rig_destroy(&r);
    return ns;
}

static void check_forks(int32_t n_devices, bool has_trunk) {
    int32_t n = n_devices + 1, n_splits, n_apart = 0;
    float want[ROWS][SIDE], got[ROWS][SIDE];
    run_fork(-1, &(fork_homes){.has_trunk = has_trunk}, want, &n_splits);
    for (int32_t i = 0; i < n * n * n * n; i++) {
        fork_homes at = {has_trunk, i % n, i / n % n, i / n / n % n, i / n / n / n};
        int64_t ns = run_fork(n_devices, &at, got, &n_splits);
        int64_t branches = at.left == at.right ? LEFT_NS + RIGHT_NS : LEFT_NS;
        int64_t expected = (has_trunk ? TRUNK_NS : 0) + branches + JOIN_NS;
        if (ns != expected)
            fail_msg("trunk on %d, left on %d, right on %d, join on %d: %lld ns, wanted %lld", at.trunk, at.left,
                     at.right, at.join, (long long)ns, (long long)expected);
        assert_memory_equal(got, want, sizeof got);
        bool is_one = at.left == at.right && at.left == at.join && (at.left == at.trunk || !has_trunk);
        assert_true((n_splits == 1) == is_one);
        n_apart += at.left != at.right;
    }
    print_message("%d forks of %d have branches side by side\n", n_apart, n * n * n * n);
}

static void test_branches_run_at_the_same_time(void **state) {
    (void)state;
    for (int32_t n_devices = 1; n_devices <= 2; n_devices++)
        for (int has_trunk = 0; has_trunk < 2; has_trunk++)
            check_forks(n_devices, has_trunk);
}

/* --- Experts beside a shared expert ------------------------------------------------------------------------------ */

enum { EXPERTS = 4, USED = 2, LAYERS = 3, ROUTER_NS = 10, SHARED_NS = 2000, EXPERT_NS = 500 };

/* The experts of all layers at home on one backend, everything else on another. */
static int64_t run_experts(int32_t n_devices, int32_t trunk, int32_t experts, float out[ROWS][SIDE]) {
    rig r = rig_make(n_devices);
    int32_t in = input(&r), x = in;
    for (int layer = 0; layer < LAYERS; layer++) {
        mr_experts_desc desc = {
            .n = EXPERTS,
            .n_used = USED,
            .router = matrix(&r, trunk, ROUTER_NS, SIDE, EXPERTS),
            .gate = matrix(&r, experts, EXPERT_NS, SIDE, SIDE * EXPERTS),
            .up = matrix(&r, experts, EXPERT_NS, SIDE, SIDE * EXPERTS),
            .down = matrix(&r, experts, EXPERT_NS, SIDE, SIDE * EXPERTS),
            .shared = product(&r, trunk, SHARED_NS, x),
        };
        x = mr_graph_scale(r.g, mr_graph_experts(r.g, x, x, &desc), 1e-3f);
    }
    mr_graph_output(r.g, x);
    int64_t ns = run(&r, in);
    get_rows(&r, x, out);
    rig_destroy(&r);
    return ns;
}

static void test_experts_run_beside_a_shared_expert(void **state) {
    (void)state;
    float want[ROWS][SIDE], got[ROWS][SIDE];
    run_experts(-1, 0, 0, want);
    for (int32_t experts = 0; experts < 2; experts++) {
        assert_int_equal(run_experts(1, 1 - experts, experts, got), LAYERS * (ROUTER_NS + SHARED_NS));
        assert_memory_equal(got, want, sizeof got);
    }
    assert_int_equal(run_experts(1, 0, 0, got), LAYERS * (ROUTER_NS + SHARED_NS + 3 * EXPERT_NS));
    assert_memory_equal(got, want, sizeof got);
}

/* --- Hot and cold neurons ---------------------------------------------------------------------------------------- */

enum { NEURONS = 700, PREDICT_NS = 50, HOT_NS = 2000, COLD_NS = 1500, SUM_NS = 300 };

static mr_neurons_desc neurons(rig *r, int32_t home, int64_t units_ns, int32_t n) {
    return (mr_neurons_desc){.gate = matrix_in(r, MR_STORAGE_FILE, home, units_ns, SIDE, n),
                             .up = matrix_in(r, MR_STORAGE_FILE, home, units_ns, SIDE, n),
                             .down = matrix_in(r, MR_STORAGE_FILE, home, SUM_NS, SIDE, n)};
}

/* All but the cold neurons are at home on backend 0. */
static int64_t run_neurons(int32_t n_devices, int32_t cold, float out[ROWS][SIDE]) {
    rig r = rig_make(n_devices);
    int32_t in = input(&r), x = in;
    for (int layer = 0; layer < LAYERS; layer++) {
        mr_sparse_desc desc = {.predict_in = matrix(&r, 0, PREDICT_NS, SIDE, SIDE),
                               .predict_out = matrix(&r, 0, PREDICT_NS, SIDE, NEURONS),
                               .unit = MR_RELU_GATE};
        const mr_neurons_desc hot = neurons(&r, 0, HOT_NS, 512);
        const mr_neurons_desc others = neurons(&r, cold, COLD_NS, NEURONS - 512);
        desc.gate = hot.gate;
        desc.up = hot.up;
        desc.down = hot.down;
        desc.cold = &others;
        x = mr_graph_scale(r.g, mr_graph_sparse(r.g, x, x, x, &desc), 1e-3f);
    }
    mr_graph_output(r.g, x);
    int64_t ns = run(&r, in);
    get_rows(&r, x, out);
    rig_destroy(&r);
    return ns;
}

/* The device computes the hot neurons while the host computes the cold ones, whose sum continues that of the hot. */
static void test_hot_neurons_run_beside_cold_ones(void **state) {
    (void)state;
    float want[ROWS][SIDE], got[ROWS][SIDE];
    run_neurons(-1, 0, want);
    assert_int_equal(run_neurons(1, 1, got), LAYERS * (2 * PREDICT_NS + HOT_NS + 2 * SUM_NS));
    assert_memory_equal(got, want, sizeof got);
    assert_int_equal(run_neurons(1, 0, got), LAYERS * (2 * PREDICT_NS + HOT_NS + COLD_NS + 2 * SUM_NS));
    assert_memory_equal(got, want, sizeof got);
}

/* --- Experts of a device beside those of the host ----------------------------------------------------------------- */

enum { HELD = 2, HOST_EXPERT_NS = 700 };

static int32_t places(rig *r, int32_t home, const int32_t *values) {
    mr_err err = {0};
    mr_tensor t;
    mr_fence fence;
    mr_backend *be = r->backends.at[home];
    assert_true(mr_tensor_init(&t, "places", MR_TYPE_I32, EXPERTS, 1, MR_STORAGE_STATE, MR_ROWS_FIXED));
    expect_ok(be->ops->buffer_create(be, t.bytes, &t.buffer, &err), &err);
    t.home = be;
    expect_ok(be->ops->set(be, t.buffer, 0, values, EXPERTS * sizeof *values, &fence, &err), &err);
    expect_ok(be->ops->wait(be, fence, INT64_MAX, &err), &err);
    r->matrices[r->n_matrices] = t.buffer;
    r->matrix_homes[r->n_matrices++] = home;
    return mr_graph_use(r->g, &t);
}

/* Every layer has experts on the host, and on the device (or none there). */
static int64_t run_held(int32_t n_devices, bool is_held, float out[ROWS][SIDE], int64_t busy_ns[2]) {
    static const int32_t ON_DEVICE[EXPERTS] = {-1, 1, -1, 0}, ON_HOST[EXPERTS] = {0, -1, 2, -1};
    rig r = rig_make(n_devices);
    int32_t in = input(&r), x = in;
    for (int layer = 0; layer < LAYERS; layer++) {
        mr_experts_held held = {.n = HELD, .gate_bias = NONE, .up_bias = NONE, .down_bias = NONE};
        mr_experts_desc desc = {
            .n = EXPERTS,
            .n_used = USED,
            .router = matrix(&r, 0, ROUTER_NS, SIDE, EXPERTS),
            .gate = matrix(&r, 1, HOST_EXPERT_NS, SIDE, SIDE * EXPERTS),
            .up = matrix(&r, 1, HOST_EXPERT_NS, SIDE, SIDE * EXPERTS),
            .down = matrix(&r, 1, HOST_EXPERT_NS, SIDE, SIDE * EXPERTS),
            .shared = MR_NO_TENSOR,
            .held = is_held ? &held : NULL,
        };
        if (is_held) {
            held.gate = matrix(&r, 0, EXPERT_NS, SIDE, SIDE * HELD);
            held.up = matrix(&r, 0, EXPERT_NS, SIDE, SIDE * HELD);
            held.down = matrix(&r, 0, EXPERT_NS, SIDE, SIDE * HELD);
            held.device_places = places(&r, 0, ON_DEVICE);
            held.host_places = places(&r, 1, ON_HOST);
        }
        x = mr_graph_scale(r.g, mr_graph_experts(r.g, x, x, &desc), 1e-3f);
    }
    mr_graph_output(r.g, x);
    int64_t ns = run(&r, in);
    for (int b = 0; b < 2; b++)
        busy_ns[b] = test_device_get_stats(r.backends.at[b]).busy_ns;
    get_rows(&r, x, out);
    rig_destroy(&r);
    return ns;
}

/* The device and the host work at the same time: both are busy for longer, together, than the run takes. */
static void test_experts_of_device_and_host_run_together(void **state) {
    (void)state;
    float out[ROWS][SIDE];
    int64_t busy_ns[2];
    int64_t apart_ns = run_held(1, false, out, busy_ns);
    assert_int_equal(apart_ns, LAYERS * (ROUTER_NS + 3 * HOST_EXPERT_NS));
    int64_t ns = run_held(1, true, out, busy_ns);
    assert_int_equal(ns, LAYERS * (ROUTER_NS + 3 * HOST_EXPERT_NS));
    assert_int_equal(busy_ns[0], LAYERS * (ROUTER_NS + 3 * EXPERT_NS));
    assert_int_equal(busy_ns[1], LAYERS * 3 * HOST_EXPERT_NS);
    assert_true(ns < busy_ns[0] + busy_ns[1]);
}

/* --- Any graph --------------------------------------------------------------------------------------------------- */

/* Products and sums of earlier results, and the sum of everything. */
static int64_t run_random(int32_t n_devices, uint64_t seed, float out[ROWS][SIDE], int64_t *out_work_ns) {
    enum { NODES = 14 };
    rig r = rig_make(n_devices);
    int32_t made[NODES + 1] = {input(&r)}, sum = made[0];
    *out_work_ns = 0;
    for (int i = 1; i <= NODES; i++) {
        uint64_t draw = mr_rng_u64(seed, 2, (uint64_t)i) >> 20;
        int32_t a = made[draw % (uint64_t)i], b = made[draw / 64 % (uint64_t)i];
        int64_t ns = (int64_t)(draw / 4096 % 100);
        bool is_product = draw / 409600 % 4 < 3;
        made[i] = is_product ? product(&r, (int32_t)(draw / 1638400 % 3), ns, a) : mr_graph_add(r.g, a, b);
        *out_work_ns += is_product ? ns : 0;
        sum = mr_graph_add(r.g, sum, made[i]);
    }
    mr_graph_output(r.g, sum);
    int64_t ns = run(&r, made[0]);
    get_rows(&r, sum, out);
    rig_destroy(&r);
    return ns;
}

static void test_any_graph_gives_the_same_bits(void **state) {
    (void)state;
    float want[ROWS][SIDE], got[ROWS][SIDE];
    int64_t work_ns, all_ns = 0, all_work_ns = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        run_random(-1, seed, want, &work_ns);
        int64_t ns = run_random(2, seed, got, &work_ns);
        if (memcmp(got, want, sizeof got) != 0)
            fail_msg("seed %d: other bits", (int)seed);
        assert_true(ns <= work_ns); /* somebody works at any time */
        all_ns += ns;
        all_work_ns += work_ns;
    }
    print_message("%lld ns of work in %lld ns\n", (long long)all_work_ns, (long long)all_ns);
    assert_true(all_ns < all_work_ns * 3 / 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_branches_run_at_the_same_time),
        cmocka_unit_test(test_experts_run_beside_a_shared_expert),
        cmocka_unit_test(test_hot_neurons_run_beside_cold_ones),
        cmocka_unit_test(test_experts_of_device_and_host_run_together),
        cmocka_unit_test(test_any_graph_gives_the_same_bits),
    };
    return cmocka_run_group_tests_name("graph_overlap", tests, NULL, NULL);
}
