// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/test_job_cast.h"
#include "tests/support/test.h"

#include <string.h>

#include "engine/base/clock.h"

static cast *cast_of(mr_channel *ch) {
    return (cast *)ch;
}

/* --- The channel ------------------------------------------------------------------------------------------------- */

void cast_leave(cast *c, int stage) {
    mr_inbox_destroy(c->control[stage]);
    mr_outbox_destroy(c->report[stage]);
    c->control[stage] = NULL;
    c->report[stage] = NULL;
    if (stage == N_STAGES - 1) {
        mr_outbox_destroy(c->tokens);
        mr_outbox_destroy(c->logits);
        c->tokens = c->logits = NULL;
    }
    mr_channel_destroy(c->stages[stage]);
    c->stages[stage] = NULL;
}

static mr_status cast_send(mr_channel *ch, int32_t peer, uint32_t tag, const void *data, size_t bytes,
                           mr_channel_request *out, mr_err *err) {
    cast *c = cast_of(ch);
    act first = c->on_first_send;
    c->on_first_send = NULL;
    if (first)
        first(c);
    return mr_channel_post_send(c->inner, peer, tag, data, bytes, out, err);
}

static mr_status cast_recv(mr_channel *ch, int32_t peer, uint32_t tag, void *buffer, size_t capacity,
                           mr_channel_request *out, mr_err *err) {
    return mr_channel_post_recv(cast_of(ch)->inner, peer, tag, buffer, capacity, out, err);
}

static mr_status cast_test(mr_channel *ch, mr_channel_request request, mr_completion *out, mr_err *err) {
    return mr_channel_test(cast_of(ch)->inner, request, out, err);
}

static bool cast_cancel(mr_channel *ch, mr_channel_request request) {
    return mr_channel_cancel(cast_of(ch)->inner, request);
}

static mr_status cast_wait(mr_channel *ch, int64_t deadline_ns, mr_err *err) {
    cast *c = cast_of(ch);
    c->deadline_ns = deadline_ns;
    if (c->n_played < c->n_acts)
        c->acts[c->n_played++](c);
    else
        for (int i = 0; i < N_STAGES; i++)
            if (c->stages[i])
                cast_leave(c, i);
    return mr_channel_wait(c->inner, mr_clock_now_ns(), err);
}

void cast_create(cast *c) {
    static const mr_channel_ops ops = {.name = "played",
                                       .post_send = cast_send,
                                       .post_recv = cast_recv,
                                       .test = cast_test,
                                       .cancel = cast_cancel,
                                       .wait = cast_wait};
    mr_err err;
    expect_ok(mr_local_hub_create(N_STAGES + 1, 256, &c->hub, &err), &err);
    expect_ok(mr_local_channel_open(c->hub, COORDINATOR, &c->inner, &err), &err);
    c->base = (mr_channel){.ops = &ops, .self = COORDINATOR, .n_peers = N_STAGES + 1};
    for (int i = 0; i < N_STAGES; i++) {
        expect_ok(mr_local_channel_open(c->hub, i, &c->stages[i], &err), &err);
        expect_ok(mr_inbox_create(c->stages[i], COORDINATOR, MR_LINK_CONTROL, EPOCH, MR_CONTROL_SLOTS,
                                  MR_MAX_CONTROL_BYTES, &c->control[i], &err),
                  &err);
        expect_ok(mr_outbox_create(c->stages[i], COORDINATOR, MR_LINK_REPORT, EPOCH, MR_REPORT_SLOTS,
                                   MR_MAX_REPORT_BYTES, &c->report[i], &err),
                  &err);
    }
    mr_channel *tail = c->stages[N_STAGES - 1];
    expect_ok(mr_outbox_create(tail, COORDINATOR, MR_LINK_TOKENS, EPOCH, 4, MR_MAX_TOKENS_BYTES, &c->tokens, &err),
              &err);
    expect_ok(
        mr_outbox_create(tail, COORDINATOR, MR_LINK_LOGITS, EPOCH, MR_LOGITS_SLOTS, VOCAB * 16 * 4, &c->logits, &err),
        &err);
}

void cast_destroy(cast *c) {
    for (int i = 0; i < N_STAGES; i++)
        if (c->stages[i])
            cast_leave(c, i);
    mr_channel_destroy(c->inner);
    mr_local_hub_destroy(c->hub);
}

/* --- What stages send -------------------------------------------------------------------------------------------- */

void cast_send_frame(mr_outbox *out, mr_frame frame, const void *payload) {
    mr_err err;
    uint8_t *buffer = NULL;
    expect_ok(mr_outbox_reserve(out, &buffer, &err), &err);
    assert_non_null(buffer);
    if (frame.payload_bytes)
        memcpy(buffer, payload, frame.payload_bytes);
    expect_ok(mr_outbox_send(out, &frame, &err), &err);
}

static void send_message(mr_outbox *out, const ProtobufCMessage *message) {
    uint8_t bytes[4096];
    mr_frame frame = {0};
    mr_err err;
    size_t n = 0;
    expect_ok(mr_msg_pack(message, bytes, sizeof bytes, &n, &err), &err);
    frame.payload_bytes = n;
    cast_send_frame(out, frame, bytes);
}

void cast_send_ready(cast *c, int from, uint32_t stage) {
    Millrace__Ready ready = MILLRACE__READY__INIT;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    ready.stage = stage;
    report.body_case = MILLRACE__REPORT__BODY_READY;
    report.ready = &ready;
    send_message(c->report[from], &report.base);
}

void cast_send_failure(cast *c, int from, uint32_t stage, mr_status status, const char *text) {
    Millrace__Failure failure = MILLRACE__FAILURE__INIT;
    Millrace__Report report = MILLRACE__REPORT__INIT;
    failure.stage = stage;
    failure.status = (uint32_t)status;
    failure.text = (char *)(uintptr_t)text;
    report.body_case = MILLRACE__REPORT__BODY_FAILURE;
    report.failure = &failure;
    send_message(c->report[from], &report.base);
}

void cast_send_use_count(cast *c, int from, int32_t layer) {
    uint64_t count = 2;
    Millrace__UseCounts counts = MILLRACE__USE_COUNTS__INIT;
    counts.stage = (uint32_t)from;
    counts.ended = layer == CAST_END_OF_COUNTS;
    if (!counts.ended) {
        counts.layer = (uint32_t)layer;
        counts.n = 8;
        counts.rows = 3;
        counts.n_counts = 1;
        counts.counts = &count;
    }
    const Millrace__Report report = mr_msg_report_of(&counts.base);
    send_message(c->report[from], &report.base);
}

void cast_send_token(cast *c, uint64_t step, uint32_t slot, uint32_t position) {
    Millrace__Token token = MILLRACE__TOKEN__INIT, *ptr = &token;
    Millrace__Tokens tokens = MILLRACE__TOKENS__INIT;
    token.slot = slot;
    token.generation = 1;
    token.position = position;
    token.id = 5;
    tokens.step = step;
    tokens.n_tokens = 1;
    tokens.tokens = &ptr;
    send_message(c->tokens, &tokens.base);
}

void cast_send_logits(cast *c, uint64_t step, uint32_t rows, uint32_t row_bytes) {
    static float zeros[VOCAB * 16];
    mr_frame frame = {.step = step, .rows = rows, .row_bytes = row_bytes, .payload_bytes = (uint64_t)rows * row_bytes};
    cast_send_frame(c->logits, frame, zeros);
}
