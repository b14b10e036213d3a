/* Sampling from the first tokens of a row gives the id, the log-probabilities and the error that all logits give, for
 * random logits and parameters. Each condition of mr_sampler_can_use_top is needed: without it the results differ. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/sample/processors.h"
#include "tests/support/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

enum { N_VOCAB = 5000, MAX_HISTORY = 2300, MAX_LIST = 1100, MAX_DRAWS = 8000 };

static float logits[N_VOCAB];
static mr_top first;
static int32_t order[N_VOCAB], history[MAX_HISTORY], list[MAX_LIST], words[2 * MAX_LIST];
static float biases[MAX_LIST];
static mr_sampler_scratch *scratch;
static rng numbers = {.state = 17};

static int setup(void **state) {
    (void)state;
    return mr_sampler_scratch_create(N_VOCAB, &scratch, NULL) != MR_OK;
}

static int teardown(void **state) {
    (void)state;
    mr_sampler_scratch_destroy(scratch);
    return 0;
}

/* --- The first tokens of a row, by sorting ------------------------------------------------------------------------ */

static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void find_first(int32_t n_vocab) {
    static uint64_t weights[N_VOCAB];
    memset(&first, 0, sizeof first);
    for (int32_t i = 0; i < n_vocab; i++) {
        order[i] = i;
        if (logits[i] != logits[i])
            return;
    }
    qsort(order, (size_t)n_vocab, sizeof *order, by_logit);
    first.sum = weights_baseline(logits, n_vocab, logits[order[0]], 1.0f, weights);
    first.n = n_vocab < MR_TOP_TOKENS ? n_vocab : MR_TOP_TOKENS;
    memcpy(first.ids, order, (size_t)first.n * sizeof *order);
    qsort(first.ids, (size_t)first.n, sizeof *order, compare_ids);
    for (int32_t i = 0; i < first.n; i++)
        first.logits[i] = logits[first.ids[i]];
}

/* Kinds of rows: plain, with many ties, few possible tokens, two infinities, denormals and zeros, all alike, none
 * possible, a NaN. */
enum { PLAIN, TIES, FEW, INFINITE, TINY, ALIKE, NONE, NOT_A_NUMBER, KINDS };

static float uniform(void) {
    return (float)rng_below(&numbers, 1 << 20) / (float)(1 << 20);
}

static void make_logits(int kind, int32_t n_vocab) {
    for (int32_t i = 0; i < n_vocab; i++) {
        float x = (uniform() + uniform() + uniform() - 1.5f) * 14;
        logits[i] = kind == TIES    ? floorf(x)
                    : kind == FEW   ? (i % 900 == 7 ? x : -INFINITY)
                    : kind == TINY  ? x * 0x1p-127f
                    : kind == NONE  ? -INFINITY
                    : kind == ALIKE ? 2.5f
                                    : x;
    }
    if (kind == INFINITE)
        logits[n_vocab / 3] = logits[n_vocab / 2] = INFINITY;
    if (kind == NOT_A_NUMBER)
        logits[rng_below(&numbers, n_vocab)] = NAN;
    find_first(n_vocab);
}

/* --- Parameters --------------------------------------------------------------------------------------------------- */

/* One of the n first tokens half of the time, so that what is changed matters. */
static int32_t some_token(int32_t n_vocab, int32_t n) {
    return rng_below(&numbers, 2) && n < n_vocab ? order[rng_below(&numbers, n)] : rng_below(&numbers, n_vocab);
}

static float one_of(const float *values, int32_t n) {
    return values[rng_below(&numbers, n)];
}
#define ONE_OF(...) one_of((const float[]){__VA_ARGS__}, sizeof((const float[]){__VA_ARGS__}) / sizeof(float))

static mr_sampling_params make_params(int32_t n_vocab) {
    mr_sampling_params p = {.temperature = ONE_OF(0, 0.7f, 1, 3),
                            .top_k = rng_below(&numbers, 4) ? 1 + rng_below(&numbers, 60) : rng_below(&numbers, 1100),
                            .top_p = ONE_OF(1, 1, 0.9f, 0.3f),
                            .min_p = ONE_OF(0, 0, 0.05f, 1),
                            .typical_p = ONE_OF(1, 1, 0.6f),
                            .xtc_probability = ONE_OF(0, 0, 1),
                            .xtc_threshold = 0.02f,
                            .repeat_penalty = ONE_OF(1, 1, 1.3f, 0.8f),
                            .repeat_last_n = rng_below(&numbers, 3) ? 64 : -1,
                            .presence_penalty = ONE_OF(0, 0, 0.6f, -0.5f),
                            .frequency_penalty = ONE_OF(0, 0, 0.2f, -0.1f),
                            .dry_multiplier = ONE_OF(0, 0, 1.5f),
                            .dry_base = 1.75f,
                            .dry_allowed_length = rng_below(&numbers, 3),
                            .dry_last_n = rng_below(&numbers, 2) ? -1 : 100,
                            .top_n_sigma = ONE_OF(0, 0, 0, 0, 1),
                            .mirostat = rng_below(&numbers, 8) ? 0 : rng_below(&numbers, 3),
                            .mirostat_tau = 5,
                            .mirostat_eta = 0.1f,
                            .seed = rng_next(&numbers)};
    p.n_biases = rng_below(&numbers, 3) ? 0 : rng_below(&numbers, rng_below(&numbers, 2) ? 20 : MAX_LIST);
    p.n_late_ids = rng_below(&numbers, 3) ? 0 : rng_below(&numbers, 40);
    p.min_tokens = rng_below(&numbers, 40);
    p.n_bad_words = rng_below(&numbers, 3) ? 0 : 2 * rng_below(&numbers, 30);
    p.bias_ids = p.late_ids = list;
    p.biases = biases;
    p.bad_words = words;
    for (int32_t i = 0; i < MAX_LIST; i++) {
        list[i] = some_token(n_vocab, 60);
        biases[i] = p.n_biases % 5 == 4 ? uniform() * 4 : rng_below(&numbers, 2) ? -INFINITY : -uniform() * 9;
        words[2 * i] = 1; /* a word of one token, which never comes */
        words[2 * i + 1] = some_token(n_vocab, 60);
    }
    return p;
}

static mr_sampler *make_sampler(const mr_sampling_params *p, int32_t n_vocab, int32_t n_history, int32_t n_generated) {
    mr_sampler *s = NULL;
    mr_err err = {0};
    const mr_sampler_config config = {.n_vocab = n_vocab,
                                      .params = *p,
                                      .choice = 1,
                                      .prompt_ids = history,
                                      .n_prompt = n_history,
                                      .n_generated = n_generated,
                                      .max_context = MAX_HISTORY + 10,
                                      .mirostat_mu = 3};
    expect_ok(mr_sampler_create(&config, &s, &err), &err);
    return s;
}

static mr_sampler *random_sampler(int32_t n_vocab) {
    int32_t n = rng_below(&numbers, 3) ? rng_below(&numbers, 200) : rng_below(&numbers, MAX_HISTORY);
    for (int32_t i = 0; i < n; i++) /* with repetitions */
        history[i] = i >= 9 && rng_below(&numbers, 3) ? history[i - 9] : some_token(n_vocab, 60);
    mr_sampling_params p = make_params(n_vocab);
    return make_sampler(&p, n_vocab, n, rng_below(&numbers, n + 1));
}

/* --- Both ways give the same -------------------------------------------------------------------------------------- */

typedef struct outcome {
    mr_status status;
    int32_t id;
    double mu;
    mr_status logprobs_status;
    mr_logprobs logprobs;
    mr_err err;
} outcome;

/* Samples, with seven log-probabilities. */
static outcome run(const mr_sampler *original, int32_t n_vocab, int64_t position, bool from_top) {
    mr_sampler s = *original; /* no id is accepted, so both can have the same window */
    outcome o;
    memset(&o, 0, sizeof o);
    mr_sampler_row row = {.position = position};
    if (from_top)
        row.top = &first;
    else
        row.logits = logits;
    o.status = mr_sampler_sample(&s, scratch, &row, &o.id, &o.err);
    o.mu = s.next_mu;
    int32_t id = o.status == MR_OK ? o.id : first.ids[0];
    o.logprobs_status = from_top ? mr_logprobs_get_top(scratch, &first, id, 7, &o.logprobs)
                                 : mr_logprobs_get(scratch, logits, n_vocab, id, 7, &o.logprobs);
    return o;
}

static bool is_same(const outcome *a, const outcome *b) {
    return memcmp(a, b, offsetof(outcome, err)) == 0 && strcmp(a->err.text, b->err.text) == 0;
}

static void test_both_ways_give_the_same(void **state) {
    (void)state;
    static const int32_t SIZES[] = {1, 3, 1000, 1023, 1024, 1025, 1100, N_VOCAB};
    int n_used = 0, n_failed = 0, n_none_left = 0, n_rows = 24000 / share_get();
    for (int i = 0; i < n_rows; i++) {
        int32_t n_vocab = SIZES[i / KINDS % 8];
        make_logits(i % KINDS, n_vocab);
        mr_sampler *s = random_sampler(n_vocab);
        if (mr_sampler_can_use_top(s)) {
            outcome want = run(s, n_vocab, i, false), got = run(s, n_vocab, i, true);
            if (!is_same(&want, &got))
                fail_msg("round %d of %d tokens: id %d and %d, %s and %s ('%s' and '%s')", i, n_vocab, want.id, got.id,
                         mr_status_name(want.status), mr_status_name(got.status), want.err.text, got.err.text);
            n_used++;
            n_failed += want.status != MR_OK;
            n_none_left += want.status == MR_E_INVALID;
        }
        mr_sampler_destroy(s);
    }
    print_message("%d of %d rows sampled from their first tokens, %d errors, %d of them by the parameters\n", n_used,
                  n_rows, n_failed, n_none_left);
    assert_true(n_used > n_rows / 8 && n_failed > n_rows / 100 && n_failed < n_used / 2);
    assert_true(n_none_left > 0);
}

/* --- Each condition is needed ------------------------------------------------------------------------------------- */

/* Whether all logits can give an id that is not in the list. Asserts that the list is refused. */
static bool leaves_the_list(mr_sampling_params params, int32_t n_history) {
    mr_sampler *s = make_sampler(&params, N_VOCAB, n_history, n_history);
    bool leaves = false;
    assert_false(mr_sampler_can_use_top(s));
    outcome refused = run(s, N_VOCAB, 0, true);
    assert_int_equal(refused.status, MR_E_INVALID);
    assert_non_null(strstr(refused.err.text, "needs the logits of all tokens"));
    for (int64_t position = 0; position < MAX_DRAWS && !leaves; position++) {
        outcome want = run(s, N_VOCAB, position, false);
        expect_ok(want.status, &want.err);
        leaves = !bsearch(&want.id, first.ids, (size_t)first.n, sizeof want.id, compare_ids);
    }
    mr_sampler_destroy(s);
    return leaves;
}

static const mr_sampling_params greedy = {.top_p = 1, .repeat_penalty = 1};
static const mr_sampling_params hot = {.temperature = 100, .top_p = 1, .repeat_penalty = 1};

/* The first tokens are 0 to 1023, and these and some more are in the history and in the lists. */
static void make_falling_logits(void) {
    for (int32_t i = 0; i < N_VOCAB; i++)
        logits[i] = (float)(N_VOCAB - i) * 0.001f;
    find_first(N_VOCAB);
    for (int32_t i = 0; i < MAX_LIST; i++) {
        list[i] = history[i] = i;
        biases[i] = -INFINITY;
        words[2 * i] = 1;
        words[2 * i + 1] = i;
    }
}

/* Without a small top-k, any token may come. */
static void test_other_narrowing_leaves_the_list(void **state) {
    (void)state;
    make_falling_logits();
    mr_sampling_params p = hot;
    assert_true(leaves_the_list(p, 0));
    p.min_p = 0.2f;
    assert_true(leaves_the_list(p, 0));
    p = hot;
    p.top_k = MR_TOP_TOKENS + 1;
    assert_true(leaves_the_list(p, 0));
    p = hot;
    p.mirostat = 2;
    p.mirostat_tau = 100;
    p.top_k = 40;
    assert_true(leaves_the_list(p, 0));
}

/* So many tokens are lowered that none of the list is left. */
static void test_many_lowered_tokens_leave_the_list(void **state) {
    (void)state;
    make_falling_logits();
    mr_sampling_params p = greedy;
    p.bias_ids = list;
    p.biases = biases;
    p.n_biases = MR_TOP_TOKENS;
    assert_true(leaves_the_list(p, 0));
    p = greedy;
    p.late_ids = list;
    p.n_late_ids = MR_TOP_TOKENS;
    p.min_tokens = 1;
    assert_true(leaves_the_list(p, 0));
    p = greedy;
    p.bad_words = words;
    p.n_bad_words = 2 * MR_TOP_TOKENS;
    assert_true(leaves_the_list(p, 0));
    p = greedy;
    p.repeat_penalty = 100;
    p.repeat_last_n = -1;
    assert_true(leaves_the_list(p, MR_TOP_TOKENS));
    p = greedy;
    p.presence_penalty = 100;
    assert_true(leaves_the_list(p, MR_TOP_TOKENS));
    p = greedy; /* each token of the list has come behind token 4000, which is the last one */
    p.dry_multiplier = 100;
    p.dry_base = 1;
    p.dry_allowed_length = 1;
    p.dry_last_n = -1;
    for (int32_t i = 0; i < 2 * MAX_LIST; i++)
        history[i] = i % 2 ? i / 2 : 4000;
    history[2 * MR_TOP_TOKENS] = 4000;
    assert_true(leaves_the_list(p, 2 * MR_TOP_TOKENS + 1));
}

/* A token outside of the list rises. */
static void test_raised_tokens_leave_the_list(void **state) {
    (void)state;
    make_falling_logits();
    list[0] = history[0] = 2000;
    biases[0] = 50;
    mr_sampling_params p = greedy;
    p.bias_ids = list;
    p.biases = biases;
    p.n_biases = 1;
    assert_true(leaves_the_list(p, 0));
    p = greedy;
    p.repeat_penalty = 0.01f;
    p.repeat_last_n = -1;
    assert_true(leaves_the_list(p, 1));
    p = greedy;
    p.presence_penalty = -100;
    assert_true(leaves_the_list(p, 1));
    p = greedy;
    p.frequency_penalty = -100;
    assert_true(leaves_the_list(p, 1));
}

/* Top-n-sigma keeps what lies near the highest logit, by the deviation of all logits: that of the list is smaller. */
static void test_top_n_sigma_needs_all_logits(void **state) {
    (void)state;
    mr_sampling_params p = {.temperature = 100, .top_p = 1, .repeat_penalty = 1, .top_k = 40, .top_n_sigma = 0.5f};
    mr_sampler *s = make_sampler(&p, N_VOCAB, 0, 0);
    make_logits(PLAIN, N_VOCAB);
    candidates all = {.scratch = scratch, .n = N_VOCAB, .logits = logits, .max_logit = logits[order[0]]}, few = all;
    few.n = first.n;
    few.logits = first.logits;
    few.ids = first.ids;
    assert_false(mr_sampler_can_use_top(s));
    process_top_n_sigma(s, &all);
    int32_t n_all = all.n;
    process_top_n_sigma(s, &few);
    assert_true(few.n < n_all);
    mr_sampler_destroy(s);
}

/* Exactly as many tokens as may be lowered. */
static void test_the_bound_is_tight(void **state) {
    (void)state;
    mr_sampling_params p = {.top_p = 1, .repeat_penalty = 1, .bias_ids = list, .biases = biases};
    for (int32_t k = 0; k <= MR_TOP_TOKENS; k += MR_TOP_TOKENS / 8) {
        p.temperature = k > 0 ? 1 : 0;
        p.top_k = k;
        p.n_biases = MR_TOP_TOKENS - (k > 0 ? k : 1);
        for (int32_t i = 0; i < MAX_LIST; i++) {
            list[i] = i;
            biases[i] = -1;
        }
        mr_sampler *s = make_sampler(&p, N_VOCAB, 0, 0);
        assert_true(mr_sampler_can_use_top(s));
        mr_sampler_destroy(s);
        p.n_biases++;
        s = make_sampler(&p, N_VOCAB, 0, 0);
        assert_false(mr_sampler_can_use_top(s));
        mr_sampler_destroy(s);
    }
}

/* A mask, a list of a broken device, and log-probabilities of a token that is not in the list. */
static void test_what_cannot_be_done(void **state) {
    (void)state;
    static const uint64_t mask[(N_VOCAB + 63) / 64] = {1};
    static const int32_t LENGTHS[] = {-1, MR_TOP_TOKENS + 1};
    mr_sampling_params p = {.top_p = 1, .repeat_penalty = 1};
    mr_sampler *s = make_sampler(&p, N_VOCAB, 0, 0);
    mr_sampler_row row = {.top = &first, .mask = mask};
    mr_logprobs l;
    int32_t id = -7;
    mr_err err = {0};
    make_logits(PLAIN, N_VOCAB);
    assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, &err), MR_E_INVALID);
    row.mask = NULL;
    assert_int_equal(mr_logprobs_get_top(scratch, &first, order[MR_TOP_TOKENS], 3, &l), MR_E_INVALID);
    assert_int_equal(mr_logprobs_get_top(scratch, &first, order[MR_TOP_TOKENS - 1], 3, &l), MR_OK);
    for (int i = 0; i < 2; i++) {
        first.n = LENGTHS[i];
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, &err), MR_E_NUMERICS);
        assert_non_null(strstr(err.text, "a device has found"));
    }
    assert_int_equal(id, -7);
    mr_sampler_destroy(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways_give_the_same),
        cmocka_unit_test(test_other_narrowing_leaves_the_list),
        cmocka_unit_test(test_many_lowered_tokens_leave_the_list),
        cmocka_unit_test(test_raised_tokens_leave_the_list),
        cmocka_unit_test(test_top_n_sigma_needs_all_logits),
        cmocka_unit_test(test_the_bound_is_tight),
        cmocka_unit_test(test_what_cannot_be_done),
    };
    return cmocka_run_group_tests_name("sample_top", tests, setup, teardown);
}
