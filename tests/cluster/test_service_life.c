/* The states of a service: before a job, full, draining, stopped, with a lost stage. A service holds no more memory
 * after many requests than before. */
// SPDX-License-Identifier: Apache-2.0
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/channel_fault.h"
#include "tests/support/test.h"

enum { LONG_ANSWER = 50 };

static job_model model;

static mr_status submit(reader *r, mr_service *s, int32_t number, int32_t max_tokens, mr_err *err) {
    int32_t ids[8];
    reader_init(r);
    return reader_submit(r, s, service_request(number, 8, ids, max_tokens), err);
}

static void test_before_and_without_a_job(void **state) {
    (void)state;
    mr_service *s;
    mr_service_stats stats;
    mr_err err;
    reader r;
    expect_ok(mr_service_create(&(mr_service_config){0}, &s, &err), &err);
    mr_service_set_loaded(s, 1, 4);
    mr_service_get_stats(s, &stats);
    assert_int_equal(stats.state, MR_SERVICE_LOADING);
    assert_true(stats.loaded == 0.25);
    assert_int_equal(mr_service_get_slots(s, NULL, 0), 0);
    assert_int_equal(submit(&r, s, 1, 1, &err), MR_E_UNAVAILABLE);
    assert_string_equal(err.text, "the model is loading");
    reader_deinit(&r);
    mr_service_fail(s, "stage 1 has no memory");
    mr_service_get_stats(s, &stats);
    assert_int_equal(stats.state, MR_SERVICE_FAILED);
    assert_string_equal(stats.text, "stage 1 has no memory");
    assert_int_equal(submit(&r, s, 1, 1, &err), MR_E_UNAVAILABLE);
    assert_null(strstr(err.text, "stage 1")); /* clients do not see internal errors */
    reader_deinit(&r);
    mr_service_destroy(s);
}

/* Slow enough that a request for LONG_ANSWER tokens, which takes a second, is there for as long as a test wants. */
static job_rig_config slow_rig(void) {
    return (job_rig_config){
        .model = &model, .n_stages = 1, .max_sequences = 1, .synthetic = true, .synthetic_ns = 20 * MR_NS_PER_MS};
}

static void test_full(void **state) {
    (void)state;
    enum { MAX_WAITING = 5 };
    service_rig rig;
    reader readers[MAX_WAITING + 1], more;
    mr_service_stats stats;
    mr_err err;
    job_rig_config config = slow_rig();
    service_rig_start(&rig, &config, NULL, MAX_WAITING);
    expect_ok(submit(&readers[0], rig.service, 0, LONG_ANSWER, &err), &err);
    do
        mr_service_get_stats(rig.service, &stats);
    while (stats.job.n_live == 0);
    for (int i = 1; i <= MAX_WAITING; i++)
        expect_ok(submit(&readers[i], rig.service, i, 2, &err), &err);
    assert_int_equal(submit(&more, rig.service, 9, 2, &err), MR_E_BUSY);
    assert_string_equal(err.text, "5 sequences are waiting already");
    int32_t ids[8];
    mr_generate_desc further = service_request(9, 8, ids, 2);
    further.goes_on = true;
    expect_ok(reader_submit(&more, rig.service, further, &err), &err);
    reader_release(&more);
    reader_deinit(&more);
    reader_release(&readers[3]); /* makes room in the queue */
    do
        mr_service_get_stats(rig.service, &stats);
    while (stats.job.n_waiting >= MAX_WAITING);
    expect_ok(submit(&more, rig.service, 9, 2, &err), &err);
    reader_release(&readers[0]); /* the one that runs */
    reader_finish(&more);
    assert_int_equal(more.choices[0].finish, MR_FINISH_LENGTH);
    reader_deinit(&more);
    for (int i = 0; i <= MAX_WAITING; i++) {
        if (i != 0 && i != 3)
            reader_finish(&readers[i]);
        reader_deinit(&readers[i]);
    }
    service_rig_stop(&rig);
}

/* More choices of a long prompt than one turn puts into the job: they may be given up, and all that
 * stay end, also when the service drains. */
static void test_many_long_choices(void **state) {
    (void)state;
    enum { N_PROMPT = 30000, N_CHOICES = READER_MAX_CHOICES, ROUNDS = 20 };
    static int32_t ids[N_PROMPT];
    service_rig rig;
    reader kept, dropped;
    mr_err err;
    job_rig_config config = {.model = &model,
                             .n_stages = 2,
                             .max_sequences = 4,
                             .max_context = N_PROMPT + 16,
                             .n_kv_blocks = 8192,
                             .synthetic = true};
    service_rig_start(&rig, &config, NULL, 0);
    mr_generate_desc desc = service_request(1, N_PROMPT, ids, 3);
    desc.n_choices = N_CHOICES;
    reader_init(&kept);
    reader_init(&dropped);
    for (int round = 0; round < ROUNDS; round++) {
        reader_deinit(&kept);
        reader_init(&kept);
        expect_ok(reader_submit(&dropped, rig.service, desc, &err), &err);
        expect_ok(reader_submit(&kept, rig.service, desc, &err), &err);
        reader_release(&dropped);
        if (round == ROUNDS - 1)
            mr_service_drain(rig.service);
        reader_finish(&kept);
        for (int i = 0; i < N_CHOICES; i++)
            assert_int_equal(kept.choices[i].finish, MR_FINISH_LENGTH);
    }
    reader_deinit(&kept);
    reader_deinit(&dropped);
    service_rig_stop(&rig);
}

static void test_drain(void **state) {
    (void)state;
    service_rig rig;
    reader r, late;
    mr_service_stats stats;
    mr_err err;
    job_rig_config config = slow_rig();
    service_rig_start(&rig, &config, NULL, 0);
    expect_ok(submit(&r, rig.service, 0, 30, &err), &err);
    mr_service_drain(rig.service);
    assert_int_equal(submit(&late, rig.service, 0, 30, &err), MR_E_UNAVAILABLE);
    reader_deinit(&late);
    mr_service_get_stats(rig.service, &stats);
    assert_int_equal(stats.state, MR_SERVICE_ENDING);
    reader_finish(&r);
    assert_int_equal(r.choices[0].finish, MR_FINISH_LENGTH);
    assert_int_equal(r.choices[0].n_ids, 30);
    reader_deinit(&r);
    mr_thread_join(rig.thread); /* the service ended by itself */
    rig.thread = NULL;
    assert_int_equal(rig.status, MR_OK);
    service_rig_stop(&rig);
}

static void test_stop(void **state) {
    (void)state;
    service_rig rig;
    reader r, waits;
    mr_err err;
    job_rig_config config = slow_rig();
    service_rig_start(&rig, &config, NULL, 0);
    expect_ok(submit(&r, rig.service, 0, LONG_ANSWER, &err), &err);
    expect_ok(submit(&waits, rig.service, 0, LONG_ANSWER, &err), &err);
    assert_true(reader_step(&r));
    service_rig_end_run(&rig);
    reader_finish(&r);
    reader_finish(&waits);
    assert_int_equal(r.choices[0].finish, MR_FINISH_ERROR);
    assert_int_equal(r.choices[0].status, MR_E_UNAVAILABLE);
    assert_int_equal(waits.choices[0].status, MR_E_UNAVAILABLE);
    assert_int_equal(waits.choices[0].n_ids, 0);
    reader_deinit(&r);
    reader_deinit(&waits);
    service_rig_stop(&rig);
}

/* --- A lost stage ------------------------------------------------------------------------------------------------ */

static void test_lost_stage(void **state) {
    (void)state;
    /* At the endpoint of the coordinator. */
    channel_fault fault = {.endpoint = 1, .status = MR_E_PEER_LOST, .text = "stage 1 is gone"};
    service_rig rig;
    reader r, late;
    mr_service_stats stats;
    mr_err err;
    job_rig_config config = slow_rig();
    config.wrap = channel_fault_wrap;
    config.wrap_ctx = &fault;
    service_rig_start(&rig, &config, NULL, 0);
    expect_ok(submit(&r, rig.service, 0, LONG_ANSWER, &err), &err);
    assert_true(reader_step(&r));
    atomic_store(&fault.is_on, true);
    reader_finish(&r);
    assert_int_equal(r.choices[0].finish, MR_FINISH_ERROR);
    assert_int_equal(r.choices[0].status, MR_E_UNAVAILABLE);
    mr_thread_join(rig.thread);
    rig.thread = NULL;
    assert_int_equal(rig.status, MR_E_PEER_LOST);
    mr_service_get_stats(rig.service, &stats);
    assert_int_equal(stats.state, MR_SERVICE_FAILED);
    expect_says(stats.text, "stage 1 is gone");
    assert_int_equal(submit(&late, rig.service, 0, 30, &err), MR_E_UNAVAILABLE);
    assert_null(strstr(err.text, "stage 1"));
    reader_deinit(&late);
    reader_deinit(&r);
    service_rig_stop(&rig);
}

/* --- What fails for one ------------------------------------------------------------------------------------------ */

/* A token whose embedding is not a number ends the sequences that read it, and no others. */
static void test_numbers_that_are_none(void **state) {
    (void)state;
    enum { POISON = 85, N = 12 }; /* POISON: an id above all ids of the prompts */
    tiny_desc desc = job_model_desc();
    job_model poisoned;
    service_rig rig;
    reader readers[N];
    mr_err err;
    desc.type = MR_TYPE_F16;
    poisoned.tiny = tiny_model_create(&desc);
    const mr_gguf_tensor *t = mr_gguf_find_tensor(poisoned.tiny->gguf, "token_embd.weight");
    assert_true(t && t->type == MR_TYPE_F16);
    for (int64_t k = 0; k < t->ne[0]; k++)
        memcpy(poisoned.tiny->bytes + t->offset + (POISON * t->ne[0] + k) * 2, "\x00\x7e", 2);
    job_save_bytes(poisoned.path, poisoned.tiny->bytes, mr_gguf_file_bytes(poisoned.tiny->gguf));
    service_rig_start(&rig, &(job_rig_config){.model = &poisoned, .n_stages = 2, .max_sequences = 6}, NULL, 0);
    for (int i = 0; i < N; i++) {
        int32_t ids[8];
        reader_init(&readers[i]);
        mr_generate_desc request = service_request(i, 8, ids, 1);
        if (i % 3 == 0)
            ids[i % 8] = POISON;
        request.pooling = i % 2 ? MR_POOLING_MEAN : MR_POOLING_NONE;
        request.prompt_logprobs = i == 6;
        expect_ok(reader_submit(&readers[i], rig.service, request, &err), &err);
    }
    for (int i = 0; i < N; i++) {
        reader_finish(&readers[i]);
        const choice_heard *c = &readers[i].choices[0];
        if (i % 3 == 0)
            assert_int_equal(c->finish == MR_FINISH_ERROR ? c->status : MR_OK, MR_E_NUMERICS);
        else
            assert_int_equal(c->finish, i % 2 ? MR_FINISH_STOP : MR_FINISH_LENGTH);
        reader_deinit(&readers[i]);
    }
    service_rig_stop(&rig);
    job_model_deinit(&poisoned);
}

/* A request that there is no memory for is refused, and leaves nothing. */
static void test_failing_allocations(void **state) {
    (void)state;
    const char *stops[] = {"one", "two"};
    const int32_t bias_ids[] = {1, 2};
    const float biases[] = {1, 2};
    int32_t ids[8], n_failures = 0;
    service_rig rig;
    mr_service *none = NULL;
    mr_status status = MR_E_NO_MEMORY;
    mr_err err;
    mr_mem_fail_at(0);
    assert_int_equal(mr_service_create(&(mr_service_config){0}, &none, &err), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    job_rig_config config = slow_rig();
    service_rig_start(&rig, &config, NULL, 0);
    for (int nth = 0; status != MR_OK; nth++) {
        reader r;
        mr_generate_desc desc = service_request(1, 8, ids, 2);
        desc.stops = stops;
        desc.n_stops = 2;
        desc.stop_ids = bias_ids;
        desc.n_stop_ids = 2;
        desc.sequence.sampling.bias_ids = bias_ids;
        desc.sequence.sampling.biases = biases;
        desc.sequence.sampling.n_biases = 2;
        reader_init(&r);
        mr_mem_fail_at(nth);
        status = reader_submit(&r, rig.service, desc, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        n_failures += status != MR_OK;
        if (status == MR_OK)
            reader_finish(&r);
        reader_deinit(&r);
    }
    assert_true(n_failures >= 6);
    service_rig_stop(&rig);
}

/* --- Weeks ------------------------------------------------------------------------------------------------------- */

enum { AT_ONCE = 32 };

/* Short requests, many at once, each a bit different; returns the bytes that are in use afterwards. */
static size_t serve(service_rig *rig, int32_t n) {
    static reader readers[AT_ONCE];
    mr_err err;
    for (int32_t i = 0; i < n + AT_ONCE; i++) {
        reader *r = &readers[i % AT_ONCE];
        if (i >= AT_ONCE) {
            reader_finish(r);
            if (r->wrong || r->choices[0].finish != MR_FINISH_LENGTH)
                fail_msg("request %d: %s", i - AT_ONCE, r->wrong ? r->wrong : "another end");
            reader_deinit(r);
        }
        if (i < n && submit(r, rig->service, i % 1000, 2, &err) != MR_OK)
            fail_msg("%s", err.text);
    }
    mr_service_stats stats;
    do
        mr_service_get_stats(rig->service, &stats);
    while (stats.job.n_live + stats.job.n_waiting > 0);
    return mallinfo2().uordblks;
}

static void test_many_requests(void **state) {
    (void)state;
    int32_t n = getenv("MILLRACE_SERVICE_REQUESTS") ? atoi(getenv("MILLRACE_SERVICE_REQUESTS")) : 4000;
    job_rig_config config = {
        .model = &model, .n_stages = 1, .max_sequences = AT_ONCE, .n_kv_blocks = 64, .synthetic = true};
    service_rig rig;
    service_rig_start(&rig, &config, NULL, 0);
    size_t before = serve(&rig, 1000);
    int64_t start = mr_clock_now_ns();
    size_t after = serve(&rig, n);
    double seconds = 1e-9 * (double)(mr_clock_now_ns() - start);
    print_message("%d requests, %.0f a second: %zu bytes in use before, %zu after\n", n, n / seconds, before, after);
    /* Queues and buffers grow a little; a leaked request would be half a kilobyte. */
    assert_true(after < before + 65536);
    service_rig_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_and_without_a_job),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_many_long_choices),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_lost_stage),
        cmocka_unit_test(test_numbers_that_are_none),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_many_requests),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
