/* Ranks die in the middle of a job. The job begins another epoch with the ranks that live, and every sequence goes on:
 * ids, log-probabilities, logits and hidden rows are those of the undisturbed run, and no callback comes twice. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "tests/cluster/restart_rig.h"
#include "tests/support/test.h"

enum {
    USUAL_RUNS = 40, /* of each test that kills: MILLRACE_TEST_KILLS; all messages with MILLRACE_TEST_LONG */
    LONG_RUNS = 2000,
};

static int64_t n_again_rows; /* over all runs with deaths */

/* at[i]: the message with which rank i dies, counted from the start of the job; 0: none. */
static void run_with_deaths(const long at[N_RANKS], int32_t *n_restarts) {
    static heard h;
    restart_rig r;
    h = (heard){0};
    restart_rig_start(&r);
    restart_rig_create_job(&r);
    for (int32_t i = 0; i < N_RANKS; i++)
        if (at[i] > 0)
            atomic_store(&r.ranks[i].kill.at, atomic_load(&r.ranks[i].kill.n_sent) + at[i]);
    restart_rig_submit_all(r.job, &h);
    *n_restarts += restart_rig_run_to_end(&r);
    n_again_rows += r.job->stats.n_again_rows;
    if (memcmp(&h, &restart_rig_undisturbed, sizeof h) != 0)
        fail_msg("other results with deaths at messages %ld %ld %ld %ld", at[0], at[1], at[2], at[3]);
    /* The last steps may still be under way, and a rank may die now. */
    while (mr_journal_count(r.job->journal) > 0 &&
           mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err) == MR_OK)
        continue;
    restart_rig_stop(&r);
}

static bool is_long(void) {
    const char *value = getenv("MILLRACE_TEST_LONG");
    return value && strcmp(value, "1") == 0;
}

static int32_t n_usual_runs(void) {
    const char *value = getenv("MILLRACE_TEST_KILLS");
    return value ? atoi(value) : USUAL_RUNS;
}

/* One death, at every message of the first and the last stage, or at some of them. */
static void test_one_death(void **state) {
    (void)state;
    int32_t n_restarts = 0, n_runs = 0;
    for (int32_t victim = 0; victim < N_STAGES; victim++) {
        long stride = is_long() ? 1 : restart_rig_n_messages[victim] / (n_usual_runs() / N_STAGES) + 1;
        for (long k = 1; k < restart_rig_n_messages[victim]; k += stride, n_runs++) {
            long at[N_RANKS] = {0};
            at[victim] = k;
            run_with_deaths(at, &n_restarts);
        }
    }
    print_message("%d deaths in the middle of a job, %d restarts, %d rows were computed again\n", n_runs, n_restarts,
                  (int)n_again_rows);
    assert_true(n_restarts > n_runs / 2 && n_again_rows > n_restarts);
}

/* Up to three deaths, also while another epoch begins: only one rank may be left. */
static void test_further_deaths(void **state) {
    (void)state;
    int32_t n_restarts = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)(is_long() ? LONG_RUNS : n_usual_runs()); seed++) {
        long at[N_RANKS] = {0};
        int32_t survivor = (int32_t)(mr_rng_u64(seed, 1, 0) % N_RANKS);
        for (int32_t i = 0; i < N_RANKS; i++)
            if (i != survivor)
                at[i] = 1 + (long)(mr_rng_u64(seed, 2, (uint64_t)i) % (i < N_STAGES ? 60 : 12));
        run_with_deaths(at, &n_restarts);
    }
    print_message("%d restarts after several deaths\n", n_restarts);
}

/* The job is paused in the middle of its texts. Sequences are submitted and cancelled while it waits. */
static void test_pause(void **state) {
    (void)state;
    static heard h;
    static text_heard cancelled;
    restart_rig r;
    int64_t sequence;
    h = (heard){0};
    restart_rig_start(&r);
    restart_rig_create_job(&r);
    for (int turn = 0; turn < 3; turn++)
        expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    restart_rig_submit_all(r.job, &h);
    for (int turn = 0; turn < 30; turn++)
        expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    mr_job_stats before = mr_job_get_stats(r.job);
    assert_false(before.is_paused);
    mr_job_pause(r.job);
    mr_job_pause(r.job);
    const mr_job_stats paused = mr_job_get_stats(r.job);
    assert_true(paused.is_paused && !mr_job_has_epoch(r.job));
    assert_int_equal(paused.n_waiting, before.n_waiting + before.n_live);
    assert_int_equal(paused.max_ids, before.max_ids);
    assert_int_equal(mr_job_longest(r.job), 20 + MAX_TOKENS);
    mr_sequence_desc desc = job_sequence(3, NULL);
    int32_t ids[4];
    job_prompt(3, 4, JOB_VOCAB, ids);
    desc.prompt_ids = ids;
    desc.n_prompt = 4;
    desc.max_tokens = 3;
    desc.on_token = restart_rig_hear_token;
    desc.ctx = &cancelled;
    expect_ok(mr_job_submit(r.job, &desc, &sequence, &r.err), &r.err);
    for (int turn = 0; turn < 3; turn++)
        expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    assert_int_equal(mr_job_get_stats(r.job).n_generated, paused.n_generated);
    mr_job_cancel(r.job, sequence);
    mr_job_stop(r.job); /* does nothing */
    assert_int_equal(mr_job_stage_report(r.job, 1)->weight_bytes, 0);
    assert_int_equal(mr_job_stage_seconds(r.job, 1)->n_steps, 0);
    const mr_epoch_config epoch = restart_rig_next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    (void)restart_rig_run_to_end(&r);
    assert_memory_equal(&h, &restart_rig_undisturbed, sizeof h);
    assert_int_equal(cancelled.n, 0);
    restart_rig_stop(&r);
}

/* A rank says how much memory it has once its stage has ended, and how many signals it has got. */
static void test_questions(void **state) {
    (void)state;
    restart_rig r;
    atomic_uint n_signals = 0;
    restart_rig_start_with(&r, &n_signals, NULL);
    restart_rig_create_job(&r);
    for (uint32_t question = 1; question < 4; question++) {
        for (int32_t i = 0; i < N_RANKS; i++)
            expect_ok(mr_roll_call_ask(r.roll, i, question, &r.err), &r.err);
        mr_job_pause(r.job);
        for (int32_t i = 0; i < N_RANKS; i++) {
            while (mr_roll_call_info(r.roll, i)->answered < question) {
                expect_ok(mr_roll_call_hear(r.roll, i, &r.err), &r.err);
                expect_ok(mr_channel_wait(r.channel, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
            }
            assert_int_equal(mr_roll_call_info(r.roll, i)->answered, question);
            assert_true(mr_roll_call_info(r.roll, i)->memory_bytes > 0);
        }
        const mr_epoch_config epoch = restart_rig_next_epoch(&r);
        expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    }
    for (uint32_t n = 1; n < 3; n++) { /* while its stage runs, and where it waits in the lobby */
        atomic_store(&n_signals, n);
        for (int32_t i = 0; i < N_RANKS; i++) {
            mr_channel_wake(r.ranks[i].channel);
            while (mr_roll_call_info(r.roll, i)->n_signals < n) {
                expect_ok(mr_roll_call_hear(r.roll, i, &r.err), &r.err);
                expect_ok(mr_channel_wait(r.channel, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
            }
        }
    }
    int64_t offset_ns; /* what a rank says of itself is not taken for its answer */
    atomic_store(&n_signals, 5);
    expect_ok(mr_roll_call_compare_clocks(r.roll, N_RANKS - 1, &offset_ns, &r.err), &r.err);
    assert_int_equal(mr_roll_call_info(r.roll, N_RANKS - 1)->n_signals, 5);
    restart_rig_stop(&r);
}

/* What the process holds. */
typedef struct holdings {
    size_t page_bytes, heap_bytes;
    int n_files, n_threads;
} holdings;

static holdings count_holdings(void) {
    holdings h = {.page_bytes = mr_mem_get_stats().live_bytes, .n_threads = job_count_threads()};
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        h.n_files++;
    closedir(d);
    h.heap_bytes = mallinfo2().uordblks;
    return h;
}

/* Twenty restarts in a row leave nothing behind. */
static void test_many(void **state) {
    (void)state;
    enum { N_BEFORE = 3, N = 20, MORE_HEAP = 64 << 10 };
    static heard h;
    holdings before = {0}, after;
    restart_rig r;
    h = (heard){0};
    restart_rig_start(&r);
    restart_rig_create_job(&r);
    restart_rig_submit_all(r.job, &h);
    for (int i = 0; i < N_BEFORE + N; i++) {
        const mr_epoch_config epoch = restart_rig_next_epoch(&r);
        expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
        if (i == N_BEFORE - 1)
            before = count_holdings();
        for (int turn = 0; turn < 4; turn++)
            expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    }
    const mr_epoch_config epoch = restart_rig_next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    after = count_holdings();
    assert_int_equal(after.page_bytes, before.page_bytes);
    assert_int_equal(after.n_files, before.n_files);
    assert_int_equal(after.n_threads, before.n_threads);
    assert_true(after.heap_bytes < before.heap_bytes + MORE_HEAP);
    (void)restart_rig_run_to_end(&r);
    assert_memory_equal(&h, &restart_rig_undisturbed, sizeof h);
    restart_rig_stop(&r);
}

/* A plan with too few KV blocks is refused, sequences stay, and a plan with enough of them goes on. */
static void test_too_small_a_plan(void **state) {
    (void)state;
    static heard h;
    restart_rig r;
    h = (heard){0};
    restart_rig_start(&r);
    restart_rig_create_job(&r);
    restart_rig_submit_all(r.job, &h);
    mr_epoch_config epoch = restart_rig_next_epoch(&r);
    epoch.n_kv_blocks = 2;
    expect_fails(mr_job_restart(r.job, &epoch, &r.err), MR_E_NO_MEMORY, &r.err,
                 "a sequence may reach 56 tokens, the KV cache of the new plan holds 32");
    mr_job_stats stats = mr_job_get_stats(r.job);
    assert_int_equal(stats.n_waiting, N_TEXTS + 3);
    assert_int_equal(stats.n_live, 0);
    epoch = restart_rig_next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    (void)restart_rig_run_to_end(&r);
    assert_memory_equal(&h, &restart_rig_undisturbed, sizeof h);
    restart_rig_stop(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(restart_rig_test_undisturbed), /* first: the others compare with its results */
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_too_small_a_plan),
        cmocka_unit_test(test_one_death),
        cmocka_unit_test(test_further_deaths),
    };
    return cmocka_run_group_tests(tests, restart_rig_setup, restart_rig_teardown);
}
