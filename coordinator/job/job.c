/* coordinator/job/job.c - the life of a job: sends the plan, waits until the stages have loaded, takes their reports,
 * checks new sequences, and stops the stages. job_queue.c, job_prefix.c and job_run.c hold the rest of the job. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"

static const int64_t INTERRUPT_LOOK_NS = 100 * MR_NS_PER_MS, SILENCE_NS = 10 * MR_NS_PER_S, FLUSH_NS = MR_NS_PER_S / 2,
                     STOP_NS = MR_NS_PER_S;

/* --- Reports of the stages --------------------------------------------------------------------------------------- */

/* ", rank 2 on node7" if the stage is a process of its own, else "". */
static const char *place_of(const mr_job *job, uint32_t stage, char out[MR_CHANNEL_NAME_BYTES + 4]) {
    char name[MR_CHANNEL_NAME_BYTES];
    out[0] = 0;
    if (job->config.channel->ops->peer_name)
        snprintf(out, MR_CHANNEL_NAME_BYTES + 4, ", %s",
                 mr_channel_peer_name(job->config.channel, job->plan.stages[stage].rank, name));
    return out;
}

static mr_status note_failure(const mr_job *job, const Millrace__Failure *f, mr_err *err) {
    const mr_plan_stage *s = &job->plan.stages[f->stage];
    char place[MR_CHANNEL_NAME_BYTES + 4];
    return mr_err_set(err, (mr_status)f->status, "stage %u (layers %d to %d%s): %s", f->stage, s->first, s->last - 1,
                      place_of(job, f->stage, place), f->text);
}

static void note_progress(mr_job *job, const Millrace__LoadProgress *p) {
    size_t done = 0, total = 0;
    job->stages[p->stage].done_bytes = p->done_bytes;
    job->stages[p->stage].total_bytes = p->total_bytes;
    job->stages[p->stage].heard_ns = mr_clock_now_ns();
    for (int32_t i = 0; i < job->plan.n_stages; i++) {
        done += job->stages[i].done_bytes;
        total += job->stages[i].total_bytes;
    }
    if (job->config.progress)
        job->config.progress(job->config.progress_ctx, done, total);
}

static void note_spans(mr_job *job, const Millrace__Spans *s) {
    if (!job->spans)
        return;
    for (size_t i = 0; i < s->n_phase; i++)
        job->spans[i] = (mr_span){.phase = (mr_phase)s->phase[i],
                                  .step = s->step[i],
                                  .rows = s->rows[i],
                                  .start_ns = (int64_t)s->start_ns[i],
                                  .end_ns = (int64_t)s->end_ns[i]};
    job->config.on_spans(job->config.on_spans_ctx, (int32_t)s->stage, job->spans, (int32_t)s->n_phase);
}

static void note_seconds(mr_job *job, const Millrace__Seconds *s) {
    mr_stage_seconds new = {.known = s->ended,
                            .heard_ns = mr_clock_now_ns(),
                            .n_steps = s->steps,
                            .n_dropped_spans = s->dropped_spans,
                            .n_rows = s->rows,
                            .in_bytes = s->in_bytes,
                            .out_bytes = s->out_bytes};
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        new.ns[i] = (int64_t)s->ns[i];
    (void)mr_learned_times_usual(job->times, (int32_t)s->stage, &new.usual);
    mr_mutex_lock(&job->seconds_lock);
    job->stages[s->stage].seconds = new;
    mr_mutex_unlock(&job->seconds_lock);
}

static void note_step_sums(mr_job *job, const Millrace__StepSums *s) {
    bool is_short = mr_scheduler_micro_batches(job->scheduler) <= job->plan.n_stages;
    mr_learned_times_add(job->times, s, is_short);
    /* Only after the last stage's report: to choose a cut anew takes time. */
    if ((int32_t)s->stage + 1 == job->plan.n_stages)
        mr_scheduler_set_times(job->scheduler, mr_learned_times_get(job->times));
}

/* The way that the activations of a stage take after all. */
static void note_way(mr_job *job, const Millrace__Ready *m) {
    mr_plan_stage *stage = &job->plan.stages[m->stage];
    if (m->why[0])
        mr_log_write(MR_LOG_WARN, "job", "activations of stage %u go through the host, not by %s: %s", m->stage,
                     mr_way_name(stage->way), m->why);
    stage->way = (mr_way)m->way;
}

mr_status job_take_reports(mr_job *job, bool *did, mr_err *err) {
    for (;;) {
        Millrace__Report *report;
        mr_status status = mr_stage_links_next_report(job->links, &report, err);
        if (status != MR_OK || !report)
            return status;
        *did = true;
        switch (report->body_case) {
        case MILLRACE__REPORT__BODY_FAILURE:
            return note_failure(job, report->failure, err);
        case MILLRACE__REPORT__BODY_PROGRESS:
            note_progress(job, report->progress);
            break;
        case MILLRACE__REPORT__BODY_READY:
            job->stages[report->ready->stage].ready = true;
            job->stages[report->ready->stage].report =
                (mr_stage_report){report->ready->weight_bytes, report->ready->kv_bytes, report->ready->work_bytes,
                                  report->ready->fetched_bytes};
            note_way(job, report->ready);
            break;
        case MILLRACE__REPORT__BODY_SPANS:
            note_spans(job, report->spans);
            break;
        case MILLRACE__REPORT__BODY_SECONDS:
            note_seconds(job, report->seconds);
            break;
        case MILLRACE__REPORT__BODY_STEP_SUMS:
            note_step_sums(job, report->step_sums);
            break;
        default:
            break;
        }
    }
}

mr_status job_find_cause(mr_job *job, mr_status status, mr_err *err) {
    int64_t deadline = mr_clock_now_ns() + MR_NS_PER_S / 2;
    mr_err other;
    while (status == MR_E_PEER_LOST && mr_clock_now_ns() < deadline) {
        bool did = false;
        mr_status next = job_take_reports(job, &did, &other);
        if (next != MR_OK && next != MR_E_PEER_LOST)
            return mr_err_set(err, next, "%s", other.text);
        if (next == MR_OK && mr_channel_wait(job->config.channel, deadline, &other) != MR_OK)
            break;
        if (next == MR_E_PEER_LOST && !did)
            break; /* no more reports will come from the lost stage */
    }
    return status;
}

/* --- Create and destroy ------------------------------------------------------------------------------------------ */

static mr_status send_plan(mr_job *job, mr_err *err) {
    int32_t n = job->plan.n_stages;
    Millrace__StageRange *ranges = mr_alloc_array((size_t)n, sizeof *ranges);
    Millrace__StageRange **range_ptrs = mr_alloc_array((size_t)n, sizeof(Millrace__StageRange *));
    mr_status status = MR_OK;
    bool ready = false;
    if (!ranges || !range_ptrs) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a plan of %d stages", n);
        goto out;
    }
    for (int32_t i = 0; i < n; i++) {
        millrace__stage_range__init(&ranges[i]);
        ranges[i].rank = (uint32_t)job->plan.stages[i].rank;
        ranges[i].first_layer = (uint32_t)job->plan.stages[i].first;
        ranges[i].device_layers = (uint32_t)job->plan.stages[i].device_layers;
        ranges[i].host_experts = (uint32_t)job->plan.stages[i].host_experts;
        ranges[i].way = (uint32_t)job->plan.stages[i].way;
        ranges[i].last_layer = (uint32_t)job->plan.stages[i].last;
        ranges[i].synthetic_fixed_ns = (uint64_t)job->plan.stages[i].synthetic_fixed_ns;
        ranges[i].synthetic_row_ns = (uint64_t)job->plan.stages[i].synthetic_row_ns;
        range_ptrs[i] = &ranges[i];
    }
    Millrace__Plan plan = MILLRACE__PLAN__INIT;
    plan.epoch = job->config.epoch;
    plan.n_stages = (size_t)n;
    plan.stages = range_ptrs;
    plan.n_kv_blocks = (uint32_t)job->config.n_kv_blocks;
    plan.kv_type = (uint32_t)job->config.kv_type;
    plan.max_rows = (uint32_t)job->config.max_rows;
    plan.max_out_rows = (uint32_t)job->config.max_out_rows;
    plan.max_sequences = (uint32_t)job->config.max_sequences;
    plan.max_context = (uint32_t)job->config.max_context;
    plan.ring_slots = (uint32_t)job->ring_slots;
    plan.map_weights = job->config.map_weights;
    plan.grammars = job->config.grammars;
    plan.fast_numerics = job->config.fast_numerics;
    plan.must_ways = job->plan.must_ways;
    plan.synthetic = job->plan.synthetic;
    plan.trace = job->config.on_spans != NULL;
    Millrace__Control message = MILLRACE__CONTROL__INIT;
    message.body_case = MILLRACE__CONTROL__BODY_PLAN;
    message.plan = &plan;
    status = mr_stage_links_ready(job->links, &ready, err);
    if (status == MR_OK)
        status = mr_stage_links_send(job->links, &message, NULL, err);
out:
    mr_free(ranges);
    mr_free(range_ptrs);
    return status;
}

mr_status job_wait(mr_job *job, int64_t deadline_ns, mr_err *err) {
    bool asks = job->config.interrupted != NULL;
    if (asks && job->config.interrupted())
        return mr_err_set(err, MR_E_CANCELLED, "%s", "");
    int64_t look_ns = asks ? mr_clock_now_ns() + INTERRUPT_LOOK_NS : MR_NEVER;
    return mr_channel_wait(job->config.channel, look_ns < deadline_ns ? look_ns : deadline_ns, err);
}

/* Reports the stages that have sent nothing for SILENCE_NS while loading, at most once per SILENCE_NS. */
static void name_silent(mr_job *job) {
    char names[256], place[MR_CHANNEL_NAME_BYTES + 4];
    size_t used = 0;
    int64_t now = mr_clock_now_ns();
    for (int32_t i = 0; i < job->plan.n_stages && used + 1 < sizeof names; i++) {
        if (job->stages[i].ready || now - job->stages[i].heard_ns < SILENCE_NS)
            continue;
        job->stages[i].heard_ns = now;
        int n = snprintf(names + used, sizeof names - used, "%sstage %d%s", used ? "; " : "", i,
                         place_of(job, (uint32_t)i, place));
        used += n > 0 ? (size_t)n : 0;
    }
    if (used > 0 && job->config.silent)
        job->config.silent(names);
}

static mr_status wait_until_loaded(mr_job *job, mr_err *err) {
    for (int32_t i = 0; i < job->plan.n_stages; i++)
        job->stages[i].heard_ns = mr_clock_now_ns();
    for (;;) {
        bool did = false;
        mr_status status = job_take_reports(job, &did, err);
        if (status != MR_OK)
            return status;
        bool all = true;
        for (int32_t i = 0; i < job->plan.n_stages; i++)
            all = all && job->stages[i].ready;
        if (all)
            return MR_OK;
        name_silent(job);
        if (!did)
            status = job_wait(job, MR_NEVER, err);
        if (status != MR_OK)
            return status;
    }
}

static mr_status allocate(mr_job *job, mr_err *err) {
    size_t n_stages = (size_t)job->plan.n_stages, n_slots = (size_t)job->config.max_sequences;
    job->slots = mr_alloc_array(n_slots, sizeof *job->slots);
    job->steps = mr_alloc_array((size_t)job->ring_slots, sizeof *job->steps);
    job->copy_from = mr_alloc_array(n_slots, sizeof *job->copy_from);
    job->copy_to = mr_alloc_array(n_slots, sizeof *job->copy_to);
    job->history = mr_alloc_array((size_t)job->config.max_context, sizeof *job->history);
    job->stages = mr_alloc_array(n_stages, sizeof *job->stages);
    if (job->config.on_spans)
        job->spans = mr_alloc_array(MR_MAX_REPORT_BYTES, sizeof *job->spans);
    if (!job->slots || !job->steps || !job->stages || !job->copy_from || !job->copy_to || !job->history ||
        (job->config.on_spans && !job->spans))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job of %zu stages", n_stages);
    int32_t max_blocks = (job->config.max_context + MR_WIRE_BLOCK_TOKENS - 1) / MR_WIRE_BLOCK_TOKENS;
    mr_scheduler_config scheduler = {.n_stages = job->plan.n_stages,
                                     .max_rows = job->config.max_rows,
                                     .max_out_rows = job->config.max_out_rows,
                                     .max_sequences = job->config.max_sequences,
                                     .ring_slots = job->ring_slots,
                                     .token_s = job->config.token_s};
    mr_stage_links_config links = {
        .channel = job->config.channel,
        .plan = &job->plan,
        .epoch = job->config.epoch,
        .ring_slots = job->ring_slots,
        .n_embd = (uint32_t)job->config.info->d_model,
        .control_bytes = job->config.control_bytes,
        .limits = {.n_stages = (uint32_t)job->plan.n_stages,
                   .max_rows = (uint32_t)job->config.max_rows,
                   .max_sequences = (uint32_t)job->config.max_sequences,
                   .max_context = (uint32_t)job->config.max_context,
                   .n_kv_blocks = (uint32_t)job->config.n_kv_blocks,
                   .n_vocab = (uint32_t)job->config.info->vocab_size},
    };
    mr_status status = mr_journal_create(&job->base_key, &job->journal, err);
    if (status == MR_OK)
        status = mr_ledger_create(job->config.n_kv_blocks, job->config.max_sequences, max_blocks, &job->ledger, err);
    if (status == MR_OK)
        status = mr_scheduler_create(&scheduler, job->ledger, &job->scheduler, err);
    if (status == MR_OK)
        status = mr_learned_times_create(job->plan.n_stages, &job->times, err);
    if (status == MR_OK && job->config.times) {
        mr_learned_times_measured(job->times, job->config.times);
        mr_scheduler_set_times(job->scheduler, mr_learned_times_get(job->times));
    }
    return status == MR_OK ? mr_stage_links_create(&links, &job->links, err) : status;
}

mr_status mr_job_create(const mr_job_config *config, mr_job **out, mr_err *err) {
    mr_job *job = mr_alloc(sizeof *job);
    if (!job)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job");
    mr_mutex_init(&job->seconds_lock);
    job->config = *config;
    job->plan = *config->plan;
    job->ring_slots = mr_scheduler_ring_slots(config->plan->n_stages);
    const mr_prefix_base base = {
        .model_digest = config->model_digest, .kv_type = config->kv_type, .fast_numerics = config->fast_numerics};
    mr_prefix_key_init(&base, &job->base_key);
    mr_status status = allocate(job, err);
    if (status == MR_OK) {
        status = mr_stage_links_open_results(job->links, err);
        if (status == MR_OK)
            status = send_plan(job, err);
        if (status == MR_OK)
            status = wait_until_loaded(job, err);
        status = job_find_cause(job, status, err);
    }
    if (status != MR_OK) {
        mr_job_destroy(job);
        return status;
    }
    *out = job;
    return MR_OK;
}

/* Tells the stages to end, if their links still work. */
static void send_shutdown(mr_job *job) {
    mr_err ignored;
    bool ready = false;
    Millrace__Shutdown shutdown = MILLRACE__SHUTDOWN__INIT;
    Millrace__Control message = MILLRACE__CONTROL__INIT;
    message.body_case = MILLRACE__CONTROL__BODY_SHUTDOWN;
    message.shutdown = &shutdown;
    job->stopped = true;
    if (mr_stage_links_ready(job->links, &ready, &ignored) == MR_OK && ready &&
        mr_stage_links_send(job->links, &message, NULL, &ignored) == MR_OK)
        mr_stage_links_flush(job->links, mr_clock_now_ns() + FLUSH_NS);
}

void mr_job_stop(mr_job *job) {
    int64_t deadline = mr_clock_now_ns() + STOP_NS;
    mr_err ignored;
    if (!job->stopped)
        send_shutdown(job);
    while (mr_clock_now_ns() < deadline) {
        bool did = false, all = true;
        mr_status status = job_take_reports(job, &did, &ignored);
        if (status != MR_OK && status != MR_E_PEER_LOST) /* stages disconnect one after the other */
            return;
        for (int32_t i = 0; i < job->plan.n_stages; i++)
            all = all && job->stages[i].seconds.known;
        if (all || (!did && mr_channel_wait(job->config.channel, deadline, &ignored) != MR_OK))
            return;
    }
}

bool mr_job_usual_step(const mr_job *job, int32_t stage, mr_learned_step *out) {
    return mr_learned_times_usual(job->times, stage, out);
}

const mr_stage_seconds *mr_job_stage_seconds(const mr_job *job, int32_t stage) {
    return &job->stages[stage].seconds;
}

void mr_job_copy_stage_seconds(mr_job *job, int32_t stage, mr_stage_seconds *out) {
    mr_mutex_lock(&job->seconds_lock);
    *out = job->stages[stage].seconds;
    mr_mutex_unlock(&job->seconds_lock);
}

void mr_job_destroy(mr_job *job) {
    if (!job)
        return;
    if (job->links && !job->stopped)
        send_shutdown(job);
    mr_stage_links_destroy(job->links);
    mr_scheduler_destroy(job->scheduler);
    mr_learned_times_destroy(job->times);
    mr_ledger_destroy(job->ledger);
    mr_journal_destroy(job->journal);
    mr_free(job->slots);
    mr_free(job->steps);
    mr_free(job->copy_from);
    mr_free(job->copy_to);
    mr_free(job->history);
    mr_free(job->stages);
    mr_mutex_deinit(&job->seconds_lock);
    mr_free(job->spans);
    mr_free(job);
}

const mr_stage_report *mr_job_stage_report(const mr_job *job, int32_t stage) {
    return &job->stages[stage].report;
}

/* --- Sequences --------------------------------------------------------------------------------------------------- */

/* Checks all that the tail would refuse: an error at the tail ends the whole job. */
static mr_status check_sampling(const mr_job *job, const mr_sequence_desc *desc, mr_err *err) {
    const mr_sampling_params *p = &desc->sampling;
    if (desc->n_top_logprobs < 0 || desc->n_top_logprobs > MR_SAMPLER_MAX_TOP)
        return mr_err_set(err, MR_E_INVALID, "log-probabilities of %d tokens; allowed are %d", desc->n_top_logprobs,
                          MR_SAMPLER_MAX_TOP);
    if (desc->grammar_bytes > 0 && !job->config.grammars)
        return mr_err_set(err, MR_E_UNSUPPORTED, "this job was made without grammars");
    if (desc->grammar_bytes > MR_MAX_GRAMMAR_BYTES)
        return mr_err_set(err, MR_E_TOO_LONG, "the grammar has %zu bytes, allowed are %d", desc->grammar_bytes,
                          MR_MAX_GRAMMAR_BYTES);
    mr_status status = mr_sampling_params_check(p, err);
    return status == MR_OK ? mr_sampling_params_check_ids(p, job->config.info->vocab_size, err) : status;
}

mr_status mr_job_check_prompt(const int32_t *ids, int32_t n, bool generates, int32_t n_vocab, int32_t max_ids,
                              mr_err *err) {
    if (n < 1)
        return mr_err_set(err, MR_E_INVALID, "the prompt is empty: a sequence needs one token at least");
    if (n > max_ids - generates)
        return mr_err_set(err, MR_E_TOO_LONG, "the prompt has %d tokens%s, the context %d", n,
                          generates ? " and needs room for one more" : "", max_ids);
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return mr_err_set(err, MR_E_INVALID, "token id %d at position %d is outside the vocabulary of %d", ids[i],
                              i, n_vocab);
    return MR_OK;
}

mr_status mr_job_submit(mr_job *job, const mr_sequence_desc *desc, int64_t *out_sequence, mr_err *err) {
    int32_t n = desc->n_prompt, context = job->config.max_context;
    bool samples = !desc->on_logits && !desc->on_hidden;
    mr_status status = mr_job_check_prompt(desc->prompt_ids, n, samples, job->config.info->vocab_size, context, err);
    if (status == MR_OK && samples && desc->max_tokens < 1)
        status = mr_err_set(err, MR_E_INVALID, "%d tokens to generate; hint: 1 or more", desc->max_tokens);
    if (status == MR_OK && samples)
        status = check_sampling(job, desc, err);
    if (status != MR_OK)
        return status;
    int32_t room = context - n;
    int32_t max_ids = samples ? n + (desc->max_tokens < room ? desc->max_tokens : room) : n;
    int64_t capacity = (int64_t)job->config.n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
    if (max_ids > capacity)
        return mr_err_set(err, MR_E_TOO_LONG, "the sequence may reach %d tokens, the KV cache holds %lld", max_ids,
                          (long long)capacity);
    int64_t sequence;
    status = mr_journal_append(job->journal, desc, max_ids, &sequence, err);
    if (status != MR_OK)
        return status;
    job_queue_push(job, mr_journal_entry(job->journal, sequence));
    job->n_unfinished++;
    job->stats.n_submitted++;
    job->timings.prefill_tokens += n;
    *out_sequence = sequence;
    return MR_OK;
}

void mr_job_cancel(mr_job *job, int64_t sequence) {
    mr_entry *e = mr_journal_entry(job->journal, sequence);
    if (e && e->state != MR_ENTRY_DONE)
        job_finish(job, e);
}

mr_job_timings mr_job_get_timings(const mr_job *job) {
    return job->timings;
}

mr_job_stats mr_job_get_stats(const mr_job *job) {
    mr_job_stats f = job->stats;
    f.n_live = job->n_live;
    f.n_open_steps = (int32_t)(job->n_issued - job->n_done);
    f.n_micro_batches = mr_scheduler_micro_batches(job->scheduler);
    f.n_waiting = job->n_unfinished - job->n_live;
    f.max_sequences = job->config.max_sequences;
    f.max_context = job->config.max_context;
    f.n_vocab = job->config.info->vocab_size;
    f.n_embd = job->config.info->d_model;
    f.n_blocks = job->config.n_kv_blocks;
    f.n_cached_blocks = mr_ledger_n_cached(job->ledger);
    f.n_free_blocks = mr_ledger_n_free(job->ledger) - f.n_cached_blocks;
    f.n_held_blocks = f.n_blocks - f.n_cached_blocks - f.n_free_blocks;
    return f;
}

const mr_prefix_key *mr_job_base_key(const mr_job *job) {
    return &job->base_key;
}

mr_channel *mr_job_channel(const mr_job *job) {
    return job->config.channel;
}

int32_t mr_job_get_slots(const mr_job *job, mr_job_slot *out, int32_t cap) {
    int32_t n = 0;
    for (int32_t i = 0; i < job->config.max_sequences; i++) {
        const mr_entry *e = job->slots[i].entry;
        if (e && n++ < cap)
            out[n - 1] = (mr_job_slot){.slot = i,
                                       .sequence = e->sequence,
                                       .n_prompt = e->n_prompt,
                                       .n_ids = e->n_ids,
                                       .n_issued = e->n_issued,
                                       .n_cached = e->n_cached,
                                       .max_ids = e->max_ids,
                                       .priority = e->desc.priority,
                                       .begin_ns = e->begin_ns};
    }
    return n;
}
