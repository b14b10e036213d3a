/* bench_service.c - measures the cost of the service between a job and its readers: the tokens per second that the
 * service passes on, and the time of a token from the job to its reader.
 * Usage: bench_service MODEL CLIENTS TOKENS STEP_US
 * Runs one stage with the sizes of the model, which sleeps STEP_US in each step. CLIENTS requests of TOKENS tokens each
 * run at once. Two threads read the results, as in a server. First measures the job alone, with callbacks that only
 * count. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/serving/service/service.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/vocab/vocab.h"

enum { N_READERS = 2, N_PROMPT = 8 };

typedef struct server_thread {
    mr_thread *thread;
    mr_mutex lock;
    mr_cond cond;
    struct client *first; /* list of clients with new output; protected by lock */
    int32_t n_left;
    int64_t n_tokens, n_pieces;
    int64_t *latency_ns; /* [all tokens] */
} server_thread;

typedef struct client {
    server_thread *server;
    mr_request *request;
    struct client *next;
    bool is_listed; /* protected by the lock of the server */
} client;

static void must(mr_status status, const mr_err *err) {
    if (status == MR_OK)
        return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static mr_job *start_job(const char *path, const mr_gguf *gguf, mr_model_info *info, int32_t n, int64_t step_ns,
                         mr_local_cluster **out_cluster) {
    static mr_plan plan;
    mr_err err;
    mr_job *job;
    must(mr_model_info_read(gguf, info, &err), &err);
    must(mr_plan_balance(gguf, info, 1, &plan, &err), &err);
    plan.synthetic = true;
    plan.stages[0].synthetic_fixed_ns = step_ns;
    mr_local_cluster_config local = {.model_path = path, .n_stages = 1, .threads_per_stage = 1, .epoch = 1};
    must(mr_local_cluster_create(&local, out_cluster, &err), &err);
    mr_job_config config = {.info = info,
                            .epoch.plan = &plan,
                            .channel = mr_local_cluster_channel(*out_cluster),
                            .epoch.number = 1,
                            .max_rows = n < 512 ? 512 : n,
                            .max_out_rows = n,
                            .max_sequences = n,
                            .max_context = 512,
                            .epoch.n_kv_blocks = n * 32,
                            .kv_type = MR_TYPE_F16};
    must(mr_job_create(&config, &job, &err), &err);
    return job;
}

/* --- The job alone ----------------------------------------------------------------------------------------------- */

static int64_t n_counted;

static bool count_token(void *ctx, const mr_token_event *event) {
    (void)ctx;
    n_counted += event->finish != MR_FINISH_ERROR;
    return false;
}

static void run_alone(mr_job *job, int32_t n, int32_t n_tokens) {
    mr_err err;
    int64_t start = mr_clock_now_ns(), sequence;
    for (int32_t i = 0; i < n; i++) {
        int32_t ids[N_PROMPT] = {1, i + 2, 3, 4, 5, 6, 7, 8};
        mr_sequence_desc desc = {.prompt_ids = ids,
                                 .n_prompt = N_PROMPT,
                                 .max_tokens = n_tokens,
                                 .sampling = mr_sampling_params_default(),
                                 .on_token = count_token};
        must(mr_job_submit(job, &desc, &sequence, &err), &err);
    }
    must(mr_job_run(job, &err), &err);
    double seconds = 1e-9 * (double)(mr_clock_now_ns() - start);
    printf("job alone: %lld tokens, %.0f a second\n", (long long)n_counted, (double)n_counted / seconds);
}

/* --- The service ------------------------------------------------------------------------------------------------- */

static void wake(void *ctx) {
    client *c = ctx;
    server_thread *s = c->server;
    mr_mutex_lock(&s->lock);
    if (!c->is_listed) {
        c->is_listed = true;
        c->next = s->first;
        s->first = c;
        mr_cond_signal(&s->cond);
    }
    mr_mutex_unlock(&s->lock);
}

static client *next_client(server_thread *s) {
    mr_mutex_lock(&s->lock);
    while (!s->first)
        mr_cond_wait_until(&s->cond, &s->lock, MR_NEVER);
    client *c = s->first;
    s->first = c->next;
    c->is_listed = false;
    mr_mutex_unlock(&s->lock);
    return c;
}

static void serve(void *ctx) {
    server_thread *s = ctx;
    while (s->n_left > 0) {
        client *c = next_client(s);
        mr_piece piece;
        while (mr_request_take(c->request, &piece)) {
            s->n_pieces++;
            if (piece.n_tokens > 0)
                s->latency_ns[s->n_tokens] = mr_clock_now_ns() - piece.token_ns;
            for (int32_t i = 1; i < piece.n_tokens; i++) /* all tokens of a piece have the latency of the piece */
                s->latency_ns[s->n_tokens + i] = s->latency_ns[s->n_tokens];
            s->n_tokens += piece.n_tokens;
            s->n_left -= piece.finish != MR_FINISH_NONE;
        }
    }
}

static int order(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void report(server_thread *servers, double seconds) {
    int64_t n = servers[0].n_tokens, all = n, n_pieces = 0;
    for (int i = 0; i < N_READERS; i++)
        n_pieces += servers[i].n_pieces;
    for (int i = 1; i < N_READERS; i++) {
        for (int64_t k = 0; k < servers[i].n_tokens; k++)
            servers[0].latency_ns[all + k] = servers[i].latency_ns[k];
        all += servers[i].n_tokens;
    }
    qsort(servers[0].latency_ns, (size_t)all, sizeof(int64_t), order);
    printf("service: %lld tokens in %lld pieces, %.0f a second; from coming to reader p50 %.1f us, p99 %.1f us\n",
           (long long)all, (long long)n_pieces, (double)all / seconds, 1e-3 * (double)servers[0].latency_ns[all / 2],
           1e-3 * (double)servers[0].latency_ns[all * 99 / 100]);
}

typedef struct driver {
    mr_service *service;
    int32_t n, n_tokens;
} driver;

/* Starts, measures and ends the clients. The run of the job itself stays in the main thread. */
static void drive(void *ctx) {
    driver *d = ctx;
    mr_err err;
    server_thread servers[N_READERS] = {0};
    client *clients = mr_alloc_array((size_t)d->n, sizeof *clients);
    for (int i = 0; i < N_READERS; i++) {
        mr_mutex_init(&servers[i].lock);
        mr_cond_init(&servers[i].cond);
        servers[i].latency_ns = mr_alloc_array((size_t)d->n * (size_t)d->n_tokens, sizeof(int64_t));
    }
    mr_service_stats stats;
    do
        mr_service_get_stats(d->service, &stats);
    while (stats.state == MR_SERVICE_LOADING);
    int64_t start = mr_clock_now_ns();
    for (int32_t i = 0; i < d->n; i++) {
        int32_t ids[N_PROMPT] = {1, i + 2, 3, 4, 5, 6, 7, 8};
        client *c = &clients[i];
        c->server = &servers[i % N_READERS];
        c->server->n_left++;
        mr_generate_desc desc = {.sequence = {.prompt_ids = ids,
                                              .n_prompt = N_PROMPT,
                                              .max_tokens = d->n_tokens,
                                              .sampling = mr_sampling_params_default()},
                                 .n_choices = 1,
                                 .n_logprobs = -1,
                                 .ignore_end = true,
                                 .wake = wake,
                                 .ctx = c};
        must(mr_service_submit(d->service, &desc, &c->request, &err), &err);
    }
    for (int i = 0; i < N_READERS; i++)
        must(mr_thread_create("server", 0, serve, &servers[i], &servers[i].thread, &err), &err);
    for (int i = 0; i < N_READERS; i++)
        mr_thread_join(servers[i].thread);
    double seconds = 1e-9 * (double)(mr_clock_now_ns() - start);
    for (int32_t i = 0; i < d->n; i++)
        mr_request_release(clients[i].request);
    report(servers, seconds);
    mr_service_stop(d->service);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: bench_service MODEL CLIENTS TOKENS STEP_US\n");
        return 2;
    }
    driver d = {.n = atoi(argv[2]), .n_tokens = atoi(argv[3])};
    mr_gguf *gguf;
    mr_tokenizer *tok;
    mr_model_info info;
    mr_local_cluster *cluster;
    mr_thread *thread;
    mr_err err;
    must(mr_gguf_open(argv[1], &gguf, &err), &err);
    must(mr_vocab_load(gguf, &tok, &err), &err);
    mr_job *job = start_job(argv[1], gguf, &info, d.n, (int64_t)atoi(argv[4]) * 1000, &cluster);
    run_alone(job, d.n, d.n_tokens);
    must(mr_service_create(&(mr_service_config){.max_waiting = d.n + 1}, &d.service, &err), &err);
    must(mr_thread_create("driver", 0, drive, &d, &thread, &err), &err);
    must(mr_service_run(d.service, job, tok, &err), &err);
    mr_thread_join(thread);
    mr_service_destroy(d.service);
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    mr_tokenizer_destroy(tok);
    mr_gguf_close(gguf);
    return 0;
}
