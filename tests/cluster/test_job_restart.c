/* Ranks die in the middle of a job. The job begins another epoch with the ranks that live, and every sequence goes on:
 * ids, log-probabilities, logits and hidden rows are those of the undisturbed run, and no callback comes twice. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/job/job_internal.h"
#include "coordinator/lobby/roll_call.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "proto/channel_local.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/channel_kill.h"
#include "tests/support/test.h"
#include "tests/support/test_device.h"
#include "worker/lobby/lobby.h"

enum {
    N_RANKS = 4,
    N_STAGES = 2, /* while so many ranks live */
    MAX_REQUESTS = 1024,
    PATIENCE_S = 30,
    N_TEXTS = 6,
    N_ROWS = 40, /* of a prompt whose rows are wanted */
    MAX_TOKENS = 36,
    KV_BYTES = 1,    /* of their bits */
    N_KV_BLOCKS = 8, /* too few for all sequences at once: some are preempted */
    WIDTH = 64,
    DEVICE_DELAY_US = 20,
    USUAL_RUNS = 40, /* of each test that kills: MILLRACE_TEST_KILLS; all messages with MILLRACE_TEST_LONG */
    LONG_RUNS = 2000,
    MOST_EPOCHS = N_RANKS,
};

static job_model model;

/* --- What sequences hear ----------------------------------------------------------------------------------------- */

typedef struct text_heard {
    int32_t n, ids[MAX_TOKENS];
    float logprobs[MAX_TOKENS], top_logprobs[MAX_TOKENS][2];
    mr_finish finish;
} text_heard;

typedef struct heard {
    text_heard texts[N_TEXTS];
    float logits[N_ROWS][JOB_VOCAB], hidden[N_ROWS][WIDTH], last[WIDTH];
    int32_t n_logits, n_hidden, n_last;
} heard;

static bool hear_token(void *ctx, const mr_token_event *event) {
    text_heard *t = ctx;
    assert_int_equal(event->status, MR_OK);
    assert_int_equal(t->finish, MR_FINISH_NONE);
    assert_int_equal(event->n_generated, t->n + 1);
    assert_true(event->n_top == 2 && t->n < MAX_TOKENS);
    t->ids[t->n] = event->id;
    t->logprobs[t->n] = event->logprob;
    memcpy(t->top_logprobs[t->n++], event->top_logprobs, sizeof t->top_logprobs[0]);
    t->finish = event->finish;
    return false;
}

static void hear_logits(void *ctx, int32_t first, int32_t n, const float *rows) {
    heard *h = ctx;
    assert_true(first == h->n_logits && first + n <= N_ROWS);
    memcpy(h->logits[first], rows, (size_t)n * sizeof h->logits[0]);
    h->n_logits += n;
}

static void hear_hidden(void *ctx, int32_t first, int32_t n, const float *rows) {
    heard *h = ctx;
    assert_true(first == h->n_hidden && first + n <= N_ROWS);
    memcpy(h->hidden[first], rows, (size_t)n * sizeof h->hidden[0]);
    h->n_hidden += n;
}

static void hear_last(void *ctx, int32_t first, int32_t n, const float *row) {
    heard *h = ctx;
    assert_true(first == N_ROWS - 1 && n == 1);
    memcpy(h->last, row, sizeof h->last);
    h->n_last++;
}

static void submit(mr_job *job, mr_sequence_desc *desc, int32_t number, int32_t n_prompt) {
    int32_t ids[64];
    int64_t sequence;
    mr_err err;
    desc->prompt_ids = ids;
    desc->n_prompt = n_prompt;
    job_prompt(number, n_prompt, JOB_VOCAB, ids);
    expect_ok(mr_job_submit(job, desc, &sequence, &err), &err);
}

/* The first two texts begin with the same 20 ids. Mirostat, penalties and choices as in job_sequence. */
static void submit_all(mr_job *job, heard *h) {
    for (int32_t i = 0; i < N_TEXTS; i++) {
        mr_sequence_desc desc = job_sequence(i, NULL);
        desc.on_token = hear_token;
        desc.ctx = &h->texts[i];
        desc.max_tokens = MAX_TOKENS - i;
        desc.logprobs = true;
        desc.n_top_logprobs = 2;
        desc.choice = (uint32_t)i % 2;
        desc.priority = i == 4;
        submit(job, &desc, i < 2 ? 0 : i, i < 2 ? 20 + i : 3 + 2 * i);
    }
    mr_sequence_desc logits = {.on_logits = hear_logits, .ctx = h};
    mr_sequence_desc hidden = {.on_hidden = hear_hidden, .fresh = true, .ctx = h};
    mr_sequence_desc last = {.on_hidden = hear_last, .last_hidden = true, .fresh = true, .ctx = h};
    submit(job, &logits, 20, N_ROWS);
    submit(job, &hidden, 21, N_ROWS);
    submit(job, &last, 22, N_ROWS);
}

/* --- Ranks ------------------------------------------------------------------------------------------------------- */

typedef struct rank {
    channel_kill kill;
    mr_channel *channel;
    mr_lobby_config config;
    mr_devices devices;
    mr_thread *thread;
} rank;

typedef struct rig {
    mr_local_hub *hub;
    mr_channel *channel; /* of the coordinator */
    mr_roll_call *roll;
    mr_job *job;
    mr_plan plan;
    uint32_t epoch;
    rank ranks[N_RANKS];
    mr_err err;
} rig;

static void run_rank(void *ctx) {
    rank *k = ctx;
    mr_err ignored;
    bool abandoned;
    (void)!mr_lobby_run(&k->config, &abandoned, &ignored);
    mr_channel_destroy(k->channel);
}

/* Rank i has a device with memory of its own if bit i of devices is set. */
static void rig_start_with(rig *r, const atomic_uint *n_signals, unsigned devices) {
    *r = (rig){0};
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(N_RANKS + 1, MAX_REQUESTS, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, N_RANKS, &r->channel, &r->err), &r->err);
    expect_ok(mr_roll_call_create(r->channel, N_RANKS, &r->roll, &r->err), &r->err);
    for (int32_t i = 0; i < N_RANKS; i++) {
        rank *k = &r->ranks[i];
        expect_ok(mr_local_channel_open(r->hub, i, &k->channel, &r->err), &r->err);
        expect_ok(channel_kill_wrap(&k->kill, &k->channel, &r->err), &r->err);
        k->config = (mr_lobby_config){.model_path = model.path,
                                      .channel = k->channel,
                                      .coordinator = N_RANKS,
                                      .n_threads = 1,
                                      .devices = &k->devices,
                                      .n_signals = n_signals};
        if (devices >> i & 1) {
            const test_device_options options = {
                .ops = TEST_DEVICE_ALL_OPS, .seed = (uint64_t)i, .max_delay_us = DEVICE_DELAY_US};
            expect_ok(test_device_create(&options, &k->devices.list.at[0], &r->err), &r->err);
            k->devices.list.n = 1;
        }
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &k->config.backend, &r->err), &r->err);
        expect_ok(mr_thread_create("rank", 0, run_rank, k, &k->thread, &r->err), &r->err);
    }
    expect_ok(mr_roll_call_wait(r->roll, mr_clock_now_ns() + PATIENCE_S * MR_NS_PER_S, NULL, NULL, &r->err), &r->err);
}

static void rig_start(rig *r) {
    rig_start_with(r, NULL, 0);
}

static void rig_stop(rig *r) {
    mr_job_destroy(r->job);
    mr_roll_call_dismiss(r->roll, true, mr_clock_now_ns() + MR_NS_PER_S);
    mr_roll_call_destroy(r->roll);
    mr_channel_destroy(r->channel);
    for (int32_t i = 0; i < N_RANKS; i++) {
        mr_thread_join(r->ranks[i].thread);
        mr_devices_destroy(&r->ranks[i].devices);
        mr_backend_destroy(r->ranks[i].config.backend);
    }
    mr_local_hub_destroy(r->hub);
    alarm(0);
}

/* Gives a stage to a rank. A device of the rank holds all its layers. */
static void give_stage(rig *r, mr_plan_stage *stage, int32_t to) {
    stage->rank = to;
    stage->device_layers = r->ranks[to].devices.list.n > 0 ? stage->last - stage->first : 0;
}

/* Sends the ranks that live into another epoch. */
static mr_epoch_config next_epoch(rig *r) {
    int32_t living[N_RANKS], n = 0;
    for (int32_t i = 0; i < N_RANKS; i++)
        if (!atomic_load(&r->ranks[i].kill.is_dead)) {
            living[n++] = i;
            (void)!mr_roll_call_abort(r->roll, i, false, &r->err); /* the rank may die now: the start will say so */
        }
    assert_true(n > 0);
    n = n < N_STAGES ? n : N_STAGES;
    expect_ok(mr_plan_balance(model.tiny->gguf, &model.tiny->info, n, &r->plan, &r->err), &r->err);
    for (int32_t i = 0; i < n; i++) {
        give_stage(r, &r->plan.stages[i], living[i]);
        (void)!mr_roll_call_start(r->roll, living[i], r->epoch + 1, &r->err);
    }
    return (mr_epoch_config){.plan = &r->plan, .number = ++r->epoch, .n_kv_blocks = N_KV_BLOCKS};
}

static void create_job(rig *r) {
    mr_job_config config = {.info = &model.tiny->info,
                            .channel = r->channel,
                            .epoch = next_epoch(r),
                            .max_rows = 16,
                            .max_out_rows = 16,
                            .max_sequences = 7,
                            .max_context = 64,
                            .kv_type = MR_TYPE_F16};
    expect_ok(mr_job_create(&config, &r->job, &r->err), &r->err);
}

static int64_t n_again_rows; /* over all runs */

/* Runs the job to its end over all restarts. Returns how many there were. */
static int32_t run_to_end(rig *r) {
    int32_t n = 0;
    mr_status status = mr_job_run(r->job, &r->err);
    for (; status != MR_OK; n++) {
        if (status != MR_E_PEER_LOST)
            fail_msg("status %d: %s", (int)status, r->err.text);
        assert_true(n < MOST_EPOCHS);
        const mr_epoch_config epoch = next_epoch(r);
        status = mr_job_restart(r->job, &epoch, &r->err);
        if (status == MR_OK)
            status = mr_job_run(r->job, &r->err);
    }
    expect_ok(mr_ledger_check(r->job->epoch.ledger, &r->err), &r->err);
    assert_int_equal(r->job->stats.n_again, 0);
    assert_true(r->job->stats.again_s > 0 || r->job->stats.n_again_rows == 0);
    n_again_rows += r->job->stats.n_again_rows;
    assert_int_equal(mr_ledger_n_free(r->job->epoch.ledger), N_KV_BLOCKS);
    return n;
}

/* --- Tests ------------------------------------------------------------------------------------------------------- */

static heard undisturbed;
static long n_messages[N_RANKS]; /* that each rank sends in the undisturbed run */

static void test_undisturbed(void **state) {
    (void)state;
    rig r;
    rig_start(&r);
    create_job(&r);
    submit_all(r.job, &undisturbed);
    assert_int_equal(run_to_end(&r), 0);
    assert_true(r.job->stats.n_preempted > 0);
    for (int32_t i = 0; i < N_RANKS; i++)
        n_messages[i] = atomic_load(&r.ranks[i].kill.n_sent);
    assert_int_equal(undisturbed.n_logits, N_ROWS);
    assert_int_equal(undisturbed.n_hidden, N_ROWS);
    assert_int_equal(undisturbed.n_last, 1);
    for (int32_t i = 0; i < N_TEXTS; i++)
        assert_int_equal(undisturbed.texts[i].n, MAX_TOKENS - i);
    rig_stop(&r);
}

/* at[i]: the message with which rank i dies, counted from the start of the job; 0: none. */
static void run_with_deaths(const long at[N_RANKS], int32_t *n_restarts) {
    static heard h;
    rig r;
    h = (heard){0};
    rig_start(&r);
    create_job(&r);
    for (int32_t i = 0; i < N_RANKS; i++)
        if (at[i] > 0)
            atomic_store(&r.ranks[i].kill.at, atomic_load(&r.ranks[i].kill.n_sent) + at[i]);
    submit_all(r.job, &h);
    *n_restarts += run_to_end(&r);
    if (memcmp(&h, &undisturbed, sizeof h) != 0)
        fail_msg("other results with deaths at messages %ld %ld %ld %ld", at[0], at[1], at[2], at[3]);
    /* The last steps may still be under way, and a rank may die now. */
    while (mr_journal_count(r.job->journal) > 0 &&
           mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err) == MR_OK)
        continue;
    rig_stop(&r);
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
        long stride = is_long() ? 1 : n_messages[victim] / (n_usual_runs() / N_STAGES) + 1;
        for (long k = 1; k < n_messages[victim]; k += stride, n_runs++) {
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
    rig r;
    int64_t sequence;
    h = (heard){0};
    rig_start(&r);
    create_job(&r);
    for (int turn = 0; turn < 3; turn++)
        expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    submit_all(r.job, &h);
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
    desc.on_token = hear_token;
    desc.ctx = &cancelled;
    expect_ok(mr_job_submit(r.job, &desc, &sequence, &r.err), &r.err);
    for (int turn = 0; turn < 3; turn++)
        expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    assert_int_equal(mr_job_get_stats(r.job).n_generated, paused.n_generated);
    mr_job_cancel(r.job, sequence);
    mr_job_stop(r.job); /* does nothing */
    assert_int_equal(mr_job_stage_report(r.job, 1)->weight_bytes, 0);
    assert_int_equal(mr_job_stage_seconds(r.job, 1)->n_steps, 0);
    const mr_epoch_config epoch = next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    (void)run_to_end(&r);
    assert_memory_equal(&h, &undisturbed, sizeof h);
    assert_int_equal(cancelled.n, 0);
    rig_stop(&r);
}

/* A rank says how much memory it has once its stage has ended, and how many signals it has got. */
static void test_questions(void **state) {
    (void)state;
    rig r;
    atomic_uint n_signals = 0;
    rig_start_with(&r, &n_signals, 0);
    create_job(&r);
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
        const mr_epoch_config epoch = next_epoch(&r);
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
    rig_stop(&r);
}

/* What the rank that gets stage 1 has of it before. */
typedef struct kv_copy {
    uint8_t bits[KV_BYTES];
    uint32_t versions[N_KV_BLOCKS];
} kv_copy;

/* Whole blocks of stage 1 go to the next rank while steps run. */
static void copy_while_steps_run(rig *r, kv_copy *out) {
    int32_t from = r->plan.stages[1].rank, to = from % (N_RANKS - 1) + 1,
            n = mr_job_mark_whole_blocks(r->job, out->bits);
    uint64_t step = mr_job_issued_step(r->job);
    memcpy(out->versions, mr_job_block_versions(r->job), sizeof out->versions);
    while (mr_job_done_step(r->job) < step)
        expect_ok(mr_job_turn(r->job, mr_clock_now_ns() + MR_NS_PER_MS, &r->err), &r->err);
    const mr_plan_stage *stage = &r->plan.stages[1];
    const mr_kv_demand demand = {r->epoch, r->epoch + 1, from, stage->first, stage->last, N_KV_BLOCKS, MR_TYPE_F16, n};
    const mr_kv_order order = {r->epoch, r->epoch + 1, to, out->bits, KV_BYTES, true};
    expect_ok(mr_roll_call_take_kv(r->roll, to, &demand, &r->err), &r->err);
    expect_ok(mr_roll_call_give_kv(r->roll, from, &order, &r->err), &r->err);
    const mr_rank_info *info = mr_roll_call_info(r->roll, to);
    while (info->took_epoch != demand.epoch) {
        expect_ok(mr_job_turn(r->job, mr_clock_now_ns() + MR_NS_PER_MS / 10, &r->err), &r->err);
        expect_ok(mr_roll_call_hear(r->roll, to, &r->err), &r->err);
    }
    assert_true(info->took_all);
}

/* Removes what the next rank has from the bits. Returns how many blocks are left. */
static int32_t subtract(const rig *r, const kv_copy *copy, uint8_t *bits, int32_t n) {
    const uint32_t *versions = mr_job_block_versions(r->job);
    for (int32_t i = 0; i < N_KV_BLOCKS; i++) {
        if (!(bits[i / 8] & copy->bits[i / 8] & 1 << i % 8) || versions[i] != copy->versions[i])
            continue;
        bits[i / 8] &= (uint8_t) ~(1 << i % 8);
        n--;
    }
    return n;
}

/* Restarts on purpose: stage 0 stays where it is, and stage 1 moves to the next rank. kv gets what goes on; its bits
 * are static. copy: NULL: nothing was copied before. */
static mr_epoch_config next_epoch_with_kv(rig *r, const kv_copy *copy, mr_epoch_kv *kv) {
    static uint8_t kept[KV_BYTES], sent[KV_BYTES];
    int32_t from = r->plan.stages[1].rank, to = from % (N_RANKS - 1) + 1;
    memset(kept, 0, sizeof kept);
    int32_t n = mr_job_mark_blocks(r->job, kept);
    memcpy(sent, kept, sizeof sent);
    *kv = (mr_epoch_kv){.from = {-1, from}, .has_ahead = {false, copy != NULL}, .kept = kept};
    kv->n_sent = copy ? subtract(r, copy, sent, n) : n;
    const mr_kv_order order = {r->epoch, r->epoch + 1, to, sent, sizeof sent, false};
    for (int32_t i = 0; i < N_RANKS; i++)
        expect_ok(mr_roll_call_abort(r->roll, i, true, &r->err), &r->err);
    give_stage(r, &r->plan.stages[1], to);
    expect_ok(mr_roll_call_start(r->roll, 0, r->epoch + 1, &r->err), &r->err);
    expect_ok(mr_roll_call_start(r->roll, to, r->epoch + 1, &r->err), &r->err);
    expect_ok(mr_roll_call_give_kv(r->roll, from, &order, &r->err), &r->err);
    return (mr_epoch_config){.plan = &r->plan, .number = ++r->epoch, .n_kv_blocks = N_KV_BLOCKS, .kv = kv};
}

/* KV blocks go along, so that of each text at most its last, partial block is computed again. */
static void keep_blocks(unsigned devices) {
    static heard h;
    rig r;
    mr_epoch_kv kv;
    int32_t n_kept = 0, n_ahead = 0;
    h = (heard){0};
    rig_start_with(&r, NULL, devices);
    create_job(&r);
    submit_all(r.job, &h);
    for (int i = 0; i < 8; i++) {
        for (int turn = 0; turn < 60; turn++)
            expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
        kv_copy copy = {.bits = {0}};
        if (i % 2)
            copy_while_steps_run(&r, &copy);
        expect_ok(mr_job_settle(r.job, MR_NEVER, &r.err), &r.err);
        assert_int_equal(mr_job_get_stats(r.job).n_open_steps, 0);
        const mr_epoch_config epoch = next_epoch_with_kv(&r, i % 2 ? &copy : NULL, &kv);
        expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
        expect_ok(mr_ledger_check(r.job->epoch.ledger, &r.err), &r.err);
        int32_t n = mr_job_get_stats(r.job).n_kept_blocks;
        assert_true(i % 2 ? n >= kv.n_sent : n == kv.n_sent);
        n_kept += n;
        n_ahead += n - kv.n_sent;
    }
    (void)run_to_end(&r);
    assert_memory_equal(&h, &undisturbed, sizeof h);
    print_message("devices %x: %d KV blocks went along, %d of them before the pause\n", devices, (int)n_kept,
                  (int)n_ahead);
    assert_true(n_kept > 0 && n_ahead > 0);
    rig_stop(&r);
}

static void test_kept_blocks(void **state) {
    (void)state;
    keep_blocks(0);
}

/* From device to device, and between a device and a CPU. */
static void test_kept_blocks_of_devices(void **state) {
    (void)state;
    keep_blocks(~0u);
    keep_blocks(0xa);
    keep_blocks(0x4);
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
    rig r;
    h = (heard){0};
    rig_start(&r);
    create_job(&r);
    submit_all(r.job, &h);
    for (int i = 0; i < N_BEFORE + N; i++) {
        const mr_epoch_config epoch = next_epoch(&r);
        expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
        if (i == N_BEFORE - 1)
            before = count_holdings();
        for (int turn = 0; turn < 4; turn++)
            expect_ok(mr_job_turn(r.job, mr_clock_now_ns() + MR_NS_PER_MS, &r.err), &r.err);
    }
    const mr_epoch_config epoch = next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    after = count_holdings();
    assert_int_equal(after.page_bytes, before.page_bytes);
    assert_int_equal(after.n_files, before.n_files);
    assert_int_equal(after.n_threads, before.n_threads);
    assert_true(after.heap_bytes < before.heap_bytes + MORE_HEAP);
    (void)run_to_end(&r);
    assert_memory_equal(&h, &undisturbed, sizeof h);
    rig_stop(&r);
}

/* A plan with too few KV blocks is refused, sequences stay, and a plan with enough of them goes on. */
static void test_too_small_a_plan(void **state) {
    (void)state;
    static heard h;
    rig r;
    h = (heard){0};
    rig_start(&r);
    create_job(&r);
    submit_all(r.job, &h);
    mr_epoch_config epoch = next_epoch(&r);
    epoch.n_kv_blocks = 2;
    expect_fails(mr_job_restart(r.job, &epoch, &r.err), MR_E_NO_MEMORY, &r.err,
                 "a sequence may reach 56 tokens, the KV cache of the new plan holds 32");
    mr_job_stats stats = mr_job_get_stats(r.job);
    assert_int_equal(stats.n_waiting, N_TEXTS + 3);
    assert_int_equal(stats.n_live, 0);
    epoch = next_epoch(&r);
    expect_ok(mr_job_restart(r.job, &epoch, &r.err), &r.err);
    (void)run_to_end(&r);
    assert_memory_equal(&h, &undisturbed, sizeof h);
    rig_stop(&r);
}

int main(void) {
    tiny_desc desc = job_model_desc();
    gguf_writer *w = tiny_model_write(&desc);
    job_model_init(&model, w);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_undisturbed), /* first: the others compare with its results */
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_kept_blocks),
        cmocka_unit_test(test_kept_blocks_of_devices),
        cmocka_unit_test(test_pause),
        cmocka_unit_test(test_questions),
        cmocka_unit_test(test_too_small_a_plan),
        cmocka_unit_test(test_one_death),
        cmocka_unit_test(test_further_deaths),
    };
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return n_failed;
}
