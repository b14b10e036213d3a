/* coordinator/job/job.c - the life of a job, new sequences and their checks, and what a job says of itself.
 * job_epoch.c, job_reports.c, job_queue.c, job_prefix.c and job_run.c hold the rest of the job. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job.h"

#include <string.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

/* --- Create and destroy ------------------------------------------------------------------------------------------ */

static mr_status allocate(mr_job *job, mr_err *err) {
    const mr_job_config *c = &job->config;
    const mr_prefix_base base = {
        .model_digest = c->model_digest, .kv_type = c->kv_type, .fast_numerics = c->fast_numerics};
    mr_prefix_key_init(&base, &job->base_key);
    job->history = mr_alloc_array((size_t)c->max_context, sizeof *job->history);
    if (c->on_spans)
        job->spans = mr_alloc_array(MR_MAX_REPORT_BYTES, sizeof *job->spans);
    if (!job->history || (c->on_spans && !job->spans))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job of %d tokens in a sequence", c->max_context);
    return mr_journal_create(&job->base_key, &job->journal, err);
}

mr_status mr_job_create(const mr_job_config *config, mr_job **out, mr_err *err) {
    mr_job *job = mr_alloc(sizeof *job);
    if (!job)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a job");
    mr_mutex_init(&job->seconds_lock);
    job->config = *config;
    job->retry_ns = MR_NEVER;
    mr_status status = allocate(job, err);
    if (status == MR_OK)
        status = job_recover(job, job_epoch_begin(job, &config->epoch, NULL, 0, err), err);
    if (status != MR_OK) {
        mr_job_destroy(job);
        return status;
    }
    *out = job;
    return MR_OK;
}

mr_status mr_job_restart(mr_job *job, const mr_epoch_config *config, mr_err *err) {
    uint32_t kept_epoch = job->epoch.config.number;
    bool keeps =
        config->kv && config->n_kv_blocks == job->epoch.config.n_kv_blocks && job->epoch.n_done == job->epoch.n_issued;
    mr_ledger *kept = job_epoch_end_keeping(job);
    mr_status status = mr_job_check_restart(job, config->n_kv_blocks, err);
    if (!keeps || status != MR_OK) {
        mr_ledger_destroy(kept);
        kept = NULL;
    }
    return status == MR_OK ? job_epoch_begin(job, config, kept, kept_epoch, err) : status;
}

void mr_job_pause(mr_job *job) {
    job_epoch_end(job);
}

bool mr_job_has_epoch(const mr_job *job) {
    return job->epoch.links != NULL;
}

int32_t mr_job_take_failed_rank(mr_job *job) {
    int32_t rank = job->failed_rank;
    job->failed_rank = -1;
    return rank;
}

int32_t mr_job_take_lacking_rank(mr_job *job) {
    int32_t rank = job->lacking_rank;
    job->lacking_rank = -1;
    return rank;
}

double mr_job_row_depth(const mr_job *job) {
    return mr_job_has_epoch(job) && job->epoch.recent_rows > 0 ? job->epoch.recent_positions / job->epoch.recent_rows
                                                               : 0;
}

double mr_job_output_share(const mr_job *job) {
    return mr_job_has_epoch(job) && job->epoch.recent_rows > 0 ? job->epoch.recent_outputs / job->epoch.recent_rows : 0;
}

bool mr_job_usual_step(const mr_job *job, int32_t stage, mr_learned_step *out) {
    return mr_job_has_epoch(job) && mr_learned_times_usual(job->epoch.times, stage, out);
}

const mr_stage_seconds *mr_job_stage_seconds(const mr_job *job, int32_t stage) {
    static const mr_stage_seconds none = {0};
    return mr_job_has_epoch(job) ? &job->epoch.stages[stage].seconds : &none;
}

void mr_job_copy_stage_seconds(mr_job *job, int32_t stage, mr_stage_seconds *out) {
    mr_mutex_lock(&job->seconds_lock);
    *out = stage < job->epoch.plan.n_stages ? job->epoch.stages[stage].seconds : (mr_stage_seconds){0};
    mr_mutex_unlock(&job->seconds_lock);
}

void mr_job_destroy(mr_job *job) {
    if (!job)
        return;
    if (job->journal)
        job_epoch_end(job);
    mr_journal_destroy(job->journal);
    mr_free(job->history);
    mr_free(job->spans);
    mr_mutex_deinit(&job->seconds_lock);
    mr_free(job);
}

const mr_stage_report *mr_job_stage_report(const mr_job *job, int32_t stage) {
    static const mr_stage_report none = {0};
    return mr_job_has_epoch(job) ? &job->epoch.stages[stage].report : &none;
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
    int64_t capacity = (int64_t)job->epoch.config.n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
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
    f.n_waiting = job->n_unfinished - job->epoch.n_live;
    f.max_sequences = job->config.max_sequences;
    f.max_context = job->config.max_context;
    f.n_vocab = job->config.info->vocab_size;
    f.n_embd = job->config.info->d_model;
    f.is_paused = !mr_job_has_epoch(job);
    int64_t capacity = (int64_t)job->epoch.config.n_kv_blocks * MR_WIRE_BLOCK_TOKENS;
    f.max_ids = capacity < f.max_context ? (int32_t)capacity : f.max_context;
    if (f.is_paused)
        return f;
    f.n_epoch_steps = (int64_t)job->epoch.n_done;
    f.n_live = job->epoch.n_live;
    f.n_open_steps = (int32_t)(job->epoch.n_issued - job->epoch.n_done);
    f.n_micro_batches = mr_scheduler_micro_batches(job->epoch.scheduler);
    f.n_blocks = job->epoch.config.n_kv_blocks;
    f.n_cached_blocks = mr_ledger_n_cached(job->epoch.ledger);
    f.n_free_blocks = mr_ledger_n_free(job->epoch.ledger) - f.n_cached_blocks;
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
    for (int32_t i = 0; i < job->config.max_sequences && job->epoch.links; i++) {
        const mr_entry *e = job->epoch.slots[i].entry;
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
