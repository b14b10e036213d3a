/* tests/bench/bench_delay.c - measures how much slow hops cost a pipeline. Runs a cluster of threads whose stages
 * sleep, in pairs of runs: with and without a delay of every message between two endpoints.
 * usage: bench_delay MODEL STAGES FIXED_MS MS_PER_ROW DELAY_MS SEQUENCES TOKENS [PAIRS]
 * MODEL gives the shapes. Prints the decode tokens per second of each pair, and the median and spread of the ratios. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/job/job.h"
#include "engine/base/clock.h"
#include "tests/support/channel_delay.h"

enum { MAX_PAIRS = 100 };

typedef struct setting {
    const char *path;
    mr_gguf *gguf;
    mr_model_info info;
    mr_plan plan;
    int32_t n_sequences, n_tokens;
} setting;

/* The time of the first token of each sequence, and the time when the first sequence ended. */
typedef struct times {
    int32_t n_sequences, n_begun;
    int64_t n_tokens, begun_ns, end_ns;
} times;

static bool on_token(void *ctx, const mr_token_event *event) {
    times *t = ctx;
    if (event->n_generated == 1) {
        t->n_begun++;
        t->begun_ns = event->time_ns;
    } else if (t->n_begun == t->n_sequences && t->end_ns == 0) {
        t->n_tokens++;
    }
    if (event->finish != MR_FINISH_NONE && t->end_ns == 0)
        t->end_ns = event->time_ns;
    return false;
}

static mr_status wrap(void *ctx, mr_channel **channel, mr_err *err) {
    const channel_delay_config config = {
        .latency_ns = *(const int64_t *)ctx, .seed = 1, .max_requests = MR_LOCAL_CLUSTER_REQUESTS};
    return channel_delay_create(*channel, &config, channel, err);
}

static mr_status submit_all(const setting *s, mr_job *job, times *t, mr_err *err) {
    const int32_t prompt[] = {1, 2, 3};
    mr_status status = MR_OK;
    int64_t number;
    mr_sequence_desc desc = {.prompt_ids = prompt,
                             .n_prompt = sizeof prompt / sizeof prompt[0],
                             .max_tokens = s->n_tokens,
                             .sampling = {.top_p = 1, .repeat_penalty = 1},
                             .on_token = on_token,
                             .ctx = t};
    for (int32_t i = 0; i < s->n_sequences && status == MR_OK; i++)
        status = mr_job_submit(job, &desc, &number, err);
    return status;
}

/* Measures decode tokens per second, after a first run from which the scheduler learns the times. */
static mr_status run(const setting *s, int64_t delay_ns, double *out_rate, mr_err *err) {
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    times t = {0};
    mr_local_cluster_config local = {.model_path = s->path,
                                     .n_stages = s->plan.n_stages,
                                     .threads_per_stage = 1,
                                     .epoch = 1,
                                     .wrap = wrap,
                                     .wrap_ctx = &delay_ns};
    mr_status status = mr_local_cluster_create(&local, &cluster, err);
    if (status == MR_OK) {
        int32_t blocks = (s->n_tokens + 3) / MR_WIRE_BLOCK_TOKENS + 1;
        mr_job_config config = {.info = &s->info,
                                .epoch.plan = &s->plan,
                                .channel = mr_local_cluster_channel(cluster),
                                .epoch.number = 1,
                                .max_rows = 4 * s->n_sequences,
                                .max_out_rows = s->n_sequences,
                                .max_sequences = s->n_sequences,
                                .max_context = blocks * MR_WIRE_BLOCK_TOKENS,
                                .epoch.n_kv_blocks = 2 * blocks * s->n_sequences,
                                .kv_type = MR_TYPE_F16};
        status = mr_job_create(&config, &job, err);
    }
    for (int i = 0; i < 2 && status == MR_OK; i++) {
        t = (times){.n_sequences = s->n_sequences};
        status = submit_all(s, job, &t, err);
        if (status == MR_OK)
            status = mr_job_run(job, err);
    }
    if (status == MR_OK)
        *out_rate = (double)t.n_tokens / (1e-9 * (double)(t.end_ns - t.begun_ns));
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    return status;
}

static mr_status open_setting(char **argv, setting *s, mr_err *err) {
    s->path = argv[1];
    s->plan.n_stages = atoi(argv[2]);
    s->plan.synthetic = true;
    s->n_sequences = atoi(argv[6]);
    s->n_tokens = atoi(argv[7]);
    if (s->plan.n_stages < 1 || s->plan.n_stages > MR_MAX_STAGES || s->n_sequences < 1 || s->n_tokens < 2)
        return mr_err_set(err, MR_E_INVALID, "a number is out of range");
    mr_status status = mr_gguf_open(s->path, &s->gguf, err);
    if (status == MR_OK)
        status = mr_model_info_read(s->gguf, &s->info, err);
    for (int32_t i = 0; i < s->plan.n_stages && status == MR_OK; i++)
        s->plan.stages[i] = (mr_plan_stage){.rank = i,
                                            .first = (int32_t)((int64_t)s->info.n_layers * i / s->plan.n_stages),
                                            .last = (int32_t)((int64_t)s->info.n_layers * (i + 1) / s->plan.n_stages),
                                            .synthetic_fixed_ns = (int64_t)(1e6 * atof(argv[3])),
                                            .synthetic_row_ns = (int64_t)(1e6 * atof(argv[4]))};
    return status;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    static setting s;
    mr_err err;
    double ratios[MAX_PAIRS], rate[2] = {0};
    if (argc < 8) {
        fprintf(stderr, "usage: %s MODEL STAGES FIXED_MS MS_PER_ROW DELAY_MS SEQUENCES TOKENS [PAIRS]\n", argv[0]);
        return 2;
    }
    int n_pairs = argc > 8 ? atoi(argv[8]) : 7;
    n_pairs = n_pairs < 1 ? 1 : n_pairs > MAX_PAIRS ? MAX_PAIRS : n_pairs;
    mr_status status = open_setting(argv, &s, &err);
    for (int i = 0; i < n_pairs && status == MR_OK; i++) {
        status = run(&s, 0, &rate[0], &err);
        if (status == MR_OK)
            status = run(&s, (int64_t)(1e6 * atof(argv[5])), &rate[1], &err);
        ratios[i] = rate[1] / rate[0];
        if (status == MR_OK)
            printf("pair %d: %.1f tokens/s without, %.1f with %s ms: %.3f\n", i + 1, rate[0], rate[1], argv[5],
                   ratios[i]);
        fflush(stdout);
    }
    mr_gguf_close(s.gguf);
    if (status != MR_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    qsort(ratios, (size_t)n_pairs, sizeof ratios[0], compare);
    printf("ratio: median %.3f, %.3f to %.3f\n", ratios[n_pairs / 2], ratios[0], ratios[n_pairs - 1]);
    return 0;
}
