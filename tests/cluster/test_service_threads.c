/* Many threads that submit requests, read slowly, disconnect and return. Each request that is read to its end gets
 * the same answer as alone, and nothing is leaked. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/rng.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/test.h"

enum { N_VOCAB = 90, N_THREADS = 8, N_KINDS = 24, MAX_TOKENS = 24, MAX_PROMPT = 40 };

static job_model model;
static mr_tokenizer *tok;
static service_rig rig;
static choice_heard alone[N_KINDS]; /* what each kind of request gets when it is the only one */
static int n_rounds = 12;

static mr_generate_desc kind_of_request(int32_t kind, int32_t *ids) {
    return service_request(kind, 1 + kind * 13 % (MAX_PROMPT - 1), ids, 1 + kind * 7 % MAX_TOKENS);
}

static void learn_alone(void) {
    for (int32_t kind = 0; kind < N_KINDS; kind++) {
        int32_t ids[MAX_PROMPT];
        reader r;
        mr_err err;
        reader_init(&r);
        expect_ok(reader_submit(&r, rig.service, kind_of_request(kind, ids), &err), &err);
        reader_finish(&r);
        assert_null(r.wrong);
        alone[kind] = r.choices[0];
        memset(&r.choices[0].text, 0, sizeof r.choices[0].text); /* `alone` owns the text now */
        reader_deinit(&r);
    }
}

typedef struct client {
    mr_thread *thread;
    int idx;
    int32_t n_ended, n_left;
    const char *wrong;
} client;

static const char *compare(const reader *r, int32_t kind) {
    const choice_heard *want = &alone[kind];
    for (int32_t i = 0; i < 1 + kind % 2; i++) {
        const choice_heard *c = &r->choices[i];
        if (c->finish != MR_FINISH_LENGTH)
            return "another end";
        if (i == 0 && (c->n_ids != want->n_ids || memcmp(c->ids, want->ids, (size_t)c->n_ids * sizeof *c->ids) != 0))
            return "other ids than alone";
        if (i == 0 &&
            (c->text.len != want->text.len || (c->text.len && memcmp(c->text.data, want->text.data, c->text.len) != 0)))
            return "another text than alone";
    }
    return r->wrong;
}

/* One of three requests is cancelled: at once, after some pieces, or while the client sleeps. */
static void client_round(client *c, int round) {
    int32_t ids[MAX_PROMPT];
    uint64_t random = mr_rng_u64(11, (uint64_t)c->idx, (uint64_t)round);
    int32_t kind = (int32_t)(random % N_KINDS);
    mr_generate_desc desc = kind_of_request(kind, ids);
    bool leaves = random / 100 % 3 == 0;
    reader r;
    mr_err err;
    reader_init(&r);
    desc.n_choices = 1 + kind % 2;
    if (reader_submit(&r, rig.service, desc, &err) != MR_OK) {
        c->wrong = "refused";
    } else if (leaves) {
        int32_t n = (int32_t)(random / 1000 % 6);
        if (n == 5)
            usleep((useconds_t)(random / 10000 % 3000));
        for (int32_t i = 0; i < n && n != 5 && reader_step(&r); i++)
            ;
        reader_release(&r);
        c->n_left++;
    } else {
        while (reader_step(&r))
            if (random / 1000 % 8 == 0)
                usleep(500); /* a slow reader gets fewer and longer pieces */
        reader_release(&r);
        const char *wrong = compare(&r, kind);
        c->wrong = wrong ? wrong : c->wrong;
        c->n_ended++;
    }
    reader_deinit(&r);
}

static void run_client(void *ctx) {
    client *c = ctx;
    for (int round = 0; round < n_rounds && !c->wrong; round++)
        client_round(c, c->idx + round * N_THREADS);
}

/* Reads the statistics all the time. */
static void ask_facts(mr_service_stats *out) {
    mr_job_slot slots[64];
    mr_service_get_stats(rig.service, out);
    int32_t n = mr_service_get_slots(rig.service, slots, 64);
    assert_in_range(n, 0, out->job.max_sequences);
    for (int32_t i = 0; i < n; i++)
        assert_in_range(slots[i].n_ids, slots[i].n_prompt, slots[i].max_ids);
    assert_int_equal(out->job.n_held_blocks + out->job.n_cached_blocks + out->job.n_free_blocks, out->job.n_blocks);
}

static void storm(const job_rig_config *config) {
    client clients[N_THREADS] = {0};
    mr_service_stats stats;
    mr_err err;
    int32_t n_ended = 0, n_left = 0;
    service_rig_start(&rig, config, tok, 0);
    for (int i = 0; i < N_THREADS; i++) {
        clients[i].idx = i;
        expect_ok(mr_thread_create("client", 0, run_client, &clients[i], &clients[i].thread, &err), &err);
    }
    for (int i = 0; i < 20; i++)
        ask_facts(&stats);
    for (int i = 0; i < N_THREADS; i++) {
        mr_thread_join(clients[i].thread);
        if (clients[i].wrong)
            fail_msg("client %d: %s", i, clients[i].wrong);
        n_ended += clients[i].n_ended;
        n_left += clients[i].n_left;
    }
    do
        mr_service_get_stats(rig.service, &stats); /* wait for the end of the cancelled requests */
    while (stats.job.n_live + stats.job.n_waiting > 0);
    assert_int_equal(stats.n_open, 0);
    assert_int_equal(stats.job.n_submitted, stats.job.n_ended);
    assert_int_equal(stats.job.n_held_blocks, 0);
    print_message("%d answers read to the end, %d left, %d preemptions, %d of %d tokens of prompts were there\n",
                  n_ended, n_left, (int)stats.job.n_preempted, (int)stats.job.n_cached_tokens,
                  (int)stats.job.n_prompt_tokens);
    service_rig_stop(&rig);
}

static void test_with_room(void **state) {
    (void)state;
    storm(&(job_rig_config){.model = &model, .n_stages = 2, .max_sequences = 16, .n_kv_blocks = 80, .max_context = 64});
}

/* Sequences lose their blocks again and again. */
static void test_with_few_blocks(void **state) {
    (void)state;
    storm(&(job_rig_config){.model = &model, .n_stages = 3, .max_sequences = 6, .n_kv_blocks = 6, .max_context = 64});
}

static int set_up(void **state) {
    (void)state;
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    tok = service_tokenizer(N_VOCAB);
    if (getenv("MILLRACE_SERVICE_ROUNDS"))
        n_rounds = atoi(getenv("MILLRACE_SERVICE_ROUNDS"));
    service_rig_start(&rig, &(job_rig_config){.model = &model, .n_stages = 1, .max_sequences = 1}, tok, 0);
    learn_alone();
    service_rig_stop(&rig);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    for (int32_t kind = 0; kind < N_KINDS; kind++)
        mr_text_buf_deinit(&alone[kind].text);
    mr_tokenizer_destroy(tok);
    job_model_deinit(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_with_room), cmocka_unit_test(test_with_few_blocks)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
