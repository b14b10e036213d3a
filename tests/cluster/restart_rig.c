// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/restart_rig.h"

#include <string.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "tests/support/test.h"

enum { MAX_REQUESTS = 1024, PATIENCE_S = 120, MOST_EPOCHS = N_RANKS };

static job_model model;

int restart_rig_setup(void **state) {
    (void)state;
    tiny_desc desc = job_model_desc();
    gguf_writer *w = tiny_model_write(&desc);
    job_model_init(&model, w);
    return 0;
}

int restart_rig_teardown(void **state) {
    (void)state;
    job_model_deinit(&model);
    return 0;
}

/* --- What sequences hear ----------------------------------------------------------------------------------------- */

bool restart_rig_hear_token(void *ctx, const mr_token_event *event) {
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

void restart_rig_submit_all(mr_job *job, heard *h) {
    for (int32_t i = 0; i < N_TEXTS; i++) {
        mr_sequence_desc desc = job_sequence(i, NULL);
        desc.on_token = restart_rig_hear_token;
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

static void run_rank(void *ctx) {
    restart_rank *k = ctx;
    mr_err ignored;
    bool abandoned;
    (void)!mr_lobby_run(&k->config, &abandoned, &ignored);
    mr_channel_destroy(k->channel);
}

void restart_rig_start_with(restart_rig *r, const atomic_uint *n_signals, mr_backend *const devices[N_RANKS]) {
    *r = (restart_rig){0};
    alarm(PATIENCE_S);
    expect_ok(mr_local_hub_create(N_RANKS + 1, MAX_REQUESTS, &r->hub, &r->err), &r->err);
    expect_ok(mr_local_channel_open(r->hub, N_RANKS, &r->channel, &r->err), &r->err);
    expect_ok(mr_roll_call_create(r->channel, N_RANKS, &r->roll, &r->err), &r->err);
    for (int32_t i = 0; i < N_RANKS; i++) {
        restart_rank *k = &r->ranks[i];
        expect_ok(mr_local_channel_open(r->hub, i, &k->channel, &r->err), &r->err);
        expect_ok(channel_kill_wrap(&k->kill, &k->channel, &r->err), &r->err);
        k->config = (mr_lobby_config){.model_path = model.path,
                                      .channel = k->channel,
                                      .coordinator = N_RANKS,
                                      .n_threads = 1,
                                      .devices = &k->devices,
                                      .n_signals = n_signals};
        if (devices && devices[i])
            k->devices.list = (mr_backends){.n = 1, .at = {devices[i]}};
        expect_ok(mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &k->config.backend, &r->err), &r->err);
        expect_ok(mr_thread_create("rank", 0, run_rank, k, &k->thread, &r->err), &r->err);
    }
    expect_ok(mr_roll_call_wait(r->roll, mr_clock_now_ns() + PATIENCE_S * MR_NS_PER_S, NULL, NULL, &r->err), &r->err);
}

void restart_rig_start(restart_rig *r) {
    restart_rig_start_with(r, NULL, NULL);
}

void restart_rig_stop(restart_rig *r) {
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

void restart_rig_give_stage(restart_rig *r, mr_plan_stage *stage, int32_t to) {
    stage->rank = to;
    stage->device_layers = r->ranks[to].devices.list.n > 0 ? stage->last - stage->first : 0;
}

mr_epoch_config restart_rig_next_epoch(restart_rig *r) {
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
        restart_rig_give_stage(r, &r->plan.stages[i], living[i]);
        (void)!mr_roll_call_start(r->roll, living[i], r->epoch + 1, &r->err);
    }
    return (mr_epoch_config){.plan = &r->plan, .number = ++r->epoch, .n_kv_blocks = N_KV_BLOCKS};
}

void restart_rig_create_job(restart_rig *r) {
    mr_job_config config = {.info = &model.tiny->info,
                            .channel = r->channel,
                            .epoch = restart_rig_next_epoch(r),
                            .max_rows = 16,
                            .max_out_rows = 16,
                            .max_sequences = 7,
                            .max_context = 64,
                            .kv_type = MR_TYPE_F16};
    expect_ok(mr_job_create(&config, &r->job, &r->err), &r->err);
}

int32_t restart_rig_run_to_end(restart_rig *r) {
    int32_t n = 0;
    mr_status status = mr_job_run(r->job, &r->err);
    for (; status != MR_OK; n++) {
        if (status != MR_E_PEER_LOST)
            fail_msg("status %d: %s", (int)status, r->err.text);
        assert_true(n < MOST_EPOCHS);
        const mr_epoch_config epoch = restart_rig_next_epoch(r);
        status = mr_job_restart(r->job, &epoch, &r->err);
        if (status == MR_OK)
            status = mr_job_run(r->job, &r->err);
    }
    expect_ok(mr_ledger_check(r->job->epoch.ledger, &r->err), &r->err);
    assert_int_equal(r->job->stats.n_again, 0);
    assert_true(r->job->stats.again_s > 0 || r->job->stats.n_again_rows == 0);
    assert_int_equal(mr_ledger_n_free(r->job->epoch.ledger), N_KV_BLOCKS);
    return n;
}

/* --- The undisturbed run ----------------------------------------------------------------------------------------- */

heard restart_rig_undisturbed;
long restart_rig_n_messages[N_RANKS];

void restart_rig_test_undisturbed(void **state) {
    (void)state;
    restart_rig r;
    restart_rig_start(&r);
    restart_rig_create_job(&r);
    restart_rig_submit_all(r.job, &restart_rig_undisturbed);
    assert_int_equal(restart_rig_run_to_end(&r), 0);
    assert_true(r.job->stats.n_preempted > 0);
    for (int32_t i = 0; i < N_RANKS; i++)
        restart_rig_n_messages[i] = atomic_load(&r.ranks[i].kill.n_sent);
    assert_int_equal(restart_rig_undisturbed.n_logits, N_ROWS);
    assert_int_equal(restart_rig_undisturbed.n_hidden, N_ROWS);
    assert_int_equal(restart_rig_undisturbed.n_last, 1);
    for (int32_t i = 0; i < N_TEXTS; i++)
        assert_int_equal(restart_rig_undisturbed.texts[i].n, MAX_TOKENS - i);
    restart_rig_stop(&r);
}
