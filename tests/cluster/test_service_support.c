// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/test_service_support.h"
#include "tests/support/test.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"

static const int64_t LONG_NS = 60 * MR_NS_PER_S;

mr_tokenizer *service_tokenizer(int32_t n_tokens) {
    mr_str *tokens = calloc((size_t)n_tokens, sizeof *tokens);
    float *scores = calloc((size_t)n_tokens, sizeof *scores);
    int32_t *types = calloc((size_t)n_tokens, sizeof *types);
    char *words = calloc((size_t)n_tokens, 3);
    static const char *const FIRST[] = {"<unk>", "<s>", "</s>", "<0xE2>", "<0x82>", "<0xAC>"};
    mr_tokenizer *tok;
    mr_err err;
    for (int32_t i = 0; i < n_tokens; i++) {
        char *word = words + 3 * i;
        word[0] = (char)('a' + i / 26);
        word[1] = (char)('a' + i % 26);
        tokens[i] = mr_str_from(i < TOKEN_FIRST_WORD ? FIRST[i] : word);
        types[i] = i == TOKEN_UNKNOWN     ? MR_TOKEN_UNKNOWN
                   : i < TOKEN_BYTE_E2    ? MR_TOKEN_CONTROL
                   : i < TOKEN_FIRST_WORD ? MR_TOKEN_BYTE
                                          : MR_TOKEN_NORMAL;
    }
    mr_vocab_desc desc = mr_vocab_desc_empty();
    desc.model = mr_str_from("llama");
    desc.n_tokens = desc.n_scores = desc.n_types = n_tokens;
    desc.tokens = tokens;
    desc.scores = scores;
    desc.types = types;
    desc.unk_id = TOKEN_UNKNOWN;
    desc.bos_id = TOKEN_BEGIN;
    desc.eos_id = TOKEN_END;
    expect_ok(mr_tokenizer_create(&desc, &tok, &err), &err);
    free(tokens);
    free(scores);
    free(types);
    free(words);
    return tok;
}

/* --- The service ------------------------------------------------------------------------------------------------- */

static void run(void *ctx) {
    service_rig *rig = ctx;
    rig->status = mr_service_run(rig->service, rig->job.job, rig->tok, &rig->err);
}

static void note_ready(void *ctx) {
    atomic_store(&((service_rig *)ctx)->is_ready, true);
}

static void note_latency(void *ctx, bool is_first, int64_t ns) {
    service_rig *rig = ctx;
    rig->n_first += is_first;
    rig->n_next += !is_first;
    rig->latency_ns += ns;
}

void service_rig_start(service_rig *rig, const job_rig_config *config, const mr_tokenizer *tok, int32_t max_waiting) {
    mr_err err;
    *rig = (service_rig){.tok = tok};
    job_rig_must_start(&rig->job, config);
    mr_service_config service = {.max_waiting = max_waiting,
                                 .on_ready = note_ready,
                                 .on_ready_ctx = rig,
                                 .on_latency = note_latency,
                                 .on_latency_ctx = rig};
    if (mr_service_create(&service, &rig->service, &err) != MR_OK ||
        mr_thread_create("service", 0, run, rig, &rig->thread, &err) != MR_OK)
        fail_msg("%s", err.text);
    while (!atomic_load(&rig->is_ready))
        sched_yield();
    mr_service_stats stats;
    mr_service_get_stats(rig->service, &stats);
    assert_int_equal(stats.state, MR_SERVICE_READY);
}

void service_rig_end_run(service_rig *rig) {
    mr_err err;
    mr_service_stop(rig->service);
    mr_thread_join(rig->thread);
    rig->thread = NULL;
    mr_job *job = rig->job.job;
    if (rig->status != MR_OK)
        return;
    for (int i = 0; i < 1000 && mr_journal_count(job->journal) > 0; i++) /* rows may still be on their way */
        expect_ok(mr_job_turn(job, mr_clock_now_ns() + MR_NS_PER_MS, &err), &err);
    expect_ok(mr_ledger_check(job->epoch.ledger, &err), &err);
    assert_int_equal(mr_ledger_n_free(job->epoch.ledger), job->epoch.config.n_kv_blocks);
    assert_int_equal(mr_journal_count(job->journal), 0);
    assert_int_equal(job->n_unfinished, 0);
}

void service_rig_stop(service_rig *rig) {
    if (rig->thread)
        service_rig_end_run(rig);
    mr_service_destroy(rig->service);
    job_rig_stop(&rig->job);
}

/* --- Readers ----------------------------------------------------------------------------------------------------- */

void reader_init(reader *r) {
    memset(r, 0, sizeof *r);
    mr_mutex_init(&r->lock);
    mr_cond_init(&r->cond);
}

void reader_deinit(reader *r) {
    for (int i = 0; i < READER_MAX_CHOICES; i++)
        mr_text_buf_deinit(&r->choices[i].text);
    mr_mutex_deinit(&r->lock);
    mr_cond_deinit(&r->cond);
}

static void wake(void *ctx) {
    reader *r = ctx;
    mr_mutex_lock(&r->lock);
    r->n_wakes++;
    mr_cond_signal(&r->cond);
    mr_mutex_unlock(&r->lock);
}

mr_status reader_submit(reader *r, mr_service *service, mr_generate_desc desc, mr_err *err) {
    desc.wake = wake;
    desc.ctx = r;
    return mr_service_submit(service, &desc, &r->request, err);
}

static bool wait_for_wake(reader *r) {
    int64_t deadline = mr_clock_now_ns() + LONG_NS;
    bool in_time = true;
    mr_mutex_lock(&r->lock);
    while (r->n_wakes == r->n_seen && in_time)
        in_time = mr_cond_wait_until(&r->cond, &r->lock, deadline);
    r->n_seen = r->n_wakes;
    mr_mutex_unlock(&r->lock);
    return in_time;
}

static void hear(reader *r, const mr_piece *p) {
    choice_heard *c = p->is_prompt ? &r->prompt : &r->choices[p->choice];
    r->n_pieces++;
    if (c->finish != MR_FINISH_NONE)
        r->wrong = "a piece behind the last one";
    if (p->finish == MR_FINISH_NONE && p->text.len == 0 && p->n_tokens == 0)
        r->wrong = "an empty piece";
    if (c->n_ids + p->n_tokens > READER_MAX_IDS) {
        r->wrong = "too many tokens";
        return;
    }
    for (int32_t i = 0; i < p->n_tokens; i++) {
        c->offsets[c->n_ids] = p->tokens[i].text_offset;
        c->is_cut[c->n_ids] = p->tokens[i].is_cut;
        c->logprobs[c->n_ids] = p->tokens[i].logprob;
        c->n_top[c->n_ids] = p->tokens[i].n_top;
        for (int32_t k = 0; k < p->tokens[i].n_top && k < 4; k++)
            c->top[c->n_ids][k] = p->tokens[i].top[k];
        c->ids[c->n_ids++] = p->tokens[i].id;
    }
    if (p->text.len > 0 && !mr_text_buf_append(&c->text, p->text.data, p->text.len))
        r->wrong = "no memory";
    c->finish = p->finish;
    c->status = p->status;
    c->last = *p;
}

bool reader_step(reader *r) {
    mr_piece piece;
    while (!mr_request_take(r->request, &piece)) {
        if (mr_request_ended(r->request))
            return false;
        if (!wait_for_wake(r)) {
            r->wrong = "nothing came";
            return false;
        }
    }
    hear(r, &piece);
    return true;
}

void reader_release(reader *r) {
    mr_request_release(r->request);
    r->request = NULL;
}

void reader_finish(reader *r) {
    while (reader_step(r))
        ;
    reader_release(r);
}

mr_generate_desc service_request(int32_t number, int32_t n, int32_t *ids, int32_t max_tokens) {
    mr_sampling_params sampling = mr_sampling_params_default();
    sampling.temperature = 0.9f;
    sampling.repeat_penalty = 1.1f;
    sampling.repeat_last_n = 32;
    sampling.seed = 1000 + (uint64_t)number;
    job_prompt(number, n, 80, ids);
    return (mr_generate_desc){
        .sequence = {.prompt_ids = ids, .n_prompt = n, .max_tokens = max_tokens, .sampling = sampling},
        .n_choices = 1,
        .n_logprobs = -1,
        .ignore_end = true};
}
