/* coordinator/job/job_internal.h - the state of a job, shared by job.c (its life), job_queue.c (who is in it),
 * job_prefix.c (what sequences share) and job_run.c (its steps). */
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

/* One step under way, kept at step % ring_slots. */
typedef struct mr_step_record {
    uint64_t step;
    int32_t n_rows;
    bool tokens_in;
    mr_logits_runs logits; /* what it will bring */
    int32_t n_rows_in;     /* of them delivered */
} mr_step_record;

/* A sequence slot of the stages. */
typedef struct mr_slot_account {
    mr_entry *entry;     /* who is in it; NULL: nobody */
    uint32_t generation; /* of the last one who was */
    bool closing;        /* nobody is in it, and the stages have not been told yet */
} mr_slot_account;

/* What a stage has said. */
typedef struct job_stage {
    mr_stage_report report;
    mr_stage_seconds seconds; /* under seconds_lock, while other threads may read them */
    size_t done_bytes, total_bytes;
    int64_t heard_ns; /* the last report while loading */
    bool ready;
} job_stage;

struct mr_job {
    mr_job_config config;
    mr_plan plan;
    int32_t ring_slots;
    mr_stage_links *links;
    mr_ledger *ledger;
    mr_journal *journal;
    mr_scheduler *scheduler;
    mr_learned_times *times;
    mr_slot_account *slots;    /* [max_sequences] */
    mr_step_record *steps;     /* [ring_slots] */
    uint64_t n_issued, n_done; /* steps are numbered from 1 */
    mr_prefix_key base_key;
    uint32_t *copy_from, *copy_to; /* [max_sequences], of the step that is being issued */
    int32_t *history;              /* [max_context], of the sequence that is being opened */
    /* For a slot and blocks, in the order in which they will get them; those that wait for a promised block are not
     * there. */
    mr_entry *first_waiting, *last_waiting;
    mr_entry *ended;  /* those whose last rows may still be under way */
    bool may_admit;   /* something has changed since nobody could be admitted */
    int64_t admit_ns; /* nobody is admitted before, while others are live */
    int32_t n_unfinished, n_live, n_leaving, n_closing;
    job_stage *stages; /* [n_stages] */
    mr_mutex seconds_lock;
    mr_span *spans; /* [MR_MAX_REPORT_BYTES], of one report; NULL: not wanted */
    bool stopped;   /* the stages were told to end */
    int64_t start_ns, first_token_ns, last_first_token_ns;
    mr_job_timings timings;
    mr_job_stats stats; /* its counters */
};

/* Waits until something may have happened, until deadline_ns, or for a moment. MR_E_CANCELLED: the user wants no
 * more. */
mr_status job_wait(mr_job *job, int64_t deadline_ns, mr_err *err);
/* Takes all reports that have come; *did says whether there were any. A failure of a stage is returned. */
mr_status job_take_reports(mr_job *job, bool *did, mr_err *err);
/* The cause behind a status: a stage that loses its neighbour reports that as well, so another stage's own failure is
 * looked for during a moment. */
mr_status job_find_cause(mr_job *job, mr_status status, mr_err *err);

/* Puts an entry where it belongs among those that wait. */
void job_queue_push(mr_job *job, mr_entry *e);
/* Gives those that wait slots and blocks, in their order, while there are any. */
mr_status job_admit(mr_job *job, bool *did, mr_err *err);
/* Ends a sequence for good, whatever its state. */
void job_finish(mr_job *job, mr_entry *e);
/* Frees those that have ended and of which no row is under way. */
void job_forget(mr_job *job);
/* Takes the blocks of the latest arrival, which waits again and is computed anew from the journal. false: there is
 * nobody but the oldest, which keeps them. */
bool job_preempt(mr_job *job);
/* Empties the slots of preempted sequences whose last ids are in. */
void job_see_off(mr_job *job, bool *did);
/* Tells the stages which slots are empty now. */
mr_status job_close_empty(mr_job *job, bool *did, mr_err *err);

typedef enum job_begin { JOB_BEGUN, JOB_NO_BLOCKS, JOB_WAITS_FOR_PREFIX } job_begin;
/* Gives an entry without blocks all of those for its ids, shared ones first, if spare others stay free; n_issued begins
 * behind what is there. JOB_WAITS_FOR_PREFIX: a live sequence is computing more of it, and e->wait is on until it
 * has. */
job_begin job_prefix_begin(mr_job *job, mr_entry *e, int32_t slot, int32_t spare);
/* Lets others read what has been issued, of ids that are known. */
void job_prefix_publish(mr_job *job, mr_entry *e);
/* Adds the copies that the runs of a step need. */
void job_prefix_add_copies(mr_job *job, Millrace__StepPlan *plan);

#endif
