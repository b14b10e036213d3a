/* tests/bench/bench_sample.c - microseconds for sampling one token, for each sampler of the chain. Usage: bench_sample
 * [TOKENS] */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/sample/sampler.h"

enum { HISTORY = 4096, ROUNDS = 40 };

static int32_t n_vocab, history[HISTORY];
static float *logits;
static mr_sampler_scratch *scratch;

static void stop(const mr_err *err) {
    fprintf(stderr, "bench_sample: %s\n", err->text);
    exit(1);
}

static void report(const char *name, int64_t best_ns) {
    printf("%-40s %7.1f us\n", name, (double)best_ns / 1000.0);
}

/* from: what is sampled from. Its position is not used. */
static void run_row(const char *name, mr_sampling_params params, const mr_sampler_row *from) {
    mr_err err;
    mr_sampler *s = NULL;
    int64_t best_ns = INT64_MAX;
    const mr_sampler_config config = {.n_vocab = n_vocab,
                                      .params = params,
                                      .prompt_ids = history,
                                      .n_prompt = HISTORY,
                                      .n_generated = HISTORY,
                                      .mirostat_mu = 10,
                                      .max_context = 2 * HISTORY};
    if (mr_sampler_create(&config, &s, &err) != MR_OK)
        stop(&err);
    for (int64_t position = 0; position < ROUNDS; position++) {
        mr_sampler_row row = *from;
        int32_t id;
        row.position = position;
        int64_t start_ns = mr_clock_now_ns();
        if (mr_sampler_sample(s, scratch, &row, &id, &err) != MR_OK)
            stop(&err);
        int64_t ns = mr_clock_now_ns() - start_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    report(name, best_ns);
    mr_sampler_destroy(s);
}

static void run(const char *name, mr_sampling_params params, const uint64_t *mask) {
    run_row(name, params, &(mr_sampler_row){.logits = logits, .mask = mask});
}

static int by_logit(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return logits[x] != logits[y] ? (logits[x] < logits[y]) - (logits[x] > logits[y]) : (x > y) - (x < y);
}

static int by_id(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Samples from what a device would find: without the sum, which log-probabilities alone need. */
static void run_top(void) {
    static mr_top top;
    int32_t *order = mr_alloc_array((size_t)n_vocab, sizeof *order);
    if (!order)
        return;
    for (int32_t i = 0; i < n_vocab; i++)
        order[i] = i;
    qsort(order, (size_t)n_vocab, sizeof *order, by_logit);
    top.n = n_vocab < MR_TOP_TOKENS ? n_vocab : MR_TOP_TOKENS;
    qsort(order, (size_t)top.n, sizeof *order, by_id);
    for (int32_t i = 0; i < top.n; i++) {
        top.ids[i] = order[i];
        top.logits[i] = logits[order[i]];
    }
    mr_free(order);
    mr_sampling_params p = mr_sampling_params_default();
    run_row("the defaults, from first tokens", p, &(mr_sampler_row){.top = &top});
    p.repeat_penalty = 1.1f;
    run_row("from first tokens with a repeat penalty", p, &(mr_sampler_row){.top = &top});
    p.temperature = 0;
    run_row("from first tokens, greedy", p, &(mr_sampler_row){.top = &top});
}

static void run_logprobs(void) {
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        mr_logprobs l;
        int64_t start_ns = mr_clock_now_ns();
        if (mr_logprobs_get(scratch, logits, n_vocab, 5, MR_SAMPLER_MAX_TOP, &l) != MR_OK)
            exit(1);
        int64_t ns = mr_clock_now_ns() - start_ns;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    report("log-probabilities, 20 of the highest", best_ns);
}

/* Measures the default parameters with one field changed. */
#define RUN(name, field, value)                                                                                        \
    do {                                                                                                               \
        mr_sampling_params p = mr_sampling_params_default();                                                           \
        p.field = value;                                                                                               \
        run(name, p, NULL);                                                                                            \
    } while (0)

int main(int argc, char **argv) {
    mr_err err = {0};
    n_vocab = argc > 1 ? atoi(argv[1]) : 128256;
    if (mr_sampler_scratch_create(n_vocab, &scratch, &err) != MR_OK)
        stop(&err);
    logits = mr_alloc_array((size_t)n_vocab, sizeof *logits);
    uint64_t *mask = mr_alloc_array((size_t)n_vocab / 64 + 1, sizeof *mask);
    if (!logits || !mask)
        return 1;
    for (int32_t i = 0; i < n_vocab; i++)
        logits[i] = (mr_rng_f32(1, 1, (uint64_t)i) + mr_rng_f32(1, 2, (uint64_t)i) + mr_rng_f32(1, 3, (uint64_t)i)) * 9;
    for (int32_t i = 0; i < HISTORY; i++)
        history[i] = (int32_t)(mr_rng_u64(5, 0, (uint64_t)i) % (uint64_t)n_vocab);
    for (int32_t i = 0; i < n_vocab / 64 + 1; i++)
        mask[i] = mr_rng_u64(6, 0, (uint64_t)i);
    printf("%d tokens, a history of %d, the best of %d\n", n_vocab, HISTORY, ROUNDS);
    run("the defaults: top-k 40, top-p, min-p", mr_sampling_params_default(), NULL);
    run("the same under a mask of half of the tokens", mr_sampling_params_default(), mask);
    RUN("greedy", temperature, 0);
    RUN("with a repeat penalty over 64 tokens", repeat_penalty, 1.1f);
    RUN("with a presence penalty", presence_penalty, 0.5f);
    RUN("with DRY", dry_multiplier, 0.8f);
    RUN("with top-n-sigma 1", top_n_sigma, 1);
    RUN("with typical 0.9", typical_p, 0.9f);
    RUN("with XTC, always", xtc_probability, 1);
    RUN("without top-k", top_k, 0);
    RUN("Mirostat 1", mirostat, 1);
    RUN("Mirostat 2", mirostat, 2);
    run_top();
    run_logprobs();
    mr_free(logits);
    mr_free(mask);
    mr_sampler_scratch_destroy(scratch);
    return 0;
}
