/* tests/cluster/test_job_soak.c - sequences join, stop and are cancelled at random, more of them than the KV blocks
 * hold, many with common beginnings: every id is that of the sequence alone, and no block stays behind.
 * MILLRACE_SOAK_S: goes on for so many seconds, instead of a few rounds. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "tests/cluster/test_job_support.h"
#include "tests/support/test.h"

enum { VOCAB = 90, N_KINDS = 30, N_ROUNDS = 6, N_IN_ROUND = 150, N_AT_ONCE = 24 };

/* A sequence that may come: prompt, seed and choice are those of its number. */
typedef struct kind {
    int32_t ids[64], n_prompt, max_tokens;
    listener alone;
} kind;

typedef struct live {
    struct soak *soak;
    int32_t kind;
    int64_t sequence;
    bool is_live, wants_logits; /* wants_logits: otherwise hidden rows */
    int32_t n;                  /* number of ids or rows received */
} live;

typedef struct soak {
    job_rig rig;
    live at[N_AT_ONCE];
    int32_t n_submitted, n_done, n_cancelled, n_stopped;
    uint64_t seed, counter;
} soak;

static job_model model;
static kind kinds[N_KINDS];

static uint64_t draw(soak *s, uint64_t below) {
    return mr_rng_u64(s->seed, 0, s->counter++) % below;
}

static mr_sequence_desc describe(int32_t number) {
    mr_sequence_desc desc = job_sequence(number / 3, NULL);
    desc.choice = (uint32_t)(number % 3);
    desc.prompt_ids = kinds[number].ids;
    desc.n_prompt = kinds[number].n_prompt;
    desc.max_tokens = kinds[number].max_tokens;
    return desc;
}

static void run_alone(void) {
    job_rig rig;
    mr_err err;
    int64_t sequence;
    expect_ok(job_rig_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1}, &err), &err);
    for (int32_t i = 0; i < N_KINDS; i++) {
        kind *k = &kinds[i];
        k->n_prompt = 1 + i * 11 % 30;
        k->max_tokens = 20 + i * 7 % 15;
        /* Three kinds share each of four texts, with prompts of different lengths. */
        job_prompt(i / 3 % 4, k->n_prompt, VOCAB, k->ids);
        mr_sequence_desc desc = describe(i);
        desc.ctx = &k->alone;
        desc.fresh = true;
        expect_ok(mr_job_submit(rig.job, &desc, &sequence, &err), &err);
        expect_ok(mr_job_run(rig.job, &err), &err);
        assert_int_equal(k->alone.n_ids, k->max_tokens);
    }
    job_rig_stop(&rig);
}

static void join(soak *s);

static void end(live *l) {
    l->is_live = false;
    l->soak->n_done++;
}

/* Things that happen while steps run. */
static void happen(soak *s) {
    if (draw(s, 3) == 0)
        join(s);
    if (draw(s, 60) == 0) {
        live *l = &s->at[draw(s, N_AT_ONCE)];
        if (l->soak)
            mr_job_cancel(s->rig.job, l->sequence); /* has no effect if the sequence has ended */
        if (l->is_live) {
            s->n_cancelled++;
            end(l);
        }
    }
}

static bool on_token(void *ctx, const mr_token_event *event) {
    live *l = ctx;
    assert_true(l->is_live);
    assert_int_equal(event->sequence, l->sequence);
    assert_int_equal(event->status, MR_OK);
    assert_int_equal(event->n_generated, l->n + 1);
    assert_int_equal(event->id, kinds[l->kind].alone.ids[l->n++]);
    bool stop = event->finish == MR_FINISH_NONE && draw(l->soak, 80) == 0;
    if (stop || event->finish != MR_FINISH_NONE) {
        l->soak->n_stopped += stop;
        assert_true(stop || l->n == kinds[l->kind].max_tokens);
        end(l);
    } else {
        happen(l->soak); /* may cancel this sequence */
    }
    return stop;
}

static void on_logits(void *ctx, int32_t first_position, int32_t n_rows, const float *logits) {
    live *l = ctx;
    (void)logits;
    assert_true(l->is_live);
    assert_int_equal(first_position, l->n);
    l->n += n_rows;
    if (l->n == kinds[l->kind].n_prompt)
        end(l);
    else
        happen(l->soak);
}

static void on_hidden(void *ctx, int32_t first_position, int32_t n_rows, const float *rows) {
    live *l = ctx;
    if (l->n == 0)
        l->n = first_position; /* rows of the cached prefix are not sent */
    on_logits(ctx, first_position, n_rows, rows);
}

static void join(soak *s) {
    mr_err err;
    int32_t i = 0;
    while (i < N_AT_ONCE && s->at[i].is_live)
        i++;
    if (i == N_AT_ONCE || s->n_submitted == N_IN_ROUND)
        return;
    live *l = &s->at[i];
    *l = (live){.soak = s, .kind = (int32_t)draw(s, N_KINDS), .is_live = true, .wants_logits = draw(s, 8) == 0};
    mr_sequence_desc desc = describe(l->kind);
    desc.ctx = l;
    desc.fresh = draw(s, 10) == 0;
    desc.on_token = l->wants_logits ? NULL : on_token;
    bool hidden = draw(s, 2) == 0;
    desc.on_logits = l->wants_logits && !hidden ? on_logits : NULL;
    desc.on_hidden = l->wants_logits && hidden ? on_hidden : NULL;
    expect_ok(mr_job_submit(s->rig.job, &desc, &l->sequence, &err), &err);
    s->n_submitted++;
}

static void run_round(uint64_t seed) {
    static soak s;
    mr_err err;
    s = (soak){.seed = seed};
    const job_rig_config config = {.model = &model,
                                   .n_stages = 1 + (int32_t)draw(&s, 3),
                                   .max_rows = draw(&s, 2) ? 64 : 3,
                                   .max_sequences = 4 + (int32_t)draw(&s, 12),
                                   .n_kv_blocks = 4 + (int32_t)draw(&s, 12)};
    expect_ok(job_rig_start(&s.rig, &config, &err), &err);
    while (s.n_submitted < N_IN_ROUND) {
        for (int i = 0; i < 8; i++)
            join(&s);
        if (mr_job_run(s.rig.job, &err) != MR_OK || mr_ledger_check(s.rig.job->epoch.ledger, &err) != MR_OK)
            fail_msg("%s", err.text);
        assert_int_equal(mr_ledger_n_free(s.rig.job->epoch.ledger), config.n_kv_blocks);
        assert_int_equal(s.n_done, s.n_submitted);
        assert_int_equal(s.rig.job->epoch.n_live, 0);
        assert_null(s.rig.job->first_waiting);
    }
    print_message(
        "seed %d, %d stages, %d blocks: %d sequences, %d stopped, %d cancelled, %d preempted, %d ids cached\n",
        (int)seed, config.n_stages, config.n_kv_blocks, s.n_submitted, s.n_stopped, s.n_cancelled,
        (int)s.rig.job->stats.n_preempted, (int)s.rig.job->timings.cached_tokens);
    job_rig_stop(&s.rig);
}

static void test_joins_stops_and_cancellations(void **state) {
    (void)state;
    const char *seconds = getenv("MILLRACE_SOAK_S");
    int64_t end_ns = mr_clock_now_ns() + (seconds ? atoi(seconds) : 0) * MR_NS_PER_S;
    run_alone();
    for (uint64_t seed = 1; seconds ? mr_clock_now_ns() < end_ns : seed <= N_ROUNDS; seed++)
        run_round(seed);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joins_stops_and_cancellations),
    };
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    job_model_deinit(&model);
    return failed;
}
