// SPDX-License-Identifier: Apache-2.0
/* Counts of used experts and neurons: choices that the test writes, on the CPU and on a device; then whole stages,
 * whose counts do not depend on the steps, the cut, the threads and the device, and whose logits keep their bits. */
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/graph/debug.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"
#include "worker/stage/use_counts.h"

enum { EXPERTS = 5, USED = 2, NEURONS = 300, ROWS = 6, LENGTH = 24, MAX_LAYERS = 8 };

/* --- Choices that the test writes -------------------------------------------------------------------------------- */

/* A graph with the choices of two layers as inputs, and the counts of both. */
typedef struct bench {
    mr_backends backends;
    mr_graph *graph;
    mr_buffer *work[MR_MAX_BACKENDS];
    use_counts *counts;
    int32_t routes, active;
} bench;

static void add_doubled(mr_graph *g, int32_t x) {
    mr_graph_output(g, mr_graph_add(g, x, x));
}

/* The inputs lie where the node that reads each of them runs: float rows of the same bytes. on_device: on a test
 * device, whose memory the host cannot read. */
static void open_bench(bench *b, bool on_device) {
    mr_err err = {0};
    mr_graph_stats stats;
    const test_device_options options = {.ops = 1u << MR_OP_ADD};
    *b = (bench){0};
    if (on_device)
        expect_ok(test_device_create(&options, &b->backends.at[b->backends.n++], &err), &err);
    expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &b->backends.at[b->backends.n++], &err), &err);
    expect_ok(use_counts_create((mr_layer_range){7, 10}, 1, &b->counts, &err), &err);
    expect_ok(mr_graph_create(ROWS, ROWS, &b->graph, &err), &err);
    b->routes = mr_graph_input(b->graph, "routes", MR_TYPE_F32, 2 * USED, MR_ROWS_STEP);
    b->active = mr_graph_input(b->graph, "active", MR_TYPE_F32, (int32_t)mr_active_ints(NEURONS, ROWS), MR_ROWS_FIXED);
    add_doubled(b->graph, b->routes);
    add_doubled(b->graph, b->active);
    mr_layer_choice *choices = use_counts_choices(b->counts, 0);
    choices[0] = (mr_layer_choice){.tensor = b->routes, .cold = MR_NO_TENSOR, .n = EXPERTS, .n_used = USED};
    choices[1] = (mr_layer_choice){.tensor = MR_NO_TENSOR, .cold = MR_NO_TENSOR};
    choices[2] = (mr_layer_choice){
        .tensor = b->active, .cold = MR_NO_TENSOR, .n = NEURONS, .n_hot = NEURONS, .is_neurons = true};
    expect_ok(mr_graph_finish(b->graph, &b->backends, &stats, &err), &err);
    for (int32_t i = 0; i < b->backends.n; i++)
        if (stats.work_bytes[i] > 0)
            expect_ok(b->backends.at[i]->ops->buffer_create(b->backends.at[i], stats.work_bytes[i], &b->work[i], &err),
                      &err);
    expect_ok(mr_graph_place(b->graph, b->work, &err), &err);
    assert_int_equal(mr_graph_is_on_host(b->graph, b->routes), !on_device);
    assert_int_equal(use_counts_bytes(b->counts), (EXPERTS + NEURONS) * sizeof(uint64_t));
    use_counts_note(b->counts, 0, b->graph);
    expect_ok(use_counts_allocate(b->counts, 0, &err), &err);
}

static void close_bench(bench *b) {
    use_counts_destroy(b->counts);
    mr_graph_destroy(b->graph);
    for (int32_t i = 0; i < b->backends.n; i++) {
        b->backends.at[i]->ops->buffer_destroy(b->backends.at[i], b->work[i]);
        mr_backend_destroy(b->backends.at[i]);
    }
}

/* Runs a step whose row r takes experts[r], and counts. Neuron i is active in row r if i % (r + 2) == 0. */
static mr_status run_step(bench *b, const int32_t experts[][USED], int32_t n_rows, mr_err *err) {
    int32_t routes[ROWS][2 * USED] = {{0}};
    size_t n = (size_t)mr_active_ints(NEURONS, ROWS);
    int32_t *active = calloc(n, sizeof *active);
    assert_non_null(active);
    uint32_t *sets = mr_active_at(active, NEURONS).sets;
    int32_t n_words = mr_count_partitions(NEURONS) * MR_PARTITION_WORDS;
    for (int32_t r = 0; r < n_rows; r++) {
        memcpy(routes[r], experts[r], sizeof experts[r]);
        for (int32_t i = 0; i < NEURONS; i += r + 2)
            sets[r * n_words + i / 32] |= 1u << i % 32;
        sets[r * n_words + NEURONS / 32] |= 1u << 31; /* behind the last neuron */
    }
    expect_ok(mr_graph_set_rows(b->graph, b->routes, routes, sizeof routes[0], n_rows, err), err);
    expect_ok(mr_graph_set_rows(b->graph, b->active, active, n * sizeof *active, 1, err), err);
    expect_ok(mr_graph_run(b->graph, &(mr_run){.n_rows = {[MR_ROWS_STEP] = n_rows}}, err), err);
    free(active);
    return use_counts_add(b->counts, 0, b->graph, n_rows, err);
}

static void count_by_hand(bool on_device) {
    bench b;
    mr_err err = {0};
    int32_t n;
    open_bench(&b, on_device);
    expect_ok(run_step(&b, (const int32_t[][USED]){{4, 0}, {4, 1}, {0, 4}}, 3, &err), &err);
    expect_ok(run_step(&b, (const int32_t[][USED]){{3, 4}}, 1, &err), &err);
    const mr_use_counts *layers = use_counts_layers(b.counts, &n);
    const uint64_t experts[EXPERTS] = {2, 1, 0, 1, 4};
    assert_int_equal(n, 2);
    assert_true(layers[0].layer == 7 && layers[0].n == EXPERTS && layers[0].n_rows == 4 && !layers[0].is_neurons);
    assert_memory_equal(layers[0].counts, experts, sizeof experts);
    assert_true(layers[1].layer == 9 && layers[1].n == NEURONS && layers[1].n_rows == 4 && layers[1].is_neurons);
    for (uint64_t i = 0; i < NEURONS; i++)
        assert_int_equal(layers[1].counts[i], 2 * (i % 2 == 0) + (i % 3 == 0) + (i % 4 == 0));
    close_bench(&b);
}

static void test_by_hand(void **state) {
    (void)state;
    count_by_hand(false);
    count_by_hand(true);
}

static void test_wrong_expert(void **state) {
    (void)state;
    static const int32_t WRONG[][USED] = {{EXPERTS, 0}, {0, -1}};
    for (int i = 0; i < 2; i++) {
        bench b;
        mr_err err = {0};
        open_bench(&b, i == 1);
        expect_fails(run_step(&b, &WRONG[i], 1, &err), MR_E_DEVICE, &err, i ? "expert -1 of 5" : "layer 7");
        close_bench(&b);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    bench b;
    mr_status status = MR_E_NO_MEMORY;
    open_bench(&b, true);
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_err err = {0};
        use_counts *u = NULL;
        mr_mem_fail_at(n);
        status = use_counts_create((mr_layer_range){0, 3}, 1, &u, &err);
        for (int32_t l = 0; l < 3 && status == MR_OK; l++)
            use_counts_choices(u, 0)[l] = use_counts_choices(b.counts, 0)[l];
        if (status == MR_OK) {
            use_counts_note(u, 0, b.graph);
            status = use_counts_allocate(u, 0, &err);
        }
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        assert_true(n <= 5);
        use_counts_destroy(u);
    }
    close_bench(&b);
}

/* --- Stages ------------------------------------------------------------------------------------------------------ */

typedef struct counted {
    mr_use_counts layers[MAX_LAYERS];
    int32_t n_layers;
    float *logits; /* [LENGTH, vocabulary] */
} counted;

static void free_counted(counted *c) {
    for (int32_t i = 0; i < c->n_layers; i++)
        free(c->layers[i].counts);
    free(c->logits);
}

static void take_counts(chain *p, int32_t n_stages, counted *out) {
    for (int32_t s = 0; s < n_stages; s++) {
        int32_t n;
        const mr_use_counts *layers = mr_stage_use_counts(chain_stage(p, s), &n);
        for (int32_t i = 0; i < n; i++) {
            mr_use_counts *copy = &out->layers[out->n_layers++];
            size_t bytes = (size_t)layers[i].n * sizeof *copy->counts;
            *copy = layers[i];
            copy->counts = malloc(bytes);
            assert_non_null(copy->counts);
            memcpy(copy->counts, layers[i].counts, bytes);
        }
    }
}

/* Runs LENGTH tokens in steps of n_rows. A step allocates nothing. */
static counted run(const tiny_model *m, chain_config config, int32_t n_rows) {
    counted out = {.logits = calloc((size_t)LENGTH * (size_t)m->info.vocab_size, sizeof(float))};
    assert_non_null(out.logits);
    config.kv_type = MR_TYPE_F16;
    config.max_context = 64;
    chain *p = chain_create(m, &config);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    for (int32_t at = 0; at < LENGTH; at += n_rows) {
        chain_row rows[LENGTH];
        int32_t n = 0;
        for (; n < n_rows && at + n < LENGTH; n++)
            rows[n] = (chain_row){.position = at + n,
                                  .id = (int32_t)(mr_rng_u64(3, 0, (uint64_t)(at + n)) % 90),
                                  .logits = out.logits + (size_t)(at + n) * (size_t)m->info.vocab_size};
        chain_step(p, rows, n);
    }
    assert_true((mr_mem_get_stats().n_allocs == n_allocs) == mr_graph_reuse_wanted());
    take_counts(p, config.n_stages, &out);
    chain_destroy(p);
    return out;
}

static void expect_same(const tiny_model *m, const counted *want, chain_config config, int32_t n_rows) {
    counted got = run(m, config, n_rows);
    size_t logit_bytes = (size_t)LENGTH * (size_t)m->info.vocab_size * sizeof(float);
    assert_memory_equal(got.logits, want->logits, logit_bytes);
    assert_int_equal(got.n_layers, config.counts_uses ? want->n_layers : 0);
    for (int32_t i = 0; i < got.n_layers; i++) {
        const mr_use_counts *a = &got.layers[i], *b = &want->layers[i];
        assert_true(a->layer == b->layer && a->n == b->n && a->n_rows == b->n_rows && a->is_neurons == b->is_neurons);
        assert_memory_equal(a->counts, b->counts, (size_t)a->n * sizeof *a->counts);
    }
    free_counted(&got);
}

static uint64_t sum_of(const mr_use_counts *l) {
    uint64_t sum = 0;
    for (int32_t i = 0; i < l->n; i++)
        sum += l->counts[i];
    return sum;
}

/* The same counts and bits by any cut, step, number of threads and device. Returns the counts. */
static counted check_model(const tiny_model *m) {
    counted want = run(m, (chain_config){.n_stages = 1, .n_threads = 1, .counts_uses = true}, LENGTH);
    expect_same(m, &want, (chain_config){.n_stages = 1, .n_threads = 1}, LENGTH);
    expect_same(m, &want, (chain_config){.n_stages = 1, .n_threads = 3, .counts_uses = true}, 1);
    expect_same(m, &want, (chain_config){.n_stages = 3, .n_threads = 1, .counts_uses = true}, 7);
    const test_device_options options[] = {{.ops = TEST_DEVICE_ALL_OPS, .seed = 5, .max_delay_us = 20},
                                           {.ops = TEST_DEVICE_ALL_OPS & ~(1u << MR_OP_EXPERT_MATMUL)},
                                           {.ops = TEST_DEVICE_ALL_OPS, .host_addressable = true}};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        mr_err err = {0};
        mr_backends devices = {.n = 1, .whole_layers = {m->info.n_layers}};
        expect_ok(test_device_create(&options[i], &devices.at[0], &err), &err);
        chain_config config = {.n_stages = 2, .n_threads = 1, .counts_uses = true, .devices = devices};
        expect_same(m, &want, config, 5);
        if (want.layers[0].is_neurons) { /* the neurons behind the first 256 on the host */
            config.devices.cold_partitions[0] = 1;
            expect_same(m, &want, config, 5);
        }
        mr_backend_destroy(devices.at[0]);
    }
    return want;
}

/* Counts of a model with experts, whose first n_dense layers have none. */
static void check_experts(tiny_model *m, int32_t n_dense) {
    const mr_model_info *info = &m->info;
    counted c = check_model(m);
    assert_int_equal(c.n_layers, info->n_layers - n_dense);
    for (int32_t l = 0; l < c.n_layers; l++) {
        assert_true(c.layers[l].layer == l + n_dense && c.layers[l].n == info->n_experts && !c.layers[l].is_neurons);
        assert_int_equal(sum_of(&c.layers[l]), LENGTH * info->n_experts_used);
        for (int32_t e = 0; e < info->n_experts && info->n_experts_used == info->n_experts; e++)
            assert_int_equal(c.layers[l].counts[e], LENGTH);
    }
    free_counted(&c);
    tiny_model_destroy(m);
}

static void test_experts(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    d.n_layers = 3;
    d.n_experts = d.n_experts_used = 6;
    check_experts(tiny_model_create(&d), 0);
    check_experts(tiny_model_open_path(MILLRACE_SOURCE_DIR "/tests/golden/arch/qwen3moe.gguf"), 0);
    check_experts(tiny_model_open_path(MILLRACE_SOURCE_DIR "/tests/golden/arch/deepseek2.gguf"), 1);
}

static void test_neurons(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        float threshold;
        uint64_t low, high; /* of the sum of a layer, in percent of all */
    } CASES[] = {{"llama", 0.0f, 5, 95}, {"bamboo", 0.01f, 1, 95}, {"llama", -1e30f, 100, 100}, {"llama", 1e30f, 0, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        tiny_desc d = tiny_default(CASES[i].arch, MR_TYPE_F16);
        d.n_layers = 3;
        d.n_ff = 288; /* more than one partition */
        d.n_predictor = 32;
        d.threshold = CASES[i].threshold;
        tiny_model *m = tiny_model_create(&d);
        counted c = check_model(m);
        assert_int_equal(c.n_layers, d.n_layers);
        for (int32_t l = 0; l < c.n_layers; l++) {
            uint64_t all = LENGTH * (uint64_t)d.n_ff, sum = sum_of(&c.layers[l]);
            assert_true(c.layers[l].is_neurons && c.layers[l].n == d.n_ff && c.layers[l].n_rows == LENGTH);
            assert_true(100 * sum >= CASES[i].low * all && 100 * sum <= CASES[i].high * all);
        }
        free_counted(&c);
        tiny_model_destroy(m);
    }
}

static void test_dense(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_Q8_0);
    tiny_model *m = tiny_model_create(&d);
    counted c = run(m, (chain_config){.n_stages = 1, .n_threads = 1, .counts_uses = true}, LENGTH);
    assert_int_equal(c.n_layers, 0);
    free_counted(&c);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_hand),   cmocka_unit_test(test_wrong_expert),
                                       cmocka_unit_test(test_no_memory), cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_neurons),   cmocka_unit_test(test_dense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
