/* worker/worker.c - the life of a stage: start, control messages, end. Control messages are taken in order; a step
 * stays pending until its input has come and the stage has room for it. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/worker.h"

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "worker/files/file_layers.h"
#include "worker/kv_transfer.h"
#include "worker/stage/expert_order.h"
#include "worker/worker_internal.h"

enum {
    PLAN_ARENA_BYTES = 512 << 10, /* for messages before the plan, which sets the limits */
    LOOK_NS = 50000,              /* between two looks for messages while a device works */
    SERVE_NS = 20000000,          /* between two looks for requests for the file while steps follow each other */
};

/* --- Start ------------------------------------------------------------------------------------------------------- */

static mr_status take_memory(size_t bytes, mr_arena **arena, mr_err *err) {
    *arena = mr_arena_create_whole(bytes);
    return *arena ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for messages of %zu bytes", bytes);
}

/* Called by the file client during the fetch. */
static void note_fetched(void *ctx, size_t done_bytes, size_t total_bytes) {
    worker *w = ctx;
    w->fetch_bytes = total_bytes;
    if (w->layer_bytes > 0)
        worker_report_progress(w, done_bytes, total_bytes + w->layer_bytes);
}

/* Called after each part of a tensor. Serves the file to other ranks for as long as loading took since the last call.
 * false: this stage was told to end. */
static bool note_loaded(void *ctx, size_t done_bytes, size_t total_bytes) {
    worker *w = ctx;
    mr_channel_progress(w->config->channel);
    mr_file_server_serve(w->config->file_server, mr_clock_now_ns() - w->served_ns);
    w->served_ns = mr_clock_now_ns();
    worker_report_progress(w, w->fetch_bytes + done_bytes, w->fetch_bytes + total_bytes);
    return !worker_told_to_end(w);
}

static bool told_to_end_fetch(void *ctx) {
    return worker_told_to_end(ctx);
}

/* While KV blocks come, ranks may fetch layers from this one. */
static bool told_to_end_and_serve(void *ctx) {
    worker *w = ctx;
    if (w->config->file_server)
        mr_file_server_serve(w->config->file_server, 0);
    return worker_told_to_end(w);
}

static mr_status open_model(worker *w, mr_err *err) {
    const mr_worker_config *c = w->config;
    const mr_file_wait wait = {told_to_end_fetch, NULL, w};
    if (c->problem)
        return mr_err_set(err, c->problem->status, "%s", c->problem->text);
    return c->file_client ? mr_file_layers_open(c->file_client, &wait, &w->gguf, err)
                          : mr_gguf_open(c->model_path, &w->gguf, err);
}

static mr_status fetch_layers(worker *w, mr_layer_range range, mr_err *err) {
    const mr_file_wait wait = {told_to_end_fetch, note_fetched, w};
    int64_t start_ns = mr_clock_now_ns();
    w->layer_bytes = mr_file_layers_bytes(w->gguf, &w->info, range);
    mr_status status = mr_file_layers_fetch(w->config->file_client, w->gguf, &w->info, &range, &wait, err);
    mr_log_write(MR_LOG_DEBUG, "worker", "%llu bytes of the model file were fetched, those of the layers in %.3f s",
                 (unsigned long long)mr_file_client_moved_bytes(w->config->file_client),
                 (double)(mr_clock_now_ns() - start_ns) / (double)MR_NS_PER_S);
    return status;
}

static mr_status create_stage(worker *w, const mr_stage_config *config, mr_err *err) {
    const mr_file_wait wait = {told_to_end_fetch, NULL, w};
    bool fetches = w->config->file_client && !config->synthetic; /* a synthetic stage reads no layers */
    mr_status status = fetches ? fetch_layers(w, config->range, err) : MR_OK;
    w->served_ns = mr_clock_now_ns();
    if (status == MR_OK)
        status = mr_stage_create(config, w->config->backend, note_loaded, w, &w->stage, err);
    if (status == MR_OK && fetches)
        status = mr_file_client_settle(w->config->file_client, &wait, err);
    return status;
}

/* Opens the links to the coordinator and the model, before the plan comes. */
static mr_status start(worker *w, mr_err *err) {
    const mr_worker_config *c = w->config;
    mr_status status = mr_outbox_create(c->channel, c->coordinator, MR_LINK_REPORT, c->epoch, MR_REPORT_SLOTS,
                                        MR_MAX_REPORT_BYTES, &w->report, err);
    if (status == MR_OK)
        status = mr_inbox_create(c->channel, c->coordinator, MR_LINK_CONTROL, c->epoch, MR_CONTROL_SLOTS,
                                 MR_MAX_CONTROL_BYTES, &w->control, err);
    if (status == MR_OK)
        status = open_model(w, err);
    if (status == MR_OK)
        status = mr_model_info_read(w->gguf, &w->info, err);
    if (status == MR_OK)
        status = take_memory(PLAN_ARENA_BYTES, &w->steps[0].arena, err);
    return status;
}

/* Finds this stage and its neighbours in the plan. */
static mr_status find_place(worker *w, const Millrace__Plan *plan, mr_layer_range *range, mr_devices_share *device,
                            mr_synthetic *synthetic, mr_err *err) {
    w->stage_idx = w->next = w->previous = -1;
    w->n_stages = (int32_t)plan->n_stages;
    for (int32_t i = 0; i < w->n_stages; i++) {
        const Millrace__StageRange *s = plan->stages[i];
        if (s->rank >= (uint32_t)w->config->coordinator)
            return mr_err_set(err, MR_E_PROTOCOL, "the plan names rank %u of %d", s->rank, w->config->coordinator);
        if ((int32_t)s->rank != w->config->channel->self)
            continue;
        if (w->stage_idx >= 0)
            return mr_err_set(err, MR_E_PROTOCOL, "the plan names rank %u twice: stages %d and %d", s->rank,
                              w->stage_idx, i);
        w->stage_idx = i;
        w->kv_from = (int32_t)s->kv_from - 1;
        w->kv_ahead = s->kv_ahead;
        *range = (mr_layer_range){(int32_t)s->first_layer, (int32_t)s->last_layer};
        *device = (mr_devices_share){.n_layers = (int32_t)s->device_layers,
                                     .n_host_experts = (int32_t)s->host_experts,
                                     .n_device_experts = (int32_t)s->device_experts,
                                     .n_cold_partitions = (int32_t)s->cold_partitions};
        if (s->n_held_experts > 0) {
            mr_status status = mr_expert_order_make(s->held_experts, device, range->last - range->first,
                                                    w->info.n_experts, &w->expert_order, err);
            if (status != MR_OK)
                return status;
        }
        *synthetic = (mr_synthetic){.fixed_ns = (int64_t)s->synthetic_fixed_ns,
                                    .row_ns = (int64_t)s->synthetic_row_ns,
                                    .told_to_end = w->config->told_to_end,
                                    .ctx = w->config->told_to_end_ctx};
    }
    if (w->stage_idx < 0)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan gives rank %d no layers", w->config->channel->self);
    uint32_t last = plan->stages[w->n_stages - 1]->last_layer;
    if (last != (uint32_t)w->info.n_layers)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan cuts %u layers, the model has %d", last, w->info.n_layers);
    w->head = (int32_t)plan->stages[0]->rank;
    w->tail_peer = (int32_t)plan->stages[w->n_stages - 1]->rank;
    if (!worker_is_head(w)) {
        w->previous = (int32_t)plan->stages[w->stage_idx - 1]->rank;
        w->in.way = (mr_way)plan->stages[w->stage_idx - 1]->way;
    }
    if (!worker_is_tail(w)) {
        w->next = (int32_t)plan->stages[w->stage_idx + 1]->rank;
        w->out.way = (mr_way)plan->stages[w->stage_idx]->way;
    }
    w->must_ways = plan->must_ways;
    w->knows_place = true;
    return MR_OK;
}

/* A model file without a tokenizer has no grammars: sequences with a grammar fail, not the stage. */
static mr_status load_grammars(worker *w, mr_err *err) {
    mr_status status = mr_grammars_create(w->gguf, w->info.vocab_size, &w->grammars, err);
    if (status == MR_OK)
        mr_sequences_set_grammars(w->sequences, w->grammars);
    return status == MR_E_NOT_FOUND ? MR_OK : status;
}

/* A plan for other weights would give other tokens. */
static mr_status check_weights(const worker *w, const Millrace__Plan *plan, mr_err *err) {
    const mr_weights_root *own = w->config->weights_root;
    const ProtobufCBinaryData *named = &plan->weights_root;
    if (named->len == 0)
        return w->config->must_verify
                   ? mr_err_set(err, MR_E_PROTOCOL, "the plan names no weights, and this rank has --verify-weights")
                   : MR_OK;
    if (!own || memcmp(own->bytes, named->data, sizeof own->bytes) == 0)
        return MR_OK;
    return mr_err_set(err, MR_E_PROTOCOL,
                      "the plan is for weights %02x%02x%02x%02x..., this rank has %02x%02x%02x%02x...", named->data[0],
                      named->data[1], named->data[2], named->data[3], own->bytes[0], own->bytes[1], own->bytes[2],
                      own->bytes[3]);
}

/* Gives the stage the devices that the numerics of the plan allow, and places its first layers. */
static mr_status use_devices(const worker *w, bool fast_numerics, mr_devices_share wish, mr_stage_config *config,
                             mr_err *err) {
    const mr_devices devices = mr_devices_for(w->config->devices, fast_numerics);
    config->devices = devices.list;
    config->measures_products = devices.is_measured;
    if (wish.n_layers > 0 && mr_devices_holder(&devices.list) < 0)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan puts %d layers on a device, and this rank has none for layers",
                          wish.n_layers);
    if (wish.n_cold_partitions > mr_model_partitions(&w->info))
        return mr_err_set(err, MR_E_PROTOCOL,
                          "cold_partitions of the plan is %d, but feed-forward parts of the model have at most %d "
                          "partitions of neurons",
                          wish.n_cold_partitions, mr_model_partitions(&w->info));
    if (wish.n_layers > 0)
        mr_devices_hold(&config->devices, wish);
    return MR_OK;
}

static void tell_whether_it_runs_steps(const worker *w, bool runs_steps) {
    if (w->config->runs_steps)
        atomic_store(w->config->runs_steps, runs_steps);
}

/* Frees kept KV blocks that the plan has no use for, before memory of the stage is taken. */
static void drop_useless_kv(worker *w, const Millrace__Plan *plan) {
    mr_kept_kv *kept = w->config->kept_kv;
    w->n_sent_blocks = (int32_t)plan->n_sent_blocks;
    if (kept && (plan->kv_epoch == 0 || plan->kv_epoch != kept->epoch || (w->kv_from >= 0 && !w->kv_ahead)))
        mr_kept_kv_drop(kept);
}

/* For a stage that ends before it takes KV blocks: another rank may send them already. One that does not know its place
 * in the plan does not know which. */
static void refuse_kv(const worker *w) {
    const mr_worker_config *c = w->config;
    for (int32_t i = 0; i < c->coordinator; i++)
        if (!w->knows_place || i == w->kv_from)
            mr_kv_refuse(c->channel, i, c->coordinator, false, c->epoch);
}

/* The stage has the KV blocks that were kept here, or receives them from another rank. Without them the sequences are
 * computed again: that is no error. */
static mr_status take_kv(worker *w, mr_err *err) {
    const mr_kv_transfer transfer = {.channel = w->config->channel,
                                     .peer = w->kv_from,
                                     .epoch = w->config->epoch,
                                     .store = mr_stage_kv_store(w->stage),
                                     .n_blocks = (int32_t)w->limits.n_kv_blocks,
                                     .told_to_end = told_to_end_and_serve,
                                     .ctx = w};
    mr_err why;
    if (w->config->kept_kv) {
        mr_kept_kv_drop(w->config->kept_kv); /* what did not fit */
        w->config->kept_kv->epoch = w->config->epoch;
    }
    w->has_kv = mr_stage_has_kept_kv(w->stage);
    if (w->kv_from < 0)
        return MR_OK;
    bool has_first = !w->kv_ahead || w->has_kv;
    if (w->kv_from >= w->config->coordinator || w->kv_from == w->config->channel->self)
        return mr_err_set(err, MR_E_PROTOCOL, "the plan has KV blocks sent by rank %d", (int)w->kv_from);
    if (!transfer.store) {
        refuse_kv(w);
        return MR_OK;
    }
    mr_status status = mr_kv_take(&transfer, w->n_sent_blocks, MR_KV_PATIENCE_NS, &why);
    if (status == MR_E_CANCELLED)
        return mr_err_set(err, status, "%s", "");
    w->has_kv = status == MR_OK && has_first;
    if (status != MR_OK)
        mr_log_write(MR_LOG_WARN, "worker", "the KV blocks of rank %d did not come: %s", (int)w->kv_from, why.text);
    return MR_OK;
}

/* Takes the memory for messages that the limits want, in place of that for a plan. */
static mr_status replace_memory(worker *w, mr_err *err) {
    size_t arena_bytes = mr_msg_arena_bytes(&w->limits);
    mr_status status = MR_OK;
    mr_arena_destroy(w->steps[0].arena);
    w->steps[0].arena = NULL;
    for (int32_t i = 0; i < MR_STAGE_STEPS && status == MR_OK; i++)
        status = take_memory(arena_bytes, &w->steps[i].arena, err);
    return status == MR_OK ? take_memory(arena_bytes, &w->tokens_arena, err) : status;
}

/* Loads the layers that the plan gives to this stage, opens the links of the stage, and reports ready. */
static mr_status take_plan(worker *w, const Millrace__Plan *plan, mr_err *err) {
    mr_layer_range range;
    mr_synthetic synthetic;
    mr_devices_share device = {0};
    mr_status status = check_weights(w, plan, err);
    if (status == MR_OK)
        status = find_place(w, plan, &range, &device, &synthetic, err);
    if (status != MR_OK)
        return status;
    w->limits = (mr_msg_limits){.n_stages = (uint32_t)w->n_stages,
                                .max_rows = plan->max_rows,
                                .max_sequences = plan->max_sequences,
                                .max_context = plan->max_context,
                                .n_kv_blocks = plan->n_kv_blocks,
                                .n_vocab = (uint32_t)w->info.vocab_size};
    w->max_out_rows = plan->max_out_rows;
    w->ring_slots = (int32_t)plan->ring_slots;
    mr_stage_config config = {.gguf = w->gguf,
                              .info = &w->info,
                              .range = range,
                              .max_rows = (int32_t)plan->max_rows,
                              .max_out_rows = (int32_t)plan->max_out_rows,
                              .max_sequences = (int32_t)plan->max_sequences,
                              .max_context = (int32_t)plan->max_context,
                              .n_kv_blocks = (int32_t)plan->n_kv_blocks,
                              .kv_type = (mr_type)plan->kv_type,
                              .map_weights = plan->map_weights,
                              .expert_order = w->expert_order,
                              .store = w->config->store,
                              .kept_kv = w->config->kept_kv,
                              .renews = mr_expert_rules_usual((int32_t)plan->renew_rows),
                              .notes_works = plan->trace,
                              .counts_uses = plan->counts_uses,
                              .synthetic = plan->synthetic ? &synthetic : NULL};
    status = use_devices(w, plan->fast_numerics, device, &config, err);
    drop_useless_kv(w, plan);
    bool trace = plan->trace, grammars = plan->grammars && !plan->synthetic && worker_is_tail(w);
    if (status == MR_OK)
        status = replace_memory(w, err); /* the plan lies there, so no code below reads it */
    if (status == MR_OK)
        status = mr_sequences_create(&w->limits, worker_is_tail(w), &w->sequences, err);
    if (status == MR_OK)
        status = create_stage(w, &config, err);
    if (status == MR_OK)
        status = take_kv(w, err);
    else
        refuse_kv(w);
    if (status == MR_OK && grammars)
        status = load_grammars(w, err);
    if (status == MR_OK)
        status = worker_open_links(w, err);
    if (status == MR_OK)
        status = mr_stage_clock_start(&w->clock, trace, err);
    mr_step_sums_clear(&w->sums, mr_clock_now_ns());
    w->devices = config.devices;
    w->is_linking = status == MR_OK;
    return status;
}

/* Reports ready as soon as the neighbours have agreed on the ways of the activations. */
static mr_status take_hops(worker *w, bool *did, mr_err *err) {
    mr_status status = worker_poll_hops(w, did, err);
    if (status != MR_OK || !w->is_linking || !worker_hops_are_open(w))
        return status;
    w->is_linking = false;
    *did = true;
    worker_use_hops(w, &w->devices);
    tell_whether_it_runs_steps(w, true);
    return worker_report_ready(w, err);
}

/* --- The loop ---------------------------------------------------------------------------------------------------- */

/* Takes the next control message. A step becomes pending. Sequences may be opened and closed while a step with rows of
 * theirs is under way: the step has its rows and block tables by then, and the tail samples no row of a sequence that
 * has left its slot. */
static mr_status take_control(worker *w, bool *did, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload;
    Millrace__Control *message;
    mr_status status = mr_inbox_peek(w->control, &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    mr_stage_clock_enter(&w->clock, MR_PHASE_WIRE);
    status = mr_msg_unpack_control(payload, frame.payload_bytes, &w->limits, worker_next_step(w)->arena, &message, err);
    if (status != MR_OK)
        return status;
    *did = true;
    switch (message->body_case) {
    case MILLRACE__CONTROL__BODY_PLAN:
        status = w->stage ? mr_err_set(err, MR_E_PROTOCOL, "a second plan in epoch %u", w->config->epoch)
                          : take_plan(w, message->plan, err);
        break;
    case MILLRACE__CONTROL__BODY_OPEN:
        status = mr_sequences_open(w->sequences, message->open, err);
        if (status == MR_OK)
            status = mr_stage_set_blocks(w->stage, (int32_t)message->open->slot, 0,
                                         (const int32_t *)message->open->blocks, (int32_t)message->open->n_blocks, err);
        break;
    case MILLRACE__CONTROL__BODY_CLOSE:
        status = mr_sequences_close(w->sequences, message->close, err);
        break;
    case MILLRACE__CONTROL__BODY_STEP:
        worker_next_step(w)->plan = message->step;
        w->has_pending = true;
        break;
    case MILLRACE__CONTROL__BODY_REPORT_USES:
        status = w->stage ? worker_report_use_counts(w, err)
                          : mr_err_set(err, MR_E_PROTOCOL, "counts of uses are wanted before the plan");
        break;
    case MILLRACE__CONTROL__BODY_SHUTDOWN:
        w->stop = true;
        return MR_OK;
    default:
        status = mr_err_set(err, MR_E_PROTOCOL, "a control message of kind %d is not expected here",
                            (int)message->body_case);
    }
    return status == MR_OK ? mr_inbox_release(w->control, err) : status;
}

/* Starts and ends steps, and takes control messages, as far as possible without waiting. */
static mr_status turn(worker *w, bool *did, mr_err *err) {
    mr_status status = take_hops(w, did, err);
    if (status == MR_OK && (!w->stage || mr_stage_has_room(w->stage))) {
        if (w->has_pending)
            status = worker_start_step(w, did, err);
        else if (!w->stop)
            status = take_control(w, did, err);
    }
    return status == MR_OK && worker_is_busy(w) ? worker_end_step(w, 0, did, err) : status;
}

/* Waits until there may be something to do. With a step under way, waits for the device and looks for messages now and
 * then: so the results of the step leave at once, and a message is late by LOOK_NS at most. */
static mr_status wait_for_work(worker *w, mr_err *err) {
    bool did;
    if (worker_is_busy(w)) {
        mr_stage_clock_enter(&w->clock, mr_stage_runs_on_device(w->stage) ? MR_PHASE_COUNT : MR_PHASE_COMPUTE);
        mr_channel_progress(w->config->channel);
        return worker_end_step(w, mr_clock_now_ns() + LOOK_NS, &did, err);
    }
    mr_stage_clock_enter(&w->clock, w->has_pending ? w->waits_for : MR_PHASE_NO_WORK);
    return mr_channel_wait(w->config->channel, worker_wait_ns(w, mr_step_sums_due_ns(&w->sums)), err);
}

/* Whether to look for requests for the file: where no step waits, and now and then where steps follow each other. */
static bool may_serve_file(worker *w) {
    if (!w->config->file_server)
        return false;
    int64_t now_ns = mr_clock_now_ns();
    if ((w->has_pending || worker_is_busy(w)) && now_ns - w->served_ns < SERVE_NS)
        return false;
    w->served_ns = now_ns;
    return true;
}

static mr_status serve(worker *w, mr_err *err) {
    while ((!w->stop || worker_is_busy(w)) && !worker_told_to_end(w)) {
        bool did = false;
        mr_status status = turn(w, &did, err);
        if (status == MR_E_CANCELLED && worker_told_to_end(w))
            return MR_OK;
        if (status == MR_OK)
            status = worker_report_spans(w, false, err);
        if (may_serve_file(w)) /* other ranks may fetch it, also for spares while steps run */
            did = mr_file_server_serve(w->config->file_server, 0) || did;
        if (status == MR_OK && !did && !w->is_linking)
            status = worker_report_step_sums(w, mr_clock_now_ns(), err);
        if (status == MR_OK && !did)
            status = wait_for_work(w, err);
        if (status != MR_OK)
            return status;
    }
    return w->stop && w->stage ? worker_report_end(w, err) : MR_OK;
}

/* mr_stage_destroy waits for steps under way without an end. Where a device does not end them, the stage still counts
 * as one that runs steps, so that its rank is given up. */
static void finish(worker *w) {
    mr_err ignored;
    if (!w->stage || worker_await_steps(w, &ignored) != MR_E_DEVICE)
        tell_whether_it_runs_steps(w, false);
    if (!w->knows_place)
        refuse_kv(w);
    worker_log_expert_share(w);
    worker_stop_hops(w);
    mr_stage_destroy(w->stage); /* steps under way use the buffers of the links */
    tell_whether_it_runs_steps(w, false);
    mr_tail_destroy(w->tail);
    mr_stage_clock_end(&w->clock);
    worker_close_hops(w);
    mr_inbox_destroy(w->tokens_in);
    mr_inbox_destroy(w->control);
    mr_outbox_destroy(w->report);
    mr_sequences_destroy(w->sequences);
    mr_grammars_destroy(w->grammars);
    for (int32_t i = 0; i < MR_STAGE_STEPS; i++)
        mr_arena_destroy(w->steps[i].arena);
    mr_arena_destroy(w->tokens_arena);
    mr_free(w->expert_order);
    mr_gguf_close(w->gguf);
}

mr_status mr_worker_run(const mr_worker_config *config, mr_err *err) {
    mr_err own;
    worker w = {.config = config};
    mr_thread_set_denormals_flushed();
    mr_status status = start(&w, &own);
    if (status == MR_OK)
        status = serve(&w, &own);
    if (status == MR_E_CANCELLED && worker_told_to_end(&w))
        status = MR_OK;
    if (status != MR_OK) {
        bool is_heard = worker_report_failure(&w, &own);
        if (config->is_unheard)
            *config->is_unheard = !is_heard;
        mr_err_set(err, status, "%s", own.text);
    }
    finish(&w);
    return status;
}
