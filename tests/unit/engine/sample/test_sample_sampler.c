/* The sampler as a whole: distributions, random streams, known answers, and restored state. */
// SPDX-License-Identifier: Apache-2.0
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/sample/sampler.h"
#include "tests/support/test.h"

enum { MAX_VOCAB = 4000 };

static mr_sampler_scratch *scratch;

static int setup(void **state) {
    (void)state;
    return mr_sampler_scratch_create(MAX_VOCAB, &scratch, NULL) != MR_OK;
}

static int teardown(void **state) {
    (void)state;
    mr_sampler_scratch_destroy(scratch);
    return 0;
}

static const mr_sampling_params plain = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};

static mr_sampler *make(int32_t n_vocab, mr_sampling_params params, uint32_t choice) {
    mr_sampler *s = NULL;
    mr_sampler_config config = {.n_vocab = n_vocab, .params = params, .choice = choice, .max_context = 1000};
    assert_int_equal(mr_sampler_create(&config, &s, NULL), MR_OK);
    return s;
}

static mr_status try_sample(mr_sampler *s, const float *logits, int64_t position, int32_t *out_id, mr_err *err) {
    const mr_sampler_row row = {.logits = logits, .position = position};
    return mr_sampler_sample(s, scratch, &row, out_id, err);
}

static int32_t sample(mr_sampler *s, const float *logits, int64_t position) {
    int32_t id = -1;
    assert_int_equal(try_sample(s, logits, position, &id, NULL), MR_OK);
    return id;
}

static void make_logits(float *logits, int32_t n, uint64_t seed, float scale) {
    for (int32_t i = 0; i < n; i++)
        logits[i] = (mr_rng_f32(seed, 1, (uint64_t)i) + mr_rng_f32(seed, 2, (uint64_t)i) - 1.0f) * scale;
}

/* Chi-square of the tokens drawn at positions 0, 1, … against weights (any scale; 0: must not come). The bound is some
 * five standard deviations above the mean; seeds are fixed, so it holds always or never. */
static void expect_distribution(const float *logits, int32_t n, mr_sampling_params params, const double *weights) {
    enum { N_DRAWS = 40000 };
    static int count[MAX_VOCAB];
    memset(count, 0, sizeof count);
    mr_sampler *s = make(n, params, 0);
    for (int64_t position = 0; position < N_DRAWS; position++)
        count[sample(s, logits, position)]++;
    mr_sampler_destroy(s);
    double total = 0, chi2 = 0, rare = 0, n_rare = 0;
    int freedom = -1;
    for (int32_t i = 0; i < n; i++)
        total += weights[i];
    for (int32_t i = 0; i < n; i++) {
        double want = weights[i] / total * N_DRAWS;
        if (weights[i] == 0)
            assert_int_equal(count[i], 0);
        if (want < 8) { /* rare ids are counted together */
            rare += want;
            n_rare += count[i];
        } else {
            chi2 += (count[i] - want) * (count[i] - want) / want;
            freedom++;
        }
    }
    if (rare > 8) {
        chi2 += (n_rare - rare) * (n_rare - rare) / rare;
        freedom++;
    }
    assert_true(chi2 <= freedom + 5 * sqrt(2.0 * freedom + 1));
}

static void test_distribution_of_the_temperature(void **state) {
    (void)state;
    float logits[200];
    double weights[200];
    static const float temperatures[] = {0.3f, 0.8f, 1, 2, 100};
    for (size_t t = 0; t < 5; t++) {
        make_logits(logits, 200, t, 6);
        mr_sampling_params p = plain;
        p.temperature = temperatures[t];
        p.seed = 1000 + t;
        for (int i = 0; i < 200; i++)
            weights[i] = exp((double)logits[i] / (double)p.temperature);
        expect_distribution(logits, 200, p, weights);
    }
}

/* The whole chain on six tokens, counted out by hand. */
static void test_distribution_of_the_chain(void **state) {
    (void)state;
    const double share[] = {0.05, 0.4, 0.02, 0.3, 0.2, 0.03};
    float logits[6];
    for (int i = 0; i < 6; i++)
        logits[i] = (float)log(share[i]) + 3;
    mr_sampling_params p = plain;
    p.seed = 7;
    expect_distribution(logits, 6, p, share);
    p.top_k = 3;
    expect_distribution(logits, 6, p, (const double[]){0, 0.4, 0, 0.3, 0.2, 0});
    /* After top-k, two of the three ids have 0.4 / 0.9 + 0.3 / 0.9 = 0.78. Top-p uses these new probabilities. */
    p.top_p = 0.75f;
    expect_distribution(logits, 6, p, (const double[]){0, 0.4, 0, 0.3, 0, 0});
    p.top_p = 0.79f;
    expect_distribution(logits, 6, p, (const double[]){0, 0.4, 0, 0.3, 0.2, 0});
    p.top_k = 0;
    expect_distribution(logits, 6, p, (const double[]){0, 0.4, 0, 0.3, 0.2, 0});
    p.top_p = 1;
    p.min_p = 0.6f;
    expect_distribution(logits, 6, p, (const double[]){0, 0.4, 0, 0.3, 0, 0});
    /* The temperature is applied last, so it does not change the set. */
    p.temperature = 2;
    expect_distribution(logits, 6, p, (const double[]){0, sqrt(0.4), 0, sqrt(0.3), 0, 0});
}

static void test_streams_differ_and_repeat(void **state) {
    (void)state;
    static float logits[MAX_VOCAB];
    make_logits(logits, MAX_VOCAB, 5, 2);
    mr_sampling_params p = plain;
    mr_sampler *a = make(MAX_VOCAB, p, 0), *again = make(MAX_VOCAB, p, 0), *choice = make(MAX_VOCAB, p, 1);
    p.seed = (uint64_t)1 << 32;
    mr_sampler *seed = make(MAX_VOCAB, p, 0);
    int n_same_choice = 0, n_same_seed = 0, n_same_position = 0;
    for (int64_t i = 0; i < 200; i++) {
        int32_t id = sample(a, logits, i);
        n_same_choice += id == sample(choice, logits, i);
        n_same_seed += id == sample(seed, logits, i);
        n_same_position += id == sample(a, logits, i + 1);
        /* A sample does not depend on earlier samples, accepted ids or the contents of the scratch memory. */
        assert_int_equal(mr_sampler_accept(again, id, NULL), MR_OK);
        assert_int_equal(sample(again, logits, i), id);
    }
    assert_true(n_same_choice < 10 && n_same_seed < 10 && n_same_position < 10);
    mr_sampler_destroy(a);
    mr_sampler_destroy(again);
    mr_sampler_destroy(choice);
    mr_sampler_destroy(seed);
}

/* Every machine and compiler must come to these ids. */
static void test_known_answers(void **state) {
    (void)state;
    static float logits[MAX_VOCAB];
    static const mr_sampling_params params[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 2},
        {.temperature = 1.3f, .top_p = 0.9f, .repeat_penalty = 1.1f, .repeat_last_n = 64, .seed = 3},
        {.temperature = 0.5f, .top_p = 1, .min_p = 0.02f, .repeat_penalty = 1.5f, .repeat_last_n = -1, .seed = 4},
    };
    static const uint64_t want[] = {0x4f179936a62d564c, 0x785cf0307dd89148, 0x3b91b24284b994bc, 0x8c0349000e182c00};
    for (size_t k = 0; k < sizeof params / sizeof *params; k++) {
        mr_sampler *s = make(MAX_VOCAB, params[k], (uint32_t)k);
        uint64_t digest = 0;
        for (int64_t position = 0; position < 500; position++) {
            make_logits(logits, MAX_VOCAB, (uint64_t)position, 9);
            int32_t id = sample(s, logits, position);
            assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
            digest = (digest ^ (uint64_t)id) * UINT64_C(0x100000001b3);
        }
        mr_sampler_destroy(s);
        if (digest != want[k])
            fail_msg("parameters %zu: digest 0x%016llx", k, (unsigned long long)digest);
    }
}

static void test_greedy_and_limits(void **state) {
    (void)state;
    static float logits[MAX_VOCAB];
    mr_sampling_params p = plain, greedy = plain, coldest = plain, no_mass = plain;
    greedy.temperature = 0;
    p.top_k = 1;
    p.temperature = 50;
    coldest.temperature = 1e-6f;
    no_mass.top_p = 0;
    for (int32_t n = 1; n <= MAX_VOCAB; n = n * 3 + 1) {
        mr_sampler *a = make(n, greedy, 0), *b = make(n, p, 0), *c = make(n, coldest, 0), *d = make(n, no_mass, 0);
        for (int64_t position = 0; position < 20; position++) {
            make_logits(logits, n, (uint64_t)position, 5);
            /* Ties, and not always at the maximum. */
            logits[n / 2] = logits[n / 3] = logits[n - 1] = 4.5f + (float)(position % 2);
            int32_t best = 0;
            for (int32_t i = 1; i < n; i++)
                best = logits[i] > logits[best] ? i : best;
            assert_int_equal(sample(a, logits, position), best);
            assert_int_equal(sample(b, logits, position), best);
            assert_int_equal(sample(d, logits, position), best);
            /* A low temperature does not decide between ties. */
            assert_true(logits[sample(c, logits, position)] == logits[best]);
        }
        mr_sampler_destroy(a);
        mr_sampler_destroy(b);
        mr_sampler_destroy(c);
        mr_sampler_destroy(d);
    }
}

static void test_values_that_are_not_numbers(void **state) {
    (void)state;
    static const float temperatures[] = {0, 1};
    for (int t = 0; t < 2; t++) {
        mr_sampling_params p = mr_sampling_params_default();
        p.temperature = temperatures[t];
        p.repeat_penalty = 1.2f;
        mr_sampler *s = make(100, p, 0);
        assert_int_equal(mr_sampler_accept(s, 99, NULL), MR_OK);
        for (int32_t at = 0; at < 100; at++) {
            float logits[100] = {0};
            mr_err err;
            int32_t id = -7;
            logits[at] = NAN;
            logits[50] = logits[50] == 0 ? INFINITY : logits[50];
            expect_fails(try_sample(s, logits, 12, &id, &err), MR_E_NUMERICS, &err, "position 12");
            assert_int_equal(id, -7);
        }
        float logits[100];
        for (int i = 0; i < 100; i++)
            logits[i] = -INFINITY;
        int32_t id = -7;
        assert_int_equal(try_sample(s, logits, 0, &id, NULL), MR_E_NUMERICS);
        assert_int_equal(id, -7);
        logits[99] = -FLT_MAX; /* the only allowed id, whose logit a penalty turns into -inf */
        assert_int_equal(try_sample(s, logits, 0, &id, NULL), MR_E_INVALID);
        logits[99] = -1e30f;
        assert_int_equal(sample(s, logits, 0), 99);
        logits[3] = logits[5] = INFINITY;
        for (int64_t position = 0; position < 20; position++) {
            id = sample(s, logits, position);
            assert_true(id == 3 || (t == 1 && id == 5));
        }
        mr_sampler_destroy(s);
    }
}

/* Greedy with a penalty walks over equal logits: each token comes again once it has left the window. */
static void test_window_of_the_penalty(void **state) {
    (void)state;
    float logits[12];
    for (int i = 0; i < 12; i++)
        logits[i] = 1;
    static const struct {
        int32_t last_n, max_context, n_prompt, period;
    } cases[] = {{0, 100, 0, 1}, {1, 100, 0, 2}, {4, 100, 0, 5}, {4, 3, 0, 4}, {-1, 6, 0, 7}, {-1, 5, 3, 6}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        mr_sampling_params p = {.top_p = 1, .repeat_penalty = 2, .repeat_last_n = cases[k].last_n};
        static const int32_t prompt[] = {0, 1, 2};
        mr_sampler_config config = {.n_vocab = 12,
                                    .params = p,
                                    .prompt_ids = prompt,
                                    .n_prompt = cases[k].n_prompt,
                                    .max_context = cases[k].max_context};
        mr_sampler *s = NULL;
        assert_int_equal(mr_sampler_create(&config, &s, NULL), MR_OK);
        for (int32_t i = cases[k].n_prompt; i < 40; i++) {
            int32_t id = sample(s, logits, i);
            assert_int_equal(id, i % cases[k].period);
            assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
        }
        mr_sampler_destroy(s);
    }
}

static void test_state_comes_back_from_the_journal(void **state) {
    (void)state;
    static float logits[500];
    mr_sampling_params p = mr_sampling_params_default();
    p.repeat_penalty = 1.3f;
    p.repeat_last_n = 20;
    p.temperature = 1.5f;
    int32_t journal[100] = {7, 8, 9, 7};
    mr_sampler_config config = {.n_vocab = 500, .params = p, .prompt_ids = journal, .n_prompt = 4, .max_context = 90};
    mr_sampler *running = NULL;
    assert_int_equal(mr_sampler_create(&config, &running, NULL), MR_OK);
    for (int32_t n = 4; n < 100; n++) {
        make_logits(logits, 500, (uint64_t)n, 4);
        mr_sampler *rebuilt = NULL;
        config.n_prompt = n;
        assert_int_equal(mr_sampler_create(&config, &rebuilt, NULL), MR_OK);
        journal[n] = sample(running, logits, n);
        assert_int_equal(sample(rebuilt, logits, n), journal[n]);
        mr_sampler_destroy(rebuilt);
        assert_int_equal(mr_sampler_accept(running, journal[n], NULL), MR_OK);
    }
    mr_sampler_destroy(running);
}

static void test_sampling_allocates_nothing_and_leaves_the_logits(void **state) {
    (void)state;
    static float logits[MAX_VOCAB], copy[MAX_VOCAB];
    make_logits(logits, MAX_VOCAB, 1, 8);
    memcpy(copy, logits, sizeof copy);
    mr_sampling_params p = mr_sampling_params_default();
    p.repeat_penalty = 1.1f;
    for (int k = 0; k < 2; k++) {
        p.top_k = k ? 40 : 0;
        mr_sampler *s = make(MAX_VOCAB, p, 0);
        uint64_t n_allocs = mr_mem_thread_allocs();
        for (int64_t i = 0; i < 50; i++)
            assert_int_equal(mr_sampler_accept(s, sample(s, logits, i), NULL), MR_OK);
        assert_int_equal(mr_mem_thread_allocs(), n_allocs);
        assert_memory_equal(logits, copy, sizeof copy);
        mr_sampler_destroy(s);
    }
}

static void test_failed_allocations(void **state) {
    (void)state;
    mr_sampling_params p = mr_sampling_params_default();
    p.repeat_penalty = 1.1f;
    static const int32_t prompt[] = {1, 2};
    mr_sampler_config config = {.n_vocab = 10, .params = p, .prompt_ids = prompt, .n_prompt = 2, .max_context = 9};
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_sampler *s = NULL;
        mr_err err = {0};
        assert_true(n < 10);
        mr_mem_fail_at(n);
        status = mr_sampler_create(&config, &s, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? s != NULL : s == NULL && err.status == MR_E_NO_MEMORY);
        mr_sampler_destroy(s);
    }
    status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_sampler_scratch *x = NULL;
        assert_true(n < 10);
        mr_mem_fail_at(n);
        status = mr_sampler_scratch_create(10, &x, NULL);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? x != NULL : x == NULL && status == MR_E_NO_MEMORY);
        mr_sampler_scratch_destroy(x);
    }
}

/* A sampler that knows only the end of a long history chooses like a sampler that knows all of it. */
static void test_end_of_the_history_is_enough(void **state) {
    (void)state;
    enum { N_VOCAB = 50, N_IDS = 300, N_CASES = 400, MAX_CONTEXT = 1000 };
    int32_t ids[N_IDS], n_short = 0;
    float logits[N_VOCAB];
    for (uint64_t k = 0; k < N_CASES; k++) {
        for (int i = 0; i < N_IDS; i++)
            ids[i] = (int32_t)(mr_rng_u64(k, 0, (uint64_t)i) % 8);
        uint64_t r = mr_rng_u64(k, 1, 0);
        mr_sampling_params p = plain;
        p.repeat_penalty = r & 1 ? 1.3f : 1.0f;
        p.repeat_last_n = (r >> 1 & 3) == 0 ? -1 : (int32_t)(r >> 3 & 63);
        p.presence_penalty = (r >> 10 & 3) == 0 ? 0.8f : 0.0f;
        p.frequency_penalty = (r >> 12 & 3) == 0 ? 0.4f : 0.0f;
        p.dry_multiplier = (r >> 14 & 3) == 0 ? 1.0f : 0.0f;
        p.dry_base = 1.75f;
        p.dry_last_n = (r >> 16 & 3) == 0 ? -1 : (int32_t)(r >> 18 & 63);
        p.mirostat = (int32_t)(r >> 26 & 3) % 3;
        p.mirostat_tau = 3;
        p.mirostat_eta = 0.1f;
        mr_sampler_config config = {.n_vocab = N_VOCAB,
                                    .params = p,
                                    .prompt_ids = ids,
                                    .n_prompt = N_IDS,
                                    .n_generated = (int32_t)(r >> 30 & 63),
                                    .max_context = MAX_CONTEXT,
                                    .mirostat_mu = 5};
        mr_sampler *all = NULL, *end = NULL;
        assert_int_equal(mr_sampler_create(&config, &all, NULL), MR_OK);
        int32_t n = mr_sampler_n_history(&p, config.n_generated, MAX_CONTEXT);
        assert_in_range(n, config.n_generated, MAX_CONTEXT);
        config.n_prompt = n < N_IDS ? n : N_IDS;
        config.prompt_ids = ids + N_IDS - config.n_prompt;
        n_short += config.n_prompt < N_IDS;
        assert_int_equal(mr_sampler_create(&config, &end, NULL), MR_OK);
        for (int64_t i = 0; i < 20; i++) {
            make_logits(logits, N_VOCAB, k * 100 + (uint64_t)i, 3);
            int32_t id = sample(all, logits, N_IDS + i);
            assert_int_equal(sample(end, logits, N_IDS + i), id);
            assert_int_equal(mr_sampler_accept(all, id, NULL), MR_OK);
            assert_int_equal(mr_sampler_accept(end, id, NULL), MR_OK);
            assert_true(mr_sampler_mirostat_mu(all) == mr_sampler_mirostat_mu(end));
        }
        mr_sampler_destroy(all);
        mr_sampler_destroy(end);
    }
    assert_in_range(n_short, N_CASES / 4, N_CASES - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distribution_of_the_temperature),
        cmocka_unit_test(test_distribution_of_the_chain),
        cmocka_unit_test(test_streams_differ_and_repeat),
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_greedy_and_limits),
        cmocka_unit_test(test_values_that_are_not_numbers),
        cmocka_unit_test(test_window_of_the_penalty),
        cmocka_unit_test(test_state_comes_back_from_the_journal),
        cmocka_unit_test(test_end_of_the_history_is_enough),
        cmocka_unit_test(test_sampling_allocates_nothing_and_leaves_the_logits),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
