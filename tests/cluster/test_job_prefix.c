/* Sequences that share a prefix. The test counts the computed rows, and every text is the same as that of the
 * sequence alone. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

enum { VOCAB = 90, N_TOGETHER = 6, MAX_TOKENS = 9 };

static job_model model;

/* The first n ids of prompt number text; seed and choice make the continuation. */
typedef struct request {
    int32_t text, n_prompt, max_tokens, seed, choice;
    bool fresh;
} request;

static void submit(job_rig *rig, const request *r, listener *l) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    mr_sequence_desc desc = job_sequence(r->seed, l);
    job_prompt(r->text, r->n_prompt, VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = r->n_prompt;
    desc.max_tokens = r->max_tokens;
    desc.choice = (uint32_t)r->choice;
    desc.fresh = r->fresh;
    *l = (listener){0};
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

static void submit_logits(job_rig *rig, int32_t text, int32_t n_prompt, listener *l) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    mr_sequence_desc desc = job_sequence(0, l);
    job_prompt(text, n_prompt, VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = n_prompt;
    desc.on_token = NULL;
    desc.on_logits = listener_logits;
    *l = (listener){0};
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

/* Runs each request in a new job, whose cache is empty. */
static void run_alone(const request *r, int32_t n, listener *out) {
    job_rig rig;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1});
    for (int32_t i = 0; i < n; i++) {
        request fresh = r[i];
        fresh.fresh = true;
        submit(&rig, &fresh, &out[i]);
        job_rig_run(&rig);
        assert_int_equal(out[i].n_ids, r[i].max_tokens);
    }
    assert_int_equal(rig.job->timings.cached_tokens, 0);
    job_rig_stop(&rig);
}

static void assert_same(const listener *want, const listener *got, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].n_ids, want[i].n_ids);
        assert_memory_equal(got[i].ids, want[i].ids, (size_t)want[i].n_ids * sizeof *want[i].ids);
    }
}

/* Prompts of every length around a block, one after the other: all but the last id of the second are there. */
static void test_one_after_the_other(void **state) {
    (void)state;
    const int32_t lengths[] = {1, 2, 15, 16, 17, 18, 31, 32, 33, 34, 50};
    job_rig rig;
    int64_t n_rows = 0;
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++) {
        job_rig_must_start(
            &rig, &(job_rig_config){.model = &model, .n_stages = n_stages, .n_kv_blocks = 64, .n_rows = &n_rows});
        for (int32_t i = 0; i < (int32_t)(sizeof lengths / sizeof *lengths); i++) {
            const request r[2] = {{i, lengths[i], MAX_TOKENS, 1, 0, false}, {i, lengths[i], MAX_TOKENS, 2, 0, false}};
            listener alone[2], got[2];
            run_alone(r, 2, alone);
            for (int k = 0; k < 2; k++) {
                n_rows = 0;
                submit(&rig, &r[k], &got[k]);
                job_rig_run(&rig);
                assert_int_equal(n_rows, (k ? 1 : lengths[i]) + MAX_TOKENS - 1);
            }
            assert_same(alone, got, 2);
        }
        job_rig_stop(&rig);
    }
}

/* A longer prompt begins with what a shorter one and its text left behind: whole blocks of both. */
static void test_generated_blocks_are_found(void **state) {
    (void)state;
    int32_t ids[64];
    int64_t sequence;
    int64_t n_rows = 0;
    job_rig rig;
    listener first, second = {0}, want = {0};
    mr_err err;
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2, .n_rows = &n_rows});
    submit(&rig, &(request){1, 20, 30, 1, 0, false}, &first);
    job_rig_run(&rig);
    job_prompt(1, 20, VOCAB, ids);
    memcpy(ids + 20, first.ids, 30 * sizeof *ids);
    mr_sequence_desc desc = job_sequence(5, &second);
    desc.prompt_ids = ids;
    desc.n_prompt = 50;
    desc.max_tokens = MAX_TOKENS;
    n_rows = 0;
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    job_rig_run(&rig);
    /* The cache has 48 ids, three blocks; the 50th id was sampled, but never computed. */
    assert_int_equal(n_rows, 50 - 48 + MAX_TOKENS - 1);
    desc.ctx = &want;
    desc.fresh = true;
    n_rows = 0;
    expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
    job_rig_run(&rig);
    assert_int_equal(n_rows, 50 + MAX_TOKENS - 1);
    assert_same(&want, &second, 1);
    job_rig_stop(&rig);
}

/* Choices of one prompt at once: the first computes it, the others wait for its steps and copy the last block. */
static void test_choices(void **state) {
    (void)state;
    const int32_t rows[] = {5, 64}, lengths[] = {7, 32, 41};
    request r[N_TOGETHER];
    listener alone[N_TOGETHER], got[N_TOGETHER];
    int64_t n_rows = 0;
    job_rig rig;
    for (size_t n = 0; n < 3; n++) {
        for (int32_t i = 0; i < N_TOGETHER; i++)
            r[i] = (request){3, lengths[n], MAX_TOKENS, 4, i, false};
        run_alone(r, N_TOGETHER, alone);
        assert_memory_not_equal(alone[0].ids, alone[1].ids, MAX_TOKENS * sizeof *alone[0].ids);
        for (int32_t n_stages = 1; n_stages <= 3; n_stages++)
            for (size_t c = 0; c < 2; c++) {
                job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                           .n_stages = n_stages,
                                                           .max_rows = rows[c],
                                                           .max_sequences = N_TOGETHER,
                                                           .n_kv_blocks = 24,
                                                           .n_rows = &n_rows});
                n_rows = 0;
                for (int32_t i = 0; i < N_TOGETHER; i++)
                    submit(&rig, &r[i], &got[i]);
                job_rig_run(&rig);
                assert_same(alone, got, N_TOGETHER);
                assert_int_equal(n_rows, lengths[n] + N_TOGETHER - 1 + N_TOGETHER * (MAX_TOKENS - 1));
                assert_int_equal(rig.job->timings.cached_tokens, (N_TOGETHER - 1) * (lengths[n] - 1));
                job_rig_stop(&rig);
            }
    }
}

/* Many begin with the same long table of blocks in one step. The messages may be no larger than one such table
 * needs. */
static void test_many_long_tables(void **state) {
    (void)state;
    enum { N = 64, N_PROMPT = 2000, TOKENS = 3, N_TABLE = N_PROMPT / MR_WIRE_BLOCK_TOKENS };
    static int32_t ids[N_PROMPT];
    static listener want[N], got[N];
    job_rig rig;
    mr_err err;
    int64_t sequence;
    job_prompt(8, N_PROMPT, VOCAB, ids);
    for (int bounded = 0; bounded < 2; bounded++) {
        job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                   .n_stages = 2,
                                                   .max_sequences = N,
                                                   .max_context = 2048,
                                                   .n_kv_blocks = N_TABLE + 4 * N,
                                                   .control_bytes = bounded ? 4096 : 0});
        for (int32_t i = 0; i < N; i++) {
            listener *l = bounded ? &got[i] : &want[i];
            mr_sequence_desc desc = job_sequence(i, l);
            desc.prompt_ids = ids;
            desc.n_prompt = N_PROMPT;
            desc.max_tokens = TOKENS;
            expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
        }
        job_rig_run(&rig);
        assert_int_equal(rig.job->timings.cached_tokens, (N - 1) * (N_PROMPT - 1));
        job_rig_stop(&rig);
    }
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(want[i].n_ids, TOKENS);
    assert_same(want, got, N);
}

static void submit_ids(job_rig *rig, const int32_t *ids, int32_t n, int32_t max_tokens, listener *l) {
    mr_sequence_desc desc = job_sequence(0, l);
    int64_t sequence;
    mr_err err;
    desc.prompt_ids = ids;
    desc.n_prompt = n;
    desc.max_tokens = max_tokens;
    expect_ok(mr_job_submit(rig->job, &desc, &sequence, &err), &err);
}

/* Sequences that wait for a long prompt look it up twice, however many steps the prompt takes. They do not block the
 * sequences behind them. They continue if the sequence that computes the prompt is cancelled, or if some of them are
 * cancelled. */
static void test_who_waits_costs_no_time(void **state) {
    (void)state;
    enum { N = 80, N_PROMPT = 780, N_KEYS = N_PROMPT / MR_WIRE_BLOCK_TOKENS + 1, CANCELLED = 7 };
    static int32_t ids[N_PROMPT];
    static listener l[N], behind;
    int32_t clock = 0;
    job_rig rig;
    job_prompt(8, N_PROMPT, VOCAB, ids);
    for (int cancels = 0; cancels < 2; cancels++) {
        job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                   .n_stages = 2,
                                                   .max_rows = 16,
                                                   .max_sequences = N + 1,
                                                   .max_context = 2048,
                                                   .n_kv_blocks = 2 * N_KEYS + 4 * N,
                                                   .synthetic = true});
        behind = (listener){.clock = &clock};
        for (int32_t i = 0; i < N; i++) {
            l[i] = (listener){.clock = &clock};
            submit_ids(&rig, ids, N_PROMPT, 1, &l[i]);
        }
        submit_ids(&rig, ids + 1, 5, 1, &behind);
        for (int i = 0; i < 2; i++) /* far fewer turns than the prompt has steps */
            if (mr_job_turn(rig.job, 0, &(mr_err){0}) != MR_OK)
                fail_msg("a turn failed");
        for (int32_t i = 0; i < CANCELLED && cancels; i++)
            mr_job_cancel(rig.job, i); /* sequence 0 is the one that computes the prompt */
        job_rig_run(&rig);
        assert_int_equal(behind.first_token_at, cancels ? N + 1 : 0);
        for (int32_t i = 0; i < N; i++)
            assert_int_equal(l[i].n_ids, cancels && i < CANCELLED ? 0 : 1);
        int64_t looks = cancels ? 3 : 2; /* one lookup more: another sequence takes over the prompt */
        assert_true(mr_ledger_n_looked_up(rig.job->epoch.ledger) <= looks * N * N_KEYS);
        job_rig_stop(&rig);
    }
}

/* A sequence that wants logits computes all its rows. Other sequences use the blocks that it computed. */
static void test_logits_are_computed(void **state) {
    (void)state;
    job_rig rig;
    listener text, logits, want;
    const request r = {2, 40, 1, 3, 0, false};
    run_alone(&r, 1, &want);
    job_rig_must_start(&rig, &(job_rig_config){.model = &model, .n_stages = 2});
    for (int i = 0; i < 2; i++) {
        submit_logits(&rig, 2, 40, &logits);
        job_rig_run(&rig);
        assert_int_equal(logits.n_logits, 40);
        assert_int_equal(rig.job->timings.cached_tokens, 39 * i);
        submit(&rig, &r, &text);
        job_rig_run(&rig);
        assert_int_equal(rig.job->timings.cached_tokens, 39 * (i + 1));
        assert_same(&want, &text, 1);
    }
    job_rig_stop(&rig);
}

/* Beginnings of three texts, more sequences than fit: hits, copies, evictions and preemptions at once. */
static void test_all_at_once(void **state) {
    (void)state;
    enum { N = 40 };
    static request r[N];
    static listener alone[N], got[N];
    const int32_t rows[] = {3, 64};
    job_rig rig;
    int64_t n_preempted = 0;
    for (int32_t i = 0; i < N; i++)
        r[i] = (request){i % 3, 1 + i * 13 % 27, 20 + i * 7 % 17, i, i % 4, i % 11 == 0};
    run_alone(r, N, alone);
    for (int32_t n_stages = 1; n_stages <= 3; n_stages++)
        for (size_t c = 0; c < 2; c++) {
            job_rig_must_start(&rig, &(job_rig_config){.model = &model,
                                                       .n_stages = n_stages,
                                                       .max_rows = rows[c],
                                                       .max_sequences = 10,
                                                       .n_kv_blocks = 12});
            for (int32_t i = 0; i < N; i++)
                submit(&rig, &r[i], &got[i]);
            job_rig_run(&rig);
            assert_same(alone, got, N);
            assert_true(rig.job->timings.cached_tokens > 0);
            n_preempted += rig.job->stats.n_preempted;
            job_rig_stop(&rig);
        }
    assert_true(n_preempted > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_after_the_other),
        cmocka_unit_test(test_generated_blocks_are_found),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_many_long_tables),
        cmocka_unit_test(test_who_waits_costs_no_time),
        cmocka_unit_test(test_logits_are_computed),
        cmocka_unit_test(test_all_at_once),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
