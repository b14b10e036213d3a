/* coordinator/session/session.h - what the commands that run or plan a model share: the model, the choices that options
 * leave open, the plan with its sizes, and the cluster with its job.
 * Life:    mr_session_open; mr_session_size when the needs of the sequences are known; mr_session_start (not for
 *          `plan`); mr_session_close.
 * Owns:    all of it. Borrows: the options. {0} may be closed.
 * Threads: bound to the main thread.
 * Errors:  MR_E_INVALID: options contradict each other or the model. Texts name the model file, the option or the
 *          stage. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_H
#define MR_COORDINATOR_SESSION_SESSION_H

#include <stdatomic.h>

#include "coordinator/console/options.h"
#include "coordinator/console/progress.h"
#include "coordinator/job/job.h"
#include "coordinator/planning/plan.h"
#include "coordinator/session/restart_limit.h"
#include "coordinator/session/session_cluster.h"
#include "coordinator/session/session_facts.h"
#include "coordinator/session/trace_file.h"
#include "engine/base/thread.h"
#include "engine/text/buffers.h"
#include "worker/stage/stage.h"

/* What the sequences of a command need. */
typedef struct mr_session_needs {
    int64_t max_rows;      /* the most rows that one step could have */
    int32_t max_sequences; /* in a slot at once */
    bool all_logits;       /* every row brings logits, not only one row of each sequence */
    int64_t kv_tokens;     /* of all sequences, each rounded up to blocks */
    int64_t min_kv_tokens; /* of the largest sequence: with less KV cache the command cannot run */
    bool half_of_free;     /* the KV cache may take half of the memory that the rest leaves; false: all of it */
} mr_session_needs;

/* Whether the job waits, because the ranks that may hold layers have too little memory for them. */
typedef struct mr_session_starvation {
    bool is_on;
    uint64_t missing_bytes;      /* at least */
    char why[MR_ERR_TEXT_BYTES]; /* names hosts and figures */
} mr_session_starvation;

/* What --recover has done so far, and how long the last recovery took. */
typedef struct mr_session_recovered {
    uint32_t epoch;     /* the latest; 0: --recover is off */
    int64_t n;          /* recoveries that ended with a new plan */
    double detection_s; /* of the last one: from the last sign of life of a lost rank to its loss; 0: none was lost */
    double planning_s;  /* to find its last plan, and the time before that */
    double loading_s;   /* to end the stages, to start others, and to load */
    double again_s;     /* to compute again what sequences had; 0: not done yet, or they had nothing */
} mr_session_recovered;

/* What --recover keeps of the ranks. For the main thread where nothing else is said. */
typedef struct mr_session_recovery {
    bool is_on;                                /* --recover, and there are ranks */
    bool *has_failed;                          /* [n_ranks]: the rank's stage has failed, so it gets none any more */
    bool *lacks_memory;                        /* [n_ranks]: it has failed for lack of memory, so it is tried again */
    bool *is_drained;                          /* [n_ranks]: it gets none because somebody asked for that */
    atomic_bool *wishes;                       /* [n_ranks]: what is_drained is to become; written under lock */
    atomic_int n_wishes;                       /* so far */
    int n_granted;                             /* of these */
    uint32_t *n_signals;                       /* [n_ranks]: SIGUSR1 that have become wishes */
    int64_t hear_ns;                           /* when the ranks are heard next */
    mr_restart_limit restarts;                 /* of the stages, though no rank was left out */
    int32_t n_first_stages, n_first_kv_blocks; /* of the first plan */
    bool *ordered;                             /* like holds: what spares were told to hold last */
    bool *holds; /* [n_ranks][layers + 1]: which layers a rank has in memory, as far as known; at the end, the output */
    uint64_t missing_bytes;           /* of the last plan, where it did not fit the memory of a host */
    uint32_t question;                /* the latest to the ranks */
    bool computes_again;              /* sequences do what they had done in the epoch before */
    int32_t n_lost;                   /* ranks, by the last look */
    int64_t planned_ns;               /* when the latest plan was found */
    int64_t ask_ns;                   /* while the job waits: when the ranks are asked next */
    int64_t retry_ns, retry_pause_ns; /* when ranks that lacked memory are tried again, and the pause after */
    int32_t n_ahead_blocks; /* KV blocks of the present epoch that were copied while steps of the one before ran */
    uint32_t n_kv_copies;   /* that were begun while steps ran */
    struct session_kv_ahead *kv_ahead; /* session_kv_ahead.h; NULL: nothing is copied */
    struct session_recut *recut;       /* session_recut.h; NULL: there are no measured facts */
    mr_mutex lock;                     /* guards the fields below, and wishes against each other */
    mr_session_starvation starvation;  /* written by the main thread */
    mr_session_recovered recovered;    /* likewise */
} mr_session_recovery;

typedef struct mr_session {
    const mr_options *options;
    char *model_path;
    mr_gguf *gguf;
    mr_model_info info;
    mr_session_cluster cluster;
    mr_devices_config devices;
    int32_t hot_partitions; /* of neurons: the most of a layer that a device holds (--gpu-index); -1: as many as fit */
    int32_t gpu_layers; /* the most layers of a stage that its device holds; -1: as many as fit, where that is faster */
    mr_session_facts facts;
    mr_plan plan;
    int32_t threads, ctx, chunk;
    double token_s; /* wanted time between tokens; 0: by --tbt-ms */
    mr_type kv_type;
    /* From mr_session_size. */
    int32_t max_rows, max_out_rows, max_sequences, n_kv_blocks;
    mr_stage_sizes *sizes; /* [plan.n_stages] */
    bool map_weights;      /* matrices stay in the mapped model file */
    /* From mr_session_start. */
    mr_job *job;
    bool is_loaded; /* a plan has been loaded by all of its stages */
    uint32_t epoch; /* the latest */
    mr_session_recovery recovery;
    mr_trace_file trace;
    int64_t *clock_offset_ns; /* of each stage, with a trace or on_spans; room for the stages of any plan */
    mr_progress bar;
    int64_t load_ns;
    /* May be set before mr_session_start; see job.h. */
    bool grammars; /* a server's session sets it itself */
    void (*on_step)(void *ctx, int32_t n_rows);
    void *on_step_ctx;
    void (*on_spans)(void *ctx, int32_t stage, const mr_span *spans, int32_t n); /* in addition to --trace */
    void *on_spans_ctx;
    bool counts_uses;                                                    /* set it before mr_session_size */
    void (*on_loaded)(void *ctx, size_t done_bytes, size_t total_bytes); /* in addition to the progress bar */
    void *on_loaded_ctx;
    bool (*interrupted)(void); /* NULL: a signal or a lost rank ends the job */
    /* With --recover: ranks are lost, and plan and sizes change between the two calls. May be NULL. */
    void (*on_recovery)(void *ctx, bool begins);
    void *on_recovery_ctx;
    /* What is said of the ranks has changed without a recovery; ctx is on_recovery_ctx. May be NULL. */
    void (*on_spares)(void *ctx);
} mr_session;

/* The path of the model file that MODEL or --demo names; to be freed by the caller. */
MR_MUST_USE mr_status mr_session_model_path(const mr_options *options, char **out_path, mr_err *err);
/* The first argument after MODEL, or NULL. */
const char *mr_session_text_argument(const mr_options *options);
/* Opens the model file, without a session. */
MR_MUST_USE mr_status mr_session_model_open(const mr_options *options, char **out_path, mr_gguf **out_gguf,
                                            mr_err *err);

/* The digest of the model file, also where rank 0 lacks parts of it. */
uint64_t mr_session_model_digest(const mr_session *s);
/* Opens the model, meets the other ranks if there are any, and plans the stages. */
MR_MUST_USE mr_status mr_session_open(const mr_options *options, mr_session *s, mr_err *err);
void mr_session_close(mr_session *s);
/* Sets hot_partitions by the file of --gpu-index, if there is one. The model is open. */
MR_MUST_USE mr_status mr_session_read_gpu_index(mr_session *s, mr_err *err);
/* Chooses the ways of the plan's activations. Done by mr_session_open. MR_E_UNSUPPORTED: --link wants one that cannot
 * be had. */
MR_MUST_USE mr_status mr_session_choose_ways(mr_session *s, mr_err *err);
/* Takes over the ways on which the loaded stages have agreed, where these are others than those of the plan. */
void mr_session_take_ways(mr_session *s, const mr_job *job);
/* The ways between devices that --link leaves open: mr_facts_wish.ways. 0: no layer will be on a device. */
uint32_t mr_session_ways_to_measure(const mr_session *s);

/* MR_E_TOO_LONG: a prompt of n_tokens, and `more` tokens behind it, do not fit the context. */
MR_MUST_USE mr_status mr_session_check_length(const mr_session *s, int64_t n_tokens, int32_t more, mr_err *err);
/* n tokens, rounded up to whole KV blocks. */
static inline int64_t mr_session_whole_blocks(int64_t n) {
    return (n + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS * MR_WIRE_BLOCK_TOKENS;
}
/* The roll call's entry for the rank of a stage; NULL: the stage is a thread of this process. */
const mr_rank_info *mr_session_rank(const mr_session *s, int32_t stage);
/* Sums over all stages. Call after mr_session_size. */
mr_stage_sizes mr_session_total_sizes(const mr_session *s);
/* Bytes of weights that a stage reads from the mapped model file in every step. */
size_t mr_session_file_bytes(const mr_session *s, int32_t stage);
/* Bytes of the inbox and the outbox in which a stage holds the rows of steps that come and go, max_rows in each step.
 * 0: there is one stage. */
size_t mr_session_hop_bytes(const mr_session *s, int32_t n_stages, int32_t max_rows);
/* The chunk (rows of a step) if --chunk is not given. */
int32_t mr_session_usual_chunk(int32_t n_stages);
/* Without --chunk, makes a step large enough for a row of each sequence and some rows of prompts. */
void mr_session_widen_chunk(mr_session *s, int32_t n_sequences);
/* Chooses rows and KV blocks and measures the stages. MR_E_NO_MEMORY: more than --mem allows. */
MR_MUST_USE mr_status mr_session_size(mr_session *s, const mr_session_needs *needs, mr_err *err);
/* Measures the stages of another plan, with the rows and KV blocks of the session. */
MR_MUST_USE mr_status mr_session_size_again(mr_session *s, mr_err *err);
/* Whether the stages of the plan fit the memory of their hosts and --mem. MR_E_NO_MEMORY names the first host that has
 * too little, and *out_missing_bytes says how much; 0: nothing is missing. */
MR_MUST_USE mr_status mr_session_check_memory(const mr_session *s, uint64_t *out_missing_bytes, mr_err *err);
/* Like mr_session_size, for a server, whose requests are not known yet: --sequences sequences at once, or 64, and KV
 * blocks for all of them at full length. The KV cache takes half of the free memory at most, but has room for one full
 * sequence at least. */
MR_MUST_USE mr_status mr_session_size_for_server(mr_session *s, mr_err *err);
/* Starts the stages and loads the model. Writes plan and progress as notes. */
MR_MUST_USE mr_status mr_session_start(mr_session *s, mr_err *err);

/* Fills clock_offset_ns for the stages of the plan. */
void mr_session_set_clocks(mr_session *s);

/* Call after the last run, if no error has occurred. With --trace, ends the stages, completes the file and prints how
 * each stage spent its time. */
MR_MUST_USE mr_status mr_session_stop(mr_session *s, mr_err *err);

/* Names the stages' tracks in a trace. Callable from any thread once there is a plan. */
void mr_session_name_tracks(const mr_session *s, mr_trace_file *trace);

/* The plan as a table: stage, layers, weights, KV cache, buffers; predicted step times, rank and host if known. */
MR_MUST_USE mr_status mr_session_print_plan(const mr_session *s, mr_text_buf *out, mr_err *err);

#endif
