/* A stage whose device holds some experts of each layer, and other ones from step to step: the logits have the bits of
 * the CPU alone, whatever the device holds. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "tests/conformance/emulated_gpu.h"
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

/* Runs a sequence in steps of drawn lengths, after each of which the stages may exchange experts. Returns how many they
 * have exchanged. A step and its exchanges allocate nothing. */
static uint64_t run(const tiny_model *m, const chain_config *config, float *logits, rng *r) {
    chain *c = chain_create(m, config);
    size_t n_vocab = (size_t)m->info.vocab_size;
    uint64_t n_swaps = 0, n_allocs = mr_mem_get_stats().n_allocs;
    for (int32_t position = 0; position < N_ROWS;) {
        chain_row rows[MAX_STEP];
        int32_t n = 0, most = 1 + rng_below(r, MAX_STEP);
        for (; n < most && position < N_ROWS; n++, position++)
            rows[n] = (chain_row){
                .position = position, .id = 3 + position * 31 % 97, .logits = logits + (size_t)position * n_vocab};
        chain_step(c, rows, n);
    }
    assert_true(mr_mem_get_stats().n_allocs == n_allocs || !mr_graph_reuse_wanted());
    for (int32_t i = 0; i < config->n_stages; i++) {
        const mr_expert_share share = mr_stage_expert_share(chain_stage(c, i));
        n_swaps += share.n_swaps;
        assert_true(share.n_device_uses <= share.n_uses);
    }
    chain_destroy(c);
    return n_swaps;
}

/* A look after each step, and no certainty: as many exchanges as there can be. */
static const mr_expert_rules OFTEN = {.rows = 1, .half_life_rows = 1, .bytes_per_step = 1 << 30};

static void check_model(const tiny_model *m, mr_backend *device, const char *name) {
    size_t bytes = (size_t)N_ROWS * (size_t)m->info.vocab_size * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    assert_true(want && got);
    rng r = {.state = 5};
    chain_config config = {.n_stages = 1, .n_threads = 2, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
    assert_int_equal(run(m, &config, want, &r), 0);
    for (int32_t n_held = 1, i = 0; n_held <= m->info.n_experts; n_held += 3, i++) {
        int32_t *first = draw_order(m, &r);
        config.n_stages = 1 + i % (m->info.n_layers < 4 ? m->info.n_layers : 4);
        config.map_weights = n_held % 2;
        config.renews = OFTEN;
        config.expert_order = n_held > 1 && config.n_stages == 1 ? first : NULL;
        config.devices = (mr_backends){.at = {device}, .n = 1};
        mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, n_held, 0});
        uint64_t n_swaps = run(m, &config, got, &r);
        if (memcmp(got, want, bytes) != 0)
            fail_msg("%s: other logits with %d experts on the device", name, n_held);
        print_message("%s: %d stages, %d experts on each device, %d exchanges\n", name, config.n_stages, n_held,
                      (int)n_swaps);
        if (n_held == m->info.n_experts)
            assert_int_equal(n_swaps, 0);
        else
            assert_true(n_swaps >= (2 * n_held <= m->info.n_experts ? 10 : 1));
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
    mr_backend *device = NULL;
    mr_err err = {0};
    expect_ok(emulated_gpu_create(&device, &err), &err);
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
}

static void test_both_sides_with_an_emulated_gpu(void **state) {
    (void)state;
    mr_backend *device = make_emulated_gpu();
    expect_overlap(device);
    mr_backend_destroy(device);
}

/* An order with an expert that is there twice, below 0 or above all. */
static void test_orders_that_cannot_be(void **state) {
    (void)state;
    tiny_model *m = tiny_model_open_path(FOLDER "qwen3moe.gguf");
    mr_backend *device = make_test_device(0), *cpu = NULL;
    rng r = {.state = 9};
    int32_t *order = draw_order(m, &r), right = order[0];
    const int32_t wrong[] = {order[1], -1, m->info.n_experts};
    mr_stage_config config = {.gguf = m->gguf,
                              .info = &m->info,
                              .range = {0, m->info.n_layers},
                              .max_rows = 1,
                              .max_out_rows = 1,
                              .max_sequences = 1,
                              .max_context = CONTEXT,
                              .n_kv_blocks = 1,
                              .kv_type = MR_TYPE_F16,
                              .devices = {.at = {device}, .n = 1},
                              .expert_order = order};
    mr_err err = {0};
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, &err), &err);
    mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, 2, 0});
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mr_stage *s = NULL;
        order[0] = wrong[i];
        expect_fails(mr_stage_create(&config, cpu, NULL, NULL, &s, &err), MR_E_INVALID, &err,
                     "the order of the experts of layer 0 does not have each one once");
    }
    order[0] = right;
    mr_backend_destroy(device);
    mr_backend_destroy(cpu);
    free(order);
    tiny_model_destroy(m);
}

/* Exchanges with so many bytes for each step. Returns how many there were. An exchange loads three matrices. */
static uint64_t count_swaps(const tiny_model *m, size_t bytes, uint64_t most_of_step) {
    mr_backend *device = make_test_device(0);
    chain_config config = {.n_stages = 1, .n_threads = 1, .kv_type = MR_TYPE_F16, .max_context = CONTEXT};
    config.renews = (mr_expert_rules){.rows = 1, .half_life_rows = 2, .bytes_per_step = bytes};
    config.devices = (mr_backends){.at = {device}, .n = 1};
    mr_devices_hold(&config.devices, (mr_devices_share){m->info.n_layers, m->info.n_layers, 2, 0});
    chain *c = chain_create(m, &config);
    uint64_t n_swaps = 0;
    for (int32_t position = 0; position < N_ROWS; position++) {
        const test_device_stats before = test_device_get_stats(device);
        chain_step(c, &(chain_row){.position = position, .id = 3 + position * 31 % 97}, 1);
        const uint64_t n = mr_stage_expert_share(chain_stage(c, 0)).n_swaps - n_swaps;
        const test_device_stats after = test_device_get_stats(device);
        assert_true(n <= most_of_step);
        assert_int_equal(after.n_loads - before.n_loads, 3 * (int)n);
        n_swaps += n;
    }
    chain_destroy(c);
    mr_backend_destroy(device);
    return n_swaps;
}

static void test_bytes_of_a_step(void **state) {
    (void)state;
    tiny_model *m = tiny_model_open_path(FOLDER "qwen3moe.gguf");
    const mr_gguf_tensor *gate = mr_gguf_find_tensor(m->gguf, "blk.0.ffn_gate_exps.weight");
    assert_non_null(gate);
    size_t about = 3 * gate->bytes / (size_t)m->info.n_experts;
    assert_int_equal(count_swaps(m, 1, 0), 0); /* the bytes of an expert are not saved up yet */
    uint64_t n_half = count_swaps(m, about / 2, 1), n_all = count_swaps(m, 100 * about, 100);
    print_message("exchanges with bytes for half an expert in a step: %d, for 100: %d\n", (int)n_half, (int)n_all);
    assert_true(n_half > 0 && n_half <= N_ROWS / 2 + 1 && n_all > N_ROWS);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_test_device),    cmocka_unit_test(test_on_an_emulated_gpu),
        cmocka_unit_test(test_orders_that_cannot_be), cmocka_unit_test(test_bytes_of_a_step),
        cmocka_unit_test(test_both_sides_at_work),    cmocka_unit_test(test_both_sides_with_an_emulated_gpu),
    };
    return cmocka_run_group_tests_name("stage_experts", tests, NULL, NULL);
}
