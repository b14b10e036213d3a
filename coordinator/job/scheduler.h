/* coordinator/job/scheduler.h - puts rows of live sequences into the next step.
 * Decode rows come first. The N decoding sequences are split over m micro-batches, which take turns. A micro-batch has
 * at most ceil(N / m) sequences. The scheduler takes the sequences that waited longest, and skips each sequence that
 * was in one of the last m - 1 steps. So no step waits for the ids of the step before it. If one of the last m - 1
 * steps had fewer than floor(N / m) sequences, the next step takes floor(N / m) only, until the shares are even.
 * Rows of prompts follow, within the budget of coordinator/job/step_budget.h. They go to the prompts of the highest
 * priority: the prompt that waited longest gets half of the rows, the others equal shares. After a recovery, sequences
 * that are computed again go before new prompts of the same priority, the shortest first. A few rows of each step are
 * kept for prompts, however many sequences decode.
 * A decode row may be issued before its id is known (lead), one token ahead at most and never past the length limit.
 * If the times of the stages are known, the scheduler derives the number of micro-batches and of rows from these times.
 * Owns:    the step plan it fills, sized at create. Borrows: the ledger; the times.
 * Threads: bound to the coordinator thread. Filling allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_SCHEDULER_H
#define MR_COORDINATOR_JOB_SCHEDULER_H

#include "coordinator/job/journal.h"
#include "coordinator/job/ledger.h"
#include "coordinator/planning/micro_batches.h"
#include "proto/messages.h"

/* A prompt that has waited for this many steps is treated as one priority higher. */
enum { MR_SCHEDULER_AGING_STEPS = 64 };

typedef struct mr_scheduler_config {
    int32_t n_stages;
    int32_t max_rows, max_out_rows, max_sequences;
    int32_t ring_slots; /* steps under way at most; 0: mr_scheduler_ring_slots(n_stages) */
    /* The wanted time between two tokens of a sequence while prompts are prefilled. 0: less than twice the time that a
     * token would take if all prompts but one were prefilled already. INFINITY: no limit, so a step takes as many rows
     * of prompts as fit. */
    double token_s;
} mr_scheduler_config;

/* Ring slots of a job with n_stages stages. There is room for more micro-batches than stages, which helps where hops
 * are long or stages are uneven. */
int32_t mr_scheduler_ring_slots(int32_t n_stages);

typedef struct mr_scheduler mr_scheduler;
MR_MUST_USE mr_status mr_scheduler_create(const mr_scheduler_config *config, mr_ledger *ledger, mr_scheduler **out,
                                          mr_err *err);
void mr_scheduler_destroy(mr_scheduler *s);

/* Sets the times that the scheduler predicts with; NULL: no times are known. Borrows times. Their content may change in
 * place: the next call then makes the scheduler choose anew. */
void mr_scheduler_set_times(mr_scheduler *s, const mr_pipeline_times *times);

/* A sequence joins when it gets a slot, and leaves when it finishes or is preempted. */
void mr_scheduler_join(mr_scheduler *s, mr_entry *e);
void mr_scheduler_leave(mr_scheduler *s, mr_entry *e);

/* How many steps should be under way at most: the steps that the stages run, and two whose plans lie ready. With a
 * single stage, one plan lies ready. */
int32_t mr_scheduler_most_steps(const mr_scheduler *s);
/* The number of micro-batches at the last step. */
int32_t mr_scheduler_micro_batches(const mr_scheduler *s);

/* Consecutive rows of one prompt for which the tail sends back logits or hidden rows. */
typedef struct mr_logits_run {
    mr_entry *entry;
    int32_t first_position, n_rows;
} mr_logits_run;

enum { MR_MAX_LOGITS_RUNS = 32 };

/* All such runs of a step, in the order in which their rows come. */
typedef struct mr_logits_runs {
    int32_t n, n_rows;
    mr_logits_run at[MR_MAX_LOGITS_RUNS];
} mr_logits_runs;

/* Fills the plan of step number step; NULL: no row can be issued now. Commits the step: the entries' n_issued grows,
 * and so does the ledger. *out_logits gets the runs that bring logits or hidden rows. The plan is valid until the next
 * call. */
const Millrace__StepPlan *mr_scheduler_next(mr_scheduler *s, uint64_t step, mr_logits_runs *out_logits);
/* Whether the last mr_scheduler_next left a row out because no KV block was free. */
bool mr_scheduler_starved(const mr_scheduler *s);

#endif
