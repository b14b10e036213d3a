/* A stage whose device holds some experts of each layer, and other ones from step to step: the logits have the bits of
 * the CPU alone, whatever the device holds. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/cuda_backend.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/rng.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"
#include "worker/stage/devices.h"

enum { N_ROWS = 60, MAX_STEP = 9, CONTEXT = 64 };

#define FOLDER MILLRACE_SOURCE_DIR "/tests/golden/arch/"

/* Each row of order lists all experts, the first ones for the device, in a drawn order. */
static int32_t *draw_order(const tiny_model *m, rng *r) {
    int32_t n = m->info.n_experts;
    int32_t *order = malloc((size_t)(m->info.n_layers * n) * sizeof *order);
    assert_non_null(order);
    for (int32_t l = 0; l < m->info.n_layers; l++)
        for (int32_t e = 0; e < n; e++) {
            int32_t at = rng_below(r, e + 1);
            order[l * n + e] = order[l * n + at];
            order[l * n + at] = e;
        }
    return order;
}

/* Exchanges a drawn number of experts. Whether the device then holds what it should. */
static bool renew(chain *c, const int32_t *order, rng *r) {
    mr_err err = {0};
    int32_t most = rng_below(r, 4), n = -1;
    expect_ok(mr_stage_renew_experts(chain_stage(c, 0), order, most, &n, &err), &err);
    assert_true(n >= 0 && n <= most);
    return n < most;
}

/* Runs a sequence in steps of drawn lengths. Between two steps the experts go on their way to a drawn order, and there
 * they turn to the next one. Returns how many orders were reached. */
static int run(const tiny_model *m, const chain_config *config, float *logits, rng *r) {
    chain *c = chain_create(m, config);
    size_t n_vocab = (size_t)m->info.vocab_size;
    bool renews = config->devices.n > 0;
    int32_t *order = renews ? draw_order(m, r) : NULL;
    int n_reached = 0;
    for (int32_t position = 0; position < N_ROWS;) {
        chain_row rows[MAX_STEP];
        int32_t n = 0, most = 1 + rng_below(r, MAX_STEP);
        for (; n < most && position < N_ROWS; n++, position++)
            rows[n] = (chain_row){
                .position = position, .id = 3 + position * 31 % 97, .logits = logits + (size_t)position * n_vocab};
        chain_step(c, rows, n);
        if (renews && renew(c, order, r)) {
            free(order);
            order = draw_order(m, r);
            n_reached++;
        }
    }
    free(order);
    chain_destroy(c);
    return n_reached;
}

static void check_model(const tiny_model *m, mr_backend *device, const char *name) {
    size_t bytes = (size_t)N_ROWS * (size_t)m->info.vocab_size * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    assert_true(want && got);
    rng r = {.state = 5};
    chain_config config = {.n_stages = 1, .n_threads = 2, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
    run(m, &config, want, &r);
    for (int32_t n_held = 1; n_held <= m->info.n_experts; n_held += 3) {
        int32_t *first = draw_order(m, &r);
        config.map_weights = n_held % 2;
        config.expert_order = n_held > 1 ? first : NULL;
        config.devices = (mr_backends){.at = {device}, .n = 1};
        mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, n_held, 0});
        int n_reached = run(m, &config, got, &r);
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s: other logits with %d experts on the device", name, n_held);
        assert_true(n_reached > 0);
        free(first);
    }
    free(want);
    free(got);
}

static void check_all(mr_backend *device) {
    static const char *const NAMES[] = {"qwen3moe", "gpt-oss-mxfp4", "deepseek2-lite"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        char path[512];
        snprintf(path, sizeof path, FOLDER "%s.gguf", NAMES[i]);
        tiny_model *m = tiny_model_open_path(path);
        check_model(m, device, NAMES[i]);
        tiny_model_destroy(m);
    }
}

static mr_backend *make_test_device(int32_t max_delay_us) {
    mr_backend *device = NULL;
    mr_err err = {0};
    const test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .seed = 1, .max_delay_us = max_delay_us};
    expect_ok(test_device_create(&o, &device, &err), &err);
    return device;
}

static void test_on_the_test_device(void **state) {
    (void)state;
    mr_backend *device = make_test_device(10);
    check_all(device);
    mr_backend_destroy(device);
}

static mr_backend *make_emulated_gpu(void) {
    static const cuda_image IMAGES[] = {{"kernels", "all of them"}, {NULL, NULL}};
    mr_backend *device = NULL;
    mr_err err = {0};
    emulated_driver_reset(&(emulated_options){.seed = 1, .max_delay_us = 20});
    expect_ok(mr_cuda_backend_create(&(mr_cuda_options){.driver = emulated_driver(), .images = IMAGES}, &device, &err),
              &err);
    return device;
}

static void test_on_an_emulated_gpu(void **state) {
    (void)state;
    mr_backend *device = make_emulated_gpu();
    check_all(device);
    mr_backend_destroy(device);
}

/* --- Both sides at work ------------------------------------------------------------------------------------------ */

enum { BUSY_ROWS = 64, MOST_STEPS = 60, OVERLAP_NS = 500000 };

/* The experts keep the device busy for longer than anything else. */
static int64_t expert_ns(void *ctx, const mr_program_desc *program, const mr_run *run) {
    bool has_experts = false;
    (void)ctx;
    (void)run;
    for (int32_t i = 0; i < program->n_nodes; i++)
        has_experts = has_experts || program->nodes[i].op == MR_OP_EXPERT_MATMUL;
    return has_experts ? 20000000 : 0;
}

/* The longest time in which both worked. */
static int64_t longest_overlap(const mr_graph_work *works, int32_t n) {
    int64_t longest_ns = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n; k++) {
            const mr_graph_work *a = &works[i], *b = &works[k];
            int64_t start_ns = a->start_ns > b->start_ns ? a->start_ns : b->start_ns;
            int64_t end_ns = a->end_ns < b->end_ns ? a->end_ns : b->end_ns;
            assert_true(a->start_ns <= a->end_ns);
            if (a->is_host && !b->is_host && end_ns - start_ns > longest_ns)
                longest_ns = end_ns - start_ns;
        }
    return longest_ns;
}

/* Runs steps until one shows the device and the CPU at work at once, for much longer than clocks may be wrong. */
static void expect_overlap(mr_backend *device) {
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    d.d_model = 256;
    d.n_ff = 1024;
    d.n_experts = 4;
    d.n_experts_used = 4;
    tiny_model *m = tiny_model_create(&d);
    chain_config config = {
        .n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .max_context = CONTEXT, .notes_works = true};
    config.devices = (mr_backends){.at = {device}, .n = 1};
    mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, 1, 0});
    chain *c = chain_create(m, &config);
    int64_t longest_ns = 0;
    int n_steps = 0;
    for (; n_steps < MOST_STEPS && longest_ns < OVERLAP_NS; n_steps++) {
        chain_row rows[BUSY_ROWS];
        int32_t n = 0;
        for (int32_t i = 0; i < BUSY_ROWS; i++)
            rows[i] = (chain_row){.position = i, .id = i};
        chain_step(c, rows, BUSY_ROWS);
        const mr_graph_work *works = mr_stage_works(chain_stage(c, 0), &n);
        assert_true(n >= 2 * m->info.n_layers); /* each layer has a part for each side */
        int64_t ns = longest_overlap(works, n);
        longest_ns = ns > longest_ns ? ns : longest_ns;
    }
    print_message("both worked at once for %lld us of a step, after %d steps\n", (long long)longest_ns / 1000, n_steps);
    assert_true(longest_ns >= OVERLAP_NS);
    chain_destroy(c);
    tiny_model_destroy(m);
}

static void test_both_sides_at_work(void **state) {
    (void)state;
    const test_device_options o = {.ops = TEST_DEVICE_ALL_OPS, .costs = {.program_ns = expert_ns}};
    mr_backend *device = NULL;
    mr_err err = {0};
    expect_ok(test_device_create(&o, &device, &err), &err);
    expect_overlap(device);
    mr_backend_destroy(device);
    device = make_emulated_gpu();
    expect_overlap(device);
    mr_backend_destroy(device);
}

/* An order with an expert that is there twice, below 0 or above all. The stage keeps what it holds. */
static void test_orders_that_cannot_be(void **state) {
    (void)state;
    tiny_model *m = tiny_model_open_path(FOLDER "qwen3moe.gguf");
    mr_backend *device = make_test_device(0);
    chain_config config = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
    config.devices = (mr_backends){.at = {device}, .n = 1};
    mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, 2, 0});
    chain *c = chain_create(m, &config);
    rng r = {.state = 9};
    int32_t *order = draw_order(m, &r), n_experts = m->info.n_experts, n = 0;
    const int32_t wrong[] = {order[1], -1, n_experts};
    mr_err err = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        int32_t right = order[0];
        order[0] = wrong[i];
        expect_fails(mr_stage_renew_experts(chain_stage(c, 0), order, 1, &n, &err), MR_E_INVALID, &err,
                     "the order of the experts of layer 0 does not have each one once");
        order[0] = right;
    }
    test_device_stats before = test_device_get_stats(device), after;
    expect_ok(mr_stage_renew_experts(chain_stage(c, 0), order, 1, &n, &err), &err);
    after = test_device_get_stats(device);
    assert_int_equal(n, 1);
    assert_int_equal(after.n_loads - before.n_loads, 3); /* one expert */
    assert_int_equal(after.n_sets - before.n_sets, 1);   /* the places of the layer */
    chain_destroy(c);
    mr_backend_destroy(device);
    free(order);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_test_device),
        cmocka_unit_test(test_on_an_emulated_gpu),
        cmocka_unit_test(test_orders_that_cannot_be),
        cmocka_unit_test(test_both_sides_at_work),
    };
    return cmocka_run_group_tests_name("stage_experts", tests, NULL, NULL);
}
