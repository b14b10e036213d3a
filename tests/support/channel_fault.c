// SPDX-License-Identifier: Apache-2.0
#include "tests/support/channel_fault.h"

#include <string.h>

#include "engine/base/mem.h"

enum { MOST_WRONG = 8 };

typedef struct faulty {
    mr_channel base; /* first */
    mr_channel *inner;
    channel_fault *fault;
    uint8_t *wrong[MOST_WRONG]; /* copies of messages with a wrong byte: a send may still read its copy */
    int n_wrong;
} faulty;

static faulty *faulty_of(mr_channel *ch) {
    return (faulty *)ch;
}

static mr_status faulty_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    channel_fault *fault = faulty_of(ch)->fault;
    if (fault->status != MR_OK && atomic_load(&fault->is_on))
        return mr_err_set(err, fault->status, "%s", fault->text);
    return mr_channel_wait(faulty_of(ch)->inner, deadline_ns, err);
}

static mr_status faulty_post_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                                  mr_channel_request *out, mr_err *err) {
    faulty *f = faulty_of(ch);
    bool is_wrong = f->fault->status == MR_OK && peer == ch->n_peers - 1 && atomic_exchange(&f->fault->is_on, false);
    if (is_wrong && f->n_wrong < MOST_WRONG) {
        uint8_t *wrong = mr_alloc(bytes);
        if (!wrong)
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a wrong message");
        memcpy(wrong, data, bytes);
        wrong[bytes / 2] ^= 0x10;
        f->wrong[f->n_wrong++] = wrong;
        data = wrong;
    }
    return mr_channel_post_send(f->inner, peer, tag, data, bytes, out, err);
}

static mr_status faulty_post_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                                  mr_channel_request *out, mr_err *err) {
    return mr_channel_post_recv(faulty_of(ch)->inner, peer, tag, buffer, capacity, out, err);
}

static mr_status faulty_test(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err) {
    return mr_channel_test(faulty_of(ch)->inner, request, out, err);
}

static bool faulty_cancel(mr_channel *ch, mr_channel_request request) {
    return mr_channel_cancel(faulty_of(ch)->inner, request);
}

static void faulty_wake(mr_channel *ch) {
    mr_channel_wake(faulty_of(ch)->inner);
}

static void faulty_destroy(mr_channel *ch) {
    faulty *f = faulty_of(ch);
    mr_channel_destroy(f->inner);
    while (f->n_wrong > 0)
        mr_free(f->wrong[--f->n_wrong]);
    mr_free(f);
}

mr_status channel_fault_wrap(void *ctx, mr_channel **channel, mr_err *err) {
    static const mr_channel_ops OPS = {.name = "faulty",
                                       .post_send = faulty_post_send,
                                       .post_recv = faulty_post_recv,
                                       .test = faulty_test,
                                       .cancel = faulty_cancel,
                                       .wait = faulty_wait,
                                       .wake = faulty_wake,
                                       .destroy = faulty_destroy};
    channel_fault *fault = ctx;
    if ((*channel)->self != fault->endpoint)
        return MR_OK;
    faulty *f = mr_alloc(sizeof *f);
    if (!f)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a channel");
    *f = (faulty){.base = {.ops = &OPS, .self = (*channel)->self, .n_peers = (*channel)->n_peers},
                  .inner = *channel,
                  .fault = fault};
    *channel = &f->base;
    return MR_OK;
}
