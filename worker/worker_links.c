/* worker/worker_links.c - the links of a stage to its neighbours. A hop whose plan says that activations go from device
 * to device gets slots in the memory of the device, and a carrier. Where the stage has none to give, its end says why,
 * and the neighbours take the way through the hosts. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "worker/link_device.h"
#include "worker/worker_internal.h"

/* Between two looks at hops, of which the channel knows nothing. */
static const int64_t LOOK_NS = 20000, SETUP_LOOK_NS = MR_NS_PER_MS;

/* --- A hop ------------------------------------------------------------------------------------------------------- */

/* Slots in the memory of the device, and what moves them. */
static mr_status take_device(const worker *w, worker_hop *hop, int32_t peer, size_t x_bytes, mr_link_device *out,
                             mr_err *err) {
    const mr_channel_carrier_desc desc = {w->config->channel, peer, w->config->epoch, hop == &w->out};
    mr_backend *be = hop == &w->in ? mr_stage_in_device(w->stage) : mr_stage_out_device(w->stage);
    if (!be)
        return mr_err_set(err, MR_E_UNSUPPORTED, "the activations of stage %d lie in the memory of the host",
                          w->stage_idx);
    hop->device = be;
    return mr_link_device_take(be, &desc, hop->way, x_bytes, &hop->slots, out, err);
}

static mr_status open_hop(worker *w, worker_hop *hop, int32_t peer, size_t x_bytes, mr_err *err) {
    mr_err why = {0};
    mr_link_device device = {0};
    bool has_device = hop->way != MR_WAY_HOST && take_device(w, hop, peer, x_bytes, &device, &why) == MR_OK;
    const mr_device_link_desc desc = {
        .channel = w->config->channel,
        .peer = peer,
        .epoch = w->config->epoch,
        .is_sender = hop == &w->out,
        .n_slots = w->ring_slots < MR_MAX_HOP_SLOTS ? w->ring_slots : MR_MAX_HOP_SLOTS,
        .payload_bytes = x_bytes,
        .way = hop->way,
        .must = w->must_ways,
        .device = has_device ? &device : NULL,
        .why = has_device ? NULL : &why,
    };
    return mr_device_link_create(&desc, &hop->link, err);
}

static void close_hop(worker_hop *hop) {
    mr_pinned_destroy(&hop->pinned);
    bool is_free = mr_device_link_destroy(hop->link);
    mr_link_device_give_back(hop->device, hop->way, hop->slots, is_free);
    *hop = (worker_hop){0};
}

void worker_stop_hops(worker *w) {
    mr_device_link_stop(w->in.link);
    mr_device_link_stop(w->out.link);
}

void worker_close_hops(worker *w) {
    close_hop(&w->in);
    close_hop(&w->out);
}

mr_status worker_poll_hops(worker *w, bool *did, mr_err *err) {
    mr_status status = w->in.link ? mr_device_link_poll(w->in.link, did, err) : MR_OK;
    return status == MR_OK && w->out.link ? mr_device_link_poll(w->out.link, did, err) : status;
}

bool worker_hops_are_open(const worker *w) {
    return (!w->in.link || mr_device_link_is_open(w->in.link)) && (!w->out.link || mr_device_link_is_open(w->out.link));
}

/* Activations go from the memory of their message to the device, and from the device into that of the next one. */
static void use_hop(worker_hop *hop, const mr_backends *devices) {
    size_t bytes = 0;
    void *memory = hop->link ? mr_device_link_memory(hop->link, &bytes) : NULL;
    if (memory)
        mr_pinned_borrow(devices, memory, bytes, &hop->pinned);
}

void worker_use_hops(worker *w, const mr_backends *devices) {
    use_hop(&w->in, devices);
    use_hop(&w->out, devices);
    if (!w->out.link)
        return;
    mr_log_write(MR_LOG_DEBUG, "worker", "activations of stage %d go by %s", w->stage_idx,
                 mr_way_name(mr_device_link_way(w->out.link)));
}

int64_t worker_wait_ns(const worker *w, int64_t due_ns) {
    bool is_busy =
        (w->in.link && mr_device_link_is_busy(w->in.link)) || (w->out.link && mr_device_link_is_busy(w->out.link));
    int64_t look_ns = is_busy ? mr_clock_now_ns() + (w->is_linking ? SETUP_LOOK_NS : LOOK_NS) : due_ns;
    int64_t wanted_ns = w->config->look_ns ? w->config->look_ns(w->config->told_to_end_ctx) : MR_NEVER;
    look_ns = look_ns < wanted_ns ? look_ns : wanted_ns;
    return look_ns < due_ns ? look_ns : due_ns;
}

/* --- All links --------------------------------------------------------------------------------------------------- */

mr_status worker_open_links(worker *w, mr_err *err) {
    mr_channel *ch = w->config->channel;
    uint32_t epoch = w->config->epoch;
    size_t x_bytes = (size_t)w->limits.max_rows * (size_t)w->info.d_model * sizeof(float);
    mr_status status = MR_OK;
    if (w->previous >= 0)
        status = open_hop(w, &w->in, w->previous, x_bytes, err);
    if (status == MR_OK && w->next >= 0)
        status = open_hop(w, &w->out, w->next, x_bytes, err);
    if (status == MR_OK && worker_is_head(w) && !worker_is_tail(w))
        status = mr_inbox_create(ch, w->tail_peer, MR_LINK_TOKENS, epoch, w->ring_slots,
                                 mr_tokens_message_bytes(w->limits.max_rows), &w->tokens_in, err);
    if (status == MR_OK && worker_is_tail(w)) {
        mr_tail_config tail = {.channel = ch,
                               .coordinator = w->config->coordinator,
                               .head = w->head,
                               .epoch = epoch,
                               .n_slots = w->ring_slots,
                               .limits = w->limits,
                               .max_out_rows = w->max_out_rows,
                               .n_embd = (uint32_t)w->info.d_model,
                               .clock = &w->clock,
                               .told_to_end = w->config->told_to_end,
                               .told_to_end_ctx = w->config->told_to_end_ctx};
        status = mr_tail_create(&tail, &w->tail, err);
    }
    return status;
}
