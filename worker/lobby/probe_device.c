/* worker/lobby/probe_device.c - the sender times payloads of two sizes until their answers come. From this it takes the
 * time of an answer, which it measures by messages of the same size. The answers go over links of their own, so that
 * the hop has one direction, as in a run. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/probe_device.h"

#include <string.h>

#include "backends/pinned.h"
#include "engine/base/clock.h"
#include "proto/device_link.h"
#include "proto/link.h"
#include "worker/link_device.h"

enum {
    SMALL_BYTES = 64,
    TEXT_BYTES = 128,       /* of the reason of an end that has failed, in its last message */
    LEAST_BYTES = 64 << 10, /* size of the first large payload; grows until a payload takes LARGE_NS */
    MOST_BYTES = 4 << 20,
    N_WARM = 2,
    N_SMALL = 24,
    N_LARGE = 4,
};
static const int64_t OPEN_NS = 40 * MR_NS_PER_S, /* longer than a device link waits for its carrier */
    PATIENCE_NS = 10 * MR_NS_PER_S, SMALL_NS = MR_NS_PER_S / 10, LARGE_NS = 3 * MR_NS_PER_MS,
                     ENOUGH_NS = MR_NS_PER_S / 5, TELL_NS = MR_NS_PER_S / 10, LOOK_NS = 20000;

/* What a message asks for; sent as the step of its frame. */
enum { ASK_ECHO = 1, ASK_END = 2, HAS_FAILED = 3 };

typedef struct probe {
    const mr_probe_device_config *config;
    mr_device_link *link;
    mr_buffer *slots, *rows; /* rows: [MOST_BYTES] on the device, where a graph would have them */
    mr_pinned pinned;        /* the memory of the link on the host */
    mr_inbox *in;            /* of small messages */
    mr_outbox *out;
    int64_t deadline_ns;
} probe;

/* --- Waiting ----------------------------------------------------------------------------------------------------- */

/* Goes on with the link, and waits for the channel a moment, until the deadline. */
static mr_status wait(probe *p, mr_err *err) {
    const mr_probe_device_config *c = p->config;
    char name[MR_CHANNEL_NAME_BYTES];
    bool did = false;
    int64_t now = mr_clock_now_ns();
    if (c->told_to_end && c->told_to_end(c->ctx))
        return mr_err_set(err, MR_E_CANCELLED, "told to end");
    if (now >= p->deadline_ns)
        return mr_err_set(err, MR_E_TIMEOUT, "no answer from %s by %s", mr_channel_peer_name(c->channel, c->peer, name),
                          mr_way_name(c->way));
    mr_status status = mr_device_link_poll(p->link, &did, err);
    if (status != MR_OK || did)
        return status;
    return mr_channel_wait(c->channel, mr_device_link_is_busy(p->link) ? now + LOOK_NS : p->deadline_ns, err);
}

static mr_status wait_for_device(const probe *p, mr_fence fence, mr_err *err) {
    mr_backend *be = p->config->device;
    return be->ops->wait(be, fence, p->deadline_ns, err);
}

/* --- Small messages ---------------------------------------------------------------------------------------------- */

static mr_status say(probe *p, uint64_t what, mr_err *err) {
    uint8_t *payload = NULL;
    mr_status status = mr_outbox_reserve(p->out, &payload, err);
    while (status == MR_OK && !payload) {
        status = wait(p, err);
        if (status == MR_OK)
            status = mr_outbox_reserve(p->out, &payload, err);
    }
    const mr_frame frame = {.step = what, .rows = 1, .row_bytes = SMALL_BYTES, .payload_bytes = SMALL_BYTES};
    return status == MR_OK ? mr_outbox_send(p->out, &frame, err) : status;
}

/* The peer has failed; text: why, n bytes of it. */
static mr_status peer_failed(const probe *p, const uint8_t *text, size_t n, mr_err *err) {
    char name[MR_CHANNEL_NAME_BYTES], why[TEXT_BYTES];
    size_t at = 0;
    for (; at < n && at + 1 < sizeof why && text[at]; at++)
        why[at] = text[at] >= ' ' && text[at] <= '~' ? (char)text[at] : '?';
    why[at] = 0;
    return mr_err_set(err, MR_E_IO, "%s: %s", mr_channel_peer_name(p->config->channel, p->config->peer, name), why);
}

/* Whether a message is here, which stays. An error if it says that the peer has failed. */
static mr_status look(probe *p, uint64_t *out_what, mr_err *err) {
    const uint8_t *payload = NULL;
    mr_frame frame;
    *out_what = 0;
    mr_status status = mr_inbox_peek(p->in, &frame, &payload, err);
    if (status == MR_OK && payload)
        *out_what = frame.step;
    if (*out_what == HAS_FAILED)
        status = peer_failed(p, payload, (size_t)frame.payload_bytes, err);
    return status;
}

static mr_status hear(probe *p, uint64_t *out_what, mr_err *err) {
    mr_status status = look(p, out_what, err);
    while (status == MR_OK && *out_what == 0) {
        status = wait(p, err);
        if (status == MR_OK)
            status = look(p, out_what, err);
    }
    return status == MR_OK ? mr_inbox_release(p->in, err) : status;
}

/* --- Payloads ---------------------------------------------------------------------------------------------------- */

/* Copies between the rows and where the link has them. */
static mr_status copy(const probe *p, const mr_link_rows *at, size_t bytes, mr_err *err) {
    mr_backend *be = p->config->device;
    bool sends = p->config->is_sender;
    mr_fence fence = 0;
    mr_status status;
    if (at->host)
        status = sends ? be->ops->get(be, p->rows, 0, at->host, bytes, &fence, err)
                       : be->ops->set(be, p->rows, 0, at->host, bytes, &fence, err);
    else
        status = sends ? be->ops->link->copy(be, p->slots, at->device_offset, p->rows, 0, bytes, &fence, err)
                       : be->ops->link->copy(be, p->rows, 0, p->slots, at->device_offset, bytes, &fence, err);
    return status == MR_OK ? wait_for_device(p, fence, err) : status;
}

static mr_status send(probe *p, uint64_t what, size_t bytes, mr_err *err) {
    mr_link_rows at;
    bool is_free = false;
    mr_status status = mr_device_link_reserve(p->link, &at, &is_free, err);
    while (status == MR_OK && !is_free) {
        status = wait(p, err);
        if (status == MR_OK)
            status = mr_device_link_reserve(p->link, &at, &is_free, err);
    }
    if (status == MR_OK)
        status = copy(p, &at, bytes, err);
    if (status != MR_OK)
        return status;
    const mr_frame frame = {.step = what, .rows = 1, .row_bytes = (uint32_t)bytes, .payload_bytes = bytes};
    mr_device_link_keep(p->link);
    return mr_device_link_send(p->link, &frame, err);
}

/* Takes a payload. It may be that the peer says instead that it has failed. */
static mr_status receive(probe *p, uint64_t *out_what, mr_err *err) {
    mr_link_rows at;
    mr_frame frame;
    bool is_here = false;
    uint64_t said;
    mr_status status = mr_device_link_peek(p->link, &frame, &at, &is_here, err);
    while (status == MR_OK && !is_here) {
        status = look(p, &said, err);
        if (status == MR_OK)
            status = wait(p, err);
        if (status == MR_OK)
            status = mr_device_link_peek(p->link, &frame, &at, &is_here, err);
    }
    if (status != MR_OK)
        return status;
    *out_what = frame.step;
    status = copy(p, &at, (size_t)frame.rows * frame.row_bytes, err);
    return status == MR_OK ? mr_device_link_release(p->link, err) : status;
}

/* --- The sender -------------------------------------------------------------------------------------------------- */

/* Sends a payload, or a message without any if bytes is 0, and waits for the answer. */
static mr_status trip(probe *p, uint64_t what, size_t bytes, int64_t *out_ns, mr_err *err) {
    uint64_t ignored;
    int64_t start_ns = mr_clock_now_ns();
    mr_status status = bytes > 0 ? send(p, what, bytes, err) : say(p, what, err);
    if (status == MR_OK)
        status = hear(p, &ignored, err);
    *out_ns = mr_clock_now_ns() - start_ns;
    return status;
}

/* The median of round trips, as in probe.c. */
static mr_status ask_small(probe *p, size_t bytes, int64_t *out_ns, mr_err *err) {
    int64_t sorted[N_SMALL], end_ns = mr_clock_now_ns() + SMALL_NS, ns = 0;
    int n = 0;
    mr_status status = MR_OK;
    for (int i = 0; i < N_WARM && status == MR_OK; i++)
        status = trip(p, ASK_ECHO, bytes, &ns, err);
    while (status == MR_OK && n < N_SMALL && (n == 0 || mr_clock_now_ns() < end_ns)) {
        status = trip(p, ASK_ECHO, bytes, &ns, err);
        int i = n++;
        for (; i > 0 && sorted[i - 1] > ns; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = ns;
    }
    *out_ns = n > 0 ? sorted[n / 2] : 0;
    return status;
}

/* The fastest of some payloads, of a size that takes long enough to be timed. */
static mr_status ask_large(probe *p, int64_t *out_ns, size_t *out_bytes, mr_err *err) {
    int64_t start_ns = mr_clock_now_ns(), ns = 0, best_ns = INT64_MAX;
    size_t bytes = LEAST_BYTES;
    mr_status status = trip(p, ASK_ECHO, bytes, &ns, err);
    while (status == MR_OK && ns < LARGE_NS && bytes < MOST_BYTES) {
        bytes *= 4;
        status = trip(p, ASK_ECHO, bytes, &ns, err);
    }
    for (int i = 0; i < N_LARGE && status == MR_OK && (i == 0 || mr_clock_now_ns() < start_ns + ENOUGH_NS); i++) {
        status = trip(p, ASK_ECHO, bytes, &ns, err);
        best_ns = ns < best_ns ? ns : best_ns;
    }
    *out_ns = best_ns;
    *out_bytes = bytes;
    return status;
}

/* A time without a part of it, but at least a quarter: noise must not make the time zero. */
static int64_t without(int64_t ns, int64_t part_ns) {
    return ns - part_ns > ns / 4 ? ns - part_ns : ns / 4 + 1;
}

static mr_status ask(probe *p, double *out_latency_s, double *out_second_bytes, mr_err *err) {
    int64_t message_ns = 0, small_ns = 0, large_ns = 0, ignored;
    size_t bytes = 0;
    mr_status status = ask_small(p, 0, &message_ns, err);
    if (status == MR_OK)
        status = trip(p, ASK_END, 0, &ignored, err);
    if (status == MR_OK)
        status = ask_small(p, SMALL_BYTES, &small_ns, err);
    if (status == MR_OK)
        status = ask_large(p, &large_ns, &bytes, err);
    if (status == MR_OK)
        status = trip(p, ASK_END, SMALL_BYTES, &ignored, err);
    if (status != MR_OK)
        return status;
    *out_latency_s = (double)without(small_ns, message_ns / 2) / (double)MR_NS_PER_S;
    *out_second_bytes = (double)bytes * (double)MR_NS_PER_S / (double)without(large_ns, small_ns);
    return MR_OK;
}

/* --- The receiver ------------------------------------------------------------------------------------------------ */

/* Answers every message, and then every payload. */
static mr_status answer(probe *p, mr_err *err) {
    mr_status status = MR_OK;
    for (int of_payloads = 0; of_payloads < 2; of_payloads++)
        for (uint64_t what = ASK_ECHO; what == ASK_ECHO && status == MR_OK;) {
            status = of_payloads ? receive(p, &what, err) : hear(p, &what, err);
            if (status == MR_OK)
                status = say(p, what, err);
        }
    return status;
}

/* --- Both -------------------------------------------------------------------------------------------------------- */

static mr_status create_link(probe *p, mr_err *err) {
    const mr_probe_device_config *c = p->config;
    mr_channel_carrier_desc hop = {c->channel, c->peer, c->epoch, c->is_sender};
    mr_link_device device = {0};
    mr_err why = {0};
    bool has_device = c->way != MR_WAY_HOST &&
                      mr_link_device_take(c->device, &hop, c->way, MOST_BYTES, &p->slots, &device, &why) == MR_OK;
    const mr_device_link_desc desc = {.channel = c->channel,
                                      .peer = c->peer,
                                      .epoch = c->epoch,
                                      .is_sender = c->is_sender,
                                      .n_slots = 1,
                                      .payload_bytes = MOST_BYTES,
                                      .way = c->way,
                                      .must = true,
                                      .device = has_device ? &device : NULL,
                                      .why = has_device ? NULL : &why};
    return mr_device_link_create(&desc, &p->link, err);
}

static mr_status open_all(probe *p, mr_err *err) {
    const mr_probe_device_config *c = p->config;
    mr_backend *be = c->device;
    const mr_backends list = {.n = 1, .at = {be}};
    size_t bytes = 0;
    uint64_t said;
    mr_status status = mr_inbox_create(c->channel, c->peer, MR_LINK_TOKENS, c->epoch, 1, TEXT_BYTES, &p->in, err);
    if (status == MR_OK)
        status = mr_outbox_create(c->channel, c->peer, MR_LINK_TOKENS, c->epoch, 1, TEXT_BYTES, &p->out, err);
    if (status == MR_OK)
        status = create_link(p, err);
    if (status == MR_OK)
        status = be->ops->buffer_create(be, MOST_BYTES, &p->rows, err);
    while (status == MR_OK && !mr_device_link_is_open(p->link)) {
        status = look(p, &said, err);
        if (status == MR_OK)
            status = wait(p, err);
    }
    void *memory = status == MR_OK ? mr_device_link_memory(p->link, &bytes) : NULL;
    if (memory)
        mr_pinned_borrow(&list, memory, bytes, &p->pinned);
    return status;
}

/* Tells the peer that this end has failed, so that it does not wait. */
static void tell(probe *p, const mr_err *why) {
    uint8_t *payload = NULL;
    const mr_frame frame = {.step = HAS_FAILED, .rows = 1, .row_bytes = TEXT_BYTES, .payload_bytes = TEXT_BYTES};
    mr_err ignored;
    if (!p->out || mr_outbox_reserve(p->out, &payload, &ignored) != MR_OK || !payload)
        return;
    memset(payload, 0, TEXT_BYTES);
    memcpy(payload, why->text, strnlen(why->text, TEXT_BYTES - 1));
    (void)!mr_outbox_send(p->out, &frame, &ignored);
}

static void close_all(probe *p, int64_t flush_ns) {
    mr_backend *be = p->config->device;
    if (p->out)
        mr_outbox_flush(p->out, flush_ns);
    mr_device_link_stop(p->link);
    mr_pinned_destroy(&p->pinned);
    bool is_free = mr_device_link_destroy(p->link);
    mr_link_device_give_back(be, p->config->way, p->slots, is_free);
    if (p->rows)
        be->ops->buffer_destroy(be, p->rows);
    mr_outbox_destroy(p->out);
    mr_inbox_destroy(p->in);
}

mr_status mr_probe_device(const mr_probe_device_config *config, double *out_latency_s, double *out_second_bytes,
                          mr_err *err) {
    probe p = {.config = config, .deadline_ns = mr_clock_now_ns() + OPEN_NS};
    double latency_s = 0, second_bytes = 0;
    mr_status status = open_all(&p, err);
    p.deadline_ns = mr_clock_now_ns() + PATIENCE_NS;
    if (status == MR_OK)
        status = config->is_sender ? ask(&p, &latency_s, &second_bytes, err) : answer(&p, err);
    if (status != MR_OK)
        tell(&p, err);
    close_all(&p, status == MR_OK ? p.deadline_ns : mr_clock_now_ns() + TELL_NS);
    if (status == MR_OK && config->is_sender) {
        *out_latency_s = latency_s;
        *out_second_bytes = second_bytes;
    }
    return status;
}
