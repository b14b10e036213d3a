/* coordinator/job/job.h - runs sequences over the stages of a job: plan out, steps by the rules of the ring, tokens
 * back. The coordinator thread owns it; stages are threads or ranks at the other ends of the channel.
 * When:    after the ranks are started (session.h) and before the first prompt. For example, one sequence:
 *
 *     mr_sequence_desc desc = {.prompt_ids = ids, .n_prompt = n, .max_tokens = 32, .on_token = take, .ctx = text,
 *                              .sampling = mr_sampling_params_default()};
 *     mr_job_create(&config, &job, err);             // sends the plan; stages load their layers
 *     mr_job_submit(job, &desc, &sequence, err);     // any number of sequences
 *     mr_job_run(job, err);                          // calls take() with each token, until all have ended
 *     mr_job_destroy(job);
 *
 * Owns:    ledger, journal, links. Borrows: channel and info, which outlive it.
 * Threads: bound to one thread. Callbacks run on it and call nothing of the job but submit and cancel.
 * Errors:  a sequence that fails ends with its status in the event; what breaks a stage comes out of create or run with
 *          the stage and its text. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_JOB_H
#define MR_COORDINATOR_JOB_JOB_H

#include <stdbool.h>

#include "coordinator/job/learned_times.h"
#include "coordinator/job/prefix_key.h"
#include "coordinator/planning/micro_batches.h"
#include "coordinator/planning/plan.h"
#include "engine/sample/sampler.h"
#include "proto/channel.h"
#include "proto/phases.h"

typedef struct mr_job mr_job;

/* Sizes that a stage reported after loading. */
typedef struct mr_stage_report {
    size_t weight_bytes, kv_bytes, work_bytes;
    uint64_t fetched_bytes; /* of the model file, from other ranks */
} mr_stage_report;

typedef struct mr_job_config {
    const mr_model_info *info;
    const mr_plan *plan; /* copied */
    mr_channel *channel;
    uint32_t epoch;
    int32_t max_rows;      /* rows of one step: the prefill chunk */
    int32_t max_out_rows;  /* rows of one step that want logits */
    int32_t max_sequences; /* live at once */
    int32_t max_context;   /* tokens of one sequence, prompt included */
    int32_t n_kv_blocks;   /* of MR_WIRE_BLOCK_TOKENS tokens */
    int32_t kv_type;       /* GGUF type number: F32, F16 or Q8_0 */
    size_t control_bytes;  /* of a message to a stage at most; 0: what the largest takes. For tests */
    uint64_t model_digest; /* of the model file: part of what KV blocks are found by */
    bool map_weights;      /* matrices stay in the mapped file: mr_weights_desc.map */
    bool fast_numerics;    /* stages may use devices that are not exact */
    /* Sequences may have some; costs the last stage some 0.1 s of loading and 22 MiB for 128,000 tokens. */
    bool grammars;
    double token_s; /* wanted between the tokens of a sequence: mr_scheduler_config */
    /* Of the stages, measured before; copied. NULL: they are learned from the first steps on. */
    const mr_pipeline_times *times;
    /* Called while stages load: bytes done and in total over all stages. May be NULL. */
    void (*progress)(void *ctx, size_t done_bytes, size_t total_bytes);
    void *progress_ctx;
    /* Called with the stages that have been silent for some seconds of loading: "stage 2, rank 2 on node7". May be
     * NULL. */
    void (*silent)(const char *stages);
    /* If set, stages report what they did when: the times are those of their hosts' clocks. */
    void (*on_spans)(void *ctx, int32_t stage, const mr_span *spans, int32_t n);
    void *on_spans_ctx;
    /* Called when a step is done, in their order: how many rows it had. May be NULL. */
    void (*on_step)(void *ctx, int32_t n_rows);
    void *on_step_ctx;
    /* Asked ten times a second: true ends create or run with MR_E_CANCELLED and no text. May be NULL. */
    bool (*interrupted)(void);
} mr_job_config;

/* Sends the plan and waits until every stage has loaded its layers. */
MR_MUST_USE mr_status mr_job_create(const mr_job_config *config, mr_job **out, mr_err *err);
/* Tells the stages to end (if they still listen) and frees everything. NULL is accepted. */
void mr_job_destroy(mr_job *job);
const mr_stage_report *mr_job_stage_report(const mr_job *job, int32_t stage);

/* Where the time of a stage has gone since it was ready, and what it has done: as it said when it ended, or a moment
 * ago. */
typedef struct mr_stage_seconds {
    bool known;       /* it has ended and said so */
    int64_t heard_ns; /* when it said this, by the clock of this process; 0: it has not yet */
    int64_t ns[MR_PHASE_COUNT];
    uint64_t n_steps, n_dropped_spans, n_rows;
    uint64_t in_bytes, out_bytes; /* of activations */
    mr_learned_step usual;        /* rows 0: not known yet */
} mr_stage_seconds;

/* Ends the stages of a job that has run, and takes their last reports; nothing can run after that. */
void mr_job_stop(mr_job *job);
const mr_stage_seconds *mr_job_stage_seconds(const mr_job *job, int32_t stage);
/* The same for any thread, while the job lives. Stages say it four times a second while they run steps, and soon
 * after. */
void mr_job_copy_stage_seconds(mr_job *job, int32_t stage, mr_stage_seconds *out);

/* As a stage has reported while it ran; false: not yet. */
bool mr_job_usual_step(const mr_job *job, int32_t stage, mr_learned_step *out);

typedef enum mr_finish {
    MR_FINISH_NONE,   /* goes on */
    MR_FINISH_STOP,   /* the callback said so: an end token or a stop text */
    MR_FINISH_LENGTH, /* max_tokens or the context is full */
    MR_FINISH_ERROR,  /* status and text of the event say why */
} mr_finish;

/* One more token of a sequence, or its failure. */
typedef struct mr_token_event {
    int64_t sequence; /* as mr_job_submit numbered it */
    int32_t id;
    int32_t n_generated; /* this one included */
    int64_t time_ns;     /* monotonic, when it came; one time for all tokens of a step */
    int64_t begin_ns;    /* likewise, when the sequence got its first slot */
    int32_t n_cached;    /* tokens of the prompt that were there then */
    mr_finish finish;    /* NONE or LENGTH; ERROR without a token */
    mr_status status;
    const char *text; /* of the error */
    float logprob;    /* where logprobs are wanted: mr_logprobs of sampler.h; else 0 */
    int32_t n_top;
    const int32_t *top_ids; /* [n_top], valid inside the callback */
    const float *top_logprobs;
} mr_token_event;

/* What a description names, in memory of its own: ids, lists and grammar, and the keys of the prompt. */
typedef struct mr_kept mr_kept;

typedef struct mr_sequence_desc {
    const int32_t *prompt_ids; /* [n_prompt], at least one */
    int32_t n_prompt;
    int32_t max_tokens; /* to generate; 0 with on_logits or on_hidden: only rows of the prompt are wanted */
    mr_sampling_params sampling;
    const uint8_t *grammar; /* [grammar_bytes] packed (engine/grammar); NULL: none */
    size_t grammar_bytes;
    mr_kept *kept;          /* of mr_sequence_desc_keep: all this is there, and shared; NULL: submit copies it */
    uint32_t choice;        /* index within its request: each has random numbers of its own */
    bool logprobs;          /* each token with its log-probability, */
    int32_t n_top_logprobs; /* and with those of the most likely ones, [0, MR_SAMPLER_MAX_TOP] */
    bool fresh;             /* all of the prompt is computed, whatever is known of it; so it is with on_logits */
    int32_t priority;       /* those of a higher one get KV blocks and are read first; what waits long goes up */
    /* Returns true when the sequence is to stop with this token. */
    bool (*on_token)(void *ctx, const mr_token_event *event);
    /* If set, no token is sampled: every prompt position's logits [n_rows, vocabulary] are delivered, in order. */
    void (*on_logits)(void *ctx, int32_t first_position, int32_t n_rows, const float *logits);
    /* If set, no token is sampled: hidden rows of the prompt, the results of the output norm, [n_rows, n_embd], are
     * delivered in order of position. With fresh, every position is delivered. Without it, positions that the prefix
     * cache holds may be missing. The last position always comes. */
    void (*on_hidden)(void *ctx, int32_t first_position, int32_t n_rows, const float *rows);
    void *ctx;
} mr_sequence_desc;

/* *out is desc, and what it names is a copy that lives until mr_sequence_desc_drop. If desc is kept already, *out
 * shares that copy, which lives until the last drop. base: mr_job_base_key. false: no memory. Thread-safe. Makes the
 * keys of the prompt, which takes a while. */
MR_MUST_USE bool mr_sequence_desc_keep(const mr_sequence_desc *desc, const mr_prefix_key *base, mr_sequence_desc *out);
/* Lets go of it, and names nothing any more; {0} is accepted. Thread-safe. */
void mr_sequence_desc_drop(mr_sequence_desc *desc);

/* What mr_job_submit asks of a prompt, for callers that want to know it earlier: MR_E_INVALID for an empty prompt and
 * an id outside the vocabulary, MR_E_TOO_LONG for one that does not fit max_ids, with a token more where it generates.
 * Thread-safe. */
MR_MUST_USE mr_status mr_job_check_prompt(const int32_t *ids, int32_t n, bool generates, int32_t n_vocab,
                                          int32_t max_ids, mr_err *err);
/* MR_E_TOO_LONG: prompt and one token do not fit the context (or the KV cache); MR_E_INVALID: an id outside the
 * vocabulary, an empty prompt, sampling parameters out of range. *out_sequence counts from 0 and never
 * repeats. */
MR_MUST_USE mr_status mr_job_submit(mr_job *job, const mr_sequence_desc *desc, int64_t *out_sequence, mr_err *err);

/* Ends a sequence: no callback of it comes any more. Nothing happens if it has ended. */
void mr_job_cancel(mr_job *job, int64_t sequence);

/* Does what can be done now; where nothing can, waits for something to happen, until deadline_ns at most. Sequences may
 * be submitted between turns. Times between turns do not count in mr_job_get_timings. */
MR_MUST_USE mr_status mr_job_turn(mr_job *job, int64_t deadline_ns, mr_err *err);
/* Runs until every submitted sequence has finished. */
MR_MUST_USE mr_status mr_job_run(mr_job *job, mr_err *err);

typedef struct mr_job_timings {
    int64_t first_token_ns;             /* from the start of run to the first token; 0: none */
    int64_t prefill_tokens, prefill_ns; /* of prompts, without what was there already */
    int64_t cached_tokens;              /* that was there: shared or copied */
    bool waited; /* sequences had to wait for a slot or for blocks, or lost theirs: prefill_ns is not prefill alone */
    int64_t decode_tokens, decode_ns; /* tokens after each sequence's first, and the time from the first to the last */
} mr_job_timings;
mr_job_timings mr_job_get_timings(const mr_job *job);

/* What a job has done since its start, and is doing now. */
typedef struct mr_job_stats {
    int64_t n_submitted, n_ended;
    int64_t n_preempted;     /* times that a sequence lost its blocks, and waited again */
    int64_t n_prompt_tokens; /* of sequences that have begun */
    int64_t n_cached_tokens; /* of these, those that were there already */
    int64_t n_generated;     /* tokens */
    int64_t n_steps, n_rows; /* done */
    int32_t n_waiting;       /* for a slot and blocks */
    int32_t n_live;          /* in a slot */
    int32_t n_open_steps;    /* under way */
    int32_t n_micro_batches; /* of the last step */
    int32_t max_sequences, max_context, n_vocab, n_embd;
    int32_t n_blocks; /* KV blocks: held + cached + free, each of MR_WIRE_BLOCK_TOKENS tokens */
    int32_t n_held_blocks, n_cached_blocks, n_free_blocks;
} mr_job_stats;
mr_job_stats mr_job_get_stats(const mr_job *job);
/* What the keys of prompts begin with. */
const mr_prefix_key *mr_job_base_key(const mr_job *job);
/* A turn has spent spent_ns on work other than steps, such as admitting sequences. Returns how long that work then has
 * to wait, so that steps get most of the time. The result is bounded because spent_ns is wall-clock time, which a busy
 * machine lengthens. */
static inline int64_t mr_job_pause_ns(int64_t spent_ns) {
    const int64_t most_ns = 50000000;
    return 16 * spent_ns < most_ns ? 16 * spent_ns : most_ns;
}
/* What a turn waits on: others wake it there. */
mr_channel *mr_job_channel(const mr_job *job);

/* What the sequence in a slot is doing. */
typedef struct mr_job_slot {
    int32_t slot;
    int64_t sequence;
    int32_t n_prompt, n_ids; /* ids that are known: the prompt and what was generated */
    int32_t n_issued;        /* their rows that are computed, or under way */
    int32_t n_cached, max_ids, priority;
    int64_t begin_ns;
} mr_job_slot;
/* Those that are not empty; returns how many, out has the first cap of them. */
int32_t mr_job_get_slots(const mr_job *job, mr_job_slot *out, int32_t cap);

#endif
