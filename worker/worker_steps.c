/* worker/worker_steps.c - starts the pending step once its input has come, and sends what comes out at its end. On a
 * device a step is started while the one before runs, so that the device never waits for a message. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "worker/stage/step.h"
#include "worker/worker_internal.h"

/* LOOK_NS: between two looks for a message that ends this stage, while it computes. DEVICE_NS: a device that takes
 * longer for a step does not answer any more; the largest steps take some seconds. LATE_NS: a look at a step that ends
 * so late has computed. */
static const int64_t LOOK_NS = 5 * MR_NS_PER_MS, DEVICE_NS = 60 * MR_NS_PER_S, LATE_NS = MR_NS_PER_S;

/* Prefixes err with the name of the peer that sent the message. */
static mr_status from_peer(const worker *w, int32_t peer, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    return mr_err_prefix(err, "message from %s", mr_channel_peer_name(w->config->channel, peer, name));
}

/* Tokens must come in the order of the steps, and only for steps that this stage has run. */
static mr_status check_tokens(const worker *w, const Millrace__Tokens *tokens, mr_err *err) {
    if (tokens->step > w->step_tokens && tokens->step <= w->step_run)
        return MR_OK;
    return mr_err_set(err, MR_E_PROTOCOL, "tokens of step %llu after step %llu, this stage has run step %llu",
                      (unsigned long long)tokens->step, (unsigned long long)w->step_tokens,
                      (unsigned long long)w->step_run);
}

/* Notes all ids that have come back from the tail. */
static mr_status take_tokens(worker *w, mr_err *err) {
    for (;;) {
        mr_frame frame;
        const uint8_t *payload;
        Millrace__Tokens *tokens;
        mr_status status = mr_inbox_peek(w->tokens_in, &frame, &payload, err);
        if (status != MR_OK || !payload)
            return status;
        status = mr_msg_unpack_tokens(payload, frame.payload_bytes, &w->limits, w->tokens_arena, &tokens, err);
        if (status == MR_OK)
            status = check_tokens(w, tokens, err);
        if (status != MR_OK)
            return from_peer(w, w->tail_peer, err);
        w->step_tokens = tokens->step;
        mr_step_sums_came_back(&w->sums, tokens->step, mr_clock_now_ns());
        for (size_t i = 0; status == MR_OK && i < tokens->n_tokens; i++)
            mr_sequences_note_token(w->sequences, tokens->tokens[i]);
        if (status == MR_OK)
            status = mr_inbox_release(w->tokens_in, err);
        if (status != MR_OK)
            return status;
    }
}

/* The activations of the pending step: [rows, d_model] f32 at *out_x. *out_here: they have come. */
static mr_status peek_activations(worker *w, mr_link_rows *out_x, bool *out_here, mr_err *err) {
    const Millrace__StepPlan *plan = worker_next_step(w)->plan;
    mr_frame frame;
    mr_status status = mr_device_link_peek(w->in.link, &frame, out_x, out_here, err);
    if (status != MR_OK || !*out_here)
        return status;
    uint32_t n_rows = 0;
    for (size_t i = 0; i < plan->n_runs; i++)
        n_rows += plan->runs[i]->n_rows;
    uint32_t row_bytes = (uint32_t)w->info.d_model * (uint32_t)sizeof(float);
    if (frame.step != plan->step || frame.rows != n_rows || frame.type != MR_TYPE_F32 || frame.row_bytes != row_bytes) {
        (void)mr_err_set(err, MR_E_PROTOCOL,
                         "step %llu with %u rows of %u bytes, the plan says step %llu with %u of %u",
                         (unsigned long long)frame.step, frame.rows, frame.row_bytes, (unsigned long long)plan->step,
                         n_rows, row_bytes);
        return from_peer(w, w->previous, err);
    }
    return MR_OK;
}

/* Releases the activations of the step that was started last, if the stage has read them. The inbox then shows those of
 * the next step. */
static mr_status release_input(worker *w, mr_err *err) {
    if (!w->holds_input || !mr_stage_has_read(w->stage))
        return MR_OK;
    w->holds_input = false;
    return mr_device_link_release(w->in.link, err);
}

/* Looks for what the pending step needs: ids or activations, and a send buffer. *ready: nothing is missing. */
static mr_status gather(worker *w, mr_link_rows *in, mr_link_rows *out, bool *ready, mr_err *err) {
    mr_status status = w->tokens_in ? take_tokens(w, err) : MR_OK;
    bool have_input = false, have_output = !w->out.link;
    if (status == MR_OK && worker_is_head(w)) {
        status = mr_step_ids_ready(w->sequences, worker_next_step(w)->plan, &have_input, err);
    } else if (status == MR_OK) {
        status = release_input(w, err);
        if (status == MR_OK && !w->holds_input)
            status = peek_activations(w, in, &have_input, err);
    }
    w->waits_for = have_input ? MR_PHASE_WAIT_OUT : MR_PHASE_WAIT_IN;
    if (status == MR_OK && have_input && w->out.link)
        status = mr_device_link_reserve(w->out.link, out, &have_output, err);
    *ready = have_input && have_output;
    return status;
}

/* Called between the nodes of a graph, so that messages move while this stage computes. Now and then, looks whether
 * this stage was told to end: a long step then stops. */
static void make_progress(void *ctx) {
    worker *w = ctx;
    int64_t now_ns = mr_clock_now_ns();
    mr_channel_progress(w->config->channel);
    if (now_ns - w->looked_ns < LOOK_NS)
        return;
    w->looked_ns = now_ns;
    if (worker_told_to_end(w))
        atomic_store(&w->must_stop, true);
}

mr_status worker_start_step(worker *w, bool *did, mr_err *err) {
    worker_step *s = worker_next_step(w);
    mr_link_rows in = {0}, out = {0};
    bool ready = false;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    mr_status status = gather(w, &in, &out, &ready, err);
    if (status != MR_OK || !ready)
        return status;
    int64_t now_ns = mr_clock_now_ns();
    s->start_ns = now_ns - w->clock.ns[MR_PHASE_WAIT_OUT];
    status = mr_step_fill(w->stage, w->sequences, s->plan, w->max_out_rows, err);
    s->n_rows = (uint32_t)mr_stage_rows(w->stage)->n_rows;
    if (!mr_stage_runs_on_device(w->stage))
        mr_stage_clock_begin_step(&w->clock, s->plan->step, s->n_rows);
    const mr_stage_step step = {.x_in = (const float *)(const void *)in.host,
                                .x_out = (float *)(void *)out.host,
                                .in_buffer = w->in.link && !in.host ? w->in.slots : NULL,
                                .in_offset = in.device_offset,
                                .out_buffer = w->out.link && !out.host ? w->out.slots : NULL,
                                .out_offset = out.device_offset,
                                .progress = make_progress,
                                .progress_ctx = w,
                                .stop = &w->must_stop};
    if (status == MR_OK)
        status = mr_stage_start(w->stage, &step, err);
    if (status != MR_OK)
        return status;
    if (w->out.link)
        mr_device_link_keep(w->out.link);
    w->holds_input = w->in.link != NULL;
    w->has_pending = false;
    if (!worker_is_busy(w))
        w->moved_ns = mr_clock_now_ns();
    w->n_begun++;
    s->host_ns = mr_clock_now_ns() - now_ns;
    *did = true;
    return release_input(w, err);
}

static mr_status send_activations(worker *w, const worker_step *s, mr_err *err) {
    uint32_t row_bytes = (uint32_t)w->info.d_model * (uint32_t)sizeof(float);
    const mr_frame frame = {.step = s->plan->step,
                            .rows = s->n_rows,
                            .type = MR_TYPE_F32,
                            .row_bytes = row_bytes,
                            .payload_bytes = (uint64_t)s->n_rows * row_bytes};
    return mr_device_link_send(w->out.link, &frame, err);
}

/* Adds what the CPU and devices did in the step to a trace. */
static void note_works(worker *w) {
    int32_t n = 0;
    const mr_graph_work *works = mr_stage_works(w->stage, &n);
    for (int32_t i = 0; i < n; i++)
        mr_stage_clock_add_work(&w->clock, works[i].is_host ? MR_SPAN_CPU : MR_SPAN_DEVICE, works[i].start_ns,
                                works[i].end_ns);
}

/* Notes the time, rows and bytes of a step that was run and sent. Times of waiting for send buffers do not count. If a
 * device has run the step, the host has worked meanwhile, and the slower of the two says when a next step ends. */
static mr_status note_step(worker *w, const worker_step *s, mr_err *err) {
    int64_t now_ns = mr_clock_now_ns(), ns = now_ns - w->clock.ns[MR_PHASE_WAIT_OUT] - s->start_ns;
    if (mr_stage_runs_on_device(w->stage)) {
        int64_t device_ns = mr_stage_device_ns(w->stage);
        ns = device_ns > s->host_ns ? device_ns : s->host_ns;
        mr_stage_clock_add_step(&w->clock, s->plan->step, s->n_rows, device_ns, now_ns);
    }
    note_works(w);
    mr_step_sums_add(&w->sums, s->n_rows, ns);
    uint64_t bytes = (uint64_t)s->n_rows * (uint64_t)w->info.d_model * sizeof(float);
    w->in_bytes += w->in.link ? bytes : 0;
    w->out_bytes += w->out.link ? bytes : 0;
    if (w->tokens_in)
        mr_step_sums_sent(&w->sums, s->plan->step, s->n_rows, now_ns);
    return worker_report_step_sums(w, now_ns, err);
}

/* Looks whether the oldest step under way has ended. A device may work on one step at a time, and the host on its part
 * of a step in the call; only the time in which neither moves counts. */
static mr_status poll_step(worker *w, int64_t deadline_ns, bool *out_ended, mr_err *err) {
    const worker_step *s = &w->steps[w->n_ended % MR_STAGE_STEPS];
    int64_t begin_ns = mr_clock_now_ns();
    mr_status status = mr_stage_poll(w->stage, deadline_ns, out_ended, err);
    int64_t now_ns = mr_clock_now_ns(), due_ns = deadline_ns > begin_ns ? deadline_ns : begin_ns;
    w->n_ended += status != MR_OK; /* the stage will not end it */
    if (*out_ended || now_ns - due_ns > LATE_NS)
        w->moved_ns = now_ns;
    if (status != MR_OK || *out_ended || now_ns - w->moved_ns < DEVICE_NS)
        return status;
    return mr_err_set(err, MR_E_DEVICE, "the device has not ended step %llu of %u rows in %lld s",
                      (unsigned long long)s->plan->step, s->n_rows, (long long)(DEVICE_NS / MR_NS_PER_S));
}

mr_status worker_await_steps(worker *w, mr_err *err) {
    mr_status status = MR_OK;
    while (worker_is_busy(w) && status == MR_OK) {
        bool ended = false;
        mr_channel_progress(w->config->channel);
        status = poll_step(w, mr_clock_now_ns() + LOOK_NS, &ended, err);
        w->n_ended += ended;
    }
    return status;
}

mr_status worker_end_step(worker *w, int64_t deadline_ns, bool *did, mr_err *err) {
    worker_step *s = &w->steps[w->n_ended % MR_STAGE_STEPS];
    bool ended = false;
    mr_status status = poll_step(w, deadline_ns, &ended, err);
    if (status != MR_OK || !ended)
        return status;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    int64_t now_ns = mr_clock_now_ns() - w->clock.ns[MR_PHASE_WAIT_OUT];
    status = release_input(w, err);
    if (status == MR_OK && w->out.link)
        status = send_activations(w, s, err);
    if (status == MR_OK && w->tail)
        status = mr_tail_finish_step(w->tail, w->stage, w->sequences, s->plan, err);
    s->host_ns += mr_clock_now_ns() - w->clock.ns[MR_PHASE_WAIT_OUT] - now_ns;
    if (status == MR_OK)
        status = note_step(w, s, err);
    w->step_run = s->plan->step;
    w->n_ended++;
    if (status == MR_OK && !worker_is_busy(w))
        status = mr_stage_renew_experts(w->stage, err);
    *did = true;
    return status;
}
