/* A device of one stage fails at each of its calls in turn, while a service answers requests: at load, in a step, and
 * where a KV block is copied for a prefix that two prompts share. The error names stage and device, every open request
 * is told, and nothing is left. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/share.h"
#include "tests/support/test.h"
#include "tests/support/test_kinds.h"

/* The prompts of all requests begin with the same ids; SHARED is no whole number of KV blocks. */
enum { N_READERS = 4, N_STAGES = 2, PROMPT = 7, SHARED = 20, TOKENS = 6 };

static job_model model;

typedef struct outcome {
    mr_status status; /* of the start of the job, or else of the service */
    mr_err err;
    bool started;
    reader readers[N_READERS];
} outcome;

/* In fast numerics the devices are not compared with the CPU at the start, which takes more calls than all the rest.
 * They compute the same bits all the same. */
static job_rig_config rig_config(const char *backend) {
    return (job_rig_config){
        .model = &model, .n_stages = N_STAGES, .devices = {.backend = backend, .is_fast = backend != NULL}};
}

static void read_all(service_rig *rig, outcome *o) {
    int32_t ids[64];
    mr_err err;
    for (int i = 0; i < N_READERS; i++) {
        reader *r = &o->readers[i];
        reader_init(r);
        mr_generate_desc desc = service_request(PROMPT, SHARED + i, ids, TOKENS);
        desc.sequence.sampling.seed = (uint64_t)i;
        if (reader_submit(r, rig->service, desc, &err) != MR_OK) /* the service has ended already */
            r->choices[0].finish = MR_FINISH_ERROR;
        else if (i == 0) /* the other requests find its blocks in the prefix cache */
            reader_finish(r);
    }
    for (int i = 1; i < N_READERS; i++)
        if (o->readers[i].request)
            reader_finish(&o->readers[i]);
}

/* Starts a cluster and reads all requests to their ends. fail_at: of the devices of the stages. */
static void run(const char *backend, const int32_t fail_at[N_STAGES], outcome *o) {
    job_rig_config config = rig_config(backend);
    test_device_options options[N_STAGES];
    job_rig job;
    service_rig rig;
    memset(o, 0, sizeof *o);
    for (int s = 0; s < N_STAGES; s++)
        options[s] = (test_device_options){
            .name = "slow GPU", .ops = TEST_DEVICE_ALL_OPS, .is_inexact = true, .fail_at = fail_at[s]};
    test_kinds_set(options, N_STAGES);
    o->status = job_rig_start(&job, &config, &o->err);
    job_rig_stop(&job);
    if (o->status != MR_OK)
        return;
    o->started = true;
    test_kinds_set(options, N_STAGES);
    service_rig_start(&rig, &config, NULL, N_READERS);
    read_all(&rig, o);
    service_rig_end_run(&rig);
    o->status = rig.status;
    o->err = rig.err;
    service_rig_stop(&rig);
}

static void outcome_deinit(outcome *o) {
    for (int i = 0; o->started && i < N_READERS; i++)
        reader_deinit(&o->readers[i]);
}

/* Each request has ended, with the tokens of the CPU as far as it came; those that were open, with an error. */
static void check_readers(const outcome *o, const outcome *good) {
    for (int i = 0; i < N_READERS; i++) {
        const choice_heard *c = &o->readers[i].choices[0], *want = &good->readers[i].choices[0];
        assert_null(o->readers[i].wrong);
        assert_true(c->finish == MR_FINISH_LENGTH || (c->finish == MR_FINISH_ERROR && o->status != MR_OK));
        assert_int_equal(want->n_ids, TOKENS);
        assert_true(c->n_ids == TOKENS || c->finish == MR_FINISH_ERROR);
        assert_memory_equal(c->ids, want->ids, (size_t)c->n_ids * sizeof c->ids[0]);
    }
}

static void check_stage(int stage, const outcome *good, int *n_at_load, int *n_later) {
    static outcome o;
    char name[32];
    bool whole = false;
    snprintf(name, sizeof name, "stage %d", stage);
    for (int32_t n = 1; !whole; n += (1 + n / 8) * (share_get() > 3 ? 4 : 1)) {
        int32_t fail_at[N_STAGES] = {0};
        fail_at[stage] = n;
        run("test", fail_at, &o);
        whole = o.status == MR_OK;
        if (o.started)
            check_readers(&o, good);
        bool is_told = o.status == MR_E_DEVICE || o.status == MR_E_NO_MEMORY;
        if (!whole && (!is_told || !strstr(o.err.text, name) || !strstr(o.err.text, "slow GPU")))
            fail_msg("call %d of %s: %s: '%s'", n, name, mr_status_name(o.status), o.err.text);
        *n_at_load += !whole && !o.started;
        *n_later += !whole && o.started;
        outcome_deinit(&o);
    }
}

/* The system may list a thread for a moment after it was joined. */
static int least_threads(void) {
    int least = job_count_threads();
    for (int i = 0; i < 50; i++) {
        int n = job_count_threads();
        least = n < least ? n : least;
    }
    return least;
}

static void test_every_call_fails_once(void **state) {
    (void)state;
    static outcome good;
    int n_at_load = 0, n_later = 0, n_threads = least_threads();
    size_t live_bytes = mr_mem_get_stats().live_bytes;
    run(NULL, (int32_t[N_STAGES]){0}, &good);
    assert_int_equal(good.status, MR_OK);
    for (int stage = 0; stage < N_STAGES; stage++)
        check_stage(stage, &good, &n_at_load, &n_later);
    print_message("failed %d times at load, %d times later\n", n_at_load, n_later);
    assert_true(n_at_load > 3 && n_later > 3);
    outcome_deinit(&good);
    job_expect_threads(n_threads);
    assert_int_equal(mr_mem_get_stats().live_bytes, live_bytes);
}

/* A device that fails while it is compared with the CPU, or is of no use: the cluster does not start, and says why. */
static void test_clusters_that_do_not_start(void **state) {
    (void)state;
    mr_local_cluster *cluster;
    mr_err err;
    mr_local_cluster_config config = {.model_path = model.path,
                                      .n_stages = N_STAGES,
                                      .threads_per_stage = 1,
                                      .devices = {.backend = "test"},
                                      .epoch = 1};
    test_device_options options = {.name = "slow GPU", .ops = TEST_DEVICE_ALL_OPS};
    test_kinds_set(&options, 1);
    for (options.fail_at = 1; options.fail_at < 200; options.fail_at *= 3) {
        mr_status status = mr_local_cluster_create(&config, &cluster, &err);
        if ((status != MR_E_DEVICE && status != MR_E_NO_MEMORY) || !strstr(err.text, "slow GPU"))
            fail_msg("call %d: %s: '%s'", options.fail_at, mr_status_name(status), err.text);
    }
    options.fail_at = 0;
    options.is_inexact = true;
    expect_fails(mr_local_cluster_create(&config, &cluster, &err), MR_E_UNSUPPORTED, &err,
                 "'slow GPU' does not compute exact numerics");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_call_fails_once),
        cmocka_unit_test(test_clusters_that_do_not_start),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
