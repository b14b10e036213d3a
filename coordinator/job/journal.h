/* coordinator/job/journal.h - all that is needed to rebuild any sequence: its ids, its parameters, its progress
 * (invariant I2). An entry lives until its sequence has ended and is forgotten, so the memory of a long job does not
 * grow.
 * Owns:    entries and the ids that they generate. Shares what descriptions point to (mr_sequence_desc_keep).
 * Threads: bound to the coordinator thread.
 * Errors:  MR_E_NO_MEMORY on append only. Append allocates room for all ids, so a step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_JOURNAL_H
#define MR_COORDINATOR_JOB_JOURNAL_H

#include "coordinator/job/job.h"
#include "coordinator/job/prefix_cache.h"
#include "proto/prefix_sums.h"

typedef enum mr_entry_state {
    MR_ENTRY_WAITING, /* for a slot and KV blocks */
    MR_ENTRY_LIVE,    /* in a slot */
    MR_ENTRY_LEAVING, /* preempted and queued; keeps its slot until the steps with its rows are done */
    MR_ENTRY_DONE,
} mr_entry_state;

typedef struct mr_entry mr_entry;
struct mr_entry {
    int64_t sequence;      /* the number of the sequence */
    mr_sequence_desc desc; /* kept */
    int32_t *generated;    /* [max_ids - n_prompt], the ids after the prompt: see mr_entry_add_id */
    int32_t n_prompt, n_ids;
    double mirostat_mu;  /* mirostat's state after the last generated id */
    mr_prefix_keys keys; /* of the whole blocks of ids (job_prefix.c) */
    int32_t n_keys, n_promised, n_published;
    bool begin_is_published;
    const mr_prefix_key *begin_key; /* of the prompt without its last id; in use if that ends inside a block */
    int32_t max_ids;                /* limit of n_ids: by max_tokens and by the context */
    mr_entry_state state;
    int32_t slot;
    uint32_t generation;      /* of the slot; 0: no slot yet */
    int32_t n_prefill;        /* n_ids when it got the slot: rows below are prefill, later rows are decode rows */
    int32_t n_issued;         /* rows 0 .. n_issued - 1 have been put into steps */
    int32_t n_sent;           /* entries of its block table that the stages have been sent */
    mr_prefix_sums sums;      /* of these entries, and of the ids below n_summed */
    int32_t n_summed;         /* ids in sums.ids */
    uint64_t last_step;       /* the last step with a row of it; at first the last step before it got the slot */
    uint64_t last_turn;       /* the last turn of the micro-batches (scheduler.c) with a row of it; 0: none */
    int32_t n_rows_seen;      /* callbacks have had the rows of the prompt below this position */
    int32_t n_cached;         /* ids whose rows were cached when it got its first slot */
    int64_t begin_ns;         /* when it got its first slot */
    bool is_again;            /* its rows of an earlier epoch are computed again */
    int32_t n_lacks;          /* how often in a row the last stage has had no memory for its grammar */
    int64_t retry_ns;         /* after such a lack: it gets no slot before this time */
    int32_t n_needed;         /* KV blocks, besides spare ones, that were too many at the last look; 0: look again */
    mr_prefix_wait wait;      /* for a block that a live sequence computes; while on, the entry is not queued */
    mr_entry *before, *after; /* neighbours in the queue (job_queue.c); after also links the ended entries */
    mr_entry *next;           /* in the same bucket of the journal */
};

/* Whether the caller wants rows of the prompt (logits or hidden rows) instead of tokens. */
static inline bool mr_entry_wants_rows(const mr_entry *e) {
    return e->desc.on_logits || e->desc.on_hidden;
}

static inline void mr_entry_add_id(mr_entry *e, int32_t id) {
    e->generated[e->n_ids++ - e->n_prompt] = id;
}
/* Copies the ids first .. first + n - 1, all of them below n_ids. */
void mr_entry_copy_ids(const mr_entry *e, int32_t first, int32_t n, int32_t *out);

/* The sums of the ids below n_issued and of the entries that were sent, as messages carry them. All these ids are
 * known: a row whose own id is under way is the last row that can be issued. */
uint64_t mr_entry_prefix(mr_entry *e);

typedef struct mr_journal mr_journal;

/* base: the key that the keys of prompts continue; copied. */
MR_MUST_USE mr_status mr_journal_create(const mr_prefix_key *base, mr_journal **out, mr_err *err);
void mr_journal_destroy(mr_journal *j);
/* Keeps desc. max_ids bounds prompt and generated ids together. Pointers to other entries stay valid. */
MR_MUST_USE mr_status mr_journal_append(mr_journal *j, const mr_sequence_desc *desc, int32_t max_ids,
                                        int64_t *out_sequence, mr_err *err);
/* Removes and frees an entry. */
void mr_journal_forget(mr_journal *j, mr_entry *e);
/* Calls visit for every entry, in no particular order. visit may not append or forget entries. */
void mr_journal_visit(mr_journal *j, void (*visit)(void *ctx, mr_entry *e), void *ctx);
/* The number of entries. */
int32_t mr_journal_count(const mr_journal *j);
/* NULL: there is no entry of this number, or no longer. */
mr_entry *mr_journal_entry(const mr_journal *j, int64_t sequence);

#endif
