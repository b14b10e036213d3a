/* Sequences of a job over a cluster of threads: more sequences than slots, early stops, length limits, refused
 * prompts. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

enum { N_MANY = 50, N_SLOTS = 4, VOCAB = 90 };

static job_model model;

/* Submits a sequence with a prompt of its own. */
static void submit(job_rig *rig, int32_t number, int32_t n_prompt, int32_t max_tokens, listener *l) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    mr_sequence_desc desc = job_sequence(number, l);
    assert_true(n_prompt <= 64);
    job_prompt(number, n_prompt, VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = n_prompt;
    desc.max_tokens = max_tokens;
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

static int32_t prompt_length(int32_t number) {
    return 1 + number * 7 % 20;
}

static int32_t max_tokens(int32_t number) {
    return 1 + number * 5 % 12;
}

/* The ids that a sequence generates when it runs alone. */
static void run_alone(job_rig *rig, int32_t number, listener *out) {
    *out = (listener){0};
    submit(rig, number, prompt_length(number), max_tokens(number), out);
    job_rig_run(rig);
    assert_int_equal(out->n_ids, max_tokens(number));
    assert_int_equal(out->finish, MR_FINISH_LENGTH);
}

static void assert_same_ids(const listener *want, const listener *got) {
    assert_int_equal(got->n_ids, want->n_ids);
    assert_memory_equal(got->ids, want->ids, (size_t)want->n_ids * sizeof *want->ids);
}

/* 50 sequences, four slots, KV blocks for two of the longest. */
static void test_more_sequences_than_room(void **state) {
    (void)state;
    static listener alone[N_MANY], together[N_MANY];
    const int32_t stages[] = {1, 3};
    job_rig rig;
    int32_t clock;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1});
    for (int32_t i = 0; i < N_MANY; i++)
        run_alone(&rig, i, &alone[i]);
    job_rig_stop(&rig);
    for (size_t s = 0; s < sizeof stages / sizeof stages[0]; s++) {
        clock = 0;
        job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                   .n_stages = stages[s],
                                                   .max_sequences = N_SLOTS,
                                                   .token_s = INFINITY,
                                                   .max_rows = 96,
                                                   .n_kv_blocks = 4});
        for (int32_t i = 0; i < N_MANY; i++) {
            together[i] = (listener){.clock = &clock};
            submit(&rig, i, prompt_length(i), max_tokens(i), &together[i]);
        }
        job_rig_run(&rig);
        for (int32_t i = 0; i < N_MANY; i++) {
            assert_same_ids(&alone[i], &together[i]);
            assert_int_equal(together[i].finish, MR_FINISH_LENGTH);
            /* First tokens come in order, because a whole prompt fits into a step of one stage. Three stages may split
             * a prompt, so that a shorter prompt is finished earlier. */
            int32_t ahead = stages[s] == 1 ? 0 : N_SLOTS - 1;
            assert_in_range(together[i].first_token_at, i > ahead ? i - ahead : 0, i + ahead);
        }
        job_rig_stop(&rig);
    }
}

/* Prompts in chunks of a few rows, beside decoding sequences. */
static void test_small_chunks(void **state) {
    (void)state;
    enum { N = 12 };
    static listener alone[N], together[N];
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1});
    for (int32_t i = 0; i < N; i++)
        run_alone(&rig, i, &alone[i]);
    job_rig_stop(&rig);
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 3, .max_sequences = 5});
    for (int32_t i = 0; i < N; i++) {
        together[i] = (listener){0};
        submit(&rig, i, prompt_length(i), max_tokens(i), &together[i]);
    }
    job_rig_run(&rig);
    for (int32_t i = 0; i < N; i++)
        assert_same_ids(&alone[i], &together[i]);
    job_rig_stop(&rig);
}

/* A sequence that stops early: at most one row of it is wasted, and the next one in its slot and blocks is not
 * disturbed. */
static void test_early_stop(void **state) {
    (void)state;
    enum { STOP = 5 };
    job_rig rig;
    listener alone, stopped[2] = {{.stop_after = STOP}, {.stop_after = 1}}, after = {0};
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        stopped[0] = (listener){.stop_after = STOP};
        stopped[1] = (listener){.stop_after = 1};
        after = (listener){0};
        job_rig_must_start(
            &rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .max_sequences = 1, .n_kv_blocks = 3});
        run_alone(&rig, 4, &alone);
        uint64_t before = rig.job->epoch.n_issued;
        submit(&rig, 2, 9, 30, &stopped[0]);
        job_rig_run(&rig);
        assert_int_equal(stopped[0].n_ids, STOP);
        assert_true(rig.job->epoch.n_issued - before <= STOP + 1);
        stopped[0] = (listener){.stop_after = STOP};
        submit(&rig, 2, 9, 30, &stopped[0]);
        submit(&rig, 3, 33, 10, &stopped[1]);
        submit(&rig, 4, prompt_length(4), max_tokens(4), &after);
        job_rig_run(&rig);
        assert_int_equal(stopped[0].n_ids, STOP);
        assert_int_equal(stopped[0].finish, MR_FINISH_STOP);
        assert_int_equal(stopped[1].n_ids, 1);
        assert_same_ids(&alone, &after);
        job_rig_stop(&rig);
    }
}

static void test_length_limits(void **state) {
    (void)state;
    const struct {
        int32_t n_prompt, max_tokens, want;
    } cases[] = {{5, 1, 1}, {31, 1, 1}, {31, 1000, 1}, {10, 1000, 22}, {1, 1000000000, 31}, {16, 16, 16}, {16, 17, 16}};
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_context = 32, .n_kv_blocks = 2});
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        listener l = {0};
        uint64_t before = rig.job->epoch.n_issued;
        submit(&rig, (int32_t)i, cases[i].n_prompt, cases[i].max_tokens, &l);
        job_rig_run(&rig);
        assert_int_equal(l.n_ids, cases[i].want);
        assert_int_equal(l.finish, MR_FINISH_LENGTH);
        /* One step computes the prompt and samples the first token. No row is computed behind the limit of tokens. */
        assert_int_equal(rig.job->epoch.n_issued - before, cases[i].want);
    }
    job_rig_stop(&rig);
}

static void test_logits_only(void **state) {
    (void)state;
    job_rig rig;
    int32_t ids[32];
    int64_t sequence;
    mr_err err;
    job_rig_must_start(
        &rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 5, .max_context = 32, .n_kv_blocks = 4});
    listener logits = {0}, token = {0};
    mr_sequence_desc desc = job_sequence(1, &logits);
    job_prompt(1, 32, VOCAB, ids);
    desc.on_token = NULL;
    desc.on_logits = listener_logits;
    desc.prompt_ids = ids;
    desc.n_prompt = 32; /* the prompt fills the context, so no token follows */
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    submit(&rig, 2, 7, 9, &token);
    job_rig_run(&rig);
    assert_int_equal(logits.n_logits, 32);
    assert_int_equal(token.n_ids, 9);
    job_rig_stop(&rig);
}

static void refuse(job_rig *rig, const mr_sequence_desc *desc, mr_status want, const char *text) {
    mr_err err;
    int64_t sequence = -7;
    assert_int_equal(mr_job_submit(rig->job, desc, &sequence, &err), want);
    assert_int_equal(err.status, want);
    assert_int_equal(sequence, -7);
    expect_says(err.text, text);
}

/* Every refusal names the value, and the job goes on. */
static void test_prompts_that_are_refused(void **state) {
    (void)state;
    int32_t ids[64] = {0};
    job_rig rig;
    listener l = {0};
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_context = 32, .n_kv_blocks = 1});
    mr_sequence_desc desc = job_sequence(0, &l);
    desc.prompt_ids = ids;
    desc.max_tokens = 1;
    refuse(&rig, &desc, MR_E_INVALID, "empty");
    desc.n_prompt = 3;
    ids[1] = VOCAB;
    refuse(&rig, &desc, MR_E_INVALID, "token id 90 at position 1 is outside the vocabulary of 90");
    ids[1] = -5;
    refuse(&rig, &desc, MR_E_INVALID, "token id -5 at position 1");
    ids[1] = 1;
    desc.max_tokens = 0;
    refuse(&rig, &desc, MR_E_INVALID, "0 tokens to generate");
    desc.max_tokens = -3;
    refuse(&rig, &desc, MR_E_INVALID, "-3 tokens to generate");
    desc.max_tokens = 14;
    refuse(&rig, &desc, MR_E_TOO_LONG, "may reach 17 tokens, the KV cache holds 16");
    desc.n_prompt = 32;
    refuse(&rig, &desc, MR_E_TOO_LONG, "the prompt has 32 tokens and needs room for one more, the context 32");
    job_rig_run(&rig); /* run without a sequence */
    assert_true(mr_job_row_depth(rig.job) == 0);
    submit(&rig, 1, 3, 13, &l);
    job_rig_run(&rig);
    assert_int_equal(l.n_ids, 13);
    double depth = mr_job_row_depth(rig.job); /* rows at positions 0, 1, 2 in a step, then one row at each of 3 to 14 */
    assert_true(depth > 7 && depth < 11);
    assert_true(mr_job_output_share(rig.job) > 0.8 && mr_job_output_share(rig.job) < 1); /* 1 of 3, then all */
    job_rig_stop(&rig);
}

/* Each run measures itself. */
static void test_timings_of_a_second_run(void **state) {
    (void)state;
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1});
    int64_t before = mr_clock_now_ns(), start_ns = 0;
    for (int i = 0; i < 2; i++) {
        listener l = {0};
        submit(&rig, i, 5, 6, &l);
        start_ns = mr_clock_now_ns();
        job_rig_run(&rig);
    }
    int64_t end = mr_clock_now_ns();
    mr_job_timings t = mr_job_get_timings(rig.job);
    assert_true(t.first_token_ns > 0 && t.first_token_ns <= end - start_ns);
    assert_true(t.prefill_ns > 0 && t.decode_ns > 0 && t.prefill_ns + t.decode_ns <= end - before);
    assert_int_equal(t.prefill_tokens, 10);
    assert_int_equal(t.decode_tokens, 10);
    job_rig_stop(&rig);
}

static void test_create_and_destroy_at_once(void **state) {
    (void)state;
    int n_threads = job_count_threads();
    job_rig rig;
    listener l = {0};
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 4});
    submit(&rig, 0, 3, 3, &l); /* the job is stopped before this sequence runs */
    job_rig_stop(&rig);
    job_expect_threads(n_threads);
}

/* Soon after a short sequence, and without the end of the stages, the job knows what they have done. */
static void test_stages_report_while_they_run(void **state) {
    (void)state;
    job_rig rig;
    listener l = {0};
    mr_stage_seconds stage[3] = {0};
    mr_err err;
    int64_t deadline = mr_clock_now_ns() + 60 * MR_NS_PER_S;
    bool all = false;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 3});
    submit(&rig, 1, 10, 20, &l);
    job_rig_run(&rig);
    while (!all) {
        assert_true(mr_clock_now_ns() < deadline);
        expect_ok(mr_job_turn(rig.job, mr_clock_now_ns() + MR_NS_PER_S / 100, &err), &err);
        all = true;
        for (int32_t i = 0; i < 3; i++) {
            mr_job_copy_stage_seconds(rig.job, i, &stage[i]);
            all = all && stage[i].n_rows >= 10 + 19;
        }
    }
    for (int32_t i = 0; i < 3; i++) {
        assert_true(!stage[i].known && stage[i].heard_ns > 0 && stage[i].usual.rows == 1);
        assert_true(stage[i].n_steps >= 20 && stage[i].ns[MR_PHASE_COMPUTE] > 0 && stage[i].ns[MR_PHASE_NO_WORK] > 0);
        assert_int_equal(stage[i].in_bytes, i > 0 ? stage[i].n_rows * 64 * sizeof(float) : 0);
        assert_int_equal(stage[i].out_bytes, i < 2 ? stage[i].n_rows * 64 * sizeof(float) : 0);
    }
    mr_job_stop(rig.job);
    assert_true(mr_job_stage_seconds(rig.job, 2)->known);
    assert_true(mr_job_stage_seconds(rig.job, 2)->n_rows == stage[2].n_rows);
    job_rig_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_sequences_than_room),
        cmocka_unit_test(test_small_chunks),
        cmocka_unit_test(test_early_stop),
        cmocka_unit_test(test_length_limits),
        cmocka_unit_test(test_logits_only),
        cmocka_unit_test(test_prompts_that_are_refused),
        cmocka_unit_test(test_timings_of_a_second_run),
        cmocka_unit_test(test_create_and_destroy_at_once),
        cmocka_unit_test(test_stages_report_while_they_run),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
