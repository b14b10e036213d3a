/* worker/stage/stage.h - one stage of the pipeline: its weights, its KV blocks, and a graph for every row bucket.
 * Use: create loads the weights. Then for each step fill mr_stage_rows(), call mr_stage_run, read the results.
 * Owns:    weights, KV store, graphs, work memory. Borrows: gguf, info and backends, which outlive the stage.
 * Threads: bound to the step thread.
 * Errors:  create: those of loading. run: those of the backends, such as MR_E_DEVICE. A run allocates nothing, except
 *          with MILLRACE_GRAPH_REUSE=off (engine/graph/debug.h). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_H
#define MR_WORKER_STAGE_STAGE_H

#include "backends/backend.h"
#include "engine/gguf/model_info.h"
#include "engine/model/model.h"
#include "worker/stage/synthetic.h"

typedef struct mr_stage_config {
    const mr_gguf *gguf;
    const mr_model_info *info;
    mr_layer_range range;
    int32_t max_rows;      /* rows of one step */
    int32_t max_out_rows;  /* rows of one step that want logits */
    int32_t max_sequences; /* sequence slots */
    int32_t max_context;   /* tokens of one sequence */
    int32_t n_kv_blocks;
    mr_type kv_type;
    bool map_weights; /* mr_weights_desc.map */
    /* Further backends, in order of preference, at most MR_MAX_BACKENDS - 1. The stage prefers these devices to the
     * backend argument of mr_stage_create. The backend argument runs every node that no device runs; devices.rates[n]
     * is the rate of the backend argument. */
    mr_backends devices;
    bool measures_products;        /* devices.min_rows comes from a measurement at load (worker/stage/products.h) */
    const mr_synthetic *synthetic; /* the stage sleeps instead of computing and loads nothing; copied. NULL: computes */
} mr_stage_config;

/* Bytes of the buffers in one device's memory. */
typedef struct mr_stage_bytes {
    size_t weights, kv, tables, work;
} mr_stage_bytes;

typedef struct mr_stage_sizes {
    size_t weight_bytes, kv_bytes, work_bytes; /* in the host's memory */
    /* Memory from mr_pages_alloc for all buffers on the host except the KV blocks; each buffer takes whole pages. */
    size_t page_bytes;
    mr_stage_bytes devices[MR_MAX_BACKENDS]; /* of config.devices.at[i]; zeros if it computes in the host's memory */
} mr_stage_sizes;

/* The most memory that a stage of this config can take, for any result of mr_products_measure. Loads nothing. */
MR_MUST_USE mr_status mr_stage_measure(const mr_stage_config *config, mr_backend *backend, mr_stage_sizes *out,
                                       mr_err *err);

typedef struct mr_stage mr_stage;

/* progress may be NULL. */
MR_MUST_USE mr_status mr_stage_create(const mr_stage_config *config, mr_backend *backend, mr_load_progress *progress,
                                      void *progress_ctx, mr_stage **out, mr_err *err);
void mr_stage_destroy(mr_stage *s);
bool mr_stage_is_synthetic(const mr_stage *s);
mr_stage_sizes mr_stage_get_sizes(const mr_stage *s);

/* The rows of the next step. The stage owns the arrays, the caller fills them. The caller keeps the values in range:
 * ids below the vocabulary size, slots below n_kv_blocks * MR_KV_BLOCK, positions below max_context and inside the
 * blocks of the block table. step.c checks values that come from a peer. */
typedef struct mr_step_rows {
    int32_t n_rows, n_out, n_hidden;
    int32_t *ids;         /* [max_rows], head only */
    int32_t *positions;   /* [max_rows] */
    int32_t *slots;       /* [max_rows]: KV block * MR_KV_BLOCK + position % MR_KV_BLOCK */
    int32_t *row_seq;     /* [max_rows]: sequence slot */
    int32_t *out_rows;    /* [max_out_rows]: rows that want logits, tail only */
    int32_t *hidden_rows; /* [max_rows]: rows whose hidden row (behind the output norm) is wanted, tail only */
} mr_step_rows;
mr_step_rows *mr_stage_rows(mr_stage *s);

/* Entries [first, first + n) of a sequence slot's block table, from the next run on. blocks is copied. */
MR_MUST_USE mr_status mr_stage_set_blocks(mr_stage *s, int32_t slot, int32_t first, const int32_t *blocks, int32_t n,
                                          mr_err *err);
/* Before the next run, KV block `from` is copied to block `to` in every layer. Copies happen in the order of the calls,
 * and there are at most max_sequences of them for a run. */
void mr_stage_copy_block(mr_stage *s, int32_t from, int32_t to);
/* Runs the step. x_in: [n_rows, d_model] f32, NULL on the head. progress is called between groups of nodes, and may be
 * NULL. MR_E_CANCELLED: a synthetic stage was told to end. */
MR_MUST_USE mr_status mr_stage_run(mr_stage *s, const float *x_in, void (*progress)(void *ctx), void *progress_ctx,
                                   mr_err *err);
/* Results of the last run; zeros if the stage is synthetic. Activations: [n_rows, d_model] f32. Logits: [vocabulary]
 * f32 of out row `out_row`, an index into out_rows. Hidden: entries [first, first + n) of hidden_rows, behind the
 * output norm, [n, d_model] f32. */
MR_MUST_USE mr_status mr_stage_read_activations(mr_stage *s, float *out_x, mr_err *err);
MR_MUST_USE mr_status mr_stage_read_logits(mr_stage *s, int32_t out_row, float *out_logits, mr_err *err);
MR_MUST_USE mr_status mr_stage_read_hidden(mr_stage *s, int32_t first, int32_t n, float *out_rows, mr_err *err);

#endif
