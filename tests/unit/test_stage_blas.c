/* Stages with BLAS beside the CPU: logits are close to the exact ones, few rows keep the exact bits where they are left to the
 * CPU, and a step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends/blas/blas_backend.h"
#include "engine/base/mem.h"
#include "engine/base/pool.h"
#include "engine/base/rng.h"
#include "test_stage_chain.h"

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
    if (mr_blas_backend_create(&(mr_blas_options){.n_threads = n_threads}, &be, &err) != MR_OK)
        fail_msg("%s", err.text);
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
            assert_true(memcmp(got, want, sizeof got) != 0); /* else BLAS was not asked */
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
    mr_pool *pool = NULL; /* with the first thread that is made, sanitizers make one of their own */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_library_has_no_threads),
        cmocka_unit_test(test_logits_are_close),
        cmocka_unit_test(test_few_rows_are_left_to_the_cpu),
    };
    return cmocka_run_group_tests_name("stage_blas", tests, NULL, NULL);
}
