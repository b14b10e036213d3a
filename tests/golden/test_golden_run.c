// SPDX-License-Identifier: Apache-2.0
#include "test_golden_run.h"

#include <stdio.h>
#include <stdlib.h>

#include "backends/cpu/cpu_backend.h"
#include "worker/stage/stage.h"

enum { CHUNK = 256, N_THREADS = 2 };

int32_t *golden_read_ids(const char *path, int32_t *out_n) {
    FILE *f = fopen(path, "r");
    if (!f)
        return NULL;
    int32_t n = 0, capacity = 8192, id;
    int32_t *ids = malloc((size_t)capacity * sizeof *ids);
    while (ids && n < capacity && fscanf(f, "%d", &id) == 1)
        ids[n++] = id;
    fclose(f);
    *out_n = n;
    return ids;
}

float *golden_read_floats(const char *path, size_t n) {
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    float *values = malloc((n + 1) * sizeof *values);
    size_t got = values ? fread(values, sizeof *values, n + 1, f) : 0;
    fclose(f);
    if (got == n)
        return values;
    free(values);
    return NULL;
}

/* A whole model as one stage, and one sequence in it. */
typedef struct runner {
    mr_gguf *gguf;
    mr_model_info info;
    mr_backend *backend;
    mr_stage *stage;
    int32_t n_blocks;
} runner;

static void runner_deinit(runner *r) {
    mr_stage_destroy(r->stage);
    mr_gguf_close(r->gguf);
}

/* KV block b of the sequence: not the order of positions. */
static int32_t block_of(const runner *r, int32_t b) {
    return r->n_blocks - 1 - b;
}

static mr_status runner_init(runner *r, const char *path, mr_type kv_type, int32_t n_tokens, mr_err *err) {
    mr_status status = mr_gguf_open(path, &r->gguf, err);
    if (status == MR_OK)
        status = mr_model_info_read(r->gguf, &r->info, err);
    if (status != MR_OK)
        return status;
    r->n_blocks = (n_tokens + MR_KV_BLOCK - 1) / MR_KV_BLOCK;
    mr_stage_config config = {
        .gguf = r->gguf,
        .info = &r->info,
        .range = {0, r->info.n_layers},
        .max_rows = CHUNK,
        .max_out_rows = CHUNK,
        .max_sequences = 1,
        .max_context = n_tokens,
        .n_kv_blocks = r->n_blocks,
        .kv_type = kv_type,
    };
    status = mr_stage_create(&config, r->backend, NULL, NULL, &r->stage, err);
    for (int32_t b = 0; b < r->n_blocks && status == MR_OK; b++) {
        int32_t block = block_of(r, b);
        status = mr_stage_set_blocks(r->stage, 0, b, &block, 1, err);
    }
    return status;
}

/* Positions [first, last); logits of those from first_wanted on. */
static mr_status run_chunk(runner *r, const int32_t *ids, int32_t first, int32_t last, int32_t first_wanted,
                           float *logits, mr_err *err) {
    mr_step_rows *rows = mr_stage_rows(r->stage);
    rows->n_rows = rows->n_out = 0;
    for (int32_t i = first; i < last; i++) {
        int32_t row = rows->n_rows++;
        rows->ids[row] = ids[i];
        rows->positions[row] = i;
        rows->slots[row] = block_of(r, i / MR_KV_BLOCK) * MR_KV_BLOCK + i % MR_KV_BLOCK;
        rows->row_seq[row] = 0;
        if (i >= first_wanted)
            rows->out_rows[rows->n_out++] = row;
    }
    mr_status status = mr_stage_run(r->stage, &(mr_stage_step){0}, err);
    for (int32_t o = 0; o < rows->n_out && status == MR_OK; o++) {
        int32_t position = first + rows->out_rows[o];
        float *to = logits + (size_t)(position - first_wanted) * (size_t)r->info.vocab_size;
        memcpy(to, mr_stage_logits(r->stage, o), (size_t)r->info.vocab_size * sizeof *to);
    }
    return status;
}

mr_status golden_run_on(mr_backend *backend, const char *model_path, mr_type kv_type, const int32_t *ids, int32_t n,
                        int32_t n_last, golden_logits *out, mr_err *err) {
    runner r = {.backend = backend};
    float *logits = NULL;
    mr_status status = runner_init(&r, model_path, kv_type, n, err);
    for (int32_t i = 0; i < n && status == MR_OK; i++)
        if (ids[i] < 0 || ids[i] >= r.info.vocab_size)
            status = mr_err_set(err, MR_E_INVALID, "id %d is none of the model's %d", ids[i], r.info.vocab_size);
    if (status != MR_OK)
        goto out;
    logits = calloc((size_t)n_last * (size_t)r.info.vocab_size, sizeof *logits);
    if (!logits)
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for logits");
    for (int32_t first = 0; first < n && status == MR_OK; first += CHUNK)
        status = run_chunk(&r, ids, first, n - first < CHUNK ? n : first + CHUNK, n - n_last, logits, err);
    if (status != MR_OK)
        goto out;
    *out = (golden_logits){.n_positions = n_last, .n_vocab = r.info.vocab_size, .values = logits};
    logits = NULL;
out:
    free(logits);
    runner_deinit(&r);
    return status;
}

mr_status golden_run(const char *model_path, mr_type kv_type, const int32_t *ids, int32_t n, int32_t n_last,
                     golden_logits *out, mr_err *err) {
    mr_backend *backend = NULL;
    mr_status status = mr_cpu_backend_create(&(mr_cpu_options){.n_threads = N_THREADS}, &backend, err);
    if (status == MR_OK)
        status = golden_run_on(backend, model_path, kv_type, ids, n, n_last, out, err);
    mr_backend_destroy(backend);
    return status;
}

double golden_nmse(const float *got, const float *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)want[i];
        error += d * d;
        size += (double)want[i] * (double)want[i];
    }
    return error / size;
}
