/* proto/carrier_channel.c - posts the payloads of a device link on the channel, and tests them in their order. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/carrier_channel.h"

#include <string.h>

#include "engine/base/mem.h"
#include "proto/link.h"

typedef struct channel_carrier {
    mr_carrier base;
    mr_channel_carrier_desc desc;
    uint64_t n_started, n_done;
    mr_channel_request requests[MR_CARRIER_TRANSFERS]; /* of transfer i: i % MR_CARRIER_TRANSFERS */
} channel_carrier;

/* The channel needs no id to connect. */
static mr_status make_id(mr_carrier *base, uint8_t out[MR_CARRIER_ID_BYTES], mr_err *err) {
    (void)base;
    (void)err;
    memset(out, 0, MR_CARRIER_ID_BYTES);
    return MR_OK;
}

static mr_status connect_now(mr_carrier *base, const uint8_t id[MR_CARRIER_ID_BYTES], mr_err *err) {
    (void)base;
    (void)id;
    (void)err;
    return MR_OK;
}

static mr_status poll_connect(mr_carrier *base, bool *out_connected, mr_err *err) {
    (void)base;
    (void)err;
    *out_connected = true;
    return MR_OK;
}

static mr_status start(mr_carrier *base, void *address, size_t bytes, mr_err *err) {
    channel_carrier *c = (channel_carrier *)base;
    const mr_channel_carrier_desc *d = &c->desc;
    uint32_t tag = mr_link_tag(MR_LINK_PAYLOAD, d->epoch);
    mr_channel_request *request = &c->requests[c->n_started % MR_CARRIER_TRANSFERS];
    if (c->n_started - c->n_done >= MR_CARRIER_TRANSFERS)
        return mr_err_set(err, MR_E_INTERNAL, "more than %d payloads of a link are under way", MR_CARRIER_TRANSFERS);
    mr_status status = d->is_sender ? mr_channel_post_send(d->channel, d->peer, tag, address, bytes, request, err)
                                    : mr_channel_post_recv(d->channel, d->peer, tag, address, bytes, request, err);
    c->n_started += status == MR_OK;
    return status;
}

static mr_status poll(mr_carrier *base, mr_carried *out, mr_err *err) {
    channel_carrier *c = (channel_carrier *)base;
    mr_completion done = {.done = true};
    while (c->n_done < c->n_started && done.done) {
        mr_channel_request *request = &c->requests[c->n_done % MR_CARRIER_TRANSFERS];
        mr_status status = mr_channel_test(c->desc.channel, *request, &done, err);
        if (status != MR_OK || done.done)
            *request = 0;
        if (status != MR_OK)
            return status;
        c->n_done += done.done;
    }
    *out = (mr_carried){.n_launched = c->n_started, .n_done = c->n_done};
    return MR_OK;
}

static bool destroy(mr_carrier *base) {
    channel_carrier *c = (channel_carrier *)base;
    bool is_free = true;
    for (int32_t i = 0; i < MR_CARRIER_TRANSFERS; i++)
        is_free = mr_channel_cancel(c->desc.channel, c->requests[i]) && is_free;
    mr_free(c);
    return is_free;
}

mr_status mr_channel_carrier_create(const mr_channel_carrier_desc *desc, mr_carrier **out, mr_err *err) {
    static const mr_carrier_ops OPS = {.make_id = make_id,
                                       .connect = connect_now,
                                       .poll_connect = poll_connect,
                                       .start = start,
                                       .poll = poll,
                                       .destroy = destroy};
    channel_carrier *c = mr_alloc(sizeof *c);
    if (!desc->channel->takes_device_memory) {
        mr_free(c);
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "the MPI library does not take addresses of devices; hint: --link auto, or a library built "
                          "with CUDA");
    }
    if (!c)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a link between devices");
    *c = (channel_carrier){.base.ops = &OPS, .desc = *desc};
    *out = &c->base;
    return MR_OK;
}
