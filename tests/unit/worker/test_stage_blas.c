/* Stages with BLAS beside the CPU backend. Logits are close to the exact logits. Steps of few rows stay on the CPU
 * and keep the exact bits. A step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/blas/blas_backend.h"
#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "tests/unit/worker/test_stage_chain.h"

enum { SEED = 5, PROMPT = 40, LENGTH = 44, VOCAB = 90 };

typedef float logits[LENGTH][VOCAB];

/* A prompt at once, then token by token. */
static void run_tokens(chain *p, logits out) {
    chain_row rows[PROMPT];
    for (int32_t i = 0; i < LENGTH; i++) {
        int32_t at = i < PROMPT ? i : 0;
        rows[at] = (chain_row){
            .position = i, .id = (int32_t)((mr_rng_u64(SEED, 0, (uint64_t)i) >> 40) % VOCAB), .logits = out[i]};
        if (i >= PROMPT - 1)
            chain_step(p, rows, at + 1);
    }
}

static void run_on(const tiny_model *m, const chain_config *config, logits out) {
    chain *p = chain_create(m, config);
    uint64_t n_allocs = mr_mem_get_stats().n_allocs;
    memset(out, 0, sizeof(logits));
    run_tokens(p, out);
    assert_int_equal(mr_mem_get_stats().n_allocs, n_allocs);
    chain_destroy(p);
}

static double nmse(const logits got, const logits want) {
    double error = 0, size = 0;
    for (int i = 0; i < LENGTH; i++)
        for (int v = 0; v < VOCAB; v++) {
            double d = (double)got[i][v] - (double)want[i][v];
            error += d * d;
            size += (double)want[i][v] * (double)want[i][v];
        }
    return error / size;
}

static tiny_model *make_model(const char *arch, mr_type type) {
    tiny_desc d = tiny_default(arch, type);
    d.vocab_size = VOCAB;
    d.biases = strcmp(arch, "llama") == 0;
    return tiny_model_create(&d);
}

static mr_backend *make_blas(int32_t n_threads) {
    mr_backend *be = NULL;
    mr_err err = {0};
    expect_ok(mr_blas_backend_create(&(mr_blas_options){.n_threads = n_threads}, &be, &err), &err);
    return be;
}

static chain_config config_with(mr_backend *blas, int32_t n_stages, bool map_weights) {
    return (chain_config){.n_stages = n_stages,
                          .n_threads = 2,
                          .kv_type = MR_TYPE_F16,
                          .map_weights = map_weights,
                          .devices = {.at = {blas}, .n = 1}};
}

/* Every product by BLAS. Exact numerics round activations for BF16 and quantised weights, BLAS does not. */
static void test_logits_are_close(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        mr_type type;
        double max_nmse;
    } cases[] = {
        {"llama", MR_TYPE_F32, 1e-6},  {"qwen2", MR_TYPE_F16, 1e-6},  {"llama", MR_TYPE_F16, 1e-6},
        {"qwen3", MR_TYPE_BF16, 1e-4}, {"llama", MR_TYPE_Q8_0, 1e-3}, {"llama", MR_TYPE_Q4_K, 1e-3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static logits want, got;
        tiny_model *m = make_model(cases[i].arch, cases[i].type);
        mr_backend *blas = make_blas(2);
        chain_config config = config_with(blas, 1, false);
        config.devices.n = 0;
        run_on(m, &config, want);
        for (int v = 0; v < 4; v++) {
            config = config_with(blas, 1 + v % 2, v / 2);
            run_on(m, &config, got);
            assert_true(memcmp(got, want, sizeof got) != 0); /* equal results would mean that BLAS computed nothing */
            double e = nmse(got, want);
            if (!(e <= cases[i].max_nmse))
                fail_msg("%s %s, %d stages, %smapped: nmse %g", cases[i].arch, mr_type_name(cases[i].type), 1 + v % 2,
                         v / 2 ? "" : "not ", e);
        }
        mr_backend_destroy(blas);
        tiny_model_destroy(m);
    }
}

static int count_threads(void) {
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* The library computes in our threads and has none that would spin beside the CPU's. The first test, for it loads the
 * library. */
static void test_the_library_has_no_threads(void **state) {
    (void)state;
    mr_pool *pool = NULL; /* create a thread first: sanitizers create one of their own with the first thread */
    assert_int_equal(mr_pool_create(2, NULL, &pool, NULL), MR_OK);
    int before = count_threads();
    mr_backend *blas = make_blas(3);
    assert_int_equal(count_threads(), before + 2);
    mr_backend_destroy(blas);
    mr_pool_destroy(pool);
}

/* BLAS for so many rows as the prompt has; the CPU for the others, and for the whole model with too short a prompt. */
static void test_few_rows_are_left_to_the_cpu(void **state) {
    (void)state;
    static logits want, got;
    tiny_model *m = make_model("llama", MR_TYPE_F16);
    mr_backend *blas = make_blas(1);
    chain_config config = config_with(blas, 1, false);
    config.devices.min_rows[0][MR_TYPE_F16] = CHAIN_MAX_ROWS + 1;
    run_on(m, &config, got);
    config.devices.n = 0;
    run_on(m, &config, want);
    assert_memory_equal(got, want, sizeof got);
    config = config_with(blas, 1, false);
    config.devices.min_rows[0][MR_TYPE_F16] = 2;
    run_on(m, &config, got);
    assert_true(memcmp(got, want, sizeof got) != 0 && nmse(got, want) < 1e-6);
    mr_backend_destroy(blas);
    tiny_model_destroy(m);
}

/* BLAS takes no product that a device would be sent: which of the two gets the products of a prompt is said by the
 * rates. A device that computes exactly and takes all products gives the bits of the CPU, and one that takes none is
 * sent no matrix. min_rows of BLAS is 0 in both cases. */
static void check_rates(const tiny_model *m, const logits want, const mr_rates rates[3], int32_t device_at,
                        bool goes_to_device) {
    static logits got;
    mr_backend *blas = make_blas(1), *device = NULL;
    mr_err err = {0};
    const test_device_options options = {.ops = 1u << MR_OP_MATMUL};
    expect_ok(test_device_create(&options, &device, &err), &err);
    chain_config config = config_with(blas, 1, false);
    config.devices.at[1 - device_at] = blas;
    config.devices.at[device_at] = device;
    config.devices.n = 2;
    config.devices.rates[1 - device_at] = rates[0];
    config.devices.rates[device_at] = rates[1];
    config.devices.rates[2] = rates[2];
    run_on(m, &config, got);
    assert_int_equal(memcmp(got, want, sizeof got) == 0, goes_to_device);
    assert_int_equal(test_device_get_stats(device).n_loads > 0, goes_to_device);
    mr_backend_destroy(device);
    mr_backend_destroy(blas);
}

static void test_a_device_comes_before_blas_where_it_is_faster(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_Q8_0}; /* products of Q8_0 give BLAS other activations */
    static const mr_rates fast = {1e15, 1e15}, slow_copies = {1e15, 1}, slow = {1e3, 1e15},
                          cpu = {.products_per_s = 1e4};
    static const mr_rates blas = {.products_per_s = 1e6}, unknown = {0};
    static logits want;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        tiny_model *m = make_model("llama", types[i]);
        chain_config config = config_with(NULL, 1, false);
        config.devices.n = 0;
        run_on(m, &config, want);
        for (int32_t at = 0; at < 2; at++) {
            check_rates(m, want, (const mr_rates[]){blas, fast, cpu}, at, true);
            check_rates(m, want, (const mr_rates[]){blas, slow_copies, cpu}, at, false);
            check_rates(m, want, (const mr_rates[]){blas, slow, cpu}, at, false);
            check_rates(m, want, (const mr_rates[]){unknown, unknown, unknown}, at, false);
        }
        tiny_model_destroy(m);
    }
}

/* Loads a stage whose types in the bits of choice go to BLAS from min_rows on, and compares it with what was
 * measured. */
static void check_room(const mr_stage_config *config, mr_backend *cpu, const mr_type types[2], int choice,
                       int32_t min_rows, const mr_stage_sizes *measured) {
    mr_stage_config c = *config;
    mr_stage *s = NULL;
    mr_err err = {0};
    size_t before = mr_mem_get_stats().live_bytes;
    c.measures_products = false;
    for (int i = 0; i < 2; i++)
        c.devices.min_rows[0][types[i]] = choice >> i & 1 ? min_rows : MR_NO_ROWS;
    expect_ok(mr_stage_create(&c, cpu, NULL, NULL, &s, &err), &err);
    mr_stage_sizes made = mr_stage_get_sizes(s);
    assert_int_equal(mr_mem_get_stats().live_bytes - before, made.page_bytes + mr_pages_bytes(made.kv_bytes));
    if (made.work_bytes > measured->work_bytes || made.page_bytes > measured->page_bytes)
        fail_msg("%s and %s, %d rows, choice %d: %zu + %zu were measured, it has %zu + %zu", mr_type_name(types[0]),
                 mr_type_name(types[1]), c.max_rows, choice, measured->work_bytes, measured->page_bytes,
                 made.work_bytes, made.page_bytes);
    assert_int_equal(made.weight_bytes, measured->weight_bytes);
    mr_stage_destroy(s);
}

/* Whatever a measurement of products chooses, a stage takes no more than was said before it. */
static void test_no_choice_takes_more_than_was_measured(void **state) {
    (void)state;
    static const mr_type types[][2] = {
        {MR_TYPE_Q8_0, MR_TYPE_F16}, {MR_TYPE_F32, MR_TYPE_Q8_0}, {MR_TYPE_BF16, MR_TYPE_Q8_0}};
    static const char *const others[] = {"blk.1.attn_k.weight", "blk.0.ffn_up.weight", "output.weight"};
    mr_backend *blas = make_blas(1), *cpu = NULL;
    assert_int_equal(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &cpu, NULL), MR_OK);
    for (int i = 0; i < 27; i++) {
        tiny_desc d = tiny_default("llama", types[i % 3][0]);
        d.edit = (tiny_edit){.name = others[i / 3 % 3], .kind = TINY_TYPE, .type = types[i % 3][1]};
        d.n_ff = i % 2 ? 4096 : 160; /* work memory of many pages, or of one */
        tiny_model *m = tiny_model_create(&d);
        mr_stage_config c = {.gguf = m->gguf,
                             .info = &m->info,
                             .range = {0, 2},
                             .max_rows = (int32_t[]){1, 24, 300}[i / 9],
                             .max_out_rows = 1,
                             .max_sequences = 3,
                             .max_context = 100,
                             .n_kv_blocks = 21,
                             .kv_type = MR_TYPE_F16,
                             .map_weights = i % 5 == 0,
                             .devices = {.at = {blas}, .n = 1},
                             .measures_products = true};
        mr_stage_sizes measured;
        assert_int_equal(mr_stage_measure(&c, cpu, &measured, NULL), MR_OK);
        for (int choice = 0; choice < 4; choice++)
            for (int32_t min_rows = 1; min_rows <= c.max_rows; min_rows *= 16)
                check_room(&c, cpu, types[i % 3], choice, min_rows, &measured);
        tiny_model_destroy(m);
    }
    mr_backend_destroy(cpu);
    mr_backend_destroy(blas);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_library_has_no_threads),
        cmocka_unit_test(test_logits_are_close),
        cmocka_unit_test(test_few_rows_are_left_to_the_cpu),
        cmocka_unit_test(test_a_device_comes_before_blas_where_it_is_faster),
        cmocka_unit_test(test_no_choice_takes_more_than_was_measured),
    };
    return cmocka_run_group_tests_name("stage_blas", tests, NULL, NULL);
}
