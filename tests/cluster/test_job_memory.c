/* The step path allocates nothing (invariant I5). Each allocation in the life of a job fails once: the job returns a
 * status, leaks nothing and does not hang. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <unistd.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/mem.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/sanitizers.h"
#include "tests/support/test.h"

/* The thread sanitizer makes a life cost 300 ms: it sees every fifth one only. */
#if MR_TEST_TSAN
enum { STRIDE = 5 };
#else
enum { STRIDE = 1 };
#endif

enum { VOCAB = 90, HANG_S = 60 };

static job_model model;

/* A listener that notes how many allocations the process had made when its tokens came. */
typedef struct meter {
    int32_t n_tokens;
    uint64_t n_allocs[MAX_HEARD];
} meter;

static bool on_token(void *ctx, const mr_token_event *event) {
    meter *m = ctx;
    assert_int_equal(event->status, MR_OK);
    m->n_allocs[m->n_tokens++] = mr_mem_get_stats().n_allocs;
    return false;
}

static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    (void)ctx;
    (void)first_position;
    (void)n_rows;
    (void)logits;
}

static void submit(mr_job *job, mr_sequence_desc desc, int32_t number, int32_t n_prompt) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    job_prompt(number, n_prompt, VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = n_prompt;
    expect_ok(mr_job_submit(job, &desc, &sequence, &err), &err);
}

/* Prompts in chunks, decoding, sampling, logits; all sequences have their slots from the start. */
static void test_steps_allocate_nothing(void **state) {
    (void)state;
    job_rig rig;
    mr_err err;
    expect_ok(job_rig_start(&rig,
                            &(job_rig_config){
                                .model = &model, .n_stages = 2, .max_rows = 6, .max_sequences = 5, .n_kv_blocks = 20},
                            &err),
              &err);
    for (int turn = 0; turn < 2; turn++) {
        meter meters[4] = {0};
        for (int32_t i = 0; i < 4; i++) {
            mr_sequence_desc desc = job_sequence(i, NULL);
            desc.on_token = on_token;
            desc.ctx = &meters[i];
            desc.max_tokens = 20 + i;
            submit(rig.job, desc, i, 1 + 10 * i);
        }
        submit(rig.job, (mr_sequence_desc){.on_logits = on_logits}, 9, 40);
        expect_ok(mr_job_run(rig.job, &err), &err);
        for (int i = 0; i < 4; i++) {
            assert_int_equal(meters[i].n_tokens, 20 + i);
            for (int32_t t = 1; t < meters[i].n_tokens; t++)
                assert_int_equal(meters[i].n_allocs[t], meters[0].n_allocs[0]);
        }
    }
    job_rig_stop(&rig);
}

/* --- Failing allocations ----------------------------------------------------------------------------------------- */

enum { N_SEQUENCES = 3 };

/* The whole life of a small job. */
static mr_status live(const mr_plan *plan, listener heard[N_SEQUENCES], mr_err *err) {
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    mr_local_cluster_config local = {
        .model_path = model.path, .n_stages = plan->n_stages, .threads_per_stage = 2, .epoch = 1};
    mr_status status = mr_local_cluster_create(&local, &cluster, err);
    if (status != MR_OK)
        return status;
    mr_job_config config = {.info = &model.tiny->info,
                            .epoch.plan = plan,
                            .channel = mr_local_cluster_channel(cluster),
                            .epoch.number = 1,
                            .max_rows = 4,
                            .max_out_rows = 4,
                            .max_sequences = 2,
                            .max_context = 32,
                            .epoch.n_kv_blocks = 4,
                            .kv_type = MR_TYPE_F16};
    status = mr_job_create(&config, &job, err);
    for (int32_t i = 0; i < N_SEQUENCES && status == MR_OK; i++) {
        int32_t ids[8];
        int64_t sequence;
        heard[i] = (listener){0};
        mr_sequence_desc desc = job_sequence(i, &heard[i]);
        job_prompt(i, 8, VOCAB, ids);
        desc.prompt_ids = ids;
        desc.n_prompt = 8;
        desc.max_tokens = 4;
        status = mr_job_submit(job, &desc, &sequence, err);
    }
    if (status == MR_OK)
        status = mr_job_run(job, err);
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    return status;
}

static void check_one(const mr_plan *plan, int64_t n, const listener want[N_SEQUENCES]) {
    listener heard[N_SEQUENCES];
    mr_err err = {0};
    mr_mem_fail_at(n);
    mr_status status = live(plan, heard, &err);
    mr_mem_fail_at(-1);
    assert_int_equal(mr_mem_get_stats().live_bytes, 0);
    if (status == MR_OK)
        for (int i = 0; i < N_SEQUENCES; i++)
            assert_memory_equal(heard[i].ids, want[i].ids, sizeof want[i].ids);
    else if (status != err.status || (status != MR_E_NO_MEMORY && status != MR_E_PEER_LOST) || !err.text[0])
        fail_msg("allocation %d: %s, \"%s\"", (int)n, mr_status_name(status), err.text);
}

static void test_failing_allocations(void **state) {
    (void)state;
    static mr_plan plan;
    listener want[N_SEQUENCES];
    mr_err err;
    int n_threads = job_count_threads();
    expect_ok(mr_plan_balance(model.tiny->gguf, &model.tiny->info, 2, &plan, &err), &err);
    uint64_t before = mr_mem_get_stats().n_allocs;
    expect_ok(live(&plan, want, &err), &err);
    int64_t n_allocs = (int64_t)(mr_mem_get_stats().n_allocs - before);
    for (int64_t n = 0; n < n_allocs + 2; n += STRIDE) {
        alarm(HANG_S); /* the signal ends the process, so a hang is a failure */
        check_one(&plan, n, want);
    }
    alarm(0);
    print_message("%d allocations, every %d. failed\n", (int)n_allocs, STRIDE);
    job_expect_threads(n_threads);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_failing_allocations),
    };
    tiny_desc desc = job_model_desc();
    desc.n_layers = 2;
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
