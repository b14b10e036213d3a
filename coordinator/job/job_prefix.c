/* coordinator/job/job_prefix.c - KV blocks that sequences with equal beginnings share: finds cached blocks for a new
 * sequence, and offers the blocks of a live sequence to others. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"

enum { BLOCK = MR_WIRE_BLOCK_TOKENS };

/* The last id of a prompt is always computed: its row brings the first token. This function counts the rows of the
 * other ids in their last, partial block. */
static int32_t begin_rows(const mr_entry *e) {
    return (e->n_prompt - 1) % BLOCK;
}

/* The index of that block in the sequence. */
static int32_t begin_idx(const mr_entry *e) {
    return (e->n_prompt - 1) / BLOCK;
}

static void name_blocks(const mr_job *job, mr_entry *e) {
    for (; (e->n_keys + 1) * BLOCK <= e->n_ids; e->n_keys++) {
        int32_t ids[BLOCK];
        mr_entry_copy_ids(e, e->n_keys * BLOCK, BLOCK, ids);
        mr_prefix_key_extend(e->n_keys ? mr_prefix_keys_at(&e->keys, e->n_keys - 1) : &job->base_key, ids, BLOCK,
                             &e->keys.behind[e->n_keys - e->keys.n_prompt]);
    }
}

/* Promises the blocks after the first n, which were cached, so that other sequences may wait for them. */
static void promise(mr_job *job, mr_entry *e, int32_t slot, int32_t n) {
    e->n_published = n;
    e->begin_is_published = begin_rows(e) == 0;
    for (e->n_promised = n; e->n_promised < e->n_keys; e->n_promised++)
        mr_ledger_promise(job->epoch.ledger, slot, e->n_promised, MR_PREFIX_WHOLE,
                          mr_prefix_keys_at(&e->keys, e->n_promised));
    if (begin_rows(e) > 0 && begin_idx(e) >= n)
        mr_ledger_promise(job->epoch.ledger, slot, begin_idx(e), MR_PREFIX_BEGIN, e->begin_key);
}

job_begin job_prefix_begin(mr_job *job, mr_entry *e, int32_t slot, int32_t spare) {
    bool shares = !e->desc.on_logits && !e->desc.fresh;
    int32_t n = (e->n_ids + BLOCK - 1) / BLOCK, n_keys = shares ? (e->n_ids - 1) / BLOCK : 0;
    const mr_prefix_key *begin = shares && e->n_ids == e->n_prompt && begin_rows(e) > 0 ? e->begin_key : NULL;
    if (e->n_needed > 0 && e->n_needed + spare > mr_ledger_n_free(job->epoch.ledger))
        return JOB_NO_BLOCKS; /* saves the look-up of shared blocks, which takes time */
    name_blocks(job, e);
    mr_ledger_hits hits = mr_ledger_look_up(job->epoch.ledger, &e->keys, n_keys, begin);
    if (hits.promised) {
        mr_ledger_wait(job->epoch.ledger, &hits, &e->wait);
        return JOB_WAITS_FOR_PREFIX;
    }
    bool begun = mr_ledger_begin(job->epoch.ledger, slot, &hits, n, spare);
    if (!begun && hits.copy_of != MR_NO_BLOCK) { /* without the copy: its source block is held for a moment */
        hits = mr_ledger_look_up(job->epoch.ledger, &e->keys, n_keys, NULL);
        begun = mr_ledger_begin(job->epoch.ledger, slot, &hits, n, spare);
    }
    e->n_needed = begun ? 0 : mr_ledger_n_needed(&hits, n);
    if (!begun)
        return JOB_NO_BLOCKS;
    e->n_issued = hits.n_whole * BLOCK + (hits.copy_of != MR_NO_BLOCK ? begin_rows(e) : 0);
    if (e->generation == 0) { /* the first slot of this sequence */
        job->timings.prefill_tokens -= e->n_issued;
        job->timings.cached_tokens += e->n_issued;
        job->stats.n_prompt_tokens += e->n_prompt;
        job->stats.n_cached_tokens += e->n_issued;
        e->n_cached = e->n_issued;
        e->begin_ns = mr_clock_now_ns();
    }
    promise(job, e, slot, hits.n_whole);
    return JOB_BEGUN;
}

void job_prefix_publish(mr_job *job, mr_entry *e) {
    int32_t n = (e->n_issued < e->n_ids ? e->n_issued : e->n_ids) / BLOCK;
    bool begins = !e->begin_is_published && e->n_issued >= e->n_prompt - 1;
    if (begins)
        mr_ledger_publish(job->epoch.ledger, e->slot, begin_idx(e), MR_PREFIX_BEGIN);
    e->begin_is_published |= begins;
    name_blocks(job, e);
    for (; e->n_published < n; e->n_published++) {
        if (e->n_promised == e->n_published)
            mr_ledger_promise(job->epoch.ledger, e->slot, e->n_promised++, MR_PREFIX_WHOLE,
                              mr_prefix_keys_at(&e->keys, e->n_published));
        mr_ledger_publish(job->epoch.ledger, e->slot, e->n_published, MR_PREFIX_WHOLE);
    }
}

void job_prefix_add_copies(mr_job *job, Millrace__StepPlan *plan) {
    size_t n = 0;
    for (size_t i = 0; i < plan->n_runs; i++)
        n += mr_ledger_take_copy(job->epoch.ledger, (int32_t)plan->runs[i]->slot, &job->epoch.copy_from[n],
                                 &job->epoch.copy_to[n]);
    plan->copy_from = job->epoch.copy_from;
    plan->copy_to = job->epoch.copy_to;
    plan->n_copy_from = plan->n_copy_to = n;
}
