/* Jobs whose stages lie on emulated GPUs, with a vocabulary that is worth finding first tokens for: ids and
 * log-probabilities are those of the CPU to the last bit, and fewer bytes come back from the device. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "tests/cluster/test_job_support.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/cuda_emulation/fake_nccl.h"
#include "tests/support/test.h"

enum { VOCAB = 4000, N_SEQUENCES = 9, N_TOKENS = 7, N_PROMPT = 5 };
static const size_t TOP_BYTES = 8256, LOGITS_BYTES = 16000; /* of a row on the device */

static job_model model;

typedef struct heard {
    int32_t n;
    mr_logprobs tokens[N_TOKENS];
    int32_t ids[N_TOKENS];
} heard;

static bool take(void *ctx, const mr_token_event *event) {
    heard *h = ctx;
    assert_int_equal(event->status, MR_OK);
    assert_true(h->n < N_TOKENS);
    mr_logprobs *p = &h->tokens[h->n];
    p->logprob = event->logprob;
    p->n_top = event->n_top;
    for (int32_t i = 0; i < event->n_top; i++) {
        p->top_ids[i] = event->top_ids[i];
        p->top[i] = event->top_logprobs[i];
    }
    h->ids[h->n++] = event->id;
    return false;
}

/* Greedy sampling, top-k with penalties and a ban, and, if some need all logits, plain draws. */
static mr_sampling_params sampling_of(int32_t i, bool some_need_all) {
    static const int32_t banned[] = {17};
    static const float never[] = {-INFINITY};
    mr_sampling_params p = {.temperature = i % 3 == 0 ? 0.0f : 1.2f,
                            .top_k = i % 3 == 2 && some_need_all ? 0 : 1 + 100 * i,
                            .top_p = 0.97f,
                            .min_p = 0.01f,
                            .repeat_penalty = i % 2 ? 1.3f : 1.0f,
                            .repeat_last_n = 64,
                            .presence_penalty = i % 4 == 0 ? 0.5f : 0.0f,
                            .bias_ids = banned,
                            .biases = never,
                            .n_biases = i % 2,
                            .seed = 40 + (uint64_t)i};
    return p;
}

typedef struct run_desc {
    const char *backend;
    int32_t n_stages, n_tokens, max_rows; /* max_rows: 0: many */
    bool some_need_all;
    mr_way way;
} run_desc;

static void run_job(const run_desc *d, heard *out) {
    job_rig_config config = {
        .model = &model, .n_stages = d->n_stages, .max_sequences = N_SEQUENCES, .max_rows = d->max_rows, .way = d->way};
    job_rig rig;
    mr_err err = {0};
    memset(out, 0, N_SEQUENCES * sizeof *out);
    expect_ok(mr_devices_choose(d->backend, false, &config.devices, &err), &err);
    job_rig_must_start(&rig, &config);
    for (int32_t i = 0; i < N_SEQUENCES; i++) {
        int32_t ids[N_PROMPT];
        int64_t number;
        mr_sequence_desc desc = {.prompt_ids = ids,
                                 .n_prompt = N_PROMPT,
                                 .max_tokens = d->n_tokens,
                                 .sampling = sampling_of(i, d->some_need_all),
                                 .logprobs = i % 2 == 0,
                                 .n_top_logprobs = i % 4 == 0 ? MR_SAMPLER_MAX_TOP : 0,
                                 .on_token = take,
                                 .ctx = &out[i]};
        job_prompt(i, N_PROMPT, VOCAB, ids);
        expect_ok(mr_job_submit(rig.job, &desc, &number, &err), &err);
    }
    job_rig_run(&rig);
    job_rig_stop(&rig);
}

static void run(const char *backend, int32_t n_stages, int32_t n_tokens, bool some_need_all, heard *out) {
    const run_desc d = {.backend = backend, .n_stages = n_stages, .n_tokens = n_tokens, .some_need_all = some_need_all};
    run_job(&d, out);
}

/* Runs on emulated GPUs. Returns the bytes that were copied from them. */
static size_t run_on_gpus(int32_t n_stages, int32_t n_tokens, bool some_need_all, heard *out) {
    emulated_driver_reset(&(emulated_options){.n_devices = n_stages, .seed = 4, .max_delay_us = 20});
    run("cuda", n_stages, n_tokens, some_need_all, out);
    assert_int_equal(emulated_driver_counts().n_live, 0);
    return emulated_driver_counts().down_bytes;
}

/* A further token of each sequence is a further out row, and nothing else comes from a single stage. */
static void check_bytes(size_t all_bytes, bool some_need_all) {
    static heard ignored[N_SEQUENCES];
    size_t n_full = some_need_all ? N_SEQUENCES / 3 : 0, n_top = N_SEQUENCES - n_full;
    size_t more_bytes = all_bytes - run_on_gpus(1, 1, some_need_all, ignored);
    assert_int_equal(more_bytes, (N_TOKENS - 1) * (n_top * TOP_BYTES + n_full * LOGITS_BYTES));
}

static void test_the_bits_of_the_cpu(void **state) {
    (void)state;
    static heard want[N_SEQUENCES], got[N_SEQUENCES];
    for (int32_t n_stages = 1; n_stages <= 2; n_stages++)
        for (int some_need_all = n_stages == 2; some_need_all < 2; some_need_all++) {
            run("cpu", n_stages, N_TOKENS, some_need_all, want);
            size_t bytes = run_on_gpus(n_stages, N_TOKENS, some_need_all, got);
            assert_int_equal(want[0].n, N_TOKENS);
            assert_memory_equal(got, want, sizeof want);
            if (n_stages == 1)
                check_bytes(bytes, some_need_all);
        }
}

/* Activations go from GPU to GPU: the same bits. */
static void test_the_bits_over_nccl(void **state) {
    (void)state;
    static heard want[N_SEQUENCES], got[N_SEQUENCES];
    run("cpu", 1, N_TOKENS, true, want);
    for (int32_t n_stages = 2; n_stages <= 4; n_stages++)
        for (int32_t max_rows = 3; max_rows <= 64; max_rows += 61)
            for (int late = 0; late < 2; late++) {
                const run_desc d = {.backend = "cuda",
                                    .n_stages = n_stages,
                                    .n_tokens = N_TOKENS,
                                    .max_rows = max_rows,
                                    .some_need_all = true,
                                    .way = MR_WAY_NCCL};
                fake_nccl_reset(&(fake_nccl_options){.max_delay_us = late ? 1000 : 0});
                emulated_driver_reset(&(emulated_options){.n_devices = n_stages, .seed = 5, .max_delay_us = 20});
                run_job(&d, got);
                assert_memory_equal(got, want, sizeof want);
                assert_int_equal(emulated_driver_counts().n_live, 0);
                assert_int_equal(fake_nccl_get_counts().n_live, 0);
                assert_int_equal(fake_nccl_get_counts().n_cut, 0);
                assert_true(fake_nccl_get_counts().n_transfers > 2 * (n_stages - 1) * (N_TOKENS + 1));
            }
}

int main(void) {
    tiny_desc d = job_model_desc();
    d.vocab_size = VOCAB;
    job_model_init(&model, tiny_model_write(&d));
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_bits_of_the_cpu),
                                       cmocka_unit_test(test_the_bits_over_nccl)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
