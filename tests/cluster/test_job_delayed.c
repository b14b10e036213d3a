/* A job whose messages are delayed, overtake each other, or stop. The ids must be the same as without delays, and a
 * stage that dies ends the job. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/cluster/test_job_support.h"
#include "tests/support/channel_delay.h"
#include "tests/support/test.h"

enum { N_SEQUENCES = 9, VOCAB = 90, N_STAGES = 3 };

static job_model model;

/* Delays the messages that each endpoint sends. */
static mr_status wrap(void *ctx, mr_channel **channel, mr_err *err) {
    channel_delay_config config = *(const channel_delay_config *)ctx;
    config.max_requests = MR_LOCAL_CLUSTER_REQUESTS;
    config.dies_after = (*channel)->self == 1 ? config.dies_after : 0;
    return channel_delay_create(*channel, &config, channel, err);
}

/* Runs all sequences together; delay NULL: none. */
static mr_status run(const channel_delay_config *delay, listener out[N_SEQUENCES], mr_err *err) {
    job_rig rig;
    int32_t ids[64];
    int64_t number;
    channel_delay_config own = delay ? *delay : (channel_delay_config){0};
    memset(out, 0, N_SEQUENCES * sizeof *out);
    mr_status status = job_rig_start(
        &rig,
        &(job_rig_config){
            .model = &model, .n_stages = N_STAGES, .max_rows = 8, .wrap = delay ? wrap : NULL, .wrap_ctx = &own},
        err);
    for (int32_t i = 0; i < N_SEQUENCES && status == MR_OK; i++) {
        mr_sequence_desc desc = job_sequence(i, &out[i]);
        desc.prompt_ids = ids;
        desc.n_prompt = 1 + i * 7 % 20;
        desc.max_tokens = 3 + i * 5 % 17;
        job_prompt(i, desc.n_prompt, VOCAB, ids);
        status = mr_job_submit(rig.job, &desc, &number, err);
    }
    if (status == MR_OK)
        status = mr_job_run(rig.job, err);
    job_rig_stop(&rig);
    return status;
}

static void test_same_ids(void **state) {
    (void)state;
    static listener want[N_SEQUENCES], got[N_SEQUENCES];
    static const channel_delay_config DELAYS[] = {
        {.latency_ns = 300000},
        {.jitter_ns = 2000000, .seed = 1},
        {.latency_ns = 50000, .jitter_ns = 500000, .bytes_per_second = 2e7, .seed = 2},
        {.jitter_ns = 1000, .bytes_per_second = 1e9, .seed = 3},
        {.latency_ns = 20000, .loss = 0.05, .resend_ns = 3000000, .seed = 4},
    };
    mr_err err;
    expect_ok(run(NULL, want, &err), &err);
    for (size_t k = 0; k < sizeof DELAYS / sizeof DELAYS[0]; k++) {
        if (run(&DELAYS[k], got, &err) != MR_OK)
            fail_msg("delays %zu: %s", k, err.text);
        for (int32_t i = 0; i < N_SEQUENCES; i++) {
            assert_int_equal(got[i].n_ids, 3 + i * 5 % 17);
            assert_int_equal(got[i].n_ids, want[i].n_ids);
            assert_memory_equal(got[i].ids, want[i].ids, (size_t)want[i].n_ids * sizeof want[i].ids[0]);
        }
    }
}

static void test_stage_that_dies(void **state) {
    (void)state;
    static listener got[N_SEQUENCES];
    mr_err err;
    for (int32_t after = 1; after < 12; after += 5) {
        const channel_delay_config delay = {.latency_ns = 20000, .dies_after = after};
        assert_int_equal(run(&delay, got, &err), MR_E_PEER_LOST);
        expect_says(err.text, "endpoint 1");
    }
}

int main(void) {
    tiny_desc d = job_model_desc();
    job_model_init(&model, tiny_model_write(&d));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_ids), cmocka_unit_test(test_stage_that_dies)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
