/* coordinator/job/job.h - runs sequences over the stages of one plan. A job sends the plan to the stages, issues steps,
 * and calls back with the tokens. The stages are threads or ranks at the other ends of the channel.
 * When:    after the ranks are started (session.h) and before the first prompt. For example, one sequence:
 *
 *     mr_sequence_desc desc = {.prompt_ids = ids, .n_prompt = n, .max_tokens = 32, .on_token = take, .ctx = text,
 *                              .sampling = mr_sampling_params_default()};
 *     mr_job_create(&config, &job, err);             // sends the plan; stages load their layers
 *     mr_job_submit(job, &desc, &sequence, err);     // any number of sequences
 *     mr_job_run(job, err);                          // calls take() with each token, until all have ended
 *     mr_job_destroy(job);
 *
 * Owns:    ledger, journal, links. Borrows: channel and info, which outlive the job.
 * Threads: bound to one thread, the coordinator thread. Callbacks run on this thread. A callback may call mr_job_submit
 *          and mr_job_cancel, and no other function of the job.
 * Errors:  a sequence that fails ends with its status in the event. If a stage fails, mr_job_create or the running turn
 *          returns the error, which names the stage. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_JOB_H
#define MR_COORDINATOR_JOB_JOB_H

#include <stdbool.h>

#include "coordinator/job/learned_times.h"
#include "coordinator/job/prefix_key.h"
#include "coordinator/planning/micro_batches.h"
#include "coordinator/planning/plan.h"
#include "coordinator/planning/profile.h"
#include "engine/sample/sampler.h"
#include "proto/channel.h"
#include "proto/phases.h"
#include "proto/weights_root.h"

typedef struct mr_job mr_job;

/* What a stage reported after loading: bytes of its weights, its KV blocks and its work memory. */
typedef struct mr_stage_report {
    size_t weight_bytes, kv_bytes, work_bytes;
    uint64_t fetched_bytes; /* of the model file, received from other ranks */
    uint64_t left_bytes;    /* of mr_channel_left_bytes */
    mr_way way;             /* of its activations to the next stage, after all */
    uint64_t loaded_bytes;  /* of the weights: the rest was there since an earlier epoch */
    int32_t kept_layers;    /* layers that were there */
    bool has_kv;            /* the KV blocks of mr_epoch_config.kv are there */
} mr_stage_report;

/* KV blocks of the present epoch that the next one goes on with: stages with the same layers, and the same number of
 * blocks. */
typedef struct mr_epoch_kv {
    int32_t from[MR_MAX_STAGES];   /* for each stage: the rank that sends it its blocks; -1: its rank has them */
    bool has_ahead[MR_MAX_STAGES]; /* for each stage: it has some of these blocks already */
    /* Bits of the blocks that go on, as of mr_job_mark_blocks; NULL: no stage moves, and all blocks do. */
    const uint8_t *kept;
    int32_t n_sent; /* blocks that each rank of from sends */
} mr_epoch_kv;

/* One incarnation of the pipeline. */
typedef struct mr_epoch_config {
    const mr_plan *plan; /* copied */
    uint32_t number;
    int32_t n_kv_blocks; /* of MR_WIRE_BLOCK_TOKENS tokens */
    /* Times of the stages that were measured before; copied. NULL: the job learns the times from its first steps. */
    const mr_pipeline_times *times;
    const mr_epoch_kv *kv; /* borrowed for the call; NULL: the epoch begins without KV blocks */
} mr_epoch_config;

typedef struct mr_job_config {
    const mr_model_info *info;
    mr_channel *channel;
    mr_epoch_config epoch;        /* the first one */
    int32_t max_rows;             /* rows of one step: the prefill chunk */
    int32_t max_out_rows;         /* rows of one step that bring logits */
    int32_t max_sequences;        /* sequences in a slot at once */
    int32_t max_context;          /* tokens of one sequence, prompt included */
    int32_t kv_type;              /* GGUF type number: F32, F16 or Q8_0 */
    size_t control_bytes;         /* largest control message; 0: by the limits. For tests */
    uint64_t model_digest;        /* of the model file; part of every prefix key */
    mr_weights_root weights_root; /* all zero: the ranks do not verify weights */
    bool map_weights;             /* matrices stay in the mapped file: mr_weights_desc.map */
    bool fast_numerics;           /* stages may use devices whose results are not exact */
    /* Sequences may have grammars. The last stage then takes some 0.1 s longer to load and 22 MiB more memory for a
     * vocabulary of 128,000 tokens. */
    bool grammars;
    double token_s; /* wanted seconds between two tokens of a sequence: mr_scheduler_config */
    /* Called while stages load: bytes done and in total over all stages. May be NULL. */
    void (*progress)(void *ctx, size_t done_bytes, size_t total_bytes);
    void *progress_ctx;
    /* Called while stages load, with the stages that have sent no report for some seconds: "stage 2, rank 2 on node7".
     * May be NULL. */
    void (*silent)(const char *stages);
    /* If set, stages report the time spans of their phases. The times are those of each host's clock. */
    void (*on_spans)(void *ctx, int32_t stage, const mr_span *spans, int32_t n);
    void *on_spans_ctx;
    const mr_profile *profile; /* says which experts devices get. Borrowed while the job lives; NULL: the first ones */
    int32_t renew_rows;        /* stages look after so many rows which experts their devices should hold; 0: never */
    bool counts_uses; /* stages count the uses of experts and neurons in each step, for mr_job_collect_profile */
    /* Called for each finished step, in the order of the steps. May be NULL. */
    void (*on_step)(void *ctx, int32_t n_rows);
    void *on_step_ctx;
    /* Called by mr_job_create and by turns when a stage is lost or has failed, with the error that they would return
     * otherwise. MR_OK: it has restarted or paused the job. Else they return its error. NULL: the job cannot go on. */
    mr_status (*recover)(void *ctx, mr_job *job, mr_status status, mr_err *err);
    /* Called with each stage's report of the times of its steps; ctx is recover_ctx. May be NULL. */
    void (*on_step_sums)(void *ctx, const Millrace__StepSums *sums);
    /* Asked once in a turn: true: recover is called with MR_OK, and may restart the job on purpose. May be NULL. */
    bool (*wants_restart)(void *ctx);
    void *recover_ctx;
    /* Called ten times a second. If it returns true, mr_job_create or the running turn ends with MR_E_CANCELLED and an
     * empty error text. May be NULL. */
    bool (*interrupted)(void);
} mr_job_config;

/* Sends the plan and waits until every stage has loaded its layers. */
MR_MUST_USE mr_status mr_job_create(const mr_job_config *config, mr_job **out, mr_err *err);
/* MR_E_NO_MEMORY: a sequence that has not ended may outgrow so many KV blocks. */
MR_MUST_USE mr_status mr_job_check_restart(const mr_job *job, int32_t n_kv_blocks, mr_err *err);
/* The tokens that the longest sequence may reach, of those that have not ended; 0: there is none. */
int32_t mr_job_longest(const mr_job *job);
/* Gives up the epoch, for example because a stage is lost, and begins another one, whose stages wait for its plan. The
 * sequences go on: their rows are computed again from their ids, and callbacks get what would have come without the
 * restart, once. With config->kv only the rows of blocks that do not go on are computed again; if a stage lacks the
 * blocks after all, all rows are. Errors are those of mr_job_check_restart and of the stages. After an error
 * there is no epoch, and another restart may follow; meanwhile sequences may be submitted and cancelled, but no turns
 * be run. */
MR_MUST_USE mr_status mr_job_restart(mr_job *job, const mr_epoch_config *config, mr_err *err);
/* For config.recover, before a restart on purpose: waits until no step is under way. After an error some are: one of a
 * turn, or MR_E_TIMEOUT. */
MR_MUST_USE mr_status mr_job_settle(mr_job *job, int64_t deadline_ns, mr_err *err);
/* Sets bit i % 8 of bits[i / 8] for each KV block i that live sequences can go on with in another epoch. Returns how
 * many there are. bits: zeros, for all blocks. Call after mr_job_settle. */
int32_t mr_job_mark_blocks(const mr_job *job, uint8_t *bits);
/* The same for whole blocks only, which stay as they are while their versions do (mr_job_block_versions). Their rows
 * are computed when the steps that are under way have ended. */
int32_t mr_job_mark_whole_blocks(const mr_job *job, uint8_t *bits);
/* [n_kv_blocks] of the epoch. Valid until the next turn. */
const uint32_t *mr_job_block_versions(const mr_job *job);
/* The latest step of the epoch that was issued, and the latest one that all stages have done. */
uint64_t mr_job_issued_step(const mr_job *job);
uint64_t mr_job_done_step(const mr_job *job);
/* For config.recover, where no plan can run now: gives up the epoch, if there is one. The sequences wait until a
 * restart. Meanwhile sequences may be submitted and cancelled, and turns only wait and ask config.wants_restart. */
void mr_job_pause(mr_job *job);
/* Whether there is an epoch. false: the job is paused. */
bool mr_job_has_epoch(const mr_job *job);
/* Tells the stages to end, unless they were told before, and frees everything. NULL is accepted. */
void mr_job_destroy(mr_job *job);
/* The rank of the stage that has failed since the last call, with a cause other than the loss of another rank; -1:
 * none. Also valid after a failed restart. */
int32_t mr_job_take_failed_rank(mr_job *job);
/* The rank of the last stage, if a sequence has met it without memory for its grammar several times in a row since the
 * last call; -1: none has. Another last stage may have the memory. */
int32_t mr_job_take_lacking_rank(mr_job *job);
/* The sizes of a stage. The result is valid while the job lives. */
const mr_stage_report *mr_job_stage_report(const mr_job *job, int32_t stage);

/* How a stage has spent its time since it was ready, and what it has computed, by its latest report. */
typedef struct mr_stage_seconds {
    bool known;       /* this is the last report: the stage has ended */
    int64_t heard_ns; /* when the report came, by the clock of this process; 0: no report yet */
    int64_t ns[MR_PHASE_COUNT];
    uint64_t n_steps, n_dropped_spans, n_rows;
    uint64_t in_bytes, out_bytes; /* of activations */
    /* Of layers whose experts a device and the host share: uses by rows, those of experts that the device held, and
     * experts exchanged. */
    uint64_t n_expert_uses, n_device_expert_uses, n_expert_swaps;
    mr_learned_step usual; /* rows 0: not known yet */
} mr_stage_seconds;

/* Ends the stages and waits for their last reports. The job runs no steps afterwards. */
void mr_job_stop(mr_job *job);
/* Asks the stages how often the rows of all finished steps have used each expert or neuron. Rows that were computed
 * again count again, and rows from the prefix cache do not count. Call between runs, in a job with counts_uses.
 * MR_E_TIMEOUT: a stage does not answer. */
MR_MUST_USE mr_status mr_job_collect_profile(mr_job *job, mr_profile *out, mr_err *err);
/* The latest report of a stage. The result is valid while the job lives. */
const mr_stage_seconds *mr_job_stage_seconds(const mr_job *job, int32_t stage);
/* Like mr_job_stage_seconds, but callable from any thread while the job lives. Stages report four times a second while
 * they run steps, and once soon after. */
void mr_job_copy_stage_seconds(mr_job *job, int32_t stage, mr_stage_seconds *out);

/* The mean rows and seconds of the usual step of a stage, by its reports. false: no report yet. */
bool mr_job_usual_step(const mr_job *job, int32_t stage, mr_learned_step *out);

/* The mean number of positions before a row of the latest steps that are done. 0: there were none in this epoch. */
double mr_job_row_depth(const mr_job *job);
/* The share of their rows whose logits are computed: 0 to 1. */
double mr_job_output_share(const mr_job *job);

typedef enum mr_finish {
    MR_FINISH_NONE,   /* the sequence goes on */
    MR_FINISH_STOP,   /* on_token asked to stop: an end token or a stop text */
    MR_FINISH_LENGTH, /* max_tokens is reached, or the context is full */
    MR_FINISH_ERROR,  /* see status and text of the event */
} mr_finish;

/* The next token of a sequence, or the sequence's failure. */
typedef struct mr_token_event {
    int64_t sequence; /* the number from mr_job_submit */
    int32_t id;
    int32_t n_generated; /* tokens so far, this one included */
    int64_t time_ns;     /* monotonic: when the token came; the same for all tokens of a step */
    int64_t begin_ns;    /* monotonic: when the sequence got its first slot */
    int32_t n_cached;    /* tokens of the prompt that were not computed, because the prefix cache had them */
    mr_finish finish;    /* NONE or LENGTH; ERROR without a token */
    mr_status status;
    const char *text; /* of the error */
    float logprob;    /* if desc.logprobs is set, else 0: see mr_logprobs of sampler.h */
    int32_t n_top;
    const int32_t *top_ids; /* [n_top], valid inside the callback */
    const float *top_logprobs;
} mr_token_event;

/* A reference-counted copy of all that a description points to: ids, lists, grammar; and the keys of the prompt. */
typedef struct mr_kept mr_kept;

typedef struct mr_sequence_desc {
    const int32_t *prompt_ids; /* [n_prompt], at least one */
    int32_t n_prompt;
    int32_t max_tokens; /* to generate; 0 with on_logits or on_hidden, which generate nothing */
    mr_sampling_params sampling;
    const uint8_t *grammar; /* [grammar_bytes] packed (engine/grammar); NULL: none */
    size_t grammar_bytes;
    mr_kept *kept;          /* from mr_sequence_desc_keep: the pointers lead into it. NULL: submit copies */
    uint32_t choice;        /* index within its request: each choice has random numbers of its own */
    bool logprobs;          /* each token event brings the token's log-probability */
    int32_t n_top_logprobs; /* and those of the most likely tokens, [0, MR_SAMPLER_MAX_TOP] */
    bool fresh;             /* compute the whole prompt, without the prefix cache; on_logits implies it */
    int32_t priority;       /* higher: earlier KV blocks and earlier prefill; long waits raise it */
    /* Returns true when the sequence is to stop with this token. */
    bool (*on_token)(void *ctx, const mr_token_event *event);
    /* If set, no token is sampled: the logits of every prompt position, [n_rows, vocabulary], are delivered in
     * order. */
    void (*on_logits)(void *ctx, int32_t first_position, int32_t n_rows, const float *logits);
    /* If set, no token is sampled: hidden rows of the prompt (results of the output norm), [n_rows, n_embd], are
     * delivered in order of position. With fresh, every position is delivered. Without fresh, positions that the prefix
     * cache holds may be missing. The last position is always delivered. */
    void (*on_hidden)(void *ctx, int32_t first_position, int32_t n_rows, const float *rows);
    bool last_hidden; /* with on_hidden: the row of the last position alone is sent and delivered */
    void *ctx;
} mr_sequence_desc;

/* *out becomes a copy of desc, and all that desc points to is copied too. The copy lives until mr_sequence_desc_drop.
 * If desc is kept already, *out shares desc's copy, which lives until the last drop. base: mr_job_base_key. false: no
 * memory. Thread-safe. A new copy computes the keys of the prompt: some 30 ns for each token, see
 * mr_prefix_keys_of_prompt. */
MR_MUST_USE bool mr_sequence_desc_keep(const mr_sequence_desc *desc, const mr_prefix_key *base, mr_sequence_desc *out);
/* Drops one reference to the copy and clears *desc; {0} is accepted. Thread-safe. */
void mr_sequence_desc_drop(mr_sequence_desc *desc);

/* The checks of a prompt in mr_job_submit, for callers that want the result earlier. MR_E_INVALID: the prompt is empty,
 * or an id is outside the vocabulary. MR_E_TOO_LONG: the prompt has more than max_ids tokens, or max_ids - 1 if
 * generates. Thread-safe. */
MR_MUST_USE mr_status mr_job_check_prompt(const int32_t *ids, int32_t n, bool generates, int32_t n_vocab,
                                          int32_t max_ids, mr_err *err);
/* Queues a sequence. *out_sequence counts from 0 and never repeats. MR_E_TOO_LONG: the prompt and one token do not fit
 * the context, or the sequence may outgrow the KV cache. MR_E_INVALID: the prompt is empty, an id is outside the
 * vocabulary, or a sampling parameter is out of range. MR_E_UNSUPPORTED: a grammar in a job without grammars. */
MR_MUST_USE mr_status mr_job_submit(mr_job *job, const mr_sequence_desc *desc, int64_t *out_sequence, mr_err *err);

/* Ends a sequence. No callback of the sequence follows. Nothing happens if the sequence has ended already. */
void mr_job_cancel(mr_job *job, int64_t sequence);

/* Does all work that can be done now. If there is none, waits for messages, until deadline_ns at most. Sequences may be
 * submitted between turns. The time between turns does not count in mr_job_get_timings. */
MR_MUST_USE mr_status mr_job_turn(mr_job *job, int64_t deadline_ns, mr_err *err);
/* Runs turns until every submitted sequence has ended. */
MR_MUST_USE mr_status mr_job_run(mr_job *job, mr_err *err);

typedef struct mr_job_timings {
    int64_t first_token_ns;             /* from the start of mr_job_run to the first token; 0: none */
    int64_t prefill_tokens, prefill_ns; /* of prompts, without cached_tokens */
    int64_t cached_tokens;              /* of prompts: KV blocks were shared or copied */
    bool waited; /* sequences waited for a slot or for blocks, or were preempted: prefill_ns is not prefill alone */
    int64_t decode_tokens, decode_ns; /* tokens after each sequence's first, and the time from the first to the last */
} mr_job_timings;
mr_job_timings mr_job_get_timings(const mr_job *job);

/* What a job has done since its start, and its present state. */
typedef struct mr_job_stats {
    int64_t n_submitted, n_ended;
    int64_t n_preempted;     /* preemptions; one sequence may be preempted several times */
    int64_t n_prompt_tokens; /* of sequences that have had a slot */
    int64_t n_cached_tokens; /* those of n_prompt_tokens that the prefix cache had */
    int64_t n_generated;     /* tokens */
    int64_t n_steps, n_rows; /* finished */
    int64_t n_epoch_steps;   /* of these, steps of the present epoch */
    int32_t n_waiting;       /* sequences that wait for a slot and blocks */
    int32_t n_live;          /* sequences in a slot */
    int32_t n_open_steps;    /* issued, not finished */
    int32_t n_micro_batches; /* of the last step */
    int32_t max_sequences, max_context, n_vocab, n_embd;
    int32_t max_ids; /* of one sequence: max_context, or what the KV blocks of the latest epoch hold */
    bool is_paused;  /* see mr_job_pause */
    /* Of the sequences that were in a slot when the last epoch was given up: how many have brought neither a token nor
     * their end since, how many rows they had then and not when they got a slot again, and, when none is left, the
     * seconds from the begin of this epoch to the last one. */
    int32_t n_again;
    int64_t n_again_rows;
    double again_s;
    int32_t n_kept_blocks; /* KV blocks that the present epoch began with */
    int32_t n_blocks;      /* KV blocks: held + cached + free, each of MR_WIRE_BLOCK_TOKENS tokens */
    int32_t n_held_blocks, n_cached_blocks, n_free_blocks;
} mr_job_stats;
mr_job_stats mr_job_get_stats(const mr_job *job);
/* The key of no ids, which the keys of all prompts continue. */
const mr_prefix_key *mr_job_base_key(const mr_job *job);
/* A turn has spent spent_ns on work other than steps, such as admitting sequences. Returns how long that work then has
 * to wait, so that steps get most of the time. The result is bounded because spent_ns is wall-clock time, which a busy
 * machine lengthens. */
static inline int64_t mr_job_pause_ns(int64_t spent_ns) {
    const int64_t most_ns = 50000000;
    return 16 * spent_ns < most_ns ? 16 * spent_ns : most_ns;
}
/* The channel that a turn waits on. Other threads wake the turn through it. */
mr_channel *mr_job_channel(const mr_job *job);

/* The sequence in a slot, for a display. */
typedef struct mr_job_slot {
    int32_t slot;
    int64_t sequence;
    int32_t n_prompt, n_ids; /* n_ids: the prompt and the generated ids */
    int32_t n_issued;        /* rows that are computed, or are in a step under way */
    int32_t n_cached, max_ids, priority;
    int64_t begin_ns;
} mr_job_slot;
/* Writes the first cap occupied slots to out. Returns how many slots are occupied. */
int32_t mr_job_get_slots(const mr_job *job, mr_job_slot *out, int32_t cap);

#endif
