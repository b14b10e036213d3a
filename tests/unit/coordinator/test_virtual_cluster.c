// SPDX-License-Identifier: Apache-2.0
/* A job over simulated stages. The expected times of the pipelines are computed by hand. */
#include <string.h>

#include "coordinator/cli/bench/load.h"
#include "coordinator/clusters/virtual_cluster.h"
#include "engine/base/clock.h"
#include "tests/support/test.h"

enum { VOCAB = 50, ROW_BYTES = 1000 };
static const int64_t MS = MR_NS_PER_MS;

/* The times of the stages: fixed_ms[stage], and 1 ms for each row that samples a token. */
typedef struct scene {
    int64_t fixed_ms[4];
    mr_virtual_cluster_config config;
    mr_model_info info;
    mr_plan plan;
    mr_virtual_cluster *cluster;
    mr_job *job;
} scene;

static int64_t compute_ns(void *ctx, int32_t stage, const mr_virtual_work *work) {
    const scene *s = ctx;
    assert_true(work->n_rows >= 1 && work->n_out <= work->n_rows);
    return (s->fixed_ms[stage] + work->n_out) * MS;
}

static void open_scene(scene *s, int32_t n_stages, int64_t latency_ms, double bytes_per_second) {
    mr_err err;
    s->config = (mr_virtual_cluster_config){.n_stages = n_stages,
                                            .compute_ns = compute_ns,
                                            .compute_ctx = s,
                                            .latency_ns = latency_ms * MS,
                                            .bytes_per_second = bytes_per_second,
                                            .row_bytes = ROW_BYTES,
                                            .n_vocab = VOCAB};
    expect_ok(mr_virtual_cluster_create(&s->config, &s->cluster, &err), &err);
    s->info = (mr_model_info){.vocab_size = VOCAB, .n_layers = n_stages, .d_model = ROW_BYTES / 4};
    s->plan = (mr_plan){.n_stages = n_stages};
    for (int32_t i = 0; i < n_stages; i++)
        s->plan.stages[i] = (mr_plan_stage){.first = i, .last = i + 1, .rank = i};
    mr_job_config config = {.info = &s->info,
                            .epoch.plan = &s->plan,
                            .channel = mr_virtual_cluster_channel(s->cluster),
                            .epoch.number = 1,
                            .max_rows = 64,
                            .max_out_rows = 16,
                            .max_sequences = 16,
                            .max_context = 256,
                            .epoch.n_kv_blocks = 400,
                            .kv_type = 1};
    expect_ok(mr_job_create(&config, &s->job, &err), &err);
}

static void close_scene(scene *s) {
    mr_job_destroy(s->job);
    mr_virtual_cluster_destroy(s->cluster);
}

static mr_load run(scene *s, const char *lines) {
    mr_load l;
    mr_err err;
    expect_ok(mr_load_parse(mr_str_from(lines), "lines", &l, &err), &err);
    expect_ok(mr_load_run(&l, s->job, VOCAB, &err), &err);
    return l;
}

/* One stage without latency: the first token comes after one step, each further token after one more step. */
static void test_one_stage(void **state) {
    (void)state;
    scene s = {.fixed_ms = {4}};
    open_scene(&s, 1, 0, 0);
    mr_load l = run(&s, "0,10,4\n1,3,2\n");
    for (int32_t i = 0; i < 4; i++)
        assert_int_equal(l.requests[0].token_ns[i], 5 * MS * (i + 1));
    assert_int_equal(l.requests[1].token_ns[0], 1005 * MS);
    assert_int_equal(l.requests[1].token_ns[1], 1010 * MS);
    mr_load_end(&l);
    close_scene(&s);
}

/* One sequence alone waits for every stage and every hop: the plan's, those between stages, the id's to the
 * coordinator. A further token has the hop of the id to the head for that of the plan, which is there before. */
static void test_latency(void **state) {
    (void)state;
    scene s = {.fixed_ms = {9, 19, 29}};
    open_scene(&s, 3, 2, 0);
    mr_load l = run(&s, "0.5,10,5\n");
    int64_t first = 500 + (2 + 10 + 2 + 20 + 2 + 30 + 2), each = 10 + 2 + 20 + 2 + 30 + 2;
    for (int32_t i = 0; i < 5; i++)
        assert_int_equal(l.requests[0].token_ns[i], (first + i * each) * MS);
    mr_load_end(&l);
    close_scene(&s);
}

/* Ten rows of 1000 bytes at 1 MB/s take 10 ms from stage to stage, one row 1 ms. */
static void test_bandwidth(void **state) {
    (void)state;
    scene s = {.fixed_ms = {9, 9}};
    open_scene(&s, 2, 0, 1e6);
    mr_load l = run(&s, "0,10,3\n");
    assert_int_equal(l.requests[0].token_ns[0], 30 * MS);
    assert_int_equal(l.requests[0].token_ns[1], 51 * MS);
    assert_int_equal(l.requests[0].token_ns[2], 72 * MS);
    mr_load_end(&l);
    close_scene(&s);
}

/* Where every stage's time went adds up to the time that there was. */
static void test_seconds(void **state) {
    (void)state;
    scene s = {.fixed_ms = {9, 19}};
    open_scene(&s, 2, 1, 0);
    mr_load l = run(&s, "0,10,5\n");
    mr_job_stop(s.job);
    const int64_t compute_ms[] = {50, 100};
    int64_t sums[2] = {0};
    for (int32_t i = 0; i < 2; i++) {
        const mr_stage_seconds *seconds = mr_job_stage_seconds(s.job, i);
        assert_true(seconds->known);
        assert_int_equal(seconds->n_steps, 5);
        assert_int_equal(seconds->ns[MR_PHASE_COMPUTE], compute_ms[i] * MS);
        assert_true(seconds->ns[MR_PHASE_WAIT_IN] > 0 && seconds->ns[MR_PHASE_NO_WORK] > 0);
        for (int k = 0; k < MR_PHASE_COUNT; k++)
            sums[i] += seconds->ns[k];
    }
    assert_int_equal(sums[0], sums[1]);
    mr_load_end(&l);
    close_scene(&s);
}

/* Many requests at once: all complete, and again at the same times. */
static void test_repeats(void **state) {
    (void)state;
    char lines[4096] = "";
    for (int i = 0; i < 60; i++)
        snprintf(lines + strlen(lines), sizeof lines - strlen(lines), "%g,%d,%d\n", 0.013 * i, 1 + i * 7 % 90,
                 1 + i * 5 % 40);
    mr_load runs[2];
    for (int k = 0; k < 2; k++) {
        scene s = {.fixed_ms = {2, 5, 3, 2}};
        open_scene(&s, 4, 1, 1e8);
        runs[k] = run(&s, lines);
        close_scene(&s);
    }
    for (int32_t i = 0; i < 60; i++) {
        const mr_load_request *a = &runs[0].requests[i], *b = &runs[1].requests[i];
        assert_int_equal(a->n_come, a->n_tokens);
        assert_memory_equal(a->token_ns, b->token_ns, (size_t)a->n_tokens * sizeof *a->token_ns);
    }
    mr_load_end(&runs[0]);
    mr_load_end(&runs[1]);
}

/* Without work, a turn lasts until its deadline. */
static void test_turn_until(void **state) {
    (void)state;
    mr_err err;
    scene s = {.fixed_ms = {9}};
    open_scene(&s, 1, 0, 0);
    int64_t then = mr_clock_now_ns() + 123 * MS;
    expect_ok(mr_job_turn(s.job, then, &err), &err);
    assert_int_equal(mr_clock_now_ns(), then);
    expect_ok(mr_job_turn(s.job, then - 1, &err), &err);
    assert_int_equal(mr_clock_now_ns(), then);
    assert_int_equal(mr_job_turn(s.job, MR_NEVER, &err), MR_E_INTERNAL);
    close_scene(&s);
    assert_int_not_equal(mr_clock_now_ns(), then); /* the clock runs again */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_stage), cmocka_unit_test(test_latency), cmocka_unit_test(test_bandwidth),
        cmocka_unit_test(test_seconds),   cmocka_unit_test(test_repeats), cmocka_unit_test(test_turn_until),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
