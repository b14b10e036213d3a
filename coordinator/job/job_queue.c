/* coordinator/job/job_queue.c - which sequences have a slot and KV blocks. Sequences wait in a queue, are admitted,
 * may be preempted, and end. */
// SPDX-License-Identifier: Apache-2.0
#include <stddef.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"

/* BLOCKS_AT_ONCE: KV blocks of the sequences that one turn looks at for admission, which takes some tenths of a
 * millisecond. Then steps run for a while before the next admission. PRIORITY_AHEAD: how many earlier arrivals one
 * step of priority overtakes. */
enum { BLOCKS_AT_ONCE = 4096, PRIORITY_AHEAD = 64 };

/* --- The queue --------------------------------------------------------------------------------------------------- */

/* Whether a is served before b. The order is the order of arrival, and each step of priority moves a sequence ahead of
 * PRIORITY_AHEAD earlier arrivals. The order of two sequences never changes, so no sequence starves. */
static bool goes_before(const mr_entry *a, const mr_entry *b) {
    int64_t place_a = a->sequence - (int64_t)a->desc.priority * PRIORITY_AHEAD;
    int64_t place_b = b->sequence - (int64_t)b->desc.priority * PRIORITY_AHEAD;
    return place_a < place_b || (place_a == place_b && a->sequence < b->sequence);
}

void job_queue_push(mr_job *job, mr_entry *e) {
    /* The search starts at the end, where new sequences belong. A preempted sequence is older than nearly all others,
     * so its place is at the front. */
    mr_entry *before = job->last_waiting;
    if (job->first_waiting && goes_before(e, job->first_waiting))
        before = NULL;
    while (before && goes_before(e, before))
        before = before->before;
    e->before = before;
    e->after = before ? before->after : job->first_waiting;
    *(e->before ? &e->before->after : &job->first_waiting) = e;
    *(e->after ? &e->after->before : &job->last_waiting) = e;
    job->may_admit = true;
}

static void queue_remove(mr_job *job, mr_entry *e) {
    *(e->before ? &e->before->after : &job->first_waiting) = e->after;
    *(e->after ? &e->after->before : &job->last_waiting) = e->before;
    e->before = e->after = NULL;
    job->may_admit = true;
}

/* --- Admission --------------------------------------------------------------------------------------------------- */

static int32_t blocks_for(int32_t n_tokens) {
    return (n_tokens + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
}

/* The watermark: a block for every live sequence that may want more than it has. With fewer, sequences would be
 * admitted only to be preempted at once. */
static int32_t blocks_to_spare(const mr_job *job) {
    int32_t n = 0;
    for (int32_t i = 0; i < job->config.max_sequences; i++) {
        const mr_entry *e = job->epoch.slots[i].entry;
        n += e && e->state == MR_ENTRY_LIVE && mr_ledger_n_held(job->epoch.ledger, i) < blocks_for(e->max_ids);
    }
    return n;
}

/* Bounds a length of history: no sequence has more ids, and no message may name more. */
static int32_t look_back(int32_t n) {
    return n < MR_MAX_CONTEXT ? n : MR_MAX_CONTEXT;
}

/* The lists of the message point into the journal. */
static void fill_sampling(const mr_entry *e, Millrace__Sampling *out) {
    const mr_sampling_params *p = &e->desc.sampling;
    *out = (Millrace__Sampling)MILLRACE__SAMPLING__INIT;
#define MR_SAMPLING(type, name, ...) out->name = p->name;
#include "engine/sample/params.def"
#undef MR_SAMPLING
    out->repeat_last_n = look_back(p->repeat_last_n);
    out->dry_last_n = look_back(p->dry_last_n);
    out->dry_breakers = (uint32_t *)(uintptr_t)p->dry_breakers;
    out->n_dry_breakers = (size_t)p->n_dry_breakers;
    out->mirostat_mu = e->mirostat_mu;
    out->seed = p->seed;
    out->choice = e->desc.choice;
    out->bias_ids = (uint32_t *)(uintptr_t)p->bias_ids;
    out->biases = (float *)(uintptr_t)p->biases;
    out->n_bias_ids = out->n_biases = (size_t)p->n_biases;
    out->min_tokens = (uint32_t)look_back(p->min_tokens);
    out->late_ids = (uint32_t *)(uintptr_t)p->late_ids;
    out->n_late_ids = (size_t)p->n_late_ids;
    out->bad_words = (uint32_t *)(uintptr_t)p->bad_words;
    out->n_bad_words = (size_t)p->n_bad_words;
    out->logprobs = e->desc.logprobs;
    out->n_top_logprobs = (uint32_t)e->desc.n_top_logprobs;
}

static mr_status send_open(mr_job *job, mr_entry *e, mr_err *err) {
    Millrace__Sampling sampling;
    Millrace__OpenSequence open = MILLRACE__OPEN_SEQUENCE__INIT, brief = MILLRACE__OPEN_SEQUENCE__INIT;
    int32_t n_generated = e->n_ids - e->n_prompt;
    int32_t n = mr_sampler_n_history(&e->desc.sampling, n_generated, job->config.max_context);
    n = n < e->n_ids ? n : e->n_ids;
    fill_sampling(e, &sampling);
    open.slot = brief.slot = (uint32_t)e->slot;
    open.generation = brief.generation = e->generation;
    open.blocks = brief.blocks = (uint32_t *)(uintptr_t)mr_ledger_table(job->epoch.ledger, e->slot);
    open.n_blocks = brief.n_blocks = (size_t)e->n_sent;
    open.prefix = brief.prefix = mr_entry_prefix(e);
    mr_entry_copy_ids(e, e->n_ids - n, n, job->history);
    open.ids = (uint32_t *)job->history;
    open.n_ids = (size_t)n;
    open.n_generated = (uint32_t)n_generated;
    open.grammar.data = (uint8_t *)(uintptr_t)e->desc.grammar;
    open.grammar.len = e->desc.grammar_bytes;
    open.sampling = mr_entry_wants_rows(e) ? NULL : &sampling;
    Millrace__Control message = MILLRACE__CONTROL__INIT, for_tail = MILLRACE__CONTROL__INIT;
    message.body_case = for_tail.body_case = MILLRACE__CONTROL__BODY_OPEN;
    message.open = &brief;
    for_tail.open = &open;
    return mr_stage_links_send(job->epoch.links, &message, &for_tail, err);
}

/* Gives a sequence its slot and the blocks of its known ids. If no other sequence is live, the watermark does not
 * apply. */
static job_begin begin(mr_job *job, mr_entry *e, int32_t slot) {
    int32_t spare = blocks_to_spare(job) + (blocks_for(e->n_ids) < blocks_for(e->max_ids)), n_before = e->n_issued;
    job_begin begun = job_prefix_begin(job, e, slot, job->epoch.n_live > 0 ? spare : 0);
    if (begun != JOB_BEGUN)
        return begun;
    queue_remove(job, e);
    e->slot = slot;
    e->generation = ++job->epoch.slots[slot].generation;
    e->state = MR_ENTRY_LIVE;
    e->n_prefill = e->n_ids;
    job->stats.n_again_rows += e->is_again && n_before > e->n_issued ? n_before - e->n_issued : 0;
    e->n_sent = mr_ledger_n_held(job->epoch.ledger, slot); /* the message that opens the sequence brings them */
    e->sums = (mr_prefix_sums){0};
    e->n_summed = 0;
    for (int32_t i = 0; i < e->n_sent; i++)
        mr_prefix_add_block(&e->sums, (uint32_t)i, mr_ledger_table(job->epoch.ledger, slot)[i]);
    job->epoch.slots[slot].entry = e;
    job->epoch.n_live++;
    mr_scheduler_join(job->epoch.scheduler, e);
    return JOB_BEGUN;
}

static int32_t empty_slot(const mr_job *job) {
    int32_t slot = 0;
    while (slot < job->config.max_sequences && (job->epoch.slots[slot].entry || job->epoch.slots[slot].closing))
        slot++;
    return slot;
}

/* Queues the sequences whose wait for a promised block is over. */
static void queue_woken(mr_job *job) {
    for (mr_prefix_wait *w; (w = mr_ledger_take_woken(job->epoch.ledger));)
        job_queue_push(job, (mr_entry *)((char *)w - offsetof(mr_entry, wait)));
}

/* The first sequence of the queue that may be admitted now. Notes when those before it may be. */
static mr_entry *first_due(mr_job *job, int64_t now_ns) {
    mr_entry *e = job->first_waiting;
    for (; e && e->retry_ns > now_ns; e = e->after)
        job->retry_ns = e->retry_ns < job->retry_ns ? e->retry_ns : job->retry_ns;
    return e;
}

mr_status job_admit(mr_job *job, bool *did, mr_err *err) {
    int64_t start_ns = mr_clock_now_ns();
    int32_t n_blocks = 0;
    queue_woken(job);
    if (start_ns >= job->retry_ns) {
        job->retry_ns = MR_NEVER;
        job->may_admit = true;
    }
    if (job->epoch.n_live > 0 && start_ns < job->admit_ns)
        return MR_OK;
    for (mr_entry *e; job->may_admit && (e = first_due(job, start_ns));) {
        int32_t slot = empty_slot(job);
        bool ready = false;
        mr_status status = mr_stage_links_ready(job->epoch.links, &ready, err);
        if (status != MR_OK || !ready)
            return status;
        /* A preempted sequence whose last ids are under way cannot begin yet, and no other sequence overtakes it. */
        bool may_begin = e->state != MR_ENTRY_LEAVING && slot < job->config.max_sequences;
        job_begin begun = may_begin ? begin(job, e, slot) : JOB_NO_BLOCKS;
        if (begun == JOB_NO_BLOCKS) {
            job->timings.waited = true;
            break;
        }
        *did = true;
        if (begun == JOB_BEGUN)
            status = send_open(job, e, err);
        else
            queue_remove(job, e); /* waits for a promised block, for some steps at most: others may pass */
        n_blocks += blocks_for(e->n_ids);
        if (status != MR_OK)
            return status;
        if (n_blocks >= BLOCKS_AT_ONCE) { /* the rest is admitted later, so that steps go on */
            int64_t now_ns = mr_clock_now_ns();
            job->admit_ns = now_ns + mr_job_pause_ns(now_ns - start_ns);
            return MR_OK;
        }
    }
    job->may_admit = false;
    return MR_OK;
}

/* --- Preemption and end ------------------------------------------------------------------------------------------ */

static void close_slot(mr_job *job, mr_entry *e) {
    job->epoch.slots[e->slot].entry = NULL;
    job->epoch.slots[e->slot].closing = true;
    job->epoch.n_closing++;
}

/* Takes a sequence out of the schedule and frees its blocks. Its rows that are still under way are wasted. */
static void leave(mr_job *job, mr_entry *e) {
    mr_scheduler_leave(job->epoch.scheduler, e);
    mr_ledger_release(job->epoch.ledger, e->slot);
    job->epoch.n_live--;
    job->may_admit = true;
}

void job_finish(mr_job *job, mr_entry *e) {
    if (e->state == MR_ENTRY_LIVE)
        leave(job, e);
    else if (mr_prefix_wait_is_on(&e->wait))
        mr_prefix_wait_end(&e->wait);
    else
        queue_remove(job, e);
    if (e->state != MR_ENTRY_WAITING)
        close_slot(job, e);
    job->epoch.n_leaving -= e->state == MR_ENTRY_LEAVING;
    e->state = MR_ENTRY_DONE;
    e->after = job->ended;
    job->ended = e;
    job->n_unfinished--;
    job->stats.n_ended++;
    job_note_again(job, e);
}

void job_forget(mr_job *job) {
    for (mr_entry **at = &job->ended, *e; (e = *at);) {
        if (e->last_step > job->epoch.n_done && job->epoch.n_issued > job->epoch.n_done) {
            at = &e->after;
            continue;
        }
        *at = e->after;
        mr_journal_forget(job->journal, e);
    }
}

bool job_preempt(mr_job *job) {
    mr_entry *latest = NULL;
    int32_t n = 0;
    for (int32_t i = 0; i < job->config.max_sequences; i++) {
        mr_entry *e = job->epoch.slots[i].entry;
        if (!e || e->state != MR_ENTRY_LIVE || mr_entry_wants_rows(e))
            continue; /* sequences that want rows have all their blocks from the start, and end by themselves */
        latest = !latest || goes_before(latest, e) ? e : latest;
        n++;
    }
    if (n < 2)
        return false; /* the oldest sequence keeps its blocks: it goes on when the others have ended */
    leave(job, latest);
    latest->state = MR_ENTRY_LEAVING;
    job->epoch.n_leaving++;
    job->stats.n_preempted++;
    job->timings.waited = true;
    job_queue_push(job, latest);
    return true;
}

void job_set_aside(mr_job *job, mr_entry *e, int64_t until_ns) {
    if (e->state == MR_ENTRY_LIVE) {
        leave(job, e);
        job_queue_push(job, e);
    } else {
        job->epoch.n_leaving--; /* preempted, and in the queue */
    }
    close_slot(job, e);
    e->state = MR_ENTRY_WAITING;
    e->retry_ns = until_ns;
    job->timings.waited = true;
}

void job_see_off(mr_job *job, bool *did) {
    for (int32_t i = 0; i < job->config.max_sequences && job->epoch.n_leaving > 0; i++) {
        mr_entry *e = job->epoch.slots[i].entry;
        if (!e || e->state != MR_ENTRY_LEAVING || e->last_step > job->epoch.n_done)
            continue;
        close_slot(job, e);
        e->state = MR_ENTRY_WAITING;
        job->epoch.n_leaving--;
        job->may_admit = true;
        *did = true;
    }
}

mr_status job_close_empty(mr_job *job, bool *did, mr_err *err) {
    for (int32_t i = 0; i < job->config.max_sequences && job->epoch.n_closing > 0; i++) {
        mr_slot_account *s = &job->epoch.slots[i];
        bool ready = false;
        if (!s->closing)
            continue;
        mr_status status = mr_stage_links_ready(job->epoch.links, &ready, err);
        if (status != MR_OK || !ready)
            return status;
        Millrace__CloseSequence close = MILLRACE__CLOSE_SEQUENCE__INIT;
        Millrace__Control message = MILLRACE__CONTROL__INIT;
        close.slot = (uint32_t)i;
        close.generation = s->generation;
        message.body_case = MILLRACE__CONTROL__BODY_CLOSE;
        message.close = &close;
        status = mr_stage_links_send(job->epoch.links, &message, NULL, err);
        if (status != MR_OK)
            return status;
        s->closing = false;
        job->epoch.n_closing--;
        job->may_admit = true;
        *did = true;
    }
    return MR_OK;
}

/* --- A new epoch ------------------------------------------------------------------------------------------------- */

static void queue_again(void *ctx, mr_entry *e) {
    mr_job *job = ctx;
    bool is_queued = e->state == MR_ENTRY_LEAVING || (e->state == MR_ENTRY_WAITING && !mr_prefix_wait_is_on(&e->wait));
    if (e->state == MR_ENTRY_DONE)
        return;
    if (mr_prefix_wait_is_on(&e->wait))
        mr_prefix_wait_end(&e->wait);
    e->is_again = e->is_again || (e->state == MR_ENTRY_LIVE && e->n_issued > 0);
    e->state = MR_ENTRY_WAITING;
    e->slot = -1;
    e->last_step = 0;
    e->n_needed = 0;
    if (!is_queued)
        job_queue_push(job, e);
}

void job_queue_all(mr_job *job) {
    mr_journal_visit(job->journal, queue_again, job);
    job->epoch.n_done = job->epoch.n_issued;
    job_forget(job);
}

static void count_again(void *ctx, mr_entry *e) {
    mr_job *job = ctx;
    job->stats.n_again += e->is_again;
}

void job_count_again(mr_job *job) {
    job->stats.n_again = 0;
    job->stats.n_again_rows = 0;
    job->stats.again_s = 0;
    job->again_ns = mr_clock_now_ns();
    mr_journal_visit(job->journal, count_again, job);
}

void job_note_again(mr_job *job, mr_entry *e) {
    if (!e->is_again)
        return;
    e->is_again = false;
    if (job->stats.n_again > 0 && --job->stats.n_again == 0)
        job->stats.again_s = (double)(mr_clock_now_ns() - job->again_ns) / (double)MR_NS_PER_S;
}

/* Of the sequences that have not ended. */
static void note_longest(void *ctx, mr_entry *e) {
    int32_t *longest = ctx;
    if (e->state != MR_ENTRY_DONE && e->max_ids > *longest)
        *longest = e->max_ids;
}

int32_t mr_job_longest(const mr_job *job) {
    int32_t longest = 0;
    mr_journal_visit(job->journal, note_longest, &longest);
    return longest;
}

mr_status mr_job_check_restart(const mr_job *job, int32_t n_kv_blocks, mr_err *err) {
    int32_t longest = mr_job_longest(job);
    if (blocks_for(longest) <= n_kv_blocks)
        return MR_OK;
    return mr_err_set(err, MR_E_NO_MEMORY, "a sequence may reach %d tokens, the KV cache of the new plan holds %lld",
                      longest, (long long)n_kv_blocks * MR_WIRE_BLOCK_TOKENS);
}
