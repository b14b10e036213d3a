/* coordinator/job/job_internal.h - the state of a job, shared by job.c (create, submit, destroy), job_epoch.c (plan
 * and start of stages), job_reports.c (their reports), job_profile.c (counts of uses), job_queue.c (admission,
 * preemption and end of sequences), job_prefix.c (shared KV blocks) and job_run.c (steps). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_JOB_INTERNAL_H
#define MR_COORDINATOR_JOB_JOB_INTERNAL_H

#include "coordinator/job/job.h"
#include "coordinator/job/journal.h"
#include "coordinator/job/learned_times.h"
#include "coordinator/job/ledger.h"
#include "coordinator/job/scheduler.h"
#include "coordinator/job/stage_links.h"
#include "engine/base/thread.h"

/* A step under way, kept at index step % ring_slots. */
typedef struct mr_step_record {
    uint64_t step;
    int32_t n_rows;
    double n_positions; /* before the rows, added up */
    int32_t n_outputs;  /* rows whose logits are computed */
    bool tokens_in;
    mr_logits_runs logits; /* the runs whose rows of logits or hidden rows the tail sends back */
    int32_t n_rows_in;     /* rows of these runs that have come */
} mr_step_record;

/* One sequence slot. The stages keep state for each slot. */
typedef struct mr_slot_account {
    mr_entry *entry;     /* the sequence in the slot; NULL: the slot is empty */
    uint32_t generation; /* of the latest sequence in the slot */
    bool closing;        /* the slot is empty, and the stages have not been told yet */
} mr_slot_account;

/* What a stage has reported. */
typedef struct job_stage {
    mr_stage_report report;
    mr_stage_seconds seconds; /* under seconds_lock: other threads may read it */
    size_t done_bytes, total_bytes;
    int64_t heard_ns; /* when the latest progress report came */
    bool ready;
    bool has_counted; /* the answer to the last ReportUses is complete */
} job_stage;

/* One incarnation of the pipeline. All of it can be given up at any time: what the sequences need lies in the journal.
 * links is NULL: there is no epoch. */
typedef struct job_epoch {
    mr_epoch_config config; /* plan points to the plan below */
    mr_plan plan;
    int32_t ring_slots;
    mr_stage_links *links;
    mr_ledger *ledger;
    mr_scheduler *scheduler;
    mr_learned_times *times;
    mr_slot_account *slots;    /* [max_sequences] */
    mr_step_record *steps;     /* [ring_slots] */
    uint64_t n_issued, n_done; /* steps are numbered from 1 */
    double recent_rows, recent_positions,
        recent_outputs;            /* of done steps, the later ones for more: rows, and positions before them */
    uint32_t *copy_from, *copy_to; /* [max_sequences], of the step that is being issued */
    int32_t n_live, n_leaving, n_closing;
    job_stage *stages; /* [n_stages] */
    bool stopped;      /* the stages were told to end */
} job_epoch;

struct mr_job {
    mr_job_config config;
    job_epoch epoch;
    mr_journal *journal;
    mr_prefix_key base_key;
    int32_t *history; /* [max_context], of the sequence that is being opened */
    /* The queue of sequences that wait for a slot and blocks, in the order in which they are admitted. A sequence that
     * waits for a promised block is not in the queue. */
    mr_entry *first_waiting, *last_waiting;
    mr_entry *ended;  /* list of ended sequences, whose last rows may still be under way */
    bool may_admit;   /* something has changed since the last admission failed */
    int64_t admit_ns; /* no admission before this time, while any sequence is live */
    int64_t retry_ns; /* when the first of the sequences that were set aside may be admitted; MR_NEVER: there is none */
    int32_t n_unfinished;
    int32_t failed_rank;   /* mr_job_take_failed_rank */
    int32_t lacking_rank;  /* mr_job_take_lacking_rank */
    mr_mutex seconds_lock; /* guards what other threads read: the stages of the epoch and their number */
    mr_span *spans;        /* [MR_MAX_REPORT_BYTES], of one report; NULL: on_spans is not set */
    mr_profile *profile;   /* gets the reported counts; NULL: nobody has asked for them */
    int64_t start_ns, first_token_ns, last_first_token_ns;
    int64_t again_ns; /* when the epoch began: for stats.again_s */
    mr_job_timings timings;
    mr_job_stats stats; /* its counters */
};

/* Sends the plan to the stages, and waits until they have loaded. After an error there is no epoch. kept: the account
 * of the KV blocks of an earlier epoch, which go on; owned by the callee. NULL: none. */
mr_status job_epoch_begin(mr_job *job, const mr_epoch_config *config, mr_ledger *kept, uint32_t kept_epoch,
                          mr_err *err);
/* Tells the stages to end, unless they were told before, and frees the epoch, if there is one. The sequences that have
 * not ended are in the queue then. */
void job_epoch_end(mr_job *job);
/* The same. Returns the account of the KV blocks, in which no slot holds any; NULL: there was no epoch. */
mr_ledger *job_epoch_end_keeping(mr_job *job);
/* Calls config.recover after an error other than MR_E_CANCELLED. Returns its result, or else status. */
mr_status job_recover(mr_job *job, mr_status status, mr_err *err);
/* In a new epoch: counts the sequences whose rows are computed again. */
void job_count_again(mr_job *job);
/* Such a sequence has brought a token, or ends. Does nothing for others. */
void job_note_again(mr_job *job, mr_entry *e);
/* Puts all sequences that have not ended into the queue, and forgets the others. No step is under way any more. */
void job_queue_all(mr_job *job);
/* ", rank 2 on node7" if the stage is a process of its own, else "". */
const char *job_place_of(const mr_job *job, uint32_t stage, char out[MR_CHANNEL_NAME_BYTES + 4]);

/* Waits for messages on the channel, until deadline_ns, and with config.interrupted for a tenth of a second at most.
 * MR_E_CANCELLED: config.interrupted returned true. */
mr_status job_wait(mr_job *job, int64_t deadline_ns, mr_err *err);
/* Takes all reports that have come, and sets *did if there were any. If a stage reports a failure, returns it. */
mr_status job_take_reports(mr_job *job, bool *did, mr_err *err);
/* Looks for the error behind MR_E_PEER_LOST. A stage that loses its neighbour reports MR_E_PEER_LOST too, so this
 * function waits up to half a second for the failure that another stage reports. Returns that failure, or else
 * status. */
mr_status job_find_cause(mr_job *job, mr_status status, mr_err *err);

/* Puts an entry into the queue, at its place in the order. */
void job_queue_push(mr_job *job, mr_entry *e);
/* Gives the sequences of the queue slots and blocks, in order, until one does not fit. */
mr_status job_admit(mr_job *job, bool *did, mr_err *err);
/* Ends a sequence for good, in any state. */
void job_finish(mr_job *job, mr_entry *e);
/* Frees the ended sequences that have no row in a step under way. */
void job_forget(mr_job *job);
/* Preempts the live sequence that is last in the order: releases its blocks and queues it again. Its rows are computed
 * again from the journal. false: fewer than two sequences could be preempted, and the last one keeps its blocks. */
bool job_preempt(mr_job *job);
/* Takes a sequence out of its slot and queues it, but gives it no slot before until_ns. What comes of its rows that are
 * under way is dropped. */
void job_set_aside(mr_job *job, mr_entry *e, int64_t until_ns);
/* Empties the slots of preempted sequences when all steps with their rows are finished. */
void job_see_off(mr_job *job, bool *did);
/* Tells the stages which slots have become empty. */
mr_status job_close_empty(mr_job *job, bool *did, mr_err *err);

typedef enum job_begin { JOB_BEGUN, JOB_NO_BLOCKS, JOB_WAITS_FOR_PREFIX } job_begin;
/* Gives an entry without blocks all the blocks for its ids: shared blocks first, then new ones. Sets n_issued to the
 * rows that the shared blocks hold. JOB_NO_BLOCKS: fewer than spare blocks would stay free. JOB_WAITS_FOR_PREFIX: a
 * live sequence is computing a further shared block, and e->wait waits for it. */
job_begin job_prefix_begin(mr_job *job, mr_entry *e, int32_t slot, int32_t spare);
/* Publishes the blocks of e whose rows have been issued and whose ids are known, so that other sequences may read
 * them. */
void job_prefix_publish(mr_job *job, mr_entry *e);
/* Adds the block copies that the runs of a step need. */
void job_prefix_add_copies(mr_job *job, Millrace__StepPlan *plan);

#endif
