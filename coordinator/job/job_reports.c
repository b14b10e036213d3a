/* coordinator/job/job_reports.c - what stages report: failures, progress of loading, spans, seconds, sums of steps. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>

#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"

const char *job_place_of(const mr_job *job, uint32_t stage, char out[MR_CHANNEL_NAME_BYTES + 4]) {
    char name[MR_CHANNEL_NAME_BYTES];
    out[0] = 0;
    if (job->config.channel->ops->peer_name)
        snprintf(out, MR_CHANNEL_NAME_BYTES + 4, ", %s",
                 mr_channel_peer_name(job->config.channel, job->epoch.plan.stages[stage].rank, name));
    return out;
}

static mr_status note_failure(mr_job *job, const Millrace__Failure *f, mr_err *err) {
    const mr_plan_stage *s = &job->epoch.plan.stages[f->stage];
    char place[MR_CHANNEL_NAME_BYTES + 4];
    if (f->status != MR_E_PEER_LOST)
        job->failed_rank = s->rank;
    return mr_err_set(err, (mr_status)f->status, "stage %u (layers %d to %d%s): %s", f->stage, s->first, s->last - 1,
                      job_place_of(job, f->stage, place), f->text);
}

static void note_progress(mr_job *job, const Millrace__LoadProgress *p) {
    size_t done = 0, total = 0;
    job->epoch.stages[p->stage].done_bytes = p->done_bytes;
    job->epoch.stages[p->stage].total_bytes = p->total_bytes;
    job->epoch.stages[p->stage].heard_ns = mr_clock_now_ns();
    for (int32_t i = 0; i < job->epoch.plan.n_stages; i++) {
        done += job->epoch.stages[i].done_bytes;
        total += job->epoch.stages[i].total_bytes;
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
    (void)mr_learned_times_usual(job->epoch.times, (int32_t)s->stage, &new.usual);
    mr_mutex_lock(&job->seconds_lock);
    mr_stage_seconds *at = &job->epoch.stages[s->stage].seconds;
    new.n_expert_uses = at->n_expert_uses;
    new.n_device_expert_uses = at->n_device_expert_uses;
    new.n_expert_swaps = at->n_expert_swaps;
    *at = new;
    mr_mutex_unlock(&job->seconds_lock);
}

static void note_expert_share(mr_job *job, const Millrace__ExpertShare *m) {
    mr_mutex_lock(&job->seconds_lock);
    mr_stage_seconds *at = &job->epoch.stages[m->stage].seconds;
    at->n_expert_uses = m->uses;
    at->n_device_expert_uses = m->device_uses;
    at->n_expert_swaps = m->swaps;
    mr_mutex_unlock(&job->seconds_lock);
}

static mr_status note_use_counts(mr_job *job, const Millrace__UseCounts *m, mr_err *err) {
    const mr_plan_stage *s = &job->epoch.plan.stages[m->stage];
    const mr_profile_part part = {.layer = (int32_t)m->layer,
                                  .is_neurons = m->neurons,
                                  .n = (int32_t)m->n,
                                  .n_rows = m->rows,
                                  .first = (int32_t)m->first,
                                  .n_counts = (int32_t)m->n_counts,
                                  .counts = m->counts};
    if (!job->profile || job->epoch.stages[m->stage].has_counted)
        return mr_err_set(err, MR_E_PROTOCOL, "stage %u: counts of uses, which nobody has asked for", m->stage);
    job->epoch.stages[m->stage].has_counted = m->ended;
    if (m->ended)
        return MR_OK;
    if (part.layer < s->first || part.layer >= s->last)
        return mr_err_set(err, MR_E_PROTOCOL, "stage %u (layers %d to %d): counts of layer %u", m->stage, s->first,
                          s->last - 1, m->layer);
    mr_status status = mr_profile_add(job->profile, &part, err);
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "stage %u", m->stage);
}

static void note_step_sums(mr_job *job, const Millrace__StepSums *s) {
    bool is_short = mr_scheduler_micro_batches(job->epoch.scheduler) <= job->epoch.plan.n_stages;
    mr_learned_times_add(job->epoch.times, s, is_short);
    if (job->config.on_step_sums)
        job->config.on_step_sums(job->config.recover_ctx, s);
    /* Only after the last stage's report: to choose a cut anew takes time. */
    if ((int32_t)s->stage + 1 == job->epoch.plan.n_stages)
        mr_scheduler_set_times(job->epoch.scheduler, mr_learned_times_get(job->epoch.times));
}

/* The way that the activations of a stage take after all. */
static void note_way(mr_job *job, const Millrace__Ready *m) {
    mr_plan_stage *stage = &job->epoch.plan.stages[m->stage];
    if (m->why[0])
        mr_log_write(MR_LOG_WARN, "job", "activations of stage %u go through the host, not by %s: %s", m->stage,
                     mr_way_name(stage->way), m->why);
    stage->way = (mr_way)m->way;
}

mr_status job_take_reports(mr_job *job, bool *did, mr_err *err) {
    for (;;) {
        Millrace__Report *report;
        mr_status status = mr_stage_links_next_report(job->epoch.links, &report, err);
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
            job->epoch.stages[report->ready->stage].ready = true;
            job->epoch.stages[report->ready->stage].report =
                (mr_stage_report){.weight_bytes = report->ready->weight_bytes,
                                  .kv_bytes = report->ready->kv_bytes,
                                  .work_bytes = report->ready->work_bytes,
                                  .fetched_bytes = report->ready->fetched_bytes,
                                  .left_bytes = report->ready->left_bytes,
                                  .loaded_bytes = report->ready->loaded_bytes,
                                  .kept_layers = (int32_t)report->ready->kept_layers,
                                  .has_kv = report->ready->has_kv,
                                  .way = (mr_way)report->ready->way};
            note_way(job, report->ready);
            break;
        case MILLRACE__REPORT__BODY_SPANS:
            note_spans(job, report->spans);
            break;
        case MILLRACE__REPORT__BODY_SECONDS:
            note_seconds(job, report->seconds);
            break;
        case MILLRACE__REPORT__BODY_EXPERT_SHARE:
            note_expert_share(job, report->expert_share);
            break;
        case MILLRACE__REPORT__BODY_STEP_SUMS:
            note_step_sums(job, report->step_sums);
            break;
        case MILLRACE__REPORT__BODY_USE_COUNTS:
            status = note_use_counts(job, report->use_counts, err);
            if (status != MR_OK)
                return status;
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
