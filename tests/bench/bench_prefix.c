/* tests/bench/bench_prefix.c - measures how much sooner the first token comes if the prefix cache has the beginning of
 * the prompt.
 *   bench_prefix MODEL [shared tokens] [tokens behind them] [threads] [pairs]
 * Each pair computes one prompt twice: in full, and with the shared tokens from the cache. The tokens behind the shared
 * tokens differ in each pair. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/job/job.h"
#include "engine/base/clock.h"
#include "engine/base/rng.h"
#include "engine/tensor/tensor.h"

enum { MAX_PAIRS = 101 };

static void check(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "bench_prefix: %s\n", err->text);
    exit(1);
}

static bool on_token(void *ctx, const mr_token_event *event) {
    *(int64_t *)ctx = event->time_ns;
    return true;
}

typedef struct bench {
    mr_job *job;
    int32_t *ids, n_shared, n, n_vocab;
} bench;

/* Measures the milliseconds to the first token. */
static double first_token_ms(const bench *b, int pair, bool fresh) {
    mr_err err;
    int64_t sequence;
    int64_t token_ns = 0;
    for (int32_t i = 0; i < b->n; i++)
        b->ids[i] =
            (int32_t)(mr_rng_u64(1, i < b->n_shared ? 0 : 1 + (uint64_t)pair, (uint64_t)i) % (uint64_t)b->n_vocab);
    mr_sequence_desc desc = {.prompt_ids = b->ids,
                             .n_prompt = b->n,
                             .max_tokens = 1,
                             .sampling = {.top_p = 1, .repeat_penalty = 1},
                             .fresh = fresh,
                             .on_token = on_token,
                             .ctx = &token_ns};
    int64_t start_ns = mr_clock_now_ns();
    check(mr_job_submit(b->job, &desc, &sequence, &err), &err);
    check(mr_job_run(b->job, &err), &err);
    return (double)(token_ns - start_ns) / 1e6;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, double *v, int n, const char *unit) {
    qsort(v, (size_t)n, sizeof *v, by_value);
    printf("%-10s median %9.2f %s, %9.2f to %9.2f\n", what, v[n / 2], unit, v[0], v[n - 1]);
}

static int number(int argc, char **argv, int at, int otherwise) {
    int n = argc > at ? atoi(argv[at]) : otherwise;
    return n > 0 ? n : otherwise;
}

int main(int argc, char **argv) {
    static mr_plan plan;
    static double full[MAX_PAIRS], behind[MAX_PAIRS], ratio[MAX_PAIRS];
    mr_err err;
    mr_gguf *gguf = NULL;
    mr_model_info info;
    mr_local_cluster *cluster = NULL;
    bench b = {.n_shared = number(argc, argv, 2, 1000)};
    int n_pairs = number(argc, argv, 5, 7);
    b.n = b.n_shared + number(argc, argv, 3, 24);
    b.ids = malloc((size_t)b.n * sizeof *b.ids);
    if (argc < 2 || n_pairs > MAX_PAIRS || !b.ids) {
        fprintf(stderr, "bench_prefix MODEL [shared tokens] [tokens behind them] [threads] [pairs]\n");
        return 2;
    }
    check(mr_gguf_open(argv[1], &gguf, &err), &err);
    check(mr_model_info_read(gguf, &info, &err), &err);
    check(mr_plan_balance(gguf, &info, 1, &plan, &err), &err);
    b.n_vocab = info.vocab_size;
    mr_local_cluster_config local = {
        .model_path = argv[1], .n_stages = 1, .threads_per_stage = number(argc, argv, 4, 2), .epoch = 1};
    check(mr_local_cluster_create(&local, &cluster, &err), &err);
    mr_job_config config = {.info = &info,
                            .epoch.plan = &plan,
                            .channel = mr_local_cluster_channel(cluster),
                            .epoch.number = 1,
                            .max_rows = 512,
                            .max_out_rows = 1,
                            .max_sequences = 1,
                            .max_context = b.n + 1,
                            .epoch.n_kv_blocks = 4 * (b.n / MR_WIRE_BLOCK_TOKENS + 2),
                            .kv_type = MR_TYPE_F16};
    check(mr_job_create(&config, &b.job, &err), &err);
    first_token_ms(&b, MAX_PAIRS, false);
    for (int i = 0; i < n_pairs; i++) {
        behind[i] = first_token_ms(&b, i, false);
        full[i] = first_token_ms(&b, i, true);
        ratio[i] = full[i] / behind[i];
    }
    printf("%d tokens, the first %d of them shared; %lld came from the cache\n", b.n, b.n_shared,
           (long long)mr_job_get_timings(b.job).cached_tokens);
    print("in full", full, n_pairs, "ms");
    print("behind", behind, n_pairs, "ms");
    print("ratio", ratio, n_pairs, "times");
    mr_job_destroy(b.job);
    mr_local_cluster_destroy(cluster);
    mr_gguf_close(gguf);
    free(b.ids);
    return 0;
}
