/* More sequences than the KV blocks hold. The latest sequences are preempted and computed again, and every text is
 * the same as without preemption. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <unistd.h>

#include "coordinator/job/job_internal.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { N = 24, N_MANY = 500, VOCAB = 90, HANG_S = 60 };

static job_model model;

static int32_t prompt_length(int32_t number) {
    return 1 + number * 7 % 14;
}

static int32_t max_tokens(int32_t number) {
    return 30 + number * 5 % 21;
}

static void submit(job_rig *rig, int32_t number, listener *l) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    mr_sequence_desc desc = job_sequence(number, l);
    desc.prompt_ids = ids;
    desc.n_prompt = prompt_length(number);
    desc.max_tokens = max_tokens(number);
    job_prompt(number, desc.n_prompt, VOCAB, ids);
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

static void run_all_alone(listener *out, int32_t n) {
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1});
    for (int32_t i = 0; i < n; i++) {
        out[i] = (listener){0};
        submit(&rig, i, &out[i]);
        job_rig_run(&rig);
    }
    assert_int_equal(rig.job->stats.n_preempted, 0);
    job_rig_stop(&rig);
}

static void assert_same(const listener *want, const listener *got, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].finish, MR_FINISH_LENGTH);
        assert_int_equal(got[i].n_ids, max_tokens(i));
        assert_memory_equal(got[i].ids, want[i].ids, (size_t)max_tokens(i) * sizeof *want[i].ids);
    }
}

/* Blocks for hardly more than the longest sequence, in every chunking, over one to three stages. */
static void test_preempted_texts_go_on(void **state) {
    (void)state;
    static listener alone[N], together[N];
    const int32_t rows[] = {3, 64};
    job_rig rig;
    int n = 0;
    run_all_alone(alone, N);
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++)
        for (size_t r = 0; r < 2; r++) {
            if (share_skips(&n))
                continue;
            job_rig_must_start(
                &rig,
                &(job_rig_config){
                    .model = &model, .n_stages = n_stages, .max_rows = rows[r], .max_sequences = 8, .n_kv_blocks = 6});
            for (int32_t i = 0; i < N; i++) {
                together[i] = (listener){0};
                submit(&rig, i, &together[i]);
            }
            job_rig_run(&rig);
            assert_same(alone, together, N);
            assert_true(rig.job->stats.n_preempted > 0);
            job_rig_stop(&rig);
        }
}

/* A listener whose every third token takes the blocks of the latest arrival. */
typedef struct taker {
    listener heard;
    job_rig *rig;
    int32_t *n_after; /* counts ids of sequences that were preempted before */
} taker;

static bool take_blocks(void *ctx, const mr_token_event *event) {
    taker *t = ctx;
    *t->n_after += mr_journal_entry(t->rig->job->journal, event->sequence)->state == MR_ENTRY_LEAVING;
    bool stop = listener_token(&t->heard, event);
    if (t->heard.n_ids % 3 == 0)
        job_preempt(t->rig->job);
    return stop;
}

/* Ids that are under way when a sequence is preempted are streamed. Later ids follow without a gap. */
static void test_ids_under_way(void **state) {
    (void)state;
    enum { N_TAKERS = 5 };
    listener alone[N_TAKERS];
    taker takers[N_TAKERS];
    job_rig rig;
    mr_err err;
    run_all_alone(alone, N_TAKERS);
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        int32_t n_after = 0;
        job_rig_must_start(
            &rig,
            &(job_rig_config){.model = &model, .n_stages = n_stages, .max_sequences = N_TAKERS, .n_kv_blocks = 32});
        for (int32_t i = 0; i < N_TAKERS; i++) {
            int32_t ids[64];
            int64_t sequence;
            takers[i] = (taker){.rig = &rig, .n_after = &n_after};
            mr_sequence_desc desc = job_sequence(i, NULL);
            desc.prompt_ids = ids;
            desc.n_prompt = prompt_length(i);
            desc.max_tokens = max_tokens(i);
            desc.on_token = take_blocks;
            desc.ctx = &takers[i];
            job_prompt(i, desc.n_prompt, VOCAB, ids);
            expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
        }
        job_rig_run(&rig);
        for (int32_t i = 0; i < N_TAKERS; i++) {
            assert_int_equal(takers[i].heard.n_ids, max_tokens(i));
            assert_memory_equal(takers[i].heard.ids, alone[i].ids, (size_t)max_tokens(i) * sizeof *alone[i].ids);
        }
        assert_true(n_after > 0);
        assert_true(rig.job->stats.n_preempted > 10);
        job_rig_stop(&rig);
    }
}

/* A sequence that wants the logits of its prompt gets all its blocks when it begins, so no row is computed twice. */
static void test_logits_among_preempted(void **state) {
    (void)state;
    listener texts[4] = {0}, logits[4] = {0};
    job_rig rig;
    mr_err err;
    int32_t ids[64];
    int64_t sequence;
    job_rig_must_start(
        &rig, &(job_rig_config){.model = &model, .n_stages = 2, .max_rows = 5, .max_sequences = 8, .n_kv_blocks = 5});
    for (int32_t i = 0; i < 4; i++) {
        mr_sequence_desc desc = job_sequence(i, &logits[i]);
        submit(&rig, 8 * i, &texts[i]);
        job_prompt(i, 40, VOCAB, ids);
        desc.on_token = NULL;
        desc.on_logits = listener_logits;
        desc.prompt_ids = ids;
        desc.n_prompt = 40;
        expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    }
    job_rig_run(&rig);
    for (int32_t i = 0; i < 4; i++) {
        assert_int_equal(texts[i].n_ids, max_tokens(8 * i));
        assert_int_equal(logits[i].n_logits, 40);
    }
    job_rig_stop(&rig);
}

/* A sequence that waits for a block, which only the end of another's prompt will free: that goes on meanwhile. */
static void test_prompts_go_on_beside_who_starves(void **state) {
    (void)state;
    listener text = {0}, logits = {0};
    job_rig rig;
    mr_err err;
    int32_t ids[64];
    int64_t sequence;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_rows = 2, .n_kv_blocks = 5});
    mr_sequence_desc desc = job_sequence(0, &text);
    job_prompt(0, 40, VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = 1;
    desc.max_tokens = 40; /* the sequence needs a third block when the other one is at about row 30 */
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    desc = (mr_sequence_desc){.prompt_ids = ids, .n_prompt = 40, .on_logits = listener_logits, .ctx = &logits};
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    alarm(HANG_S); /* the signal ends the process, so a hang is a failure */
    job_rig_run(&rig);
    alarm(0);
    assert_int_equal(text.n_ids, 40);
    assert_int_equal(logits.n_logits, 40);
    job_rig_stop(&rig);
}

/* 500 requests, or 125, and KV blocks for 20 of the longest: all complete, and their first tokens come in the order of
 * arrival. */
static void test_overload(void **state) {
    (void)state;
    static listener alone[N_MANY], together[N_MANY];
    const int32_t n = share_is_small() ? N_MANY / 4 : N_MANY;
    int32_t clock = 0;
    job_rig rig;
    run_all_alone(alone, n);
    job_rig_must_start(&rig,
                       &(job_rig_config){.model = &model, .n_stages = 2, .max_sequences = 100, .n_kv_blocks = 20 * 4});
    for (int32_t i = 0; i < n; i++) {
        together[i] = (listener){.clock = &clock};
        submit(&rig, i, &together[i]);
    }
    job_rig_run(&rig);
    assert_same(alone, together, n);
    assert_true(rig.job->stats.n_preempted > 0);
    for (int32_t i = 0; i < n; i++) /* prompts in the same step start together; a step has at most 64 rows */
        assert_in_range(together[i].first_token_at, i < 64 ? 0 : i - 64, i + 64);
    print_message("%d sequences were preempted\n", (int)rig.job->stats.n_preempted);
    job_rig_stop(&rig);
}

/* One slot: those of a higher priority pass over 64 others for each, and no more. */
static void test_priorities(void **state) {
    (void)state;
    enum { N_QUEUED = 200 };
    static listener heard[N_QUEUED];
    int32_t ids[4] = {1, 2, 3, 4}, clock = 0;
    int64_t sequence;
    job_rig rig;
    mr_err err;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1});
    for (int32_t i = 0; i < N_QUEUED; i++) {
        heard[i] = (listener){.clock = &clock};
        mr_sequence_desc desc = job_sequence(i, &heard[i]);
        desc.prompt_ids = ids;
        desc.n_prompt = 4;
        desc.max_tokens = 1;
        desc.priority = i == 100 ? 1 : i == 150 ? 100 : i == 3 ? -1 : 0;
        expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    }
    job_rig_run(&rig);
    assert_int_equal(heard[150].first_token_at, 0);
    assert_int_equal(heard[100].first_token_at, 37); /* behind sequences 0 to 36 without 3, and 150 */
    assert_int_equal(heard[3].first_token_at, 68);   /* behind sequences 0 to 66 without 3, and 100 and 150 */
    assert_int_equal(heard[0].first_token_at, 1);
    assert_int_equal(heard[199].first_token_at, 199);
    job_rig_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_preempted_texts_go_on),
        cmocka_unit_test(test_ids_under_way),
        cmocka_unit_test(test_logits_among_preempted),
        cmocka_unit_test(test_prompts_go_on_beside_who_starves),
        cmocka_unit_test(test_overload),
        cmocka_unit_test(test_priorities),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
