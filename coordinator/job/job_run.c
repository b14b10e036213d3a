/* coordinator/job/job_run.c - the turns of a job. A turn closes and opens slots, issues steps, and takes the tokens,
 * logits and reports that have come. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"

/* MOST_LACKS: a sequence fails when the last stage has had no memory for its grammar so often in a row, 50 s after the
 * first time or later. After every LACKS_OF_ONE times another rank should get the last stage. LACK_NS: the pause after
 * the first time; it doubles up to MOST_LACK_NS. */
enum { MOST_LACKS = 12, LACKS_OF_ONE = 4 };
static const int64_t INTERRUPT_LOOK_NS = 100 * MR_NS_PER_MS, LACK_NS = 100 * MR_NS_PER_MS,
                     MOST_LACK_NS = 10 * MR_NS_PER_S;
static const double STEP_FADE = 0.9; /* a step counts so much less than the one after it */

mr_status job_wait(mr_job *job, int64_t deadline_ns, mr_err *err) {
    bool asks = job->config.interrupted != NULL;
    if (asks && job->config.interrupted())
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    int64_t look_ns = asks ? mr_clock_now_ns() + INTERRUPT_LOOK_NS : MR_NEVER;
    return mr_channel_wait(job->config.channel, look_ns < deadline_ns ? look_ns : deadline_ns, err);
}

/* --- Steps ------------------------------------------------------------------------------------------------------- */

/* Issues steps while fewer are under way than the scheduler wants and there are rows to issue. */
static mr_status issue(mr_job *job, bool *did, mr_err *err) {
    while (job->epoch.n_issued - job->epoch.n_done < (uint64_t)mr_scheduler_most_steps(job->epoch.scheduler)) {
        bool ready = false;
        mr_status status = mr_stage_links_ready(job->epoch.links, &ready, err);
        if (status != MR_OK || !ready)
            return status;
        mr_step_record record = {.step = job->epoch.n_issued + 1};
        const Millrace__StepPlan *plan = mr_scheduler_next(job->epoch.scheduler, record.step, &record.logits);
        if (!plan && mr_scheduler_starved(job->epoch.scheduler) && job_preempt(job)) {
            *did = true;
            continue;
        }
        if (!plan)
            return MR_OK;
        Millrace__StepPlan step = *plan;
        Millrace__Control message = MILLRACE__CONTROL__INIT;
        job_prefix_add_copies(job, &step);
        message.body_case = MILLRACE__CONTROL__BODY_STEP;
        message.step = &step;
        status = mr_stage_links_send(job->epoch.links, &message, NULL, err);
        if (status != MR_OK)
            return status;
        for (size_t i = 0; i < plan->n_runs; i++) {
            const Millrace__Run *run = plan->runs[i];
            record.n_rows += (int32_t)run->n_rows;
            record.n_outputs += run->want == MILLRACE__WANT__WANT_TOKEN        ? 1
                                : run->want == MILLRACE__WANT__WANT_ALL_LOGITS ? (int32_t)run->n_rows
                                                                               : 0;
            record.n_positions += run->n_rows * (run->first_position + 0.5 * (run->n_rows - 1));
            job_prefix_publish(job, job->epoch.slots[run->slot].entry);
        }
        job->epoch.steps[record.step % (uint64_t)job->epoch.ring_slots] = record;
        job->epoch.n_issued = record.step;
        *did = true;
        if (mr_scheduler_starved(job->epoch.scheduler))
            job_preempt(job); /* before the starved sequence's next step, without waiting for blocks to come free */
    }
    return MR_OK;
}

static void note_first_token(mr_job *job, int64_t now_ns) {
    job->last_first_token_ns = now_ns;
    if (job->first_token_ns == 0)
        job->first_token_ns = job->last_first_token_ns;
}

/* The error text of a token that the tail could not choose. */
static const char *failure_text(mr_status status) {
    switch ((int)status) {
    case MR_E_NUMERICS:
        return "the model computed values that are not numbers";
    case MR_E_INVALID:
        return "no token is possible: grammar, logit biases and bad words leave none";
    case MR_E_TOO_LONG:
        return "the text is nested deeper, or may be read in more ways, than grammars are followed";
    case MR_E_UNSUPPORTED:
        return "the model has no tokenizer, which grammars need";
    case MR_E_NO_MEMORY:
        return "no memory to follow the grammar";
    default:
        return "the last stage could not follow the grammar";
    }
}

/* The last stage has no memory for the grammar of a sequence. Lets the sequence wait until others have freed memory, or
 * until another rank has the last stage. false: it has waited long enough. */
static bool waits_for_memory(mr_job *job, mr_entry *e, int64_t now_ns) {
    int64_t pause_ns = LACK_NS << e->n_lacks;
    if (++e->n_lacks == MOST_LACKS)
        return false;
    if (e->n_lacks % LACKS_OF_ONE == 0)
        job->lacking_rank = job->epoch.plan.stages[job->epoch.plan.n_stages - 1].rank;
    job_set_aside(job, e, now_ns + (pause_ns < MOST_LACK_NS ? pause_ns : MOST_LACK_NS));
    return true;
}

/* Takes a token of a live sequence; tokens of sequences that have left the slot are dropped. An error means that the
 * last stage broke the protocol. */
static mr_status take_token(mr_job *job, const Millrace__Token *t, int64_t now_ns, mr_err *err) {
    mr_entry *e = job->epoch.slots[t->slot].entry;
    if (!e || e->generation != t->generation)
        return MR_OK;
    if (mr_entry_wants_rows(e) || t->position != (uint32_t)e->n_ids || e->n_ids > e->n_issued)
        return mr_err_set(err, MR_E_PROTOCOL, "a token of slot %u at position %u, where none is due", t->slot,
                          t->position);
    if (t->status == MR_E_NO_MEMORY && waits_for_memory(job, e, now_ns))
        return MR_OK;
    mr_token_event event = {.sequence = e->sequence,
                            .id = (int32_t)t->id,
                            .time_ns = now_ns,
                            .begin_ns = e->begin_ns,
                            .n_cached = e->n_cached,
                            .status = (mr_status)t->status};
    if (t->status != MR_OK) {
        event.finish = MR_FINISH_ERROR;
        event.text = failure_text(event.status);
        /* TOO_LONG is about the grammar here. Clients would read it as a prompt beyond the context. */
        if (event.status == MR_E_TOO_LONG)
            event.status = MR_E_UNSUPPORTED;
    } else {
        e->n_lacks = 0;
        mr_entry_add_id(e, (int32_t)t->id);
        job_note_again(job, e);
        job->stats.n_generated++;
        e->mirostat_mu = t->mirostat_mu;
        event.logprob = t->logprob;
        event.n_top = (int32_t)t->n_top_ids;
        event.top_ids = (const int32_t *)t->top_ids;
        event.top_logprobs = t->top_logprobs;
        event.n_generated = e->n_ids - e->n_prompt;
        event.finish = e->n_ids == e->max_ids ? MR_FINISH_LENGTH : MR_FINISH_NONE;
        if (event.n_generated == 1)
            note_first_token(job, now_ns);
        else
            job->timings.decode_tokens++;
    }
    bool stop = e->desc.on_token && e->desc.on_token(e->desc.ctx, &event);
    if (e->state == MR_ENTRY_DONE)
        return MR_OK; /* the callback has cancelled the sequence */
    if (stop || event.finish != MR_FINISH_NONE)
        job_finish(job, e);
    else if (e->state == MR_ENTRY_LIVE)
        job_prefix_publish(job, e);
    return MR_OK;
}

/* Counts the finished steps, in order. */
static void advance(mr_job *job) {
    while (job->epoch.n_done < job->epoch.n_issued) {
        const mr_step_record *r = &job->epoch.steps[(job->epoch.n_done + 1) % (uint64_t)job->epoch.ring_slots];
        if (!r->tokens_in || r->n_rows_in < r->logits.n_rows)
            return;
        job->epoch.n_done++;
        job->stats.n_steps++;
        job->stats.n_rows += r->n_rows;
        job->epoch.recent_rows = STEP_FADE * job->epoch.recent_rows + r->n_rows;
        job->epoch.recent_positions = STEP_FADE * job->epoch.recent_positions + r->n_positions;
        job->epoch.recent_outputs = STEP_FADE * job->epoch.recent_outputs + r->n_outputs;
        if (job->config.on_step)
            job->config.on_step(job->config.on_step_ctx, r->n_rows);
    }
}

static mr_status take_tokens(mr_job *job, bool *did, mr_err *err) {
    for (;;) {
        Millrace__Tokens *tokens;
        mr_status status = mr_stage_links_next_tokens(job->epoch.links, &tokens, err);
        if (status != MR_OK || !tokens)
            return status;
        mr_step_record *r = &job->epoch.steps[tokens->step % (uint64_t)job->epoch.ring_slots];
        if (r->step != tokens->step || r->tokens_in || tokens->step <= job->epoch.n_done)
            status = mr_err_set(err, MR_E_PROTOCOL, "tokens of step %llu, which is not under way",
                                (unsigned long long)tokens->step);
        else
            r->tokens_in = true;
        *did = true;
        int64_t now_ns = mr_clock_now_ns();
        for (size_t i = 0; i < tokens->n_tokens && status == MR_OK; i++)
            status = take_token(job, tokens->tokens[i], now_ns, err);
        if (status != MR_OK)
            return mr_stage_links_of_tail(job->epoch.links, status, err);
        advance(job);
    }
}

/* The run of the step that the next rows belong to, and how many of the run's rows are in. Some row must be missing. */
static const mr_logits_run *run_due(const mr_step_record *r, int32_t *out_n_in) {
    int32_t i = 0, n = r->n_rows_in;
    while (n >= r->logits.at[i].n_rows)
        n -= r->logits.at[i++].n_rows;
    *out_n_in = n;
    return &r->logits.at[i];
}

/* Checks a message of logits or hidden rows. An error means that the last stage broke the protocol. */
static mr_status check_logits(const mr_job *job, const mr_step_record *r, const mr_frame *frame, mr_err *err) {
    int32_t left = r->step == frame->step ? r->logits.n_rows - r->n_rows_in : 0, n_in;
    const mr_logits_run *run = left > 0 ? run_due(r, &n_in) : NULL;
    if (!run || frame->rows == 0 || (int64_t)n_in + frame->rows > run->n_rows)
        return mr_err_set(err, MR_E_PROTOCOL, "%u rows of logits of step %llu, which wants %d", frame->rows,
                          (unsigned long long)frame->step, left);
    int32_t columns = run->entry->desc.on_hidden ? job->config.info->d_model : job->config.info->vocab_size;
    if (frame->row_bytes == (size_t)columns * sizeof(float))
        return MR_OK;
    return mr_err_set(err, MR_E_PROTOCOL, "rows of %u bytes where %d columns are due", frame->row_bytes, columns);
}

/* Gives rows of the prompt to the callback. After a restart, rows come again that the callback has seen: they are
 * dropped. */
static void deliver_rows(mr_entry *e, int32_t first, int32_t n, const float *rows, size_t columns) {
    int32_t n_seen = e->n_rows_seen > first ? e->n_rows_seen - first : 0;
    if (e->state == MR_ENTRY_DONE || n_seen >= n)
        return;
    e->n_rows_seen = first + n;
    (e->desc.on_hidden ? e->desc.on_hidden : e->desc.on_logits)(e->desc.ctx, first + n_seen, n - n_seen,
                                                                rows + (size_t)n_seen * columns);
}

static mr_status take_logits(mr_job *job, bool *did, mr_err *err) {
    for (;;) {
        mr_frame frame;
        const float *rows = NULL;
        mr_status status = mr_stage_links_peek_logits(job->epoch.links, &frame, &rows, err);
        if (status != MR_OK || !rows)
            return status;
        mr_step_record *r = &job->epoch.steps[frame.step % (uint64_t)job->epoch.ring_slots];
        status = mr_stage_links_of_tail(job->epoch.links, check_logits(job, r, &frame, err), err);
        if (status != MR_OK)
            return status;
        int32_t n_in;
        const mr_logits_run *run = run_due(r, &n_in);
        mr_entry *e = run->entry;
        int32_t first = run->first_position + n_in;
        bool is_last = first + (int32_t)frame.rows == e->n_prompt;
        deliver_rows(e, first, (int32_t)frame.rows, rows, frame.row_bytes / sizeof *rows);
        r->n_rows_in += (int32_t)frame.rows;
        *did = true;
        status = mr_stage_links_release_logits(job->epoch.links, err);
        if (status != MR_OK)
            return status;
        if (is_last && e->state != MR_ENTRY_DONE)
            job_finish(job, e);
        advance(job);
    }
}

static mr_status turn(mr_job *job, bool *did, mr_err *err) {
    job_forget(job);
    job_see_off(job, did);
    mr_status status = job_close_empty(job, did, err);
    if (status == MR_OK)
        status = job_admit(job, did, err);
    if (status == MR_OK)
        status = issue(job, did, err);
    if (status == MR_OK)
        status = take_tokens(job, did, err);
    if (status == MR_OK)
        status = take_logits(job, did, err);
    if (status == MR_OK)
        status = job_take_reports(job, did, err);
    return status;
}

mr_status mr_job_settle(mr_job *job, int64_t deadline_ns, mr_err *err) {
    mr_status status = MR_OK;
    while (status == MR_OK && job->epoch.n_done < job->epoch.n_issued) {
        bool did = false;
        status = take_tokens(job, &did, err);
        if (status == MR_OK)
            status = take_logits(job, &did, err);
        if (status == MR_OK)
            status = job_take_reports(job, &did, err);
        if (status != MR_OK || did)
            continue;
        status = mr_clock_now_ns() < deadline_ns ? job_wait(job, deadline_ns, err)
                                                 : mr_err_set(err, MR_E_TIMEOUT, "steps are still under way");
    }
    return status;
}

int32_t mr_job_mark_blocks(const mr_job *job, uint8_t *bits) {
    return mr_ledger_mark_ready(job->epoch.ledger, bits);
}

int32_t mr_job_mark_whole_blocks(const mr_job *job, uint8_t *bits) {
    return mr_ledger_mark_whole(job->epoch.ledger, bits);
}

const uint32_t *mr_job_block_versions(const mr_job *job) {
    return mr_ledger_versions(job->epoch.ledger);
}

uint64_t mr_job_issued_step(const mr_job *job) {
    return job->epoch.n_issued;
}

uint64_t mr_job_done_step(const mr_job *job) {
    return job->epoch.n_done;
}

/* The turn of a paused job. */
static mr_status rest(mr_job *job, int64_t deadline_ns, mr_err *err) {
    int64_t look_ns = mr_clock_now_ns() + INTERRUPT_LOOK_NS; /* wants_restart is asked again */
    job_forget(job);
    return job_recover(job, job_wait(job, look_ns < deadline_ns ? look_ns : deadline_ns, err), err);
}

mr_status mr_job_turn(mr_job *job, int64_t deadline_ns, mr_err *err) {
    int64_t start_ns = mr_clock_now_ns();
    bool restarts = job->config.wants_restart && job->config.wants_restart(job->config.recover_ctx);
    bool did = restarts; /* the last sequences may have ended meanwhile */
    mr_status status = restarts ? job->config.recover(job->config.recover_ctx, job, MR_OK, err) : MR_OK;
    if (status != MR_OK)
        return status;
    if (!mr_job_has_epoch(job))
        return rest(job, deadline_ns, err);
    status = turn(job, &did, err);
    if (job->may_admit && start_ns < job->admit_ns && job->admit_ns < deadline_ns)
        deadline_ns = job->admit_ns;
    deadline_ns = job->retry_ns < deadline_ns ? job->retry_ns : deadline_ns;
    if (status == MR_OK && !did && mr_clock_now_ns() < deadline_ns)
        status = job_wait(job, deadline_ns, err);
    status = status == MR_OK ? MR_OK : job_find_cause(job, status, err);
    status = job_recover(job, status, err);
    /* MR_E_INVALID is for one wrong request, which fails alone. An error that breaks the whole job is internal. */
    if (status == MR_E_INVALID && err)
        err->status = MR_E_INTERNAL;
    return status == MR_E_INVALID ? MR_E_INTERNAL : status;
}

mr_status mr_job_run(mr_job *job, mr_err *err) {
    mr_status status = MR_OK;
    job->start_ns = mr_clock_now_ns();
    job->first_token_ns = job->last_first_token_ns = 0;
    while (job->n_unfinished > 0 && status == MR_OK)
        status = mr_job_turn(job, MR_NEVER, err);
    if (status != MR_OK)
        return status;
    int64_t end_ns = mr_clock_now_ns();
    job->timings.prefill_ns += (job->last_first_token_ns ? job->last_first_token_ns : end_ns) - job->start_ns;
    if (job->first_token_ns) {
        job->timings.first_token_ns = job->first_token_ns - job->start_ns;
        job->timings.decode_ns += end_ns - job->first_token_ns;
    }
    return MR_OK;
}
