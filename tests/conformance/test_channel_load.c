// SPDX-License-Identifier: Apache-2.0
/* Many messages of random sizes between several endpoints. Sending and receiving allocates nothing. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "test_channel.h"

enum { TAG = 3, MAX_BYTES = 64 << 10 };

/* Random number i of a stream, below n. */
static uint32_t draw(const endpoint *e, uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(mr_rng_f32(e->seed, stream, i) * (float)n);
}

static size_t ping_bytes(const endpoint *e, uint64_t i) {
    return i % 3 == 0 ? draw(e, 1, i, MAX_BYTES + 1) : draw(e, 1, i, 200);
}

/* 0 sends, 1 checks and sends back something else. Nothing is allocated on the way. */
static bool ping_pong_in(endpoint *e, uint8_t *data) {
    enum { N = 400 };
    int32_t peer = 1 - e->self;
    uint64_t n_allocs = 0;
    for (uint64_t i = 0; i < 2 * N; i++) {
        size_t bytes = ping_bytes(e, i), got = 0;
        if (i == 2)
            n_allocs = mr_mem_thread_allocs();
        if ((int32_t)(i % 2) == e->self) {
            fill_pattern(data, bytes, e->seed, i);
            CHECK(e, send_now(e->ch, peer, TAG, data, bytes) == MR_OK);
        } else {
            CHECK(e, recv_now(e->ch, peer, TAG, data, MAX_BYTES, &got) == MR_OK && got == bytes);
            CHECK(e, has_pattern(data, got, e->seed, i));
        }
    }
    CHECK(e, mr_mem_thread_allocs() == n_allocs);
    return true;
}

static bool ping_pong(endpoint *e) {
    uint8_t *data = mr_alloc(MAX_BYTES);
    CHECK(e, data);
    bool ok = ping_pong_in(e, data);
    mr_free(data);
    return ok;
}

/* Every endpoint sends to the next, and passes on what it gets, with several messages under way at once. */
static bool ring(endpoint *e) {
    enum { ROUNDS = 60, WORDS = 257 };
    uint32_t in[WORDS], out[WORDS];
    int32_t next = (e->self + 1) % e->n, previous = (e->self + e->n - 1) % e->n;
    for (uint32_t i = 0; i < WORDS; i++)
        out[i] = (uint32_t)e->self * WORDS + i;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        mr_channel_request sending = 0, receiving = 0;
        CHECK(e, mr_channel_post_recv(e->ch, previous, TAG, in, sizeof in, &receiving, NULL) == MR_OK);
        CHECK(e, mr_channel_post_send(e->ch, next, TAG, out, sizeof out, &sending, NULL) == MR_OK);
        CHECK(e, finish(e->ch, receiving, NULL) == MR_OK && finish(e->ch, sending, NULL) == MR_OK);
        for (uint32_t i = 0; i < WORDS; i++)
            out[i] = in[i] + round;
    }
    /* The values have come round from the endpoint ROUNDS places before. */
    uint32_t from = (uint32_t)((e->self + e->n - ROUNDS % e->n) % e->n), sum = ROUNDS * (ROUNDS - 1) / 2;
    for (uint32_t i = 0; i < WORDS; i++)
        CHECK(e, out[i] == from * WORDS + i + sum);
    return true;
}

/* The random traffic of one pair: message i of sender to receiver goes with a random tag and size; those of a tag are
 * numbered, so that the receiver can tell their order. */
enum { PAIR_MESSAGES = 90, PAIR_TAGS = 3, PAIR_DEPTH = 6, PAIR_BYTES = 3000 };

static uint64_t pair_stream(int32_t sender, int32_t receiver) {
    return 1000 + (uint64_t)sender * 16 + (uint64_t)receiver;
}

typedef struct flow {
    bool sends;
    int32_t peer;
    uint32_t started, finished; /* messages */
    mr_channel_request requests[PAIR_DEPTH];
    size_t sizes[PAIR_DEPTH];
    uint8_t data[PAIR_DEPTH][PAIR_BYTES];
} flow;

static bool flow_start(endpoint *e, flow *f) {
    uint32_t i = f->started, slot = i % PAIR_DEPTH;
    uint64_t stream = f->sends ? pair_stream(e->self, f->peer) : pair_stream(f->peer, e->self);
    uint32_t tag = 20 + draw(e, stream, 2 * i, PAIR_TAGS);
    size_t bytes = draw(e, stream, 2 * i + 1, PAIR_BYTES);
    mr_status status;
    f->sizes[slot] = bytes;
    if (f->sends) {
        fill_pattern(f->data[slot], bytes, stream, i);
        status = mr_channel_post_send(e->ch, f->peer, tag, f->data[slot], bytes, &f->requests[slot], NULL);
    } else {
        status = mr_channel_post_recv(e->ch, f->peer, tag, f->data[slot], PAIR_BYTES, &f->requests[slot], NULL);
    }
    CHECK(e, status == MR_OK);
    f->started++;
    return true;
}

/* Goes as far as it can without waiting. */
static bool flow_advance(endpoint *e, flow *f) {
    mr_completion c = {.done = true};
    while (f->started < PAIR_MESSAGES && f->started - f->finished < PAIR_DEPTH)
        if (!flow_start(e, f))
            return false;
    while (f->finished < f->started && c.done) {
        uint32_t i = f->finished, slot = i % PAIR_DEPTH;
        CHECK(e, mr_channel_test(e->ch, f->requests[slot], &c, NULL) == MR_OK);
        if (!c.done)
            break;
        CHECK(e, c.bytes == f->sizes[slot]);
        if (!f->sends)
            CHECK(e, has_pattern(f->data[slot], c.bytes, pair_stream(f->peer, e->self), i));
        f->finished++;
    }
    return true;
}

/* All endpoints send to all, themselves too. */
static bool traffic(endpoint *e) {
    size_t n_flows = 2 * (size_t)e->n, n_done = 0;
    flow *flows = mr_alloc_array(n_flows, sizeof *flows);
    bool ok = flows != NULL;
    for (size_t i = 0; i < n_flows && ok; i++)
        flows[i] = (flow){.sends = i % 2 == 0, .peer = (int32_t)(i / 2)};
    while (n_done < n_flows && ok) {
        n_done = 0;
        for (size_t i = 0; i < n_flows && ok; i++) {
            ok = flow_advance(e, &flows[i]);
            n_done += flows[i].finished == PAIR_MESSAGES;
        }
        /* A flow that has finished messages may start new ones: only then is there nothing to do but wait. */
        bool idle = true;
        for (size_t i = 0; i < n_flows && ok; i++)
            idle = idle && (flows[i].started == PAIR_MESSAGES || flows[i].started - flows[i].finished == PAIR_DEPTH);
        if (ok && idle && n_done < n_flows)
            ok = mr_channel_wait(e->ch, INT64_MAX, NULL) == MR_OK;
    }
    mr_free(flows);
    CHECK(e, ok);
    return true;
}

const channel_test channel_load_tests[] = {
    {"ping-pong of random sizes, without allocations", ping_pong, 2},
    {"a ring of 8 endpoints", ring, 8},
    {"random traffic between 5 endpoints", traffic, 5},
    {NULL, NULL, 0},
};
