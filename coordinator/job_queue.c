/* coordinator/job_queue.c - who has a slot and KV blocks: sequences wait, are admitted, preempted, and end. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job_internal.h"

/* --- The queue --------------------------------------------------------------------------------------------------------- */

/* Whether a is to be served before b. */
static bool goes_before(const mr_entry *a, const mr_entry *b) {
    return a->sequence < b->sequence;
}

void job_queue_push(mr_job *job, mr_entry *e) {
    /* New ones belong to the end, preempted ones are older than nearly all that wait: both ends are near. */
    mr_entry *before = job->last_waiting;
    if (job->first_waiting && goes_before(e, job->first_waiting))
        before = NULL;
    while (before && goes_before(e, before))
        before = before->before;
    e->before = before;
    e->after = before ? before->after : job->first_waiting;
    *(e->before ? &e->before->after : &job->first_waiting) = e;
    *(e->after ? &e->after->before : &job->last_waiting) = e;
}

static void queue_remove(mr_job *job, mr_entry *e) {
    *(e->before ? &e->before->after : &job->first_waiting) = e->after;
    *(e->after ? &e->after->before : &job->last_waiting) = e->before;
    e->before = e->after = NULL;
}

/* --- Admission --------------------------------------------------------------------------------------------------------- */

static int32_t blocks_for(int32_t n_tokens) {
    return (n_tokens + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
}

/* The watermark: a block for every live sequence that may want more than it has. With fewer, sequences would be admitted
 * only to be preempted at once. */
static int32_t blocks_to_spare(const mr_job *job) {
    int32_t n = 0;
    for (int32_t i = 0; i < job->config.max_sequences; i++) {
        const mr_entry *e = job->slots[i].entry;
        n += e && e->state == MR_ENTRY_LIVE && mr_ledger_n_held(job->ledger, i) < blocks_for(e->max_ids);
    }
    return n;
}

/* Gives e all blocks of its known ids, if there are enough. The only live sequence needs no watermark. */
static bool take_blocks(mr_job *job, const mr_entry *e, int32_t slot) {
    int32_t n = blocks_for(e->n_ids), spare = blocks_to_spare(job) + (n < blocks_for(e->max_ids));
    if (job->n_live > 0 && n + spare > mr_ledger_n_free(job->ledger))
        return false;
    return mr_ledger_grow(job->ledger, slot, n);
}

static mr_status send_open(mr_job *job, const mr_entry *e, mr_err *err) {
    Millrace__Sampling sampling = MILLRACE__SAMPLING__INIT;
    sampling.temperature = e->desc.temperature;
    sampling.top_k = e->desc.top_k;
    sampling.top_p = e->desc.top_p;
    sampling.min_p = e->desc.min_p;
    sampling.repeat_penalty = e->desc.repeat_penalty;
    sampling.repeat_last_n = e->desc.repeat_last_n;
    sampling.seed = e->desc.seed;
    sampling.choice = e->desc.choice;
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT, brief = MILLRACE__OPEN_SEQUENCE__INIT;
    open.slot = brief.slot = (uint32_t)e->slot;
    open.generation = brief.generation = e->generation;
    open.ids = (uint32_t *)e->ids;
    open.n_ids = (size_t)e->n_ids;
    open.sampling = e->desc.on_logits ? NULL : &sampling;
    Millrace__Control message = MILLRACE__CONTROL__INIT, for_tail = MILLRACE__CONTROL__INIT;
    message.body_case = for_tail.body_case = MILLRACE__CONTROL__BODY_OPEN;
    message.open = &brief;
    for_tail.open = &open;
    return mr_stage_links_send(job->links, &message, &for_tail, err);
}

mr_status job_admit(mr_job *job, bool *did, mr_err *err) {
    while (job->first_waiting) {
        mr_entry *e = job->first_waiting;
        int32_t slot = 0;
        bool ready = false;
        if (e->state == MR_ENTRY_LEAVING)
            return MR_OK; /* ids of it are under way, and nobody overtakes it */
        while (slot < job->config.max_sequences && (job->slots[slot].entry || job->slots[slot].closing))
            slot++;
        if (slot == job->config.max_sequences)
            return MR_OK;
        mr_status status = mr_stage_links_ready(job->links, &ready, err);
        if (status != MR_OK || !ready || !take_blocks(job, e, slot))
            return status;
        queue_remove(job, e);
        e->slot = slot;
        e->generation = ++job->slots[slot].generation;
        e->state = MR_ENTRY_LIVE;
        e->n_prefill = e->n_ids;
        e->n_issued = e->n_sent = 0;
        job->slots[slot].entry = e;
        job->n_live++;
        mr_scheduler_join(job->scheduler, e);
        *did = true;
        status = send_open(job, e, err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* --- The end, for a while or for good ---------------------------------------------------------------------------------- */

static void empty_slot(mr_job *job, mr_entry *e) {
    job->slots[e->slot].entry = NULL;
    job->slots[e->slot].closing = true;
    job->n_closing++;
}

/* Rows that are still under way are wasted, the blocks are free for others. */
static void leave(mr_job *job, mr_entry *e) {
    mr_scheduler_leave(job->scheduler, e);
    mr_ledger_release(job->ledger, e->slot);
    job->n_live--;
}

void job_finish(mr_job *job, mr_entry *e) {
    if (e->state == MR_ENTRY_LIVE)
        leave(job, e);
    else
        queue_remove(job, e);
    if (e->state != MR_ENTRY_WAITING)
        empty_slot(job, e);
    job->n_leaving -= e->state == MR_ENTRY_LEAVING;
    e->state = MR_ENTRY_DONE;
    job->n_unfinished--;
}

bool job_preempt(mr_job *job) {
    mr_entry *latest = NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < job->config.max_sequences; i++) {
        mr_entry *e = job->slots[i].entry;
        if (!e || e->state != MR_ENTRY_LIVE || e->desc.on_logits)
            continue; /* those that want logits have all their blocks from the start, and end by themselves */
        latest = !latest || goes_before(latest, e) ? e : latest;
        n++;
    }
    if (n < 2)
        return false; /* the oldest stays: it goes on when the others have ended */
    leave(job, latest);
    latest->state = MR_ENTRY_LEAVING;
    job->n_leaving++;
    job->n_preempted++;
    job_queue_push(job, latest);
    return true;
}

void job_see_off(mr_job *job, bool *did) {
    for (int32_t i = 0; i < job->config.max_sequences && job->n_leaving > 0; i++) {
        mr_entry *e = job->slots[i].entry;
        if (!e || e->state != MR_ENTRY_LEAVING || e->last_step > job->n_done)
            continue;
        empty_slot(job, e);
        e->state = MR_ENTRY_WAITING;
        job->n_leaving--;
        *did = true;
    }
}

mr_status job_close_empty(mr_job *job, bool *did, mr_err *err) {
    for (int32_t i = 0; i < job->config.max_sequences && job->n_closing > 0; i++) {
        mr_slot_account *s = &job->slots[i];
        bool ready = false;
        if (!s->closing)
            continue;
        mr_status status = mr_stage_links_ready(job->links, &ready, err);
        if (status != MR_OK || !ready)
            return status;
        Millrace__CloseSequence close = MILLRACE__CLOSE_SEQUENCE__INIT;
        Millrace__Control message = MILLRACE__CONTROL__INIT;
        close.slot = (uint32_t)i;
        close.generation = s->generation;
        message.body_case = MILLRACE__CONTROL__BODY_CLOSE;
        message.close = &close;
        status = mr_stage_links_send(job->links, &message, NULL, err);
        if (status != MR_OK)
            return status;
        s->closing = false;
        job->n_closing--;
        *did = true;
    }
    return MR_OK;
}
