/* coordinator/session/session.h - what the commands that run or plan a model share: the model, the choices that options
 * leave open, the plan with its sizes, and the cluster with its job.
 * Life:    open; mr_session_size once the sequences are known; start (not for `plan`); close.
 * Owns:    all of it. Borrows: the options. {0} may be closed.
 * Threads: bound to the main thread.
 * Errors:  MR_E_INVALID for options that do not fit together or the model; texts name model file, option or stage. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_H
#define MR_COORDINATOR_SESSION_SESSION_H

#include "coordinator/console/options.h"
#include "coordinator/console/progress.h"
#include "coordinator/job/job.h"
#include "coordinator/planning/plan.h"
#include "coordinator/session/session_cluster.h"
#include "coordinator/session/session_facts.h"
#include "coordinator/session/trace_file.h"
#include "engine/text/buffers.h"
#include "worker/stage/stage.h"

/* What the sequences of a command need. */
typedef struct mr_session_needs {
    int64_t max_rows;      /* that one step can have at all */
    int32_t max_sequences; /* live at once */
    bool all_logits;       /* every row wants logits, not only one of each sequence */
    int64_t kv_tokens;     /* of all sequences, each rounded up to blocks */
    int64_t min_kv_tokens; /* of the largest one: with less the command cannot run */
    bool half_of_free;     /* the KV cache takes half of the memory that the rest leaves, not all of it */
} mr_session_needs;

typedef struct mr_session {
    const mr_options *options;
    char *model_path;
    mr_gguf *gguf;
    mr_model_info info;
    mr_session_cluster cluster;
    mr_devices_config devices;
    mr_session_facts facts;
    mr_plan plan;
    int32_t threads, ctx, chunk;
    double token_s; /* instead of --tbt-ms; 0: as that says */
    mr_type kv_type;
    /* From mr_session_size. */
    int32_t max_rows, max_out_rows, max_sequences, n_kv_blocks;
    mr_stage_sizes *sizes; /* [plan.n_stages] */
    bool map_weights;      /* matrices stay in the mapped file */
    /* From mr_session_start. */
    mr_job *job;
    mr_trace_file trace;
    int64_t *clock_offset_ns; /* [plan.n_stages], with a trace or on_spans */
    mr_progress bar;
    int64_t load_ns;
    /* May be set before mr_session_start; see job.h. */
    bool grammars; /* a server's session sets it itself */
    void (*on_step)(void *ctx, int32_t n_rows);
    void *on_step_ctx;
    void (*on_spans)(void *ctx, int32_t stage, const mr_span *spans, int32_t n); /* beside --trace */
    void *on_spans_ctx;
    void (*on_loaded)(void *ctx, size_t done_bytes, size_t total_bytes); /* beside the bar */
    void *on_loaded_ctx;
    bool (*interrupted)(void); /* NULL: a signal or a lost rank ends the job */
} mr_session;

/* The model file that MODEL or --demo names. */
MR_MUST_USE mr_status mr_session_model_path(const mr_options *options, char **out_path, mr_err *err);
/* The first argument that is not MODEL, or NULL. */
const char *mr_session_text_argument(const mr_options *options);
/* Opens the file alone. */
MR_MUST_USE mr_status mr_session_model_open(const mr_options *options, char **out_path, mr_gguf **out_gguf,
                                            mr_err *err);

/* Opens the model, meets the other ranks where there are any, and plans the stages. */
MR_MUST_USE mr_status mr_session_open(const mr_options *options, mr_session *s, mr_err *err);
void mr_session_close(mr_session *s);

/* The prompt's tokens fit the context, with `more` behind them. MR_E_TOO_LONG. */
MR_MUST_USE mr_status mr_session_check_length(const mr_session *s, int64_t n_tokens, int32_t more, mr_err *err);
/* Tokens of the KV blocks that a sequence of n tokens takes. */
static inline int64_t mr_session_whole_blocks(int64_t n) {
    return (n + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS * MR_WIRE_BLOCK_TOKENS;
}
/* What is known of the rank of a stage; NULL where stages are threads. */
const mr_rank_info *mr_session_rank(const mr_session *s, int32_t stage);
/* Of all stages together; after mr_session_size. */
mr_stage_sizes mr_session_total_sizes(const mr_session *s);
/* Bytes of weights that a stage reads for every step from the mapped model file. */
size_t mr_session_file_bytes(const mr_session *s, int32_t stage);
/* Rows of a step without --chunk. */
int32_t mr_session_usual_chunk(int32_t n_stages);
/* Without --chunk a step has room for a row of each sequence, and for rows of prompts beside them. */
void mr_session_widen_chunk(mr_session *s, int32_t n_sequences);
/* Chooses rows and KV blocks and measures the stages. MR_E_NO_MEMORY: more than --mem allows. */
MR_MUST_USE mr_status mr_session_size(mr_session *s, const mr_session_needs *needs, mr_err *err);
/* Likewise for a server, which does not know what will come: --sequences live at once, or 64, and KV blocks for all of
 * them at their longest, as far as half of the free memory goes; room for one is the least. */
MR_MUST_USE mr_status mr_session_size_for_server(mr_session *s, mr_err *err);
/* Loads the model, with plan and progress as notes. */
MR_MUST_USE mr_status mr_session_start(mr_session *s, mr_err *err);

/* After the last run, where all is well: with --trace ends the stages, finishes the file and says where the time
 * went. */
MR_MUST_USE mr_status mr_session_stop(mr_session *s, mr_err *err);

/* Names the stages in a trace; for any thread, once there is a plan. */
void mr_session_name_tracks(const mr_session *s, mr_trace_file *trace);

/* The plan as a table: stage, layers, weights, KV cache, buffers. */
MR_MUST_USE mr_status mr_session_print_plan(const mr_session *s, mr_text_buf *out, mr_err *err);

#endif
