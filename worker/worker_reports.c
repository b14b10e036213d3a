/* worker/worker_reports.c - what a stage says to the coordinator: progress, readiness, times, and its end. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "worker/worker_internal.h"

enum { SPANS_AT_ONCE = 512, PROGRESS_INTERVAL_NS = 50000000 }; /* spans: in one report */
/* A span is five numbers, two of them below 2^32. */
_Static_assert(64 + SPANS_AT_ONCE * (3 * 10 + 2 * 5) <= MR_MAX_REPORT_BYTES, "spans may not fit their report");

static const int64_t END_PATIENCE_NS = MR_NS_PER_S / 2;

/* Sends a report. Waits for a free buffer until the deadline; after the deadline the report is lost. MR_E_CANCELLED:
 * the deadline is MR_NEVER, and this stage was told to end. */
static mr_status send_report(worker *w, ProtobufCMessage *body, int64_t deadline_ns, mr_err *err) {
    const Millrace__Report report = mr_msg_report_of(body);
    bool sent = false;
    mr_status status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    while (status == MR_OK && !sent && mr_clock_now_ns() < deadline_ns) {
        if (deadline_ns == MR_NEVER && worker_told_to_end(w))
            return mr_err_set(err, MR_E_CANCELLED, "%s", "");
        status = mr_channel_wait(w->config->channel, deadline_ns, err);
        if (status == MR_OK)
            status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    }
    return status;
}

void worker_report_progress(worker *w, size_t done_bytes, size_t total_bytes) {
    mr_err ignored;
    int64_t now = mr_clock_now_ns();
    if (now - w->progress_ns < PROGRESS_INTERVAL_NS && done_bytes < total_bytes)
        return;
    w->progress_ns = now;
    Millrace__LoadProgress progress = MILLRACE__LOAD_PROGRESS__INIT;
    progress.stage = (uint32_t)w->stage_idx;
    progress.done_bytes = done_bytes;
    progress.total_bytes = total_bytes;
    if (send_report(w, &progress.base, 0, &ignored) != MR_OK)
        mr_log_write(MR_LOG_DEBUG, "worker", "progress was not reported: %s", ignored.text);
}

mr_status worker_report_ready(worker *w, mr_err *err) {
    mr_stage_sizes sizes = mr_stage_get_sizes(w->stage);
    Millrace__Ready ready = MILLRACE__READY__INIT;
    ready.stage = (uint32_t)w->stage_idx;
    ready.weight_bytes = sizes.weight_bytes;
    ready.kv_bytes = sizes.kv_bytes;
    ready.work_bytes = sizes.work_bytes;
    ready.fetched_bytes = w->config->file_client ? mr_file_client_moved_bytes(w->config->file_client) : 0;
    ready.left_bytes = mr_channel_left_bytes(w->config->channel);
    ready.kept_layers = (uint32_t)mr_stage_kept_layers(w->stage);
    ready.has_kv = w->has_kv;
    ready.loaded_bytes = mr_stage_loaded_bytes(w->stage);
    if (w->out.link) {
        ready.way = (uint32_t)mr_device_link_way(w->out.link);
        ready.why = (char *)(uintptr_t)mr_device_link_why(w->out.link);
    }
    return send_report(w, &ready.base, MR_NEVER, err);
}

mr_status worker_report_spans(worker *w, bool all, mr_err *err) {
    mr_span spans[SPANS_AT_ONCE];
    uint32_t phase[SPANS_AT_ONCE], rows[SPANS_AT_ONCE];
    uint64_t step[SPANS_AT_ONCE], start_ns[SPANS_AT_ONCE], end_ns[SPANS_AT_ONCE];
    int64_t deadline = all ? mr_clock_now_ns() + END_PATIENCE_NS : 0;
    mr_status status = MR_OK;
    uint8_t *payload = NULL;
    while (status == MR_OK && w->clock.n_spans >= (all ? 1 : SPANS_AT_ONCE)) {
        Millrace__Spans message = MILLRACE__SPANS__INIT;
        status = mr_outbox_reserve(w->report, &payload, err);
        if (status != MR_OK || (!payload && !all))
            return status;
        size_t n = (size_t)mr_stage_clock_take(&w->clock, spans, SPANS_AT_ONCE);
        for (size_t i = 0; i < n; i++) {
            phase[i] = spans[i].phase;
            rows[i] = spans[i].rows;
            step[i] = spans[i].step;
            start_ns[i] = (uint64_t)spans[i].start_ns;
            end_ns[i] = (uint64_t)spans[i].end_ns;
        }
        message.stage = (uint32_t)w->stage_idx;
        message.n_phase = message.n_rows = message.n_step = message.n_start_ns = message.n_end_ns = n;
        message.phase = phase;
        message.rows = rows;
        message.step = step;
        message.start_ns = start_ns;
        message.end_ns = end_ns;
        status = send_report(w, &message.base, deadline, err);
    }
    return status;
}

/* Reports how experts were shared, if any are. deadline_ns: as in send_report. */
static mr_status report_expert_share(worker *w, int64_t deadline_ns, mr_err *err) {
    const mr_expert_share share = mr_stage_expert_share(w->stage);
    Millrace__ExpertShare message = MILLRACE__EXPERT_SHARE__INIT;
    message.stage = (uint32_t)w->stage_idx;
    message.uses = share.n_uses;
    message.device_uses = share.n_device_uses;
    message.swaps = share.n_swaps;
    return share.n_uses > 0 ? send_report(w, &message.base, deadline_ns, err) : MR_OK;
}

/* Reports the time in each phase since the start, and the steps, rows and bytes of this time. deadline_ns: as in
 * send_report. */
static mr_status report_seconds(worker *w, bool ended, int64_t deadline_ns, mr_err *err) {
    uint64_t ns[MR_PHASE_COUNT];
    Millrace__Seconds seconds = MILLRACE__SECONDS__INIT;
    for (int i = 0; i < MR_PHASE_COUNT; i++)
        ns[i] = (uint64_t)w->clock.ns[i];
    seconds.stage = (uint32_t)w->stage_idx;
    seconds.n_ns = MR_PHASE_COUNT;
    seconds.ns = ns;
    seconds.steps = w->clock.n_steps;
    seconds.dropped_spans = w->clock.n_dropped;
    seconds.ended = ended;
    seconds.rows = w->clock.n_rows;
    seconds.in_bytes = w->in_bytes;
    seconds.out_bytes = w->out_bytes;
    mr_status status = report_expert_share(w, deadline_ns, err);
    return status == MR_OK ? send_report(w, &seconds.base, deadline_ns, err) : status;
}

mr_status worker_report_step_sums(worker *w, int64_t now_ns, mr_err *err) {
    Millrace__StepSums sums = MILLRACE__STEP_SUMS__INIT;
    const Millrace__Report report = mr_msg_report_of(&sums.base);
    bool sent = true;
    mr_status status = MR_OK;
    if (now_ns < mr_step_sums_due_ns(&w->sums))
        return MR_OK;
    sums.stage = (uint32_t)w->stage_idx;
    mr_step_sums_fill(&w->sums, &sums);
    if (w->sums.has_news)
        status = mr_outbox_send_message(w->report, &report.base, &sent, err);
    w->sums.reported_ns = now_ns; /* so that an idle stage tries again later, not at once */
    if (status == MR_OK && sent)
        mr_step_sums_clear(&w->sums, now_ns);
    return status == MR_OK && sent ? report_seconds(w, false, 0, err) : status;
}

/* Reports counts [first, first + n) of a layer. */
static mr_status report_counts_of(worker *w, const mr_use_counts *layer, int32_t first, int32_t n, mr_err *err) {
    Millrace__UseCounts message = MILLRACE__USE_COUNTS__INIT;
    message.stage = (uint32_t)w->stage_idx;
    message.layer = (uint32_t)layer->layer;
    message.neurons = layer->is_neurons;
    message.n = (uint32_t)layer->n;
    message.rows = layer->n_rows;
    message.first = (uint32_t)first;
    message.n_counts = (size_t)n;
    message.counts = layer->counts + first;
    return send_report(w, &message.base, MR_NEVER, err);
}

mr_status worker_report_use_counts(worker *w, mr_err *err) {
    int32_t n_layers;
    const mr_use_counts *layers = mr_stage_use_counts(w->stage, &n_layers);
    Millrace__UseCounts end = MILLRACE__USE_COUNTS__INIT;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < n_layers; i++)
        for (int32_t at = 0; at < layers[i].n && status == MR_OK; at += MR_USE_COUNTS_AT_ONCE) {
            int32_t rest = layers[i].n - at;
            status =
                report_counts_of(w, &layers[i], at, rest < MR_USE_COUNTS_AT_ONCE ? rest : MR_USE_COUNTS_AT_ONCE, err);
        }
    end.stage = (uint32_t)w->stage_idx;
    end.ended = true;
    return status == MR_OK ? send_report(w, &end.base, MR_NEVER, err) : status;
}

void worker_log_expert_share(const worker *w) {
    const mr_expert_share share = w->stage ? mr_stage_expert_share(w->stage) : (mr_expert_share){0};
    if (share.n_uses > 0)
        mr_log_write(MR_LOG_INFO, "worker",
                     "stage %d: experts on the device took %.1f %% of the uses, and %llu experts were exchanged",
                     w->stage_idx, 100.0 * (double)share.n_device_uses / (double)share.n_uses,
                     (unsigned long long)share.n_swaps);
}

mr_status worker_report_end(worker *w, mr_err *err) {
    int64_t deadline = mr_clock_now_ns() + END_PATIENCE_NS;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    mr_status status = worker_report_spans(w, true, err);
    if (status == MR_OK)
        status = report_seconds(w, true, deadline, err);
    if (status == MR_OK)
        mr_outbox_flush(w->report, deadline);
    return status;
}

/* Waits until the coordinator has received all reports and closed its links. Without this wait a coordinator that is
 * still opening its links would find a lost peer instead of the Failure message. */
static void linger(worker *w, int64_t deadline_ns) {
    mr_err ignored;
    mr_frame frame;
    const uint8_t *payload;
    bool flushed = false;
    while (mr_clock_now_ns() < deadline_ns && !worker_told_to_end(w)) {
        payload = NULL;
        mr_status status = mr_outbox_flushed(w->report, &flushed, &ignored);
        if (status == MR_OK && w->control)
            status = mr_inbox_peek(w->control, &frame, &payload, &ignored);
        if (status == MR_OK && payload)
            status = mr_inbox_release(w->control, &ignored); /* control messages are dropped now */
        else if (status == MR_OK && !(flushed && !w->control))
            status = mr_channel_wait(w->config->channel, deadline_ns, &ignored);
        else if (status != MR_E_PROTOCOL)
            return;
    }
}

bool worker_report_failure(worker *w, const mr_err *cause) {
    mr_err ignored;
    Millrace__Failure failure = MILLRACE__FAILURE__INIT;
    failure.stage = w->stage_idx < 0 ? 0 : (uint32_t)w->stage_idx; /* -1: this rank was not found in the plan */
    failure.status = (uint32_t)cause->status;
    failure.text = (char *)(uintptr_t)cause->text;
    int64_t deadline = mr_clock_now_ns() + 2 * MR_NS_PER_S;
    if (!w->report || send_report(w, &failure.base, deadline, &ignored) != MR_OK)
        return false;
    linger(w, deadline);
    return true;
}
