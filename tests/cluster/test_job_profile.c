// SPDX-License-Identifier: Apache-2.0
/* Counts of used experts and neurons through a job: the same for any number of stages, chunk, number of threads and
 * with other sequences at the same time. Each row counts once. */
#include "tests/cluster/test_job_support.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/test_kinds.h"
#include "worker/stage/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PROMPTS = 4, MAX_PROMPT = 160, CONTEXT = 176 };
static const int32_t LENGTHS[N_PROMPTS] = {160, 33, 1, 97};

static void on_hidden(void *ctx, int32_t first_position, int32_t n_rows, const float *rows) {
    (void)first_position, (void)n_rows, (void)rows;
    ++*(int32_t *)ctx;
}

/* The prompts through a job of this config, each `fresh`, and the profile that the stages report. */
static mr_profile profile_of(const job_model *m, job_rig_config config) {
    mr_profile p = {0};
    job_rig rig;
    mr_err err = {0};
    uint64_t n_rows = 0;
    int32_t n_ended = 0;
    config.model = m;
    config.max_context = CONTEXT;
    config.n_kv_blocks = N_PROMPTS * CONTEXT / 16;
    config.counts_uses = true;
    job_rig_must_start(&rig, &config);
    for (int32_t i = 0; i < N_PROMPTS; i++) {
        int32_t ids[MAX_PROMPT];
        int64_t sequence;
        job_prompt(i, LENGTHS[i], JOB_VOCAB, ids);
        if (i == 3)
            job_prompt(0, LENGTHS[i], JOB_VOCAB, ids); /* the beginning of another prompt, which is computed anew */
        const mr_sequence_desc desc = {.prompt_ids = ids,
                                       .n_prompt = LENGTHS[i],
                                       .fresh = true,
                                       .on_hidden = on_hidden,
                                       .last_hidden = true,
                                       .ctx = &n_ended};
        expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
        n_rows += (uint64_t)LENGTHS[i];
    }
    expect_ok(mr_job_run(rig.job, &err), &err);
    assert_int_equal(n_ended, N_PROMPTS);
    expect_ok(mr_job_collect_profile(rig.job, &p, &err), &err);
    expect_ok(mr_profile_check_model(&p, &m->tiny->info, &err), &err);
    assert_int_equal(p.n_rows, n_rows);
    job_rig_stop(&rig);
    return p;
}

static void expect_same(const job_model *m, const mr_profile *want, job_rig_config config) {
    mr_profile got = profile_of(m, config);
    assert_true(got.n_layers == want->n_layers && got.is_neurons == want->is_neurons && got.n_rows == want->n_rows);
    for (int32_t i = 0; i < got.n_layers; i++) {
        assert_true(got.layers[i].layer == want->layers[i].layer && got.layers[i].n == want->layers[i].n);
        assert_memory_equal(got.layers[i].counts, want->layers[i].counts,
                            (size_t)want->layers[i].n * sizeof *want->layers[i].counts);
    }
    mr_profile_deinit(&got);
}

/* The same counts by any stages, chunks and threads, and with all layers on a device, which is slow. Returns them. */
static mr_profile check_model(const job_model *m, bool has_device) {
    static const job_rig_config CONFIGS[] = {
        {.n_stages = 1, .max_rows = 1},
        {.n_stages = 1, .max_rows = 7, .n_threads = 3},
        {.n_stages = 1, .max_rows = 160, .max_sequences = 1},
        {.n_stages = 2, .max_rows = 7},
        {.n_stages = 2, .max_rows = 160, .n_threads = 2},
        {.n_stages = 3, .max_rows = 1, .max_sequences = 1},
        {.n_stages = 3, .max_rows = 160},
    };
    mr_profile want = profile_of(m, (job_rig_config){.n_stages = 1, .max_rows = 64});
    int n = 0;
    for (size_t i = 0; i < sizeof CONFIGS / sizeof CONFIGS[0]; i++)
        if (!share_skips(&n))
            expect_same(m, &want, CONFIGS[i]);
    if (!has_device)
        return want;
    const test_device_options options = {.ops = TEST_DEVICE_ALL_OPS, .seed = 3, .max_delay_us = 10};
    job_rig_config on_device = {.n_stages = 2, .max_rows = 7};
    mr_err err = {0};
    test_kinds_set(&options, 1);
    expect_ok(mr_devices_choose("test", false, &on_device.devices, &err), &err);
    expect_same(m, &want, on_device);
    assert_int_equal(test_kinds_n_created(), 2);
    return want;
}

static job_model open_path(const char *name) {
    job_model m = {.path = "/tmp/millrace-test-XXXXXX"};
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/arch/%s.gguf", MILLRACE_SOURCE_DIR, name);
    m.tiny = tiny_model_open_path(path);
    /* A link with a short name, which job_model_deinit removes. */
    close(mkstemp(m.path));
    unlink(m.path);
    assert_int_equal(symlink(path, m.path), 0);
    return m;
}

static void test_experts(void **state) {
    (void)state;
    static const char *const NAMES[] = {"qwen3moe", "deepseek2"};
    for (int i = 0; i < 2; i++) {
        job_model m = open_path(NAMES[i]);
        const mr_model_info *info = &m.tiny->info;
        mr_profile p = check_model(&m, i == 0);
        int32_t n_dense = i == 1 ? 1 : 0;
        assert_int_equal(p.n_layers, info->n_layers - n_dense);
        for (int32_t l = 0; l < p.n_layers; l++) {
            assert_int_equal(p.layers[l].layer, l + n_dense);
            assert_int_equal(mr_profile_sum(&p.layers[l]), p.n_rows * (uint64_t)info->n_experts_used);
        }
        mr_profile_deinit(&p);
        job_model_deinit(&m);
    }
}

/* More neurons than fit one report. */
static void test_neurons(void **state) {
    (void)state;
    static const char *const NAMES[] = {"llama", "bamboo"};
    for (int i = 0; i < 2; i++) {
        tiny_desc d = tiny_default(NAMES[i], MR_TYPE_F16);
        d.n_layers = 3;
        d.n_ff = i == 0 ? 4352 : 96;
        d.n_predictor = 32;
        d.threshold = 0.02f;
        d.vocab_size = JOB_VOCAB;
        d.context_length = CONTEXT;
        job_model m;
        job_model_init(&m, tiny_model_write(&d));
        mr_profile p = check_model(&m, i == 0);
        assert_true(p.is_neurons && p.n_layers == d.n_layers);
        for (int32_t l = 0; l < p.n_layers; l++)
            assert_true(p.layers[l].n == d.n_ff && mr_profile_sum(&p.layers[l]) > 0);
        mr_profile_deinit(&p);
        job_model_deinit(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts), cmocka_unit_test(test_neurons)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
