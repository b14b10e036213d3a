/* coordinator/job/journal.h - what must be kept to rebuild any sequence: its ids, its parameters, how far it is
 * (invariant I2); until it has ended and is forgotten, so that a job of weeks holds no more than what is going on.
 * Owns:    entries and the ids that they generate; with others, what their descriptions name (mr_sequence_desc_keep).
 * Threads: bound to the coordinator thread.
 * Errors:  MR_E_NO_MEMORY on append only. Ids grow inside room taken then, so a step allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_JOURNAL_H
#define MR_COORDINATOR_JOB_JOURNAL_H

#include "coordinator/job/job.h"
#include "coordinator/job/prefix_cache.h"

typedef enum mr_entry_state {
    MR_ENTRY_WAITING, /* for a slot and KV blocks */
    MR_ENTRY_LIVE,    /* in a slot */
    MR_ENTRY_LEAVING, /* preempted: it waits as WAITING does, and its slot until the steps with rows of it are done */
    MR_ENTRY_DONE,
} mr_entry_state;

typedef struct mr_entry mr_entry;
struct mr_entry {
    int64_t sequence;      /* its number */
    mr_sequence_desc desc; /* kept */
    int32_t *generated;    /* [max_ids - n_prompt], ids behind the prompt: mr_entry_add_id */
    int32_t n_prompt, n_ids;
    double mirostat_mu;  /* after the last of them, where one was generated */
    mr_prefix_keys keys; /* of the whole blocks of ids (job_prefix.c) */
    int32_t n_keys, n_promised, n_published;
    bool begin_is_published;
    const mr_prefix_key *begin_key; /* of the prompt without its last id, if that ends inside a block */
    int32_t max_ids;                /* n_ids may grow to this: length limit and context taken together */
    mr_entry_state state;
    int32_t slot;
    uint32_t generation; /* of the slot */
    int32_t n_prefill;   /* ids known when it got the slot: rows below come in chunks, those from here on one by one */
    int32_t n_issued;    /* rows 0 .. n_issued - 1 have been put into steps */
    int32_t n_sent;      /* entries of its block table that the stages have been sent */
    int32_t n_delivered; /* positions whose rows were delivered, or were there before it began */
    uint64_t last_step;  /* that carried a row of it, or was issued last when it got the slot */
    uint64_t last_turn;  /* of the micro-batches (scheduler.c), likewise; 0: none */
    int32_t n_cached;    /* ids whose rows were there when it got its first slot */
    int64_t begin_ns;    /* when that was */
    int32_t n_needed; /* KV blocks that have to be free for it besides spare ones, as it saw last; 0: it has to look */
    mr_prefix_wait wait;      /* for what a live sequence is computing of it: it is not in the queue then */
    mr_entry *before, *after; /* in the queue (job_queue.c); after: among those that are to be forgotten */
    mr_entry *next;           /* with the same bucket of the journal */
};

/* Whether rows of its prompt are wanted instead of tokens. */
static inline bool mr_entry_wants_rows(const mr_entry *e) {
    return e->desc.on_logits || e->desc.on_hidden;
}

static inline void mr_entry_add_id(mr_entry *e, int32_t id) {
    e->generated[e->n_ids++ - e->n_prompt] = id;
}
/* Copies the ids at first .. first + n - 1, which are known. */
void mr_entry_copy_ids(const mr_entry *e, int32_t first, int32_t n, int32_t *out);

typedef struct mr_journal mr_journal;

/* base: what the keys of prompts begin with; copied. */
MR_MUST_USE mr_status mr_journal_create(const mr_prefix_key *base, mr_journal **out, mr_err *err);
void mr_journal_destroy(mr_journal *j);
/* Keeps desc; max_ids bounds prompt and generated ids together. Pointers to other entries stay valid. */
MR_MUST_USE mr_status mr_journal_append(mr_journal *j, const mr_sequence_desc *desc, int32_t max_ids,
                                        int64_t *out_sequence, mr_err *err);
/* Frees an entry. */
void mr_journal_forget(mr_journal *j, mr_entry *e);
/* Entries that are there. */
int32_t mr_journal_count(const mr_journal *j);
/* NULL: there is none of this number, or none any more. */
mr_entry *mr_journal_entry(const mr_journal *j, int64_t sequence);

#endif
