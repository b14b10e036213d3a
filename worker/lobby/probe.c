/* worker/lobby/probe.c - a rank sends messages and times the answers, while the other rank echoes a small message for
 * each; then the two ranks swap roles. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/lobby/probe.h"

#include <string.h>

#include "engine/base/clock.h"
#include "proto/link.h"

enum {
    SMALL_BYTES = 64,
    LEAST_BYTES = 16 << 10, /* size of the first large message; grows until a message takes LARGE_NS */
    MOST_BYTES = 4 << 20,
    N_WARM = 4,
    N_SMALL = 64,
    N_LARGE = 5,
    N_SLOTS = 1,
};
/* A message that takes longer than LARGE_NS is large enough. After ENOUGH_NS no large message is repeated. */
static const int64_t PATIENCE_NS = 20 * MR_NS_PER_S, SMALL_NS = MR_NS_PER_S / 10, LARGE_NS = 3 * MR_NS_PER_MS,
                     ENOUGH_NS = MR_NS_PER_S / 5;

/* What a message asks for; sent as the step of its frame. */
enum { ASK_ECHO = 1, ASK_END = 2 };

typedef struct probe {
    const mr_probe_config *config;
    mr_inbox *in;
    mr_outbox *out;
    int64_t deadline_ns;
} probe;

/* Waits for the channel, until the deadline of the probe. */
static mr_status wait(const probe *p, mr_err *err) {
    const mr_probe_config *c = p->config;
    char name[MR_CHANNEL_NAME_BYTES];
    if (c->told_to_end && c->told_to_end(c->ctx))
        return mr_err_set(err, MR_E_CANCELLED, "told to end");
    if (mr_clock_now_ns() >= p->deadline_ns)
        return mr_err_set(err, MR_E_TIMEOUT, "no answer from %s", mr_channel_peer_name(c->channel, c->peer, name));
    return mr_channel_wait(c->channel, p->deadline_ns, err);
}

static mr_status send(probe *p, uint64_t what, size_t bytes, mr_err *err) {
    uint8_t *payload = NULL;
    mr_status status = mr_outbox_reserve(p->out, &payload, err);
    while (status == MR_OK && !payload) {
        status = wait(p, err);
        if (status == MR_OK)
            status = mr_outbox_reserve(p->out, &payload, err);
    }
    const mr_frame frame = {.step = what, .rows = 1, .row_bytes = (uint32_t)bytes, .payload_bytes = bytes};
    return status == MR_OK ? mr_outbox_send(p->out, &frame, err) : status;
}

static mr_status receive(probe *p, uint64_t *out_what, mr_err *err) {
    const uint8_t *payload = NULL;
    mr_frame frame;
    mr_status status = mr_inbox_peek(p->in, &frame, &payload, err);
    while (status == MR_OK && !payload) {
        status = wait(p, err);
        if (status == MR_OK)
            status = mr_inbox_peek(p->in, &frame, &payload, err);
    }
    if (status != MR_OK)
        return status;
    *out_what = frame.step;
    return mr_inbox_release(p->in, err);
}

/* Answers every message with a small message, up to ASK_END. */
static mr_status answer(probe *p, mr_err *err) {
    uint64_t what = ASK_ECHO;
    while (what == ASK_ECHO) {
        mr_status status = receive(p, &what, err);
        if (status == MR_OK)
            status = send(p, what, SMALL_BYTES, err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* Sends a message and waits for the answer. */
static mr_status trip(probe *p, uint64_t what, size_t bytes, int64_t *out_ns, mr_err *err) {
    uint64_t ignored;
    int64_t start_ns = mr_clock_now_ns();
    mr_status status = send(p, what, bytes, err);
    if (status == MR_OK)
        status = receive(p, &ignored, err);
    *out_ns = mr_clock_now_ns() - start_ns;
    return status;
}

/* The median of the round trips and not the minimum: in a run the peer does not always look at the link at once. */
static mr_status ask_small(probe *p, int64_t *out_trip_ns, mr_err *err) {
    int64_t sorted[N_SMALL], end_ns = mr_clock_now_ns() + SMALL_NS, ns = 0;
    int n = 0;
    mr_status status = MR_OK;
    for (int i = 0; i < N_WARM && status == MR_OK; i++)
        status = trip(p, ASK_ECHO, SMALL_BYTES, &ns, err);
    while (status == MR_OK && n < N_SMALL && (n == 0 || mr_clock_now_ns() < end_ns)) {
        status = trip(p, ASK_ECHO, SMALL_BYTES, &ns, err);
        int i = n++;
        for (; i > 0 && sorted[i - 1] > ns; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = ns;
    }
    *out_trip_ns = n > 0 ? sorted[n / 2] : 0;
    return status;
}

/* The fastest of some messages, of a size that takes long enough to be timed. */
static mr_status ask_large(probe *p, int64_t small_ns, double *out_second_bytes, mr_err *err) {
    int64_t start_ns = mr_clock_now_ns(), ns = 0, best_ns = INT64_MAX;
    size_t bytes = LEAST_BYTES;
    mr_status status = trip(p, ASK_ECHO, bytes, &ns, err);
    while (status == MR_OK && ns < LARGE_NS && bytes < MOST_BYTES) {
        bytes *= 4;
        status = trip(p, ASK_ECHO, bytes, &ns, err);
    }
    for (int i = 0; i < N_LARGE && status == MR_OK && (i == 0 || mr_clock_now_ns() < start_ns + ENOUGH_NS); i++) {
        if (i > 0 || ns < LARGE_NS) /* otherwise the last message of the loop above counts as the first */
            status = trip(p, ASK_ECHO, bytes, &ns, err);
        best_ns = ns < best_ns ? ns : best_ns;
    }
    /* Subtracts the round trip of a small message, but leaves at least a quarter: noise must not make the time zero. */
    int64_t net_ns = best_ns - small_ns > best_ns / 4 ? best_ns - small_ns : best_ns / 4 + 1;
    *out_second_bytes = (double)bytes * (double)MR_NS_PER_S / (double)net_ns;
    return status;
}

static mr_status ask(probe *p, double *out_latency_s, double *out_second_bytes, mr_err *err) {
    int64_t small_ns = 0, ignored;
    mr_status status = ask_small(p, &small_ns, err);
    if (status == MR_OK)
        status = ask_large(p, small_ns, out_second_bytes, err);
    if (status == MR_OK)
        status = trip(p, ASK_END, SMALL_BYTES, &ignored, err);
    *out_latency_s = (double)small_ns / 2 / (double)MR_NS_PER_S;
    return status;
}

mr_status mr_probe_link(const mr_probe_config *config, double *out_latency_s, double *out_second_bytes, mr_err *err) {
    probe p = {.config = config, .deadline_ns = mr_clock_now_ns() + PATIENCE_NS};
    double latency_s = 0, second_bytes = 0;
    mr_status status =
        mr_inbox_create(config->channel, config->peer, MR_LINK_ACTIVATIONS, 0, N_SLOTS, MOST_BYTES, &p.in, err);
    if (status == MR_OK)
        status =
            mr_outbox_create(config->channel, config->peer, MR_LINK_ACTIVATIONS, 0, N_SLOTS, MOST_BYTES, &p.out, err);
    if (status == MR_OK && config->answers_first)
        status = answer(&p, err);
    if (status == MR_OK)
        status = ask(&p, &latency_s, &second_bytes, err);
    if (status == MR_OK && !config->answers_first)
        status = answer(&p, err);
    if (status == MR_OK) {
        mr_outbox_flush(p.out, p.deadline_ns);
        *out_latency_s = latency_s;
        *out_second_bytes = second_bytes;
    }
    mr_outbox_destroy(p.out);
    mr_inbox_destroy(p.in);
    return status;
}
