/* tests/bench/bench_model.c - tokens per second of a model through coordinator, channels and stages, with random prompts.
 *   bench_model MODEL [stages] [threads per stage] [prompt tokens] [generated tokens] [sequences]     (1 2 512 48 1)
 * Prefill is the time to the last sequence's first token, decode what comes after; one JSON line for each run. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/job.h"
#include "coordinator/local_cluster.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"

typedef struct settings {
    const char *model;
    int32_t stages, threads, n_prompt, n_generate, n_sequences;
} settings;

static bool on_token(void *ctx, const mr_token_event *event) {
    (void)ctx;
    if (event->finish == MR_FINISH_ERROR)
        fprintf(stderr, "sequence %d: %s\n", event->sequence, event->text);
    return false;
}

static mr_status submit_all(mr_job *job, const settings *s, int32_t n_vocab, mr_err *err) {
    int32_t *ids = mr_alloc_array((size_t)s->n_prompt, sizeof *ids), sequence;
    mr_status status = ids ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a prompt");
    for (int32_t i = 0; i < s->n_sequences && status == MR_OK; i++) {
        for (int32_t p = 0; p < s->n_prompt; p++)
            ids[p] = (int32_t)(mr_rng_u64(1, (uint64_t)i, (uint64_t)p) % (uint64_t)n_vocab);
        mr_sequence_desc desc = {.prompt_ids = ids,
                                 .n_prompt = s->n_prompt,
                                 .max_tokens = s->n_generate,
                                 .top_p = 1,
                                 .repeat_penalty = 1,
                                 .on_token = on_token};
        status = mr_job_submit(job, &desc, &sequence, err);
    }
    mr_free(ids);
    return status;
}

static void print_result(const settings *s, const mr_job *job) {
    mr_job_timings t = mr_job_get_timings(job);
    printf("{\"stages\": %d, \"threads\": %d, \"sequences\": %d, \"prefill_tokens_per_second\": %.2f, "
           "\"decode_tokens_per_second\": %.2f}\n",
           s->stages, s->threads, s->n_sequences, (double)t.prefill_tokens / ((double)t.prefill_ns / 1e9),
           (double)t.decode_tokens / ((double)t.decode_ns / 1e9));
}

static mr_status run(const settings *s, mr_gguf *gguf, mr_err *err) {
    static mr_plan plan;
    mr_model_info info;
    mr_local_cluster *cluster = NULL;
    mr_job *job = NULL;
    mr_local_cluster_config local = {
        .model_path = s->model, .n_stages = s->stages, .threads_per_stage = s->threads, .epoch = 1};
    int32_t context = s->n_prompt + s->n_generate, chunk = s->n_prompt < 512 ? s->n_prompt : 512;
    mr_status status = mr_model_info_read(gguf, &info, err);
    if (status == MR_OK)
        status = mr_plan_balance(gguf, &info, s->stages, &plan, err);
    if (status == MR_OK)
        status = mr_local_cluster_create(&local, &cluster, err);
    if (status != MR_OK)
        return status;
    mr_job_config config = {.info = &info,
                            .plan = &plan,
                            .channel = mr_local_cluster_channel(cluster),
                            .epoch = 1,
                            .max_rows = chunk,
                            .max_out_rows = s->n_sequences < chunk ? s->n_sequences : chunk,
                            .max_sequences = s->n_sequences,
                            .max_context = context,
                            .n_kv_blocks = (context + 15) / 16 * s->n_sequences,
                            .kv_type = MR_TYPE_F16};
    status = mr_job_create(&config, &job, err);
    if (status == MR_OK)
        status = submit_all(job, s, info.vocab_size, err);
    if (status == MR_OK)
        status = mr_job_run(job, err);
    if (status == MR_OK)
        print_result(s, job);
    mr_job_destroy(job);
    mr_local_cluster_destroy(cluster);
    return status;
}

static int32_t argument(int argc, char **argv, int at, int32_t value) {
    return argc > at && atoi(argv[at]) > 0 ? atoi(argv[at]) : value;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: bench_model MODEL [stages] [threads] [prompt tokens] [generated tokens] [sequences]\n");
        return 2;
    }
    settings s = {.model = argv[1],
                  .stages = argument(argc, argv, 2, 1),
                  .threads = argument(argc, argv, 3, 2),
                  .n_prompt = argument(argc, argv, 4, 512),
                  .n_generate = argument(argc, argv, 5, 48),
                  .n_sequences = argument(argc, argv, 6, 1)};
    mr_gguf *gguf = NULL;
    mr_err err;
    mr_status status = mr_gguf_open(s.model, &gguf, &err);
    if (status == MR_OK)
        status = run(&s, gguf, &err);
    if (status != MR_OK)
        fprintf(stderr, "bench_model: %s\n", err.text);
    mr_gguf_close(gguf);
    return status == MR_OK ? 0 : 1;
}
