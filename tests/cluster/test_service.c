/* The answers of the service to requests: texts, stop texts, choices, the same ids whatever other requests run; and
 * the requests that the service refuses. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "tests/cluster/test_service_support.h"
#include "tests/support/test.h"

enum { N_VOCAB = 90, MAX_TOKENS = 40 };

static job_model model;
static mr_tokenizer *tok;
static service_rig rig;

/* Runs one request to its end. */
static void ask(reader *r, mr_generate_desc desc) {
    mr_err err;
    reader_init(r);
    expect_ok(reader_submit(r, rig.service, desc, &err), &err);
    reader_finish(r);
    if (r->wrong)
        fail_msg("%s", r->wrong);
}

static void expect_text_of_ids(const choice_heard *c, const char *text, size_t len) {
    mr_text_buf want = {0};
    mr_err err;
    expect_ok(mr_tokenizer_decode(tok, c->ids, (size_t)c->n_ids, MR_DECODE_CONTINUES, &want, &err), &err);
    assert_int_equal(len, want.len);
    assert_memory_equal(text, want.data, len);
    mr_text_buf_deinit(&want);
}

static void test_texts(void **state) {
    (void)state;
    bool broken = false;
    for (int32_t number = 0; number < 12; number++) {
        int32_t ids[20];
        reader r;
        rig.n_first = rig.n_next = 0;
        rig.latency_ns = 0;
        ask(&r, service_request(number, 3 + number, ids, MAX_TOKENS));
        const choice_heard *c = &r.choices[0];
        assert_int_equal(c->finish, MR_FINISH_LENGTH);
        assert_int_equal(c->n_ids, MAX_TOKENS);
        assert_int_equal(c->last.n_generated, MAX_TOKENS);
        assert_int_equal(c->last.n_prompt, 3 + number);
        assert_true(c->last.submit_ns <= c->last.begin_ns && c->last.begin_ns < c->last.first_token_ns &&
                    c->last.first_token_ns < c->last.token_ns);
        assert_true(rig.n_first == 1 && rig.n_next == MAX_TOKENS - 1);
        assert_true(rig.latency_ns == c->last.token_ns - c->last.submit_ns);
        expect_text_of_ids(c, c->text.data, c->text.len);
        assert_true(r.n_wakes > 1); /* the text came while it was made; how many pieces it is depends on the reader */
        for (int32_t i = 1; i < c->n_ids; i++)
            assert_true(c->offsets[i] >= c->offsets[i - 1] && c->offsets[i] <= c->text.len);
        broken |= memmem(c->text.data, c->text.len, "\xef\xbf\xbd", 3) != NULL;
        reader_deinit(&r);
    }
    assert_true(broken); /* some characters came in parts */
}

/* Every generated token is given out, also those that end the text: they stand at its end. Returns how many are cut. */
static int32_t expect_all_tokens(const choice_heard *c) {
    int32_t n_cut = 0;
    assert_int_equal(c->n_ids, c->last.n_generated);
    for (int32_t i = 0; i < c->n_ids; i++) {
        n_cut += c->is_cut[i];
        assert_true(c->offsets[i] <= c->text.len);
        assert_true(n_cut == 0 || (c->is_cut[i] && c->offsets[i] == c->text.len));
    }
    return n_cut;
}

static void test_end_token(void **state) {
    (void)state;
    int32_t n_ended = 0;
    for (int32_t number = 0; number < 24; number++) {
        int32_t ids[20], n = 0;
        reader all, cut;
        mr_generate_desc desc = service_request(number, 5, ids, MAX_TOKENS);
        ask(&all, desc);
        desc.ignore_end = false;
        ask(&cut, desc);
        const choice_heard *a = &all.choices[0], *c = &cut.choices[0];
        while (n < a->n_ids && a->ids[n] != TOKEN_END)
            n++;
        assert_int_equal(c->n_ids, n < a->n_ids ? n + 1 : n);
        assert_memory_equal(c->ids, a->ids, (size_t)c->n_ids * sizeof *a->ids);
        assert_int_equal(c->finish, n < a->n_ids ? MR_FINISH_STOP : MR_FINISH_LENGTH);
        assert_int_equal(expect_all_tokens(c), n < a->n_ids);
        if (n > 0)
            expect_text_of_ids(c, c->text.data, c->text.len); /* the end token has no text */
        n_ended += n < a->n_ids;
        reader_deinit(&all);
        reader_deinit(&cut);
    }
    assert_in_range(n_ended, 1, 23);
}

static void test_stop_texts(void **state) {
    (void)state;
    for (int32_t number = 0; number < 4; number++) {
        int32_t ids[20];
        reader all, cut;
        mr_generate_desc desc = service_request(number, 5, ids, MAX_TOKENS);
        ask(&all, desc);
        const mr_text_buf *text = &all.choices[0].text;
        for (size_t at = 3; at < text->len - 8; at += 11) {
            char stop[6] = {0};
            memcpy(stop, text->data + at, 5); /* the stop text extends over several tokens */
            size_t first = (size_t)(strstr(text->data, stop) - text->data);
            const char *stops[] = {"never in it", stop};
            desc.stops = stops;
            desc.n_stops = 2;
            ask(&cut, desc);
            const choice_heard *c = &cut.choices[0];
            assert_int_equal(c->finish, MR_FINISH_STOP);
            assert_int_equal(c->text.len, first);
            assert_memory_equal(c->text.len ? c->text.data : "", text->data, first);
            assert_memory_equal(c->ids, all.choices[0].ids, (size_t)c->n_ids * sizeof *c->ids);
            assert_true(expect_all_tokens(c) > 0);
            reader_deinit(&cut);
        }
        reader_deinit(&all);
    }
}

/* A stop id ends the text like an end token; its log-probability is given. */
static void test_stop_id(void **state) {
    (void)state;
    int32_t ids[20];
    reader all, cut;
    mr_generate_desc desc = service_request(1, 5, ids, MAX_TOKENS);
    desc.n_logprobs = 2;
    ask(&all, desc);
    const choice_heard *a = &all.choices[0], *c = &cut.choices[0];
    desc.stop_ids = &a->ids[0];
    desc.n_stop_ids = 1;
    ask(&cut, desc);
    assert_int_equal(c->n_ids, 1);
    assert_int_equal(c->text.len, 0);
    assert_int_equal(c->finish, MR_FINISH_STOP);
    assert_int_equal(expect_all_tokens(c), 1);
    assert_memory_equal(c->logprobs, a->logprobs, sizeof c->logprobs[0]);
    assert_memory_equal(c->top[0], a->top[0], 2 * sizeof c->top[0][0]);
    reader_deinit(&all);
    reader_deinit(&cut);
}

/* Choices share the prompt, draw differently, and the first is what a request for one choice gets. */
static void test_choices(void **state) {
    (void)state;
    int32_t ids[40];
    reader one, three;
    mr_generate_desc desc = service_request(5, 23, ids, MAX_TOKENS);
    ask(&one, desc);
    desc.n_choices = 3;
    ask(&three, desc);
    const choice_heard *c = three.choices;
    assert_memory_equal(c[0].ids, one.choices[0].ids, sizeof one.choices[0].ids);
    assert_memory_not_equal(c[0].ids, c[1].ids, sizeof c[0].ids);
    assert_memory_not_equal(c[1].ids, c[2].ids, sizeof c[0].ids);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(c[i].n_ids, MAX_TOKENS);
        assert_int_equal(c[i].last.n_cached, 22); /* ids of the prompt that the first request left in the cache */
    }
    reader_deinit(&one);
    reader_deinit(&three);
}

/* The log-probabilities of generated ids equal those of the same ids in a prompt, to the last bit. */
static void test_logprobs(void **state) {
    (void)state;
    enum { N_PROMPT = 9, N_ALL = 30 };
    int32_t ids[N_ALL];
    reader written, read;
    mr_generate_desc desc = service_request(3, N_PROMPT, ids, N_ALL - N_PROMPT);
    desc.n_logprobs = 3;
    ask(&written, desc);
    const choice_heard *w = &written.choices[0], *p = &read.prompt;
    assert_int_equal(w->n_ids, N_ALL - N_PROMPT);
    memcpy(ids + N_PROMPT, w->ids, sizeof ids - N_PROMPT * sizeof *ids);
    desc.sequence.n_prompt = N_ALL;
    desc.sequence.max_tokens = 5;
    desc.prompt_logprobs = true;
    desc.n_choices = 2;
    ask(&read, desc);
    assert_int_equal(p->n_ids, N_ALL);
    assert_memory_equal(p->ids, ids, sizeof ids);
    assert_true(isnan(p->logprobs[0]) && p->n_top[0] == 0);
    for (int32_t i = 0; i < N_ALL - N_PROMPT; i++) {
        assert_memory_equal(&p->logprobs[N_PROMPT + i], &w->logprobs[i], sizeof(float));
        assert_int_equal(w->n_top[i], 3);
        assert_int_equal(p->n_top[N_PROMPT + i], 3);
        assert_memory_equal(p->top[N_PROMPT + i], w->top[i], 3 * sizeof w->top[i][0]);
        assert_true(w->logprobs[i] < 0 && w->logprobs[i] <= w->top[i][0].logprob);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(read.choices[i].n_ids, 5);
        assert_int_equal(read.choices[i].last.n_cached, 0);
        assert_int_equal(read.choices[i].n_top[0], 3);
    }
    reader_deinit(&written);
    reader_deinit(&read);
    desc.n_logprobs = 0;
    desc.sequence.max_tokens = 0;
    desc.n_choices = 1;
    ask(&read, desc); /* as evaluation tools ask: log-probabilities of the prompt, and no tokens */
    assert_int_equal(p->n_ids, N_ALL);
    assert_int_equal(p->n_top[5], 0);
    assert_memory_equal(&p->logprobs[N_PROMPT], &w->logprobs[0], sizeof(float));
    assert_int_equal(read.choices[0].finish, MR_FINISH_LENGTH);
    reader_deinit(&read);
}

static void test_lengths(void **state) {
    (void)state;
    int32_t ids[64];
    reader r;
    ask(&r, service_request(1, 60, ids, -1)); /* up to the end of the context */
    assert_int_equal(r.choices[0].n_ids, 4);
    assert_int_equal(r.choices[0].finish, MR_FINISH_LENGTH);
    reader_deinit(&r);
    ask(&r, service_request(1, 64, ids, 0));
    assert_int_equal(r.choices[0].n_ids, 0);
    assert_int_equal(r.choices[0].finish, MR_FINISH_LENGTH);
    reader_deinit(&r);
}

static void expect_refusal(mr_generate_desc desc, mr_status want, const char *text) {
    mr_err err;
    mr_request *r = NULL;
    assert_int_equal(mr_service_submit(rig.service, &desc, &r, &err), want);
    assert_null(r);
    expect_says(err.text, text);
}

static void test_refusals(void **state) {
    (void)state;
    int32_t ids[65], bad = N_VOCAB;
    char long_stop[MR_SERVICE_MAX_STOP_BYTES + 2] = {0};
    memset(long_stop, 'x', sizeof long_stop - 1);
    const char *stops[] = {long_stop}, *empty[] = {""};
    mr_generate_desc good = service_request(1, 64, ids, 5), desc = good;
    expect_refusal(good, MR_E_TOO_LONG, "64 tokens and needs room for one more, the context 64");
    desc = service_request(1, 65, ids, 0);
    expect_refusal(desc, MR_E_TOO_LONG, "65 tokens, the context 64");
    good = desc = service_request(1, 5, ids, 5);
    desc.sequence.n_prompt = 0;
    expect_refusal(desc, MR_E_INVALID, "empty");
    desc = good;
    desc.sequence.prompt_ids = &bad;
    desc.sequence.n_prompt = 1;
    expect_refusal(desc, MR_E_INVALID, "token id 90 at position 0");
    desc = good;
    desc.n_choices = MR_SERVICE_MAX_CHOICES + 1;
    expect_refusal(desc, MR_E_INVALID, "129 choices");
    desc = good;
    desc.sequence.max_tokens = -2;
    expect_refusal(desc, MR_E_INVALID, "-2 tokens");
    desc = good;
    desc.n_logprobs = 21;
    expect_refusal(desc, MR_E_INVALID, "21 log-probabilities");
    desc = good;
    desc.sequence.sampling.temperature = -1;
    expect_refusal(desc, MR_E_INVALID, "temperature");
    desc = good;
    desc.stops = stops;
    desc.n_stops = 1;
    expect_refusal(desc, MR_E_INVALID, "stop text 0 has 257 bytes");
    desc.stops = empty;
    expect_refusal(desc, MR_E_INVALID, "stop text 0 has 0 bytes");
    desc.n_stops = 100000;
    expect_refusal(desc, MR_E_INVALID, "100000 stop texts");
}

/* --- Another plan ------------------------------------------------------------------------------------------------ */

static atomic_int wanted_blocks; /* 0: the job keeps its KV blocks */
static reader during;            /* its request comes while the job changes its plan */

static bool wants_blocks(void *ctx) {
    (void)ctx;
    return atomic_load(&wanted_blocks) != 0;
}

static mr_status change_blocks(void *ctx, mr_job *job, mr_status status, mr_err *err) {
    int32_t ids[5], n = atomic_exchange(&wanted_blocks, 0);
    (void)ctx;
    if (n == 0)
        return status;
    if (n < job->epoch.config.n_kv_blocks)
        expect_ok(reader_submit(&during, rig.service, service_request(1, 5, ids, -1), err), err);
    job->epoch.config.n_kv_blocks = n;
    return MR_OK;
}

static void run_once(void) {
    reader r;
    int32_t ids[5];
    mr_err err;
    reader_init(&r);
    expect_ok(reader_submit(&r, rig.service, service_request(2, 5, ids, 1), &err), &err);
    reader_finish(&r);
    reader_deinit(&r);
}

/* A plan with a smaller KV cache: a request that comes meanwhile gets as many tokens as there is room for. */
static void test_a_smaller_cache(void **state) {
    (void)state;
    int32_t n_blocks = rig.job.job->epoch.config.n_kv_blocks;
    reader_init(&during);
    atomic_store(&wanted_blocks, 2);
    run_once();
    reader_finish(&during);
    assert_int_equal(during.choices[0].finish, MR_FINISH_LENGTH);
    assert_int_equal(during.choices[0].n_ids, 2 * MR_WIRE_BLOCK_TOKENS - 5);
    atomic_store(&wanted_blocks, n_blocks);
    run_once();
    assert_int_equal(atomic_load(&wanted_blocks), 0);
    reader_deinit(&during);
}

static int set_up(void **state) {
    (void)state;
    tiny_desc desc = job_model_desc();
    job_model_init(&model, tiny_model_write(&desc));
    tok = service_tokenizer(N_VOCAB);
    service_rig_start(
        &rig,
        &(job_rig_config){.model = &model, .n_stages = 2, .wants_restart = wants_blocks, .recover = change_blocks}, tok,
        0);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    mr_service_stats stats;
    mr_service_get_stats(rig.service, &stats);
    assert_int_equal(stats.state, MR_SERVICE_READY);
    assert_int_equal(stats.n_open, 0);
    assert_int_equal(stats.job.n_submitted, stats.job.n_ended);
    service_rig_stop(&rig);
    mr_tokenizer_destroy(tok);
    job_model_deinit(&model);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),    cmocka_unit_test(test_end_token),       cmocka_unit_test(test_stop_texts),
        cmocka_unit_test(test_choices),  cmocka_unit_test(test_lengths),         cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_a_smaller_cache), cmocka_unit_test(test_stop_id),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
