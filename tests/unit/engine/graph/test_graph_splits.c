/* Graphs over several backends: which backend runs a node, the number of splits and copies, and no read before the
 * write or write before the read. test_stage_devices tests whole models. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/engine/graph/test_graph_rig.h"

/* A square matrix on one of the backends; also on another one, unless that is -1. */
static int32_t matrix(rig *r, int32_t home, int32_t also) {
    mr_tensor t;
    assert_true(mr_tensor_init(&t, "matrix", MR_TYPE_F32, WIDTH, WIDTH, MR_STORAGE_WEIGHT, MR_ROWS_FIXED));
    t.home = r->backends.at[home];
    int32_t id = mr_graph_use(r->g, &t);
    if (also >= 0) {
        t.home = r->backends.at[also];
        mr_graph_use_also(r->g, id, &t);
    }
    return id;
}

static int32_t product(rig *r, int32_t home, int32_t x) {
    return mr_graph_matmul(r->g, matrix(r, home, -1), x, NONE, NONE);
}

static int32_t home_of(const rig *r, int32_t id) {
    return maker_of(r->g, id)->backend;
}

/* --- Who runs what ----------------------------------------------------------------------------------------------- */

/* Three products of one row: it goes over once, and each result comes back once. */
static void test_a_tensor_is_copied_once(void **state) {
    (void)state;
    rig r = rig_make(BIT(MR_OP_MATMUL), 0);
    int32_t x = mr_graph_add(r.g, add_rows(r.g), add_rows(r.g));
    int32_t q = product(&r, 0, x), k = product(&r, 0, x), v = product(&r, 0, x);
    int32_t sum = mr_graph_add(r.g, mr_graph_add(r.g, q, k), mr_graph_add(r.g, v, q));
    mr_graph_output(r.g, sum);
    rig_finish(&r);
    assert_int_equal(r.stats.n_splits, 3);
    assert_int_equal(r.stats.n_copies, 4);
    assert_int_equal(home_of(&r, q), 0);
    assert_int_equal(home_of(&r, sum), 1);
    /* The three products are one group, the sums two groups. */
    assert_int_equal(r.stats.n_groups, 4);
    rig_destroy(&r);
}

/* Two chains that go to the device and back twice: their parts run together, in as many splits as one chain has. */
static void test_splits_are_as_few_as_can_be(void **state) {
    (void)state;
    rig r = rig_make(BIT(MR_OP_MATMUL), 0);
    for (int chain = 0; chain < 2; chain++) {
        int32_t x = add_rows(r.g);
        for (int i = 0; i < 2; i++)
            x = mr_graph_add(r.g, product(&r, 0, x), x);
        mr_graph_output(r.g, x);
    }
    rig_finish(&r);
    assert_int_equal(r.stats.n_splits, 4);
    int32_t n;
    const mr_node *nodes = mr_graph_nodes(r.g, &n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(nodes[i].backend, i / 2 % 2);
    rig_destroy(&r);
}

/* A node that several backends can run is placed beside nodes that only one backend can run. */
static void test_free_nodes_follow_their_neighbours(void **state) {
    (void)state;
    uint32_t ops = BIT(MR_OP_MATMUL) | BIT(MR_OP_RMS_NORM) | BIT(MR_OP_GLU);
    for (int32_t home = 0; home < 2; home++) {
        rig r = rig_make(ops, 0);
        int32_t up = product(&r, home, add_rows(r.g)), gate = product(&r, home, add_rows(r.g));
        int32_t h = mr_graph_rms_norm(r.g, silu_mul(r.g, gate, up), add_vector(r.g, WIDTH), 1e-5f);
        mr_graph_output(r.g, product(&r, home, h));
        rig_finish(&r);
        assert_int_equal(r.stats.n_splits, 1);
        assert_int_equal(home_of(&r, h), home);
        /* Only the CPU has the weight of the norm. */
        assert_int_equal(r.stats.n_copies, home == 0 ? 1 : 0);
        rig_destroy(&r);
    }
}

/* Through the host's memory; and the host reads the same copy. */
static void test_from_device_to_device(void **state) {
    (void)state;
    for (int host_reads = 0; host_reads < 2; host_reads++) {
        rig r = rig_make(BIT(MR_OP_MATMUL), BIT(MR_OP_MATMUL));
        int32_t y = product(&r, 0, add_rows(r.g)), z = product(&r, 1, y);
        if (host_reads)
            mr_graph_output(r.g, mr_graph_add(r.g, y, y));
        mr_graph_output(r.g, z);
        rig_finish(&r);
        assert_int_equal(r.stats.n_splits, 2 + host_reads);
        assert_int_equal(r.stats.n_copies, 2);
        rig_destroy(&r);
    }
}

static void test_the_first_of_the_list_is_preferred(void **state) {
    (void)state;
    rig r = rig_make(BIT(MR_OP_MATMUL), BIT(MR_OP_MATMUL));
    int32_t x = add_rows(r.g);
    int32_t y = mr_graph_matmul(r.g, matrix(&r, 2, 1), x, NONE, NONE);
    int32_t z = mr_graph_matmul(r.g, matrix(&r, 2, 0), y, NONE, NONE);
    mr_graph_output(r.g, z);
    rig_finish(&r);
    assert_int_equal(home_of(&r, y), 1);
    assert_int_equal(home_of(&r, z), 0);
    rig_destroy(&r);
}

/* Graphs of few rows leave a product to the next backend that has the matrix, unless it lies in a device's memory. */
static void test_measured_rows_decide_who_multiplies(void **state) {
    (void)state;
    static const int32_t least[] = {0, 1, ROWS, ROWS + 1, MR_NO_ROWS};
    for (int i = 0; i < 10; i++) {
        bool on_host = i % 2;
        rig r = {0};
        rig_add_device(&r, &(test_device_options){.ops = BIT(MR_OP_MATMUL), .host_addressable = on_host});
        mr_cpu_options cpu = {.n_threads = 1};
        assert_int_equal(mr_cpu_backend_create(&cpu, &r.backends.at[r.backends.n++], NULL), MR_OK);
        r.g = graph_make(ROWS, ROWS);
        r.backends.min_rows[0][MR_TYPE_F32] = least[i / 2];
        r.backends.min_rows[0][MR_TYPE_F16] = MR_NO_ROWS; /* an entry of another type has no effect */
        /* The last backend runs every node that no other backend takes. */
        r.backends.min_rows[1][MR_TYPE_F32] = MR_NO_ROWS;
        int32_t y = mr_graph_matmul(r.g, matrix(&r, 0, 1), add_rows(r.g), NONE, NONE);
        mr_graph_output(r.g, y);
        rig_finish(&r);
        assert_int_equal(home_of(&r, y), !on_host || least[i / 2] <= ROWS ? 0 : 1);
        rig_destroy(&r);
    }
}

/* Gate and up are one node where their matrices are, although a device in front in the list could run the gate. */
static void test_gate_and_up_fuse_where_their_matrices_are(void **state) {
    (void)state;
    rig r = rig_make(BIT(MR_OP_MATMUL) | BIT(MR_OP_GLU) | BIT(MR_OP_GATE_UP), 0);
    int32_t x = add_rows(r.g), gate = product(&r, 1, x), up = product(&r, 1, x);
    int32_t y = mr_graph_glu(r.g, gate, up, (mr_glu){0});
    mr_graph_output(r.g, y);
    rig_finish(&r);
    assert_int_equal(maker_of(r.g, y)->op, MR_OP_GATE_UP);
    assert_int_equal(home_of(&r, y), 1);
    assert_int_equal(r.stats.n_nodes, 1);
    rig_destroy(&r);
}

static void test_what_cannot_be(void **state) {
    (void)state;
    mr_err err = {0};
    mr_graph_stats stats;
    rig r = rig_make(BIT(MR_OP_ADD), 0);
    int32_t x = add_rows(r.g);
    mr_graph_output(r.g, product(&r, 0, x)); /* the backend that has the matrix runs no products */
    expect_fails(mr_graph_finish(r.g, &r.backends, &stats, &err), MR_E_UNSUPPORTED, &err, mr_op_name(MR_OP_MATMUL));
    mr_graph_destroy(r.g);
    r.g = graph_make(ROWS, ROWS);
    mr_graph_output(r.g, mr_graph_add(r.g, add_rows(r.g), add_rows(r.g)));
    mr_backends turned = {.at = {r.backends.at[1], r.backends.at[0]}, .n = 2};
    expect_fails(mr_graph_finish(r.g, &turned, &stats, &err), MR_E_INVALID, &err, "stands last");
    rig_destroy(&r);
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

static void count_call(void *ctx) {
    ++*(int *)ctx;
}

/* x is copied to the slow device A, and the host continues with the result of the fast device B. The host must not
 * write over x, whose last reader is A, before A has copied x. There is no other reason for the host to wait for A. */
static void test_the_host_waits_before_it_writes_over_what_is_copied(void **state) {
    (void)state;
    for (int32_t n_waits = 1; n_waits <= 41; n_waits += 20) {
        rig r = {0};
        rig_add_device(&r, &(test_device_options){.ops = BIT(MR_OP_MATMUL)});
        rig_add_device(&r, &(test_device_options){.ops = BIT(MR_OP_MATMUL)});
        mr_cpu_options cpu = {.n_threads = 1};
        assert_int_equal(mr_cpu_backend_create(&cpu, &r.backends.at[r.backends.n++], NULL), MR_OK);
        r.g = graph_make(ROWS, ROWS);
        int32_t a = add_rows(r.g), b = add_rows(r.g);
        int32_t x = mr_graph_add(r.g, a, b), slow = carry(&r, 0, x), y = carry(&r, 1, x);
        int32_t some = mr_graph_add(r.g, mr_graph_add(r.g, y, a), mr_graph_add(r.g, y, y));
        int32_t more = mr_graph_add(r.g, mr_graph_add(r.g, y, y), mr_graph_add(r.g, y, y));
        int32_t z = mr_graph_add(r.g, some, more); /* enough tensors that the memory of x is used again */
        mr_graph_output(r.g, slow);
        mr_graph_output(r.g, z);
        rig_finish(&r);
        rig_place(&r);
        set_all(&r, a, 100.0f);
        set_all(&r, b, 10.0f);
        int n_calls = 0;
        test_device_hold(r.backends.at[0], n_waits); /* backend A reads x when the host waits for A, and not earlier */
        mr_run run = {.n_rows = {1, ROWS, ROWS}, .progress = count_call, .progress_ctx = &n_calls};
        mr_err err = {0};
        expect_ok(mr_graph_run(r.g, &run, &err), &err);
        expect_all(&r, slow, 110.0f, 2.0f);
        expect_all(&r, z, 870.0f, 15.0f);
        assert_true(n_calls >= n_waits); /* progress is called while the host waits */
        rig_destroy(&r);
    }
}

/* Only the rows that are real cross a border. */
static void test_copies_take_the_rows_that_are_real(void **state) {
    (void)state;
    rig r = rig_make(BIT(MR_OP_MATMUL), 0);
    int32_t x = add_rows(r.g);
    mr_graph_output(r.g, mr_graph_add(r.g, carry(&r, 0, mr_graph_add(r.g, x, x)), x));
    rig_finish(&r);
    rig_place(&r);
    test_device_reset(r.backends.at[0], 0);
    mr_run run = {.n_rows = {1, 3, 0}};
    assert_int_equal(mr_graph_run(r.g, &run, NULL), MR_OK);
    test_device_stats stats = test_device_get_stats(r.backends.at[0]);
    assert_int_equal(stats.n_sets, 1);
    assert_int_equal(stats.set_bytes, 3 * WIDTH * sizeof(float));
    assert_int_equal(stats.get_bytes, 3 * WIDTH * sizeof(float));
    rig_destroy(&r);
}

/* A product whose matrix lives with the CPU. Per row it takes the CPU 4.1 us and the device 0.4; taking the matrix
 * there takes 16 us, and the row there and back 0.5. */
static void check_offload(int32_t n_rows, bool has_source, double copied_bytes_per_s, bool expected) {
    static float rows[WIDTH][WIDTH];
    rig r = rig_make(BIT(MR_OP_MATMUL), 0);
    r.backends.rates[0] = (mr_rates){.products_per_s = 1e10, .copied_bytes_per_s = copied_bytes_per_s};
    r.backends.rates[1] = (mr_rates){.products_per_s = 1e9};
    mr_graph_destroy(r.g);
    r.g = graph_make(n_rows, n_rows);
    int32_t x = add_rows(r.g), y = carry(&r, 1, x), z = mr_graph_add(r.g, y, x);
    int32_t matrix_id = maker_of(r.g, y)->in[0];
    for (int i = 0; i < WIDTH; i++)
        rows[i][i] = 1.0f;
    if (has_source)
        mr_graph_matrix_source(r.g, matrix_id, (const uint8_t *)rows);
    mr_graph_output(r.g, z);
    rig_finish(&r);
    assert_int_equal(home_of(&r, y), expected ? 0 : 1);
    assert_int_equal(r.stats.n_copies, expected ? 2 : 0); /* the matrix and the output row */
    rig_place(&r);
    for (int run = 0; run < 2; run++) {
        test_device_reset(r.backends.at[0], 0);
        set_some(&r, x, 7.0f + (float)run, n_rows < ROWS ? n_rows : ROWS);
        assert_int_equal(mr_graph_run(r.g, &(mr_run){.n_rows = {1, n_rows, n_rows}}, NULL), MR_OK);
        expect_some(&r, z, 14.0f + 2.0f * (float)run, 2.0f, n_rows < ROWS ? n_rows : ROWS);
        assert_int_equal(test_device_get_stats(r.backends.at[0]).n_loads, expected);
    }
    rig_destroy(&r);
}

static void test_products_of_many_rows_go_to_a_faster_device(void **state) {
    (void)state;
    check_offload(1, true, 1e9, false);
    check_offload(5, true, 1e9, false);
    check_offload(8, true, 1e9, true);
    check_offload(8, false, 1e9, false); /* the matrix has no source to copy from */
    check_offload(8, true, 1e8, false);  /* the copy costs more than the faster product gains */
    check_offload(64, true, 0, false);   /* the speed of the link was not measured */
    check_offload(64, true, 1e9, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tensor_is_copied_once),
        cmocka_unit_test(test_splits_are_as_few_as_can_be),
        cmocka_unit_test(test_free_nodes_follow_their_neighbours),
        cmocka_unit_test(test_from_device_to_device),
        cmocka_unit_test(test_the_first_of_the_list_is_preferred),
        cmocka_unit_test(test_measured_rows_decide_who_multiplies),
        cmocka_unit_test(test_gate_and_up_fuse_where_their_matrices_are),
        cmocka_unit_test(test_what_cannot_be),
        cmocka_unit_test(test_the_host_waits_before_it_writes_over_what_is_copied),
        cmocka_unit_test(test_copies_take_the_rows_that_are_real),
        cmocka_unit_test(test_products_of_many_rows_go_to_a_faster_device),
    };
    return cmocka_run_group_tests_name("graph_splits", tests, NULL, NULL);
}
