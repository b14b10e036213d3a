/* proto/device_link_setup.c - the two ends of a hop agree on the way of the activations, before the first step. The
 * sender offers the way of the plan, with the id of a connection. The receiver answers. Both connect and carry a first
 * small transfer, and tell each other whether it has arrived. If anything fails at one end, both take the way through
 * the hosts. Nobody waits here: the ends load their layers at different times. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/device_link_internal.h"

enum { ARENA_BYTES = 16 << 10, TRY_BYTES = 256 };
static const int64_t CONNECT_NS = 30 * MR_NS_PER_S; /* NCCL takes seconds on large hosts */

/* This end cannot have the way of the plan. The first reason stays. */
static void refuse(mr_device_link *l, const mr_err *why) {
    if (l->why.status == MR_OK)
        l->why = *why;
    device_link_drop_carrier(l);
}

mr_status device_link_begin_setup(mr_device_link *l, mr_err *err) {
    const mr_device_link_desc *d = &l->desc;
    mr_status status = mr_outbox_create(d->channel, d->peer, MR_LINK_CONTROL, d->epoch, MR_LINK_SETUP_SLOTS,
                                        MR_MAX_LINK_SETUP_BYTES, &l->setup_out, err);
    if (status == MR_OK)
        status = mr_inbox_create(d->channel, d->peer, MR_LINK_CONTROL, d->epoch, MR_LINK_SETUP_SLOTS,
                                 MR_MAX_LINK_SETUP_BYTES, &l->setup_in, err);
    if (status != MR_OK)
        return status;
    l->arena = mr_arena_create_whole(ARENA_BYTES);
    if (!l->arena)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the agreement on a link");
    if (!l->device.carrier && l->why.status == MR_OK)
        (void)mr_err_set(&l->why, MR_E_UNSUPPORTED, "this rank has no device for links");
    l->state = d->is_sender ? SETUP_OFFER : SETUP_AWAIT_OFFER;
    if (!d->is_sender || !l->device.carrier)
        return MR_OK;
    mr_err why;
    if (l->device.carrier->ops->make_id(l->device.carrier, l->id, &why) != MR_OK)
        refuse(l, &why);
    return MR_OK;
}

/* --- Messages ---------------------------------------------------------------------------------------------------- */

/* Sends what this end says in its state, and goes on to the next one when it is sent. */
static mr_status say(mr_device_link *l, Millrace__LinkSetup__Step step, setup_state next, bool *did, mr_err *err) {
    Millrace__LinkSetup m = MILLRACE__LINK_SETUP__INIT;
    bool sent = false;
    m.step = step;
    m.status = (uint32_t)l->why.status;
    m.text = l->why.status == MR_OK ? m.text : l->why.text;
    if (step == MILLRACE__LINK_SETUP__STEP__OFFER && l->why.status == MR_OK) {
        m.way = (uint32_t)l->desc.way;
        m.version = l->device.version;
        m.n_uuid = MR_DEVICE_UUID_WORDS;
        m.uuid = l->device.uuid;
        m.id = (ProtobufCBinaryData){MR_CARRIER_ID_BYTES, l->id};
    }
    mr_status status = mr_outbox_send_message(l->setup_out, &m.base, &sent, err);
    if (sent) {
        l->state = next;
        *did = true;
    }
    return status;
}

/* What the peer says; *out NULL: nothing yet. */
static mr_status hear(mr_device_link *l, Millrace__LinkSetup__Step step, Millrace__LinkSetup **out, mr_err *err) {
    mr_frame frame;
    const uint8_t *payload;
    *out = NULL;
    mr_status status = mr_inbox_peek(l->setup_in, &frame, &payload, err);
    if (status != MR_OK || !payload)
        return status;
    status = mr_msg_unpack_link_setup(payload, (size_t)frame.payload_bytes, l->arena, out, err);
    if (status == MR_OK && (*out)->step != step)
        status = mr_err_set(err, MR_E_PROTOCOL, "link setup has step %d where step %d belongs", (int)(*out)->step,
                            (int)step);
    return status == MR_OK ? mr_inbox_release(l->setup_in, err) : status;
}

/* Takes over the peer's reason against the way. */
static void note_refusal(mr_device_link *l, const Millrace__LinkSetup *m) {
    mr_err why;
    char name[MR_CHANNEL_NAME_BYTES];
    if (m->status == MR_OK)
        return;
    (void)mr_err_set(&why, (mr_status)m->status, "%s: %s", mr_channel_peer_name(l->desc.channel, l->desc.peer, name),
                     m->text);
    refuse(l, &why);
}

/* Whether the two devices can have the way of the offer. */
static void judge_offer(mr_device_link *l, const Millrace__LinkSetup *m) {
    mr_err why = {0};
    if (m->way != (uint32_t)l->desc.way)
        (void)mr_err_set(&why, MR_E_PROTOCOL, "the sender offers way %" PRIu32 ", the plan says %d", m->way,
                         (int)l->desc.way);
    else if (m->version != l->device.version)
        (void)mr_err_set(&why, MR_E_UNSUPPORTED, "the libraries have versions %" PRIu32 " and %" PRIu32, m->version,
                         l->device.version);
    else if (l->desc.way == MR_WAY_NCCL && memcmp(m->uuid, l->device.uuid, sizeof l->device.uuid) == 0)
        (void)mr_err_set(&why, MR_E_UNSUPPORTED,
                         "both stages are on one device, which NCCL does not connect to itself");
    else
        memcpy(l->id, m->id.data, MR_CARRIER_ID_BYTES);
    if (why.status != MR_OK)
        refuse(l, &why);
}

/* --- The states -------------------------------------------------------------------------------------------------- */

static void begin_connect(mr_device_link *l) {
    mr_err why;
    l->state = SETUP_CONNECT;
    l->deadline_ns = mr_clock_now_ns() + CONNECT_NS;
    if (l->device.carrier->ops->connect(l->device.carrier, l->id, &why) != MR_OK) {
        refuse(l, &why);
        l->state = SETUP_RESULT;
    }
}

static mr_status await_offer(mr_device_link *l, bool *did, mr_err *err) {
    Millrace__LinkSetup *m;
    mr_status status = hear(l, MILLRACE__LINK_SETUP__STEP__OFFER, &m, err);
    if (status != MR_OK || !m)
        return status;
    if (m->status != MR_OK)
        note_refusal(l, m);
    else if (l->device.carrier)
        judge_offer(l, m);
    l->state = SETUP_ANSWER;
    *did = true;
    return MR_OK;
}

/* The way through the hosts, unless the plan forbids it. */
static mr_status fall_back(mr_device_link *l, mr_err *err) {
    device_link_drop_carrier(l);
    if (!l->desc.must)
        return device_link_open(l, MR_WAY_HOST, err);
    return mr_err_set(err, MR_E_UNSUPPORTED, "activations cannot go by %s: %.300s; hint: --link auto takes another way",
                      mr_way_name(l->desc.way), l->why.text);
}

static mr_status answer(mr_device_link *l, bool *did, mr_err *err) {
    mr_status status = say(l, MILLRACE__LINK_SETUP__STEP__ANSWER, SETUP_CONNECT, did, err);
    if (status != MR_OK || l->state != SETUP_CONNECT)
        return status;
    if (l->why.status != MR_OK)
        return fall_back(l, err);
    begin_connect(l);
    return MR_OK;
}

static mr_status await_answer(mr_device_link *l, bool *did, mr_err *err) {
    Millrace__LinkSetup *m;
    mr_status status = hear(l, MILLRACE__LINK_SETUP__STEP__ANSWER, &m, err);
    if (status != MR_OK || !m)
        return status;
    *did = true;
    note_refusal(l, m);
    if (l->why.status != MR_OK)
        return fall_back(l, err);
    begin_connect(l);
    return MR_OK;
}

/* Hears the peer's result, which may come while this end still connects. */
static mr_status hear_result(mr_device_link *l, bool *did, mr_err *err) {
    Millrace__LinkSetup *m = NULL;
    mr_status status = l->has_result ? MR_OK : hear(l, MILLRACE__LINK_SETUP__STEP__RESULT, &m, err);
    if (status != MR_OK || !m)
        return status;
    l->has_result = *did = true;
    note_refusal(l, m);
    return MR_OK;
}

/* Looks whether the connection or the first transfer has come to an end, good or bad. */
static void look_at_carrier(mr_device_link *l, bool *did) {
    mr_carrier *c = l->device.carrier;
    mr_err why;
    bool is_connected = false;
    mr_carried carried = {0};
    mr_status status =
        l->state == SETUP_CONNECT ? c->ops->poll_connect(c, &is_connected, &why) : c->ops->poll(c, &carried, &why);
    if (status == MR_OK && is_connected) {
        size_t bytes = l->device.slot_bytes < TRY_BYTES ? l->device.slot_bytes : TRY_BYTES;
        status = c->ops->start(c, l->device.address, bytes, &why);
        l->state = SETUP_TRY;
        *did = true;
    }
    if (status == MR_OK && mr_clock_now_ns() >= l->deadline_ns)
        status = mr_err_set(&why, MR_E_TIMEOUT, "%s has not connected the two devices in %d s",
                            mr_way_name(l->desc.way), (int)(CONNECT_NS / MR_NS_PER_S));
    if (status != MR_OK)
        refuse(l, &why);
    else if (carried.n_done == 0)
        return;
    l->n_first = 1;
    l->state = SETUP_RESULT;
    *did = true;
}

static mr_status go_on_connecting(mr_device_link *l, bool *did, mr_err *err) {
    mr_status status = hear_result(l, did, err);
    if (status != MR_OK)
        return status;
    if (l->device.carrier)
        look_at_carrier(l, did);
    else
        l->state = SETUP_RESULT;
    return MR_OK;
}

static mr_status await_result(mr_device_link *l, bool *did, mr_err *err) {
    mr_status status = hear_result(l, did, err);
    if (status != MR_OK || !l->has_result)
        return status;
    *did = true;
    return l->why.status == MR_OK ? device_link_open(l, l->desc.way, err) : fall_back(l, err);
}

mr_status device_link_poll_setup(mr_device_link *l, bool *did, mr_err *err) {
    switch (l->state) {
    case SETUP_OFFER:
        return say(l, MILLRACE__LINK_SETUP__STEP__OFFER, SETUP_AWAIT_ANSWER, did, err);
    case SETUP_AWAIT_OFFER:
        return await_offer(l, did, err);
    case SETUP_ANSWER:
        return answer(l, did, err);
    case SETUP_AWAIT_ANSWER:
        return await_answer(l, did, err);
    case SETUP_CONNECT:
    case SETUP_TRY:
        return go_on_connecting(l, did, err);
    case SETUP_RESULT:
        return say(l, MILLRACE__LINK_SETUP__STEP__RESULT, SETUP_AWAIT_RESULT, did, err);
    case SETUP_AWAIT_RESULT:
        return await_result(l, did, err);
    case SETUP_OPEN:
        return MR_OK;
    }
    return MR_OK;
}
