// SPDX-License-Identifier: Apache-2.0
#include "tests/support/channel_kill.h"

#include "engine/base/mem.h"

typedef struct mortal {
    mr_channel base; /* first */
    mr_channel *inner;
    channel_kill *kill;
} mortal;

static mortal *mortal_of(mr_channel *ch) {
    return (mortal *)ch;
}

static mr_status dead(mr_err *err) {
    return mr_err_set(err, MR_E_PEER_LOST, "this endpoint is dead");
}

static bool is_dead(mr_channel *ch) {
    return atomic_load(&mortal_of(ch)->kill->is_dead);
}

/* Counts a message. true: the endpoint dies with it. */
static bool dies_now(mortal *m) {
    if (atomic_fetch_add(&m->kill->n_sent, 1) + 1 != atomic_load(&m->kill->at))
        return false;
    atomic_store(&m->kill->is_dead, true); /* before anybody can notice the loss */
    mr_channel_destroy(m->inner);
    m->inner = NULL;
    return true;
}

static mr_status mortal_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                  mr_channel_request *out, mr_err *err) {
    if (is_dead(ch) || dies_now(mortal_of(ch)))
        return dead(err);
    return mr_channel_post_send(mortal_of(ch)->inner, peer, tag, data, bytes, out, err);
}

static mr_status mortal_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                  mr_channel_request *out, mr_err *err) {
    return is_dead(ch) ? dead(err) : mr_channel_post_recv(mortal_of(ch)->inner, peer, tag, buffer, capacity, out, err);
}

static mr_status mortal_test(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err) {
    return is_dead(ch) ? dead(err) : mr_channel_test(mortal_of(ch)->inner, request, out, err);
}

static bool mortal_cancel(mr_channel *ch, mr_channel_request request) {
    return is_dead(ch) ? true : mr_channel_cancel(mortal_of(ch)->inner, request);
}

static mr_status mortal_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    return is_dead(ch) ? dead(err) : mr_channel_wait(mortal_of(ch)->inner, deadline_ns, err);
}

/* Not for an endpoint that may die at the same moment. */
static void mortal_wake(mr_channel *ch) {
    if (!is_dead(ch))
        mr_channel_wake(mortal_of(ch)->inner);
}

static void mortal_destroy(mr_channel *ch) {
    mr_channel_destroy(mortal_of(ch)->inner);
    mr_free(ch);
}

mr_status channel_kill_wrap(channel_kill *kill, mr_channel **channel, mr_err *err) {
    static const mr_channel_ops OPS = {.name = "mortal",
                                       .post_send = mortal_post_send,
                                       .post_recv = mortal_post_recv,
                                       .test = mortal_test,
                                       .cancel = mortal_cancel,
                                       .wait = mortal_wait,
                                       .wake = mortal_wake,
                                       .destroy = mortal_destroy};
    mortal *m = mr_alloc(sizeof *m);
    if (!m)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a channel");
    *m = (mortal){.base = {.ops = &OPS, .self = (*channel)->self, .n_peers = (*channel)->n_peers},
                  .inner = *channel,
                  .kill = kill};
    *channel = &m->base;
    return MR_OK;
}
