/* The logits processors other than top-k, top-p and min-p, each against a reference in plain double precision that
 * sorts. All processors together: restored from a journal, for each way to compute weights, without memory. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/sample/processors.h"
#include "tests/support/test.h"

enum { MAX_N = 3000 };

static float logits[MAX_N];
static double share[MAX_N]; /* the softmax of logits */
static mr_sampler_scratch *scratch;

static int setup(void **state) {
    (void)state;
    return mr_sampler_scratch_create(MAX_N, &scratch, NULL) != MR_OK;
}

static int teardown(void **state) {
    (void)state;
    mr_sampler_scratch_destroy(scratch);
    return 0;
}

/* Logits of some shape, many of them equal where step is large, every tenth impossible; and their softmax. */
static void make_logits(int32_t n, uint64_t seed, float scale, float step) {
    double max = -INFINITY, total = 0;
    for (int32_t i = 0; i < n; i++) {
        float x = (mr_rng_f32(seed, 1, (uint64_t)i) + mr_rng_f32(seed, 2, (uint64_t)i) - 1.0f) * scale;
        logits[i] = i % 10 == 7 ? -INFINITY : step > 0 ? floorf(x / step) * step : x;
        max = fmax(max, (double)logits[i]);
    }
    for (int32_t i = 0; i < n; i++)
        total += share[i] = exp((double)logits[i] - max);
    for (int32_t i = 0; i < n; i++)
        share[i] /= total;
}

static const int32_t SIZES[] = {1, 2, 31, 33, 64, 100, 1000, MAX_N};
static const float STEPS[] = {0, 0.5f, 4};

#define FOR_SHAPES(n, seed)                                                                                            \
    for (int shape = 0, n, seed; shape < 24 && ((n = SIZES[shape / 3]), (seed = shape), true); shape++)

static candidates all(int32_t n) {
    candidates c = {.scratch = scratch, .n = n, .logits = logits};
    int32_t id;
    c.max_logit = candidates_max(logits, n, &id);
    return c;
}

/* The candidates are those of want, in id order, with the highest logit of them. */
static void expect_set(const candidates *c, const bool *want, int32_t n_vocab) {
    int32_t n = 0;
    float max = -INFINITY;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!want[id])
            continue;
        assert_true(n < c->n);
        assert_int_equal(candidates_id(c, n), id);
        assert_true(c->logits[n++] == logits[id]);
        max = fmaxf(max, logits[id]);
    }
    assert_int_equal(c->n, n);
    assert_true(c->max_logit == max);
}

/* --- Stages that narrow ------------------------------------------------------------------------------------------ */

static void test_top_n_sigma(void **state) {
    (void)state;
    static bool want[MAX_N];
    static const float sigmas[] = {0, 0.5f, 1, 2.5f, 1000};
    int n_compared = 0;
    FOR_SHAPES(n, seed) {
        make_logits(n, (uint64_t)seed, 12, STEPS[shape % 3]);
        candidates c = all(n);
        for (int k = 0; k < 5; k++) {
            double sum = 0, squares = 0, gap = 1;
            int32_t n_possible = 0;
            for (int32_t i = 0; i < n; i++)
                if (logits[i] > -INFINITY) {
                    sum += (double)logits[i];
                    squares += (double)logits[i] * (double)logits[i];
                    n_possible++;
                }
            double mean = sum / n_possible, variance = fmax(0, squares / n_possible - mean * mean);
            double lowest = (double)c.max_logit - (double)sigmas[k] * sqrt(variance);
            for (int32_t i = 0; i < n; i++) {
                want[i] = sigmas[k] == 0 || n == 1 || (double)logits[i] >= lowest;
                gap = logits[i] < c.max_logit ? fmin(gap, fabs((double)logits[i] - lowest)) : gap;
            }
            if (gap < 1e-5)
                continue; /* too close to decide in other arithmetic */
            mr_sampler s = {.params = {.top_n_sigma = sigmas[k]}};
            candidates narrowed = c;
            process_top_n_sigma(&s, &narrowed);
            expect_set(&narrowed, want, n);
            n_compared++;
        }
    }
    assert_true(n_compared > 80);
    for (int32_t i = 0; i < 10; i++)
        logits[i] = i == 4 || i == 6 ? INFINITY : 1;
    mr_sampler s = {.params = {.top_n_sigma = 1}};
    candidates c = all(10);
    process_top_n_sigma(&s, &c);
    assert_true(c.n == 2 && candidates_id(&c, 0) == 4 && candidates_id(&c, 1) == 6);
}

static double distance[MAX_N]; /* of -log p from the entropy */

static int by_distance(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y] && distance[x] != distance[y])
        return distance[x] < distance[y] ? -1 : 1;
    return x < y ? -1 : 1;
}

static void test_typical(void **state) {
    (void)state;
    static bool want[MAX_N];
    static int32_t order[MAX_N];
    static const float ps[] = {1e-6f, 0.2f, 0.5f, 0.9f, 0.999f};
    int n_compared = 0;
    FOR_SHAPES(n, seed) {
        make_logits(n, (uint64_t)seed, 12, STEPS[shape % 3]);
        double entropy = 0;
        for (int32_t i = 0; i < n; i++)
            entropy -= share[i] > 0 ? share[i] * log(share[i]) : 0;
        for (int32_t i = 0; i < n; i++) {
            distance[i] = share[i] > 0 ? fabs(-log(share[i]) - entropy) : INFINITY;
            order[i] = i;
        }
        qsort(order, (size_t)n, sizeof *order, by_distance);
        for (int k = 0; k < 5; k++) {
            double mass = 0, gap = 1;
            int32_t n_want = 0;
            memset(want, 0, sizeof want);
            while (n_want < n && mass < (double)ps[k]) {
                want[order[n_want]] = true;
                mass += share[order[n_want++]];
                gap = fmin(gap, fabs(mass - (double)ps[k]));
            }
            int32_t last = order[n_want - 1], next = order[n_want < n ? n_want : n_want - 1];
            if (gap < 1e-6 || (logits[last] != logits[next] && fabs(distance[last] - distance[next]) < 1e-5))
                continue;
            mr_sampler s = {.params = {.typical_p = ps[k]}};
            candidates c = all(n);
            process_typical(&s, &c);
            expect_set(&c, want, n);
            n_compared++;
        }
    }
    assert_true(n_compared > 80);
    for (int off = 0; off < 2; off++) {
        mr_sampler s = {.params = {.typical_p = (float)off}};
        candidates c = all(MAX_N);
        process_typical(&s, &c);
        assert_int_equal(c.n, MAX_N);
    }
}

static void test_xtc(void **state) {
    (void)state;
    static bool want[MAX_N];
    static const float thresholds[] = {0, 1e-4f, 0.01f, 0.1f, 0.5f, 0.51f};
    const mr_sampler_row row = {.position = 5};
    int n_compared = 0, n_narrowed = 0;
    FOR_SHAPES(n, seed) {
        make_logits(n, (uint64_t)seed, 20, STEPS[shape % 3]);
        for (int k = 0; k < 6; k++) {
            int32_t last = -1, n_likely = 0;
            double gap = 1;
            for (int32_t i = 0; i < n; i++) {
                bool likely = share[i] > 1e-12 && share[i] >= (double)thresholds[k];
                want[i] = !likely || thresholds[k] > 0.5f;
                n_likely += likely;
                last = likely && (last < 0 || logits[i] <= logits[last]) ? i : last;
                gap = thresholds[k] > 0 ? fmin(gap, fabs(share[i] - (double)thresholds[k]) / share[last < 0 ? i : last])
                                        : gap;
            }
            if (gap < 1e-6 || (thresholds[k] == 0 && share[last] < 1e-11))
                continue;
            if (last >= 0)
                want[last] = true;
            mr_sampler s = {.params = {.xtc_probability = 1, .xtc_threshold = thresholds[k]}};
            candidates c = all(n);
            c.row = &row;
            process_xtc(&s, &c);
            if (thresholds[k] == 0) { /* the least likely candidate with a weight above 0 stays */
                assert_true(c.n >= 1 && c.n <= n);
            } else {
                expect_set(&c, want, n);
            }
            n_narrowed += n_likely > 1;
            n_compared++;
        }
    }
    assert_true(n_compared > 80 && n_narrowed > 20);
}

static void test_xtc_comes_as_often_as_wanted(void **state) {
    (void)state;
    mr_sampler s = {.choice = 3, .params = {.xtc_probability = 0.3f, .xtc_threshold = 0.1f, .seed = 11}};
    int n = 0;
    for (int32_t i = 0; i < 20; i++)
        logits[i] = i == 3 || i == 9 ? 5 : 0;
    for (int64_t position = 0; position < 10000; position++) {
        const mr_sampler_row row = {.position = position};
        candidates c = all(20);
        c.row = &row;
        process_xtc(&s, &c);
        /* Of candidates with equal weights, the last one stays. */
        assert_true(c.n == 20 || (c.n == 19 && candidates_id(&c, 3) == 4));
        n += c.n == 19;
    }
    assert_true(n > 2800 && n < 3200); /* four standard deviations */
}

/* --- Stages that change ------------------------------------------------------------------------------------------ */

static mr_sampler *make(int32_t n_vocab, const mr_sampling_params *params, const int32_t *ids, int32_t n_ids,
                        int32_t n_generated) {
    mr_sampler *s = NULL;
    mr_err err;
    mr_sampler_config config = {.n_vocab = n_vocab,
                                .params = *params,
                                .choice = 1,
                                .prompt_ids = ids,
                                .n_prompt = n_ids,
                                .n_generated = n_generated,
                                .max_context = 200,
                                .mirostat_mu = 3};
    expect_ok(mr_sampler_create(&config, &s, &err), &err);
    return s;
}

static void test_bias_and_mask(void **state) {
    (void)state;
    static const int32_t ids[] = {3, 5, 3, 70};
    static const float biases[] = {1.5f, -INFINITY, 2, -100};
    uint64_t mask[2] = {UINT64_C(1) << 3 | UINT64_C(1) << 5 | 1, UINT64_C(1) << (70 - 64)};
    mr_sampling_params params = {
        .temperature = 1, .top_p = 1, .repeat_penalty = 1, .bias_ids = ids, .biases = biases, .n_biases = 4};
    mr_sampler *s = make(71, &params, NULL, 0, 0);
    for (int32_t i = 0; i < 71; i++)
        logits[i] = (float)(i % 4);
    logits[5] = INFINITY; /* the mask forbids the id with the largest logit */
    const mr_sampler_row row = {.logits = logits, .mask = mask};
    candidates c = all(71);
    c.row = &row;
    process_bias(s, &c);
    for (int32_t i = 0; i < 71; i++)
        assert_true(c.logits[i] == (i == 3 ? 6.5f : i == 5 ? -INFINITY : i == 70 ? -98.0f : logits[i]));
    process_mask(s, &c);
    for (int32_t i = 0; i < 71; i++)
        assert_true(c.logits[i] == (i == 3 ? 6.5f : i == 70 ? -98.0f : i == 0 ? 0.0f : -INFINITY));
    /* Only ids that the mask allows are sampled, even if they are unlikely and the other samplers narrow the choice. */
    int32_t count[71] = {0}, id;
    mr_err err;
    mr_sampler_destroy(s);
    params = mr_sampling_params_default();
    params.top_n_sigma = params.mirostat_eta = 1;
    params.typical_p = 0.9f;
    params.xtc_probability = 0.5f;
    for (int32_t version = 0; version < 3; version++) {
        params.mirostat = version;
        s = make(71, &params, NULL, 0, 0);
        for (int64_t p = 0; p < 300; p++) {
            const mr_sampler_row at = {.logits = logits, .mask = mask, .position = p};
            logits[5] = -50;
            assert_int_equal(mr_sampler_sample(s, scratch, &at, &id, NULL), MR_OK);
            assert_true(mask[id / 64] >> (id % 64) & 1);
            assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
            count[id]++;
        }
        uint64_t none[2] = {0, UINT64_C(1) << 60};
        const mr_sampler_row nothing = {.logits = logits, .mask = none, .position = 8};
        expect_fails(mr_sampler_sample(s, scratch, &nothing, &id, &err), MR_E_INVALID, &err,
                     "no token is possible at position 8");
        mr_sampler_destroy(s);
    }
    assert_true(count[3] > 0 && count[0] + count[3] + count[5] + count[70] == 900);
}

static mr_sampler *open_with(mr_sampling_params params, int32_t n_vocab, const int32_t *prompt, int32_t n,
                             int32_t n_generated) {
    mr_sampler *s = NULL;
    mr_err err = {0};
    params.top_p = params.repeat_penalty = 1;
    const mr_sampler_config config = {.n_vocab = n_vocab,
                                      .params = params,
                                      .prompt_ids = prompt,
                                      .n_prompt = n,
                                      .n_generated = n_generated,
                                      .max_context = 20};
    expect_ok(mr_sampler_create(&config, &s, &err), &err);
    return s;
}

/* Late ids do not come before min_tokens were generated, also behind a failure, unless a mask allows nothing else. */
static void test_late(void **state) {
    (void)state;
    static const int32_t late[] = {70, 3}, prompt[] = {1, 2, 4};
    const mr_sampling_params p = {.temperature = 1, .min_tokens = 3, .late_ids = late, .n_late_ids = 2};
    const uint64_t only_late[] = {1 << 3, UINT64_MAX << 6 | UINT64_C(1)
                                                                << 40}, /* bits behind the vocabulary are ignored */
        others[] = {1 << 3 | 1 << 9, UINT64_C(1) << 6};
    mr_sampler *s = open_with(p, 71, prompt, 3, 1); /* one of the three required ids was generated */
    make_logits(71, 5, 10, 0);
    logits[3] = logits[70] = 50;
    int32_t id;
    for (int generated = 1; generated < 5; generated++) {
        mr_sampler_row row = {.logits = logits, .position = generated};
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_int_equal(id == 3 || id == 70, generated >= 3);
        row.mask = only_late;
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_true(id == 3 || id == 70);
        row.mask = others;
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_int_equal(id != 9, generated >= 3);
        assert_int_equal(mr_sampler_accept(s, 5, NULL), MR_OK);
    }
    mr_sampler_destroy(s);
}

/* The last id of a bad word is forbidden behind the other ids of the word, if these ids were generated. */
static void test_bad_words(void **state) {
    (void)state;
    static const int32_t words[] = {1, 8, 3, 5, 6, 7, 2, 6, 9}, prompt[] = {5, 6};
    static const struct {
        int32_t n_generated, ids[4], n_ids;
        int32_t banned[4], n_banned;
    } cases[] = {
        {0, {0}, 0, {8}, 1},          {1, {0}, 0, {8, 9}, 2},       {2, {0}, 0, {7, 8, 9}, 3},
        {0, {5, 6}, 2, {7, 8, 9}, 3}, {0, {6, 5, 6, 1}, 4, {8}, 1}, {0, {6}, 1, {8, 9}, 2},
    };
    const mr_sampling_params p = {.bad_words = words, .n_bad_words = 9};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mr_sampler *s = open_with(p, 11, prompt, 2, cases[i].n_generated);
        for (int32_t k = 0; k < cases[i].n_ids; k++)
            assert_int_equal(mr_sampler_accept(s, cases[i].ids[k], NULL), MR_OK);
        make_logits(11, 3, 10, 0);
        candidates c = all(11);
        process_bad_words(s, &c);
        int32_t n = 0;
        for (int32_t id = 0; id < 11; id++) {
            bool banned = n < cases[i].n_banned && cases[i].banned[n] == id;
            n += banned;
            assert_true(c.logits[id] == (banned ? -INFINITY : logits[id]));
        }
        mr_sampler_destroy(s);
    }
}

static void test_presence_and_frequency(void **state) {
    (void)state;
    static const int32_t ids[] = {1, 2, 2, /* generated: */ 2, 3, 3, 4};
    mr_sampling_params params = {.top_p = 1, .repeat_penalty = 1, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
    mr_sampler *s = make(6, &params, ids, 7, 4);
    for (int32_t i = 0; i < 6; i++)
        logits[i] = 1;
    for (int again = 0; again < 2; again++) {
        candidates c = all(6);
        process_presence(s, &c);
        for (int32_t i = 0; i < 6; i++)
            assert_true(c.logits[i] == (i == 2 || i == 4 ? 0.25f : i == 3 ? 0.0f : 1.0f));
    }
    mr_sampler_destroy(s);
    /* Negative penalties make ids that came before more likely. The window of the repeat penalty does not limit
     * them. */
    params = (mr_sampling_params){
        .top_p = 1, .repeat_penalty = 2, .repeat_last_n = 1, .presence_penalty = -1, .frequency_penalty = 0};
    s = make(6, &params, ids, 7, 4);
    candidates c = all(6);
    process_penalty(s, &c);
    process_presence(s, &c);
    for (int32_t i = 0; i < 6; i++)
        assert_true(c.logits[i] == (i == 4 ? 1.5f : i == 2 || i == 3 ? 2.0f : 1.0f));
    mr_sampler_destroy(s);
}

/* Penalties of DRY by looking at every place in the history. */
static void dry_reference(const int32_t *ids, int32_t n, const mr_sampling_params *p, int32_t n_vocab, double *out) {
    int32_t first = p->dry_last_n < 0 || p->dry_last_n > n ? 0 : n - p->dry_last_n, longest[MAX_N] = {0};
    for (int32_t end = first; end + 1 < n; end++) { /* an earlier end of the suffix, which ids[end + 1] follows */
        int32_t len = 0;
        for (; end - len >= first && ids[end - len] == ids[n - 1 - len]; len++) {
            bool is_breaker = false;
            for (int32_t b = 0; b < p->n_dry_breakers; b++)
                is_breaker |= p->dry_breakers[b] == ids[end - len];
            if (is_breaker)
                break;
        }
        longest[ids[end + 1]] = len > longest[ids[end + 1]] ? len : longest[ids[end + 1]];
    }
    for (int32_t id = 0; id < n_vocab; id++) {
        int32_t len = longest[id];
        bool counts = len > 0 && len >= p->dry_allowed_length;
        out[id] = counts ? (double)p->dry_multiplier * pow((double)p->dry_base, len - p->dry_allowed_length) : 0;
    }
}

static void test_dry(void **state) {
    (void)state;
    static const int32_t breakers[] = {4, 2}, last_ns[] = {-1, 0, 1, 7, 30, 500}, kinds[] = {1, 2, 3, 6};
    int32_t ids[200], n_penalised = 0;
    double want[6];
    for (int round = 0; round < 400; round++) {
        int32_t n = (int32_t)(mr_rng_u64(1, 0, (uint64_t)round) % 120);
        mr_sampling_params p = {.top_p = 1,
                                .repeat_penalty = 1,
                                .dry_multiplier = 0.8f,
                                .dry_base = 1.75f,
                                .dry_allowed_length = round % 4,
                                .dry_last_n = last_ns[round % 6],
                                .dry_breakers = breakers,
                                .n_dry_breakers = round % 3};
        for (int32_t i = 0; i < n; i++)
            ids[i] = (int32_t)(mr_rng_u64(2, (uint64_t)round, (uint64_t)i) % (uint64_t)kinds[round / 100]);
        mr_sampler *s = make(6, &p, ids, n, 0);
        for (int32_t i = 0; i < 6; i++)
            logits[i] = 1;
        dry_reference(ids, n, &p, 6, want);
        candidates c = all(6);
        process_dry(s, &c);
        for (int32_t i = 0; i < 6; i++) {
            double got = 1 - (double)c.logits[i];
            if (fabs(got - fmin(want[i], 1e30)) > 1e-6 * (1 + want[i]))
                fail_msg("round %d: token %d: %g, not %g", round, i, got, want[i]);
            n_penalised += want[i] > 0;
        }
        mr_sampler_destroy(s);
    }
    assert_true(n_penalised > 200);
}

/* --- Mirostat ---------------------------------------------------------------------------------------------------- */

/* The candidates that Mirostat 2 keeps at a temperature of 1.25, and the surprise of one of them. */
static double mirostat_reference(int32_t n, double mu, bool *want, double *out_total) {
    double max = -INFINITY, total = 0, kept = 0, gap = 1;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, (double)logits[i]);
    for (int32_t i = 0; i < n; i++)
        total += exp(((double)logits[i] - max) / 1.25);
    for (int32_t i = 0; i < n; i++) {
        double surprise = -log2(exp(((double)logits[i] - max) / 1.25) / total);
        want[i] = surprise <= mu || (double)logits[i] == max;
        kept += want[i] ? exp(((double)logits[i] - max) / 1.25) : 0;
        gap = fmin(gap, fabs(surprise - mu));
    }
    *out_total = kept;
    return gap;
}

static void test_mirostat_2(void **state) {
    (void)state;
    enum { N = 400, N_STEPS = 300 };
    static bool want[N];
    const mr_sampling_params p = {.temperature = 1.25f,
                                  .top_p = 1,
                                  .repeat_penalty = 1,
                                  .mirostat = 2,
                                  .mirostat_tau = 3,
                                  .mirostat_eta = 0.2f,
                                  .seed = 5};
    mr_sampler *s = make(N, &p, NULL, 0, 0);
    double mu = 6, sum = 0;
    assert_true(mr_sampler_mirostat_mu(s) == 6);
    for (int64_t position = 0; position < N_STEPS; position++) {
        const mr_sampler_row row = {.logits = logits, .position = position};
        int32_t id, again;
        double kept, max = -INFINITY;
        make_logits(N, 100 + (uint64_t)position, 9, position % 2 ? 0 : 0.5f);
        for (int32_t i = 0; i < N; i++)
            max = fmax(max, (double)logits[i]);
        double gap = mirostat_reference(N, mu, want, &kept);
        candidates c = all(N);
        process_mirostat(s, &c);
        if (gap > 1e-4)
            expect_set(&c, want, N);
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &again, NULL), MR_OK);
        assert_int_equal(id, again);
        double surprise = -log2(exp(((double)logits[id] - max) / 1.25) / kept);
        assert_true(mr_sampler_mirostat_mu(s) == mu);
        assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
        double next = mr_sampler_mirostat_mu(s);
        if (gap > 1e-4)
            assert_true(fabs(next - (mu - 0.2 * (surprise - 3))) < 1e-4);
        sum += surprise;
        mu = next;
    }
    assert_true(fabs(sum / N_STEPS - 3) < 0.3);
    mr_sampler_destroy(s);
}

static int falling(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The formula of the paper, with N the size of the vocabulary. */
static void test_mirostat_1(void **state) {
    (void)state;
    enum { N = 500 };
    static float sorted[N];
    static const double mus[] = {0.5, 2, 4, 7, 12};
    int n_inside = 0;
    for (int32_t turn = 0; turn < 40; turn++) {
        mr_sampling_params p = {.temperature = 0.7f,
                                .top_p = 1,
                                .repeat_penalty = 1,
                                .mirostat = 1,
                                .mirostat_tau = (float)mus[turn % 5] / 2,
                                .mirostat_eta = 0.1f};
        mr_sampler *s = make(N, &p, NULL, 0, 0);
        for (int32_t i = 0; i < N; i++) /* roughly Zipf's law, with ids in another order than ranks */
            logits[i] = (-0.6f - 0.25f * (float)(turn % 4)) * logf((float)(1 + i * 7 % N)) +
                        0.1f * mr_rng_f32((uint64_t)turn, 0, (uint64_t)i);
        memcpy(sorted, logits, sizeof sorted);
        qsort(sorted, N, sizeof *sorted, falling);
        double tb = 0, tt = 0;
        for (int i = 0; i < 99; i++) {
            double t = log((i + 2.0) / (i + 1.0));
            tb += t * ((double)sorted[i] - (double)sorted[i + 1]) / (double)p.temperature;
            tt += t * t;
        }
        double e = tb / tt - 1;
        double k = pow(e * pow(2, mus[turn % 5]) / (1 - pow(N, -e)), 1 / (e + 1));
        candidates c = all(N);
        process_mirostat(s, &c);
        int32_t want = k >= N ? N : k < 1 ? 1 : (int32_t)k;
        if (fabs(k - round(k)) > 1e-6 * k || k < 1)
            assert_int_equal(c.n, want);
        n_inside += want > 1 && want < N;
        mr_sampler_destroy(s);
    }
    assert_true(n_inside > 10);
    /* Distributions for which the formula is not made. */
    for (int kind = 0; kind < 4; kind++) {
        mr_sampling_params p = {
            .temperature = 1, .top_p = 1, .repeat_penalty = 1, .mirostat = 1, .mirostat_tau = 2, .mirostat_eta = 1};
        mr_sampler *s = make(N, &p, NULL, 0, 0);
        for (int32_t i = 0; i < N; i++)
            logits[i] = kind == 0             ? 2
                        : kind == 1 && i > 0  ? -INFINITY
                        : kind == 2 && i == 9 ? INFINITY
                                              : (float)-i * 1e30f;
        const mr_sampler_row row = {.logits = logits};
        int32_t id;
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
        assert_true(isfinite(mr_sampler_mirostat_mu(s)));
        assert_true(kind == 0 || id == (kind == 2 ? 9 : 0));
        mr_sampler_destroy(s);
    }
}

/* --- Log-probabilities ------------------------------------------------------------------------------------------- */

static void test_logprobs(void **state) {
    (void)state;
    mr_logprobs l;
    FOR_SHAPES(n, seed) {
        make_logits(n, (uint64_t)seed, 12, STEPS[shape % 3]);
        int32_t id = (int32_t)(mr_rng_u64(3, 0, (uint64_t)seed) % (uint64_t)n), n_top = shape % 22;
        assert_int_equal(mr_logprobs_get(scratch, logits, n, id, n_top, &l), MR_OK);
        n_top = n_top > 20 ? 20 : n_top;
        assert_int_equal(l.n_top, n_top < n ? n_top : n);
        assert_true(share[id] == 0 ? l.logprob == -INFINITY
                                   : fabs((double)l.logprob - log(share[id])) < 2e-6 * (1 - log(share[id])));
        for (int32_t i = 0; i < l.n_top; i++) {
            int32_t better = 0;
            for (int32_t k = 0; k < n; k++)
                better += logits[k] > logits[l.top_ids[i]] || (logits[k] == logits[l.top_ids[i]] && k < l.top_ids[i]);
            assert_int_equal(better, i);
            double want = log(share[l.top_ids[i]]);
            assert_true(share[l.top_ids[i]] == 0 ? l.top[i] == -INFINITY
                                                 : fabs((double)l.top[i] - want) < 2e-6 * (1 - want));
            assert_true(l.top[i] <= 0);
        }
    }
    logits[0] = 5;
    assert_int_equal(mr_logprobs_get(scratch, logits, 1, 0, 3, &l), MR_OK);
    assert_true(l.logprob == 0 && l.n_top == 1 && l.top[0] == 0);
    logits[1] = logits[2] = INFINITY;
    assert_int_equal(mr_logprobs_get(scratch, logits, 3, 0, 3, &l), MR_OK);
    assert_true(l.logprob == -INFINITY && fabsf(l.top[0] + 0.693147f) < 1e-6f && l.top_ids[1] == 2);
    logits[1] = NAN;
    assert_int_equal(mr_logprobs_get(scratch, logits, 3, 0, 3, &l), MR_E_NUMERICS);
    logits[0] = logits[1] = -INFINITY;
    assert_int_equal(mr_logprobs_get(scratch, logits, 2, 0, 3, &l), MR_E_NUMERICS);
}

/* --- All together ------------------------------------------------------------------------------------------------ */

static const int32_t SOME_IDS[] = {5, 9, 100, 17};
static const float SOME_BIASES[] = {3, -2.5f, -INFINITY, 4};

/* Everything on, in several strengths; lists that outlive what is made of it. */
static mr_sampling_params everything(int which) {
    mr_sampling_params p = {.temperature = 1.4f,
                            .top_k = which ? 0 : 80,
                            .top_p = 0.95f,
                            .min_p = 0.01f,
                            .typical_p = 0.97f,
                            .top_n_sigma = 2.5f,
                            .xtc_probability = 0.4f,
                            .xtc_threshold = 0.05f,
                            .repeat_penalty = 1.1f,
                            .repeat_last_n = 13,
                            .presence_penalty = 0.3f,
                            .frequency_penalty = 0.2f,
                            .dry_multiplier = 0.7f,
                            .dry_base = 1.5f,
                            .dry_allowed_length = 1,
                            .dry_last_n = which == 1 ? 20 : -1,
                            .mirostat = which,
                            .mirostat_tau = 4,
                            .mirostat_eta = 0.3f,
                            .seed = 77};
    p.bias_ids = SOME_IDS;
    p.biases = SOME_BIASES;
    p.n_biases = 4;
    p.dry_breakers = SOME_IDS;
    p.n_dry_breakers = 2;
    return p;
}

/* A sampler that is created again from ids and mu, at any position, chooses the same ids as the old sampler. */
static void test_state_comes_back_from_the_journal(void **state) {
    (void)state;
    enum { N = 300, N_PROMPT = 6 };
    for (int which = 0; which < 3; which++) {
        int32_t ids[190] = {7, 8, 7, 8, 7, 5};
        mr_sampling_params p = everything(which);
        mr_sampler *running = make(N, &p, ids, N_PROMPT, 0);
        for (int32_t n = N_PROMPT; n < 190; n++) {
            const mr_sampler_row row = {.logits = logits, .position = n};
            mr_sampler *rebuilt = NULL;
            mr_sampler_config config = {.n_vocab = N,
                                        .params = p,
                                        .choice = 1,
                                        .prompt_ids = ids,
                                        .n_prompt = n,
                                        .n_generated = n - N_PROMPT,
                                        .max_context = 200,
                                        .mirostat_mu = mr_sampler_mirostat_mu(running)};
            int32_t id;
            make_logits(N, (uint64_t)(n % 7), 5, 0); /* the same logits again, so that DRY finds repetitions */
            assert_int_equal(mr_sampler_create(&config, &rebuilt, NULL), MR_OK);
            assert_int_equal(mr_sampler_sample(running, scratch, &row, &ids[n], NULL), MR_OK);
            assert_int_equal(mr_sampler_sample(rebuilt, scratch, &row, &id, NULL), MR_OK);
            assert_int_equal(id, ids[n]);
            assert_int_equal(mr_sampler_accept(running, id, NULL), MR_OK);
            assert_int_equal(mr_sampler_accept(rebuilt, id, NULL), MR_OK);
            double a = mr_sampler_mirostat_mu(running), b = mr_sampler_mirostat_mu(rebuilt);
            assert_memory_equal(&a, &b, sizeof a);
            mr_sampler_destroy(rebuilt);
        }
        mr_sampler_destroy(running);
    }
}

/* Ids, bounds and log-probabilities of 150 positions, as one number. */
static uint64_t digest_of(int which, weights_fn weights_of) {
    uint64_t digest = 0, n_allocs = 0;
    int32_t prompt[] = {1, 2, 3, 1, 2};
    mr_sampling_params p = everything(which);
    mr_sampler *s = make(MAX_N, &p, prompt, 5, 0);
    weights_fn saved = scratch->weights_of;
    scratch->weights_of = weights_of;
    n_allocs = mr_mem_thread_allocs();
    for (int64_t position = 5; position < 155; position++) {
        const mr_sampler_row row = {.logits = logits, .position = position};
        mr_logprobs l;
        int32_t id;
        make_logits(MAX_N, (uint64_t)position % 11, 9, position % 3 ? 0 : 0.25f);
        assert_int_equal(mr_sampler_sample(s, scratch, &row, &id, NULL), MR_OK);
        assert_int_equal(mr_sampler_accept(s, id, NULL), MR_OK);
        assert_int_equal(mr_logprobs_get(scratch, logits, MAX_N, id, 20, &l), MR_OK);
        double mu = mr_sampler_mirostat_mu(s);
        uint64_t bits;
        memcpy(&bits, &mu, sizeof bits);
        digest = (digest ^ (uint64_t)id) * UINT64_C(0x100000001b3);
        digest = (digest ^ bits) * UINT64_C(0x100000001b3);
        for (int k = -1; k < 20; k++)
            digest = (digest ^ mr_f32_bits(k < 0 ? l.logprob : l.top[k])) * UINT64_C(0x100000001b3);
    }
    assert_int_equal(mr_mem_thread_allocs(), n_allocs);
    scratch->weights_of = saved;
    mr_sampler_destroy(s);
    return digest;
}

/* Every machine and compiler must come to these. */
static void test_known_answers(void **state) {
    (void)state;
    static const uint64_t want[] = {0x08743c7c5e4c99ca, 0x755e77e8ec20c0e2, 0x5b4aa2fbe735c295};
    for (int which = 0; which < 3; which++) {
        uint64_t plain = digest_of(which, weights_baseline);
        assert_true(digest_of(which, weights_select()) == plain);
        if (plain != want[which])
            fail_msg("parameters %d: digest 0x%016llx", which, (unsigned long long)plain);
    }
}

static void test_ranges(void **state) {
    (void)state;
    static const struct {
        size_t offset;
        float value;
        const char *text;
    } floats[] = {
        {offsetof(mr_sampling_params, typical_p), 1.1f, "typical_p 1.1 is not in [0, 1]"},
        {offsetof(mr_sampling_params, top_n_sigma), -1, "top_n_sigma -1"},
        {offsetof(mr_sampling_params, xtc_probability), NAN, "xtc_probability"},
        {offsetof(mr_sampling_params, xtc_threshold), 2, "xtc_threshold 2"},
        {offsetof(mr_sampling_params, presence_penalty), 101, "presence_penalty 101 is not in [-100, 100]"},
        {offsetof(mr_sampling_params, frequency_penalty), -INFINITY, "frequency_penalty -inf"},
        {offsetof(mr_sampling_params, dry_multiplier), -1, "dry_multiplier -1"},
        {offsetof(mr_sampling_params, dry_base), 0.5f, "dry_base 0.5 is not in [1, 100]"},
        {offsetof(mr_sampling_params, mirostat_tau), 0, "mirostat_tau 0 is not in (0, 100]"},
        {offsetof(mr_sampling_params, mirostat_eta), 11, "mirostat_eta 11"},
    };
    mr_err err;
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        mr_sampling_params p = everything(1);
        expect_ok(mr_sampling_params_check(&p, &err), &err);
        memcpy((char *)&p + floats[i].offset, &floats[i].value, sizeof(float));
        assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
        expect_says(err.text, floats[i].text);
    }
    mr_sampling_params p = everything(1);
    p.mirostat = 3;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.dry_last_n = -2;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.dry_allowed_length = -1;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.n_biases = MR_SAMPLER_MAX_BIASES + 1;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.n_dry_breakers = MR_SAMPLER_MAX_BREAKERS + 1;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.min_tokens = -1;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    p = everything(1);
    p.n_late_ids = MR_SAMPLER_MAX_LATE + 1;
    assert_int_equal(mr_sampling_params_check(&p, &err), MR_E_INVALID);
    static const int32_t bad_words[][3] = {{1, 5, 1}, {0, 5, 6}, {-1, 5, 6}, {3, 5, 6}, {INT32_MAX, 5, 6}, {2, 5, 6}};
    for (int i = 0; i < 6; i++) {
        p = everything(1);
        p.bad_words = bad_words[i];
        p.n_bad_words = 3;
        assert_int_equal(mr_sampling_params_check(&p, &err), i == 5 ? MR_OK : MR_E_INVALID);
    }
    expect_ok(mr_sampling_params_check_ids(&p, 101, &err), &err);
    assert_int_equal(mr_sampling_params_check_ids(&p, 6, &err), MR_E_INVALID);
    static const float bad[] = {0, 1, INFINITY, 0};
    p = everything(1);
    p.biases = bad;
    expect_fails(mr_sampling_params_check(&p, &err), MR_E_INVALID, &err, "the logit bias inf of token 100");
    /* The ids of the lists are checked against the vocabulary. */
    mr_sampler *s = NULL;
    mr_sampler_config config = {.n_vocab = 100, .params = everything(0), .max_context = 10};
    expect_fails(mr_sampler_create(&config, &s, &err), MR_E_INVALID, &err,
                 "token id 100 of the logit biases is not in a vocabulary of 100");
    config.n_vocab = 101;
    config.n_generated = 1;
    assert_int_equal(mr_sampler_create(&config, &s, &err), MR_E_INVALID);
    assert_null(s);
}

static void test_failed_allocations(void **state) {
    (void)state;
    static const int32_t prompt[] = {1, 2};
    mr_sampler_config config = {
        .n_vocab = 200, .params = everything(0), .prompt_ids = prompt, .n_prompt = 2, .max_context = 9};
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_sampler *s = NULL;
        assert_true(n < 10);
        mr_mem_fail_at(n);
        status = mr_sampler_create(&config, &s, NULL);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK ? s != NULL : s == NULL && status == MR_E_NO_MEMORY);
        mr_sampler_destroy(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_n_sigma),
        cmocka_unit_test(test_typical),
        cmocka_unit_test(test_xtc),
        cmocka_unit_test(test_xtc_comes_as_often_as_wanted),
        cmocka_unit_test(test_bias_and_mask),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_presence_and_frequency),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_mirostat_2),
        cmocka_unit_test(test_mirostat_1),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_state_comes_back_from_the_journal),
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
