/* worker/link_device.c - slots and carriers, for the stage and for the lobby. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/link_device.h"

#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/nccl/nccl_carrier.h"

enum { SLOT_ALIGNMENT = 256 };
static const int64_t LOOK_NS = 20000, DRAIN_NS = MR_NS_PER_S;

_Static_assert(MR_DEVICE_UUID_WORDS * sizeof(uint64_t) == (size_t)MR_DEVICE_UUID_BYTES, "links compare devices");

/* --- The device, as carriers call it ----------------------------------------------------------------------------- */

static mr_status enter(void *ctx, mr_err *err) {
    mr_backend *be = ctx;
    return be->ops->link->enter(be, err);
}

static mr_status queue(void *ctx, void **out, mr_err *err) {
    mr_backend *be = ctx;
    return be->ops->link->queue(be, out, err);
}

static mr_status mark(void *ctx, uint64_t *out, mr_err *err) {
    mr_backend *be = ctx;
    return be->ops->link->mark(be, out, err);
}

static mr_status reached(void *ctx, uint64_t which, bool *out, mr_err *err) {
    mr_backend *be = ctx;
    return be->ops->link->reached(be, which, out, err);
}

/* --- Slots and carrier ------------------------------------------------------------------------------------------- */

size_t mr_link_device_bytes(size_t payload_bytes) {
    return MR_DEVICE_LINK_SLOTS * mr_round_up(payload_bytes, SLOT_ALIGNMENT);
}

size_t mr_link_device_stage_bytes(const mr_backend *be, int32_t max_rows, int32_t n_embd) {
    return be->ops->link ? 2 * mr_link_device_bytes((size_t)max_rows * (size_t)n_embd * sizeof(float)) : 0;
}

static mr_status create_carrier(mr_backend *be, const mr_channel_carrier_desc *hop, mr_way way, mr_link_device *out,
                                mr_err *err) {
    const mr_nccl_device device = {be, enter, queue, mark, reached};
    if (way == MR_WAY_POINTERS)
        return mr_channel_carrier_create(hop, &out->carrier, err);
    mr_status status = mr_nccl_version(&out->version, err);
    return status == MR_OK ? mr_nccl_carrier_create(&device, hop->is_sender, &out->carrier, err) : status;
}

mr_status mr_link_device_take(mr_backend *be, const mr_channel_carrier_desc *hop, mr_way way, size_t payload_bytes,
                              mr_buffer **out_slots, mr_link_device *out, mr_err *err) {
    uint8_t uuid[MR_DEVICE_UUID_BYTES];
    *out = (mr_link_device){.slot_bytes = mr_round_up(payload_bytes, SLOT_ALIGNMENT)};
    mr_status status = be->ops->buffer_create(be, mr_link_device_bytes(payload_bytes), out_slots, err);
    if (status == MR_OK)
        status = create_carrier(be, hop, way, out, err);
    if (status != MR_OK)
        return status;
    out->address = be->ops->link->address(*out_slots);
    be->ops->link->uuid(be, uuid);
    memcpy(out->uuid, uuid, sizeof uuid);
    return MR_OK;
}

/* Waits until the link's queue has no work, after its carriers are gone. False: it does not come to rest. */
static bool drain(mr_backend *be) {
    int64_t deadline_ns = mr_clock_now_ns() + DRAIN_NS;
    uint64_t last = 0;
    bool is_reached = false;
    void *unused;
    if (be->ops->link->queue(be, &unused, NULL) != MR_OK || be->ops->link->mark(be, &last, NULL) != MR_OK)
        return true; /* the device is broken, and does nothing any more */
    while (!is_reached && mr_clock_now_ns() < deadline_ns) {
        if (be->ops->link->reached(be, last, &is_reached, NULL) != MR_OK)
            return true;
        if (!is_reached)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
    }
    return is_reached;
}

void mr_link_device_give_back(mr_backend *be, mr_way way, mr_buffer *slots, bool is_free) {
    if (slots && is_free && (way != MR_WAY_NCCL || drain(be)))
        be->ops->buffer_destroy(be, slots);
}
