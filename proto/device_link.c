/* proto/device_link.c - moves the rows of steps over an end of a hop. Through the hosts, this is an outbox or an inbox.
 * With a carrier, the slots in the memory of the device are a ring: each step has its transfer and its frame. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/device_link_internal.h"

_Static_assert((int)MR_DEVICE_LINK_SLOTS > (int)MR_OUTBOX_KEPT, "steps under way leave a slot for the next one");
_Static_assert((int)MR_DEVICE_LINK_SLOTS <= (int)MR_CARRIER_TRANSFERS, "a carrier has room for every slot");

/* A transfer of which the sender has said that it stands in its queue takes milliseconds. This is for a peer that is
 * stopped, or a network that drops what is sent. */
static const int64_t TRANSFER_NS = 60 * MR_NS_PER_S;

mr_status mr_device_link_create(const mr_device_link_desc *desc, mr_device_link **out, mr_err *err) {
    mr_device_link *l = mr_alloc(sizeof *l);
    if (!l) {
        if (desc->device)
            (void)desc->device->carrier->ops->destroy(desc->device->carrier);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the link with endpoint %" PRId32, desc->peer);
    }
    *l = (mr_device_link){.desc = *desc};
    if (desc->device)
        l->device = *desc->device;
    if (desc->why)
        l->why = *desc->why;
    l->desc.device = NULL;
    l->desc.why = NULL;
    MR_ASSERT(!desc->device || desc->device->slot_bytes >= desc->payload_bytes);
    mr_status status =
        desc->way == MR_WAY_HOST ? device_link_open(l, MR_WAY_HOST, err) : device_link_begin_setup(l, err);
    if (status == MR_OK)
        *out = l;
    else
        (void)mr_device_link_destroy(l);
    return status;
}

void device_link_drop_carrier(mr_device_link *l) {
    if (l->device.carrier && !l->device.carrier->ops->destroy(l->device.carrier))
        l->is_leaked = true;
    l->device.carrier = NULL;
}

void mr_device_link_stop(mr_device_link *l) {
    if (l)
        device_link_drop_carrier(l);
}

bool mr_device_link_destroy(mr_device_link *l) {
    if (!l)
        return true;
    device_link_drop_carrier(l);
    mr_outbox_destroy(l->out);
    mr_inbox_destroy(l->in);
    mr_outbox_destroy(l->setup_out);
    mr_inbox_destroy(l->setup_in);
    mr_arena_destroy(l->arena);
    bool is_free = !l->is_leaked;
    mr_free(l);
    return is_free;
}

mr_status device_link_open(mr_device_link *l, mr_way way, mr_err *err) {
    const mr_device_link_desc *d = &l->desc;
    bool by_host = way == MR_WAY_HOST;
    int32_t n_slots = by_host ? d->n_slots : MR_DEVICE_LINK_SLOTS;
    size_t bytes = by_host ? d->payload_bytes : 0;
    mr_status status =
        d->is_sender
            ? mr_outbox_create(d->channel, d->peer, MR_LINK_ACTIVATIONS, d->epoch, n_slots, bytes, &l->out, err)
            : mr_inbox_create(d->channel, d->peer, MR_LINK_ACTIVATIONS, d->epoch, n_slots, bytes, &l->in, err);
    l->way = way;
    l->state = SETUP_OPEN;
    return status;
}

bool mr_device_link_is_open(const mr_device_link *l) {
    return l->state == SETUP_OPEN;
}

mr_way mr_device_link_way(const mr_device_link *l) {
    return l->way;
}

const char *mr_device_link_why(const mr_device_link *l) {
    return l->way == l->desc.way ? "" : l->why.text;
}

static bool by_device(const mr_device_link *l) {
    return l->way != MR_WAY_HOST;
}

bool mr_device_link_is_busy(const mr_device_link *l) {
    return l->state != SETUP_OPEN || l->n_framed < l->n_started || l->n_done < l->n_taken + l->n_started;
}

void *mr_device_link_memory(mr_device_link *l, size_t *out_bytes) {
    *out_bytes = 0;
    if (by_device(l))
        return NULL;
    return l->out ? mr_outbox_memory(l->out, out_bytes) : mr_inbox_memory(l->in, out_bytes);
}

/* --- With a carrier ---------------------------------------------------------------------------------------------- */

/* Sends the frames of transfers that are launched. */
static mr_status send_frames(mr_device_link *l, const mr_carried *carried, bool *did, mr_err *err) {
    mr_status status = MR_OK;
    while (status == MR_OK && l->n_framed < carried->n_launched - l->n_first) {
        uint8_t *payload = NULL;
        status = mr_outbox_reserve(l->out, &payload, err);
        if (status != MR_OK || !payload)
            return status;
        status = mr_outbox_send(l->out, &l->frames[l->n_framed % MR_DEVICE_LINK_SLOTS], err);
        l->n_framed += status == MR_OK;
        *did = true;
    }
    return status;
}

/* Checks what the frame says of its rows before they are asked for. */
static mr_status check_frame(const mr_device_link *l, const mr_frame *f, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    uint64_t bytes = (uint64_t)f->rows * f->row_bytes;
    bool fits = !by_device(l) || (bytes > 0 && bytes <= l->desc.payload_bytes);
    if (f->by_device == by_device(l) && fits)
        return MR_OK;
    return mr_err_set(err, MR_E_PROTOCOL,
                      "message from %s: %" PRIu64 " bytes of rows that go by %s, on a hop of at most %zu bytes by %s",
                      mr_channel_peer_name(l->desc.channel, l->desc.peer, name), bytes,
                      f->by_device ? "device" : "host", l->desc.payload_bytes, by_device(l) ? "device" : "host");
}

/* Takes the frames that have come, and starts their transfers, while slots are free. */
static mr_status take_frames(mr_device_link *l, bool *did, mr_err *err) {
    for (;;) {
        mr_frame f;
        const uint8_t *payload;
        mr_status status = mr_inbox_peek(l->in, &f, &payload, err);
        if (status != MR_OK || !payload || l->n_taken - l->n_released == MR_DEVICE_LINK_SLOTS)
            return status;
        l->frames[l->n_taken % MR_DEVICE_LINK_SLOTS] = f;
        status = check_frame(l, &f, err);
        if (status == MR_OK)
            status =
                l->device.carrier->ops->start(l->device.carrier, l->device.address + device_link_slot(l, l->n_taken),
                                              (size_t)f.rows * f.row_bytes, err);
        if (status == MR_OK)
            status = mr_inbox_release(l->in, err);
        if (status != MR_OK)
            return status;
        if (l->n_taken == l->n_done)
            l->taken_ns = mr_clock_now_ns();
        l->n_taken++;
        *did = true;
    }
}

static mr_status check_time(const mr_device_link *l, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES];
    if (l->n_done == l->n_taken || mr_clock_now_ns() - l->taken_ns < TRANSFER_NS)
        return MR_OK;
    return mr_err_set(err, MR_E_TIMEOUT, "rows from %s do not arrive by %s: %d s have passed since their message",
                      mr_channel_peer_name(l->desc.channel, l->desc.peer, name), mr_way_name(l->way),
                      (int)(TRANSFER_NS / MR_NS_PER_S));
}

/* Whether the loss of the sender matters: rows are on their way, or the caller wants rows and there are none. At the
 * end of a job the peer may be the first to leave. */
static bool needs_peer(const mr_device_link *l, bool wants_rows) {
    return l->n_done < l->n_taken || (wants_rows && l->n_done == l->n_released);
}

static mr_status poll_transfers(mr_device_link *l, bool wants_rows, bool *did, mr_err *err) {
    mr_carried carried = {0};
    mr_status status = l->in ? take_frames(l, did, err) : MR_OK;
    if (status == MR_E_PEER_LOST && !needs_peer(l, wants_rows))
        status = MR_OK;
    if (status == MR_OK)
        status = l->device.carrier->ops->poll(l->device.carrier, &carried, err);
    if (status != MR_OK)
        return status;
    uint64_t n_done = carried.n_done - l->n_first;
    if (n_done > l->n_done) {
        l->taken_ns = mr_clock_now_ns();
        *did = true;
    }
    l->n_done = n_done;
    return l->out ? send_frames(l, &carried, did, err) : check_time(l, err);
}

mr_status mr_device_link_poll(mr_device_link *l, bool *did, mr_err *err) {
    if (l->state != SETUP_OPEN)
        return device_link_poll_setup(l, did, err);
    return by_device(l) ? poll_transfers(l, false, did, err) : MR_OK;
}

/* --- Rows -------------------------------------------------------------------------------------------------------- */

mr_status mr_device_link_reserve(mr_device_link *l, mr_link_rows *out, bool *out_free, mr_err *err) {
    mr_link_rows rows = {0};
    bool did = false;
    mr_status status = by_device(l) ? mr_device_link_poll(l, &did, err) : mr_outbox_reserve(l->out, &rows.host, err);
    if (status != MR_OK)
        return status;
    *out_free = by_device(l) ? l->n_kept - l->n_done < MR_DEVICE_LINK_SLOTS : rows.host != NULL;
    if (by_device(l))
        rows.device_offset = device_link_slot(l, l->n_kept);
    *out = rows;
    return MR_OK;
}

void mr_device_link_keep(mr_device_link *l) {
    if (by_device(l))
        l->n_kept++;
    else
        mr_outbox_keep(l->out);
}

mr_status mr_device_link_send(mr_device_link *l, const mr_frame *frame, mr_err *err) {
    if (!by_device(l))
        return mr_outbox_send(l->out, frame, err);
    bool did = false;
    mr_frame *f = &l->frames[l->n_started % MR_DEVICE_LINK_SLOTS];
    MR_ASSERT(l->n_started < l->n_kept);
    *f = *frame;
    f->by_device = true;
    f->payload_bytes = 0;
    mr_status status = l->device.carrier->ops->start(
        l->device.carrier, l->device.address + device_link_slot(l, l->n_started), (size_t)frame->payload_bytes, err);
    l->n_started += status == MR_OK;
    return status == MR_OK ? mr_device_link_poll(l, &did, err) : status;
}

mr_status mr_device_link_peek(mr_device_link *l, mr_frame *out, mr_link_rows *out_rows, bool *out_here, mr_err *err) {
    const uint8_t *payload = NULL;
    mr_link_rows rows = {0};
    bool did = false;
    mr_status status = by_device(l) ? poll_transfers(l, true, &did, err) : mr_inbox_peek(l->in, out, &payload, err);
    if (status == MR_OK && payload)
        status = check_frame(l, out, err);
    if (status != MR_OK)
        return status;
    rows.host = (uint8_t *)(uintptr_t)payload;
    *out_here = payload != NULL;
    if (by_device(l) && l->n_done > l->n_released) {
        *out = l->frames[l->n_released % MR_DEVICE_LINK_SLOTS];
        rows.device_offset = device_link_slot(l, l->n_released);
        *out_here = true;
    }
    *out_rows = rows;
    return MR_OK;
}

mr_status mr_device_link_release(mr_device_link *l, mr_err *err) {
    if (!by_device(l))
        return mr_inbox_release(l->in, err);
    MR_ASSERT(l->n_released < l->n_done);
    l->n_released++;
    return MR_OK;
}
