/* tests/cuda_emulation/device_link_rig.c - the hop between two emulated GPUs. */
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda_emulation/device_link_rig.h"

#include <string.h>

#include "backends/cuda/cuda_backend.h"
#include "engine/base/mem.h"
#include "proto/carrier_channel.h"
#include "proto/nccl/nccl_carrier.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/support/test.h"

enum { EPOCH = 5, FLOATS = LINK_ROWS * LINK_COLUMNS };
static const size_t ROW_BYTES = LINK_COLUMNS * sizeof(float), BYTES = FLOATS * sizeof(float);

static mr_status enter(void *ctx, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->enter(ctx, err);
}
mr_status link_rig_queue(void *ctx, void **out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->queue(ctx, out, err);
}
static mr_status mark(void *ctx, uint64_t *out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->mark(ctx, out, err);
}
static mr_status reached(void *ctx, uint64_t which, bool *out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->reached(ctx, which, out, err);
}

/* Creates the link of an end. The status is that of the carrier or the link. */
mr_status link_rig_end(link_rig *r, int32_t which, const link_rig_wish *w, mr_err *err) {
    link_rig_one *e = &r->at[which];
    const mr_backend_link_ops *ops = e->be->ops->link;
    const mr_nccl_device nccl = {e->be, enter, link_rig_queue, mark, reached};
    const mr_channel_carrier_desc pointers = {e->channel, 1 - which, EPOCH, which == LINK_SENDER};
    mr_err why = {0};
    mr_link_device device = {.address = ops->address(e->slots), .slot_bytes = BYTES};
    mr_status status = MR_OK;
    bool none = w->way == MR_WAY_HOST || (w->has_no_device && which == LINK_RECEIVER);
    if (w->way == MR_WAY_POINTERS && !none)
        status = mr_channel_carrier_create(&pointers, &device.carrier, &why);
    else if (!none)
        status = mr_nccl_version(&device.version, &why);
    if (w->way == MR_WAY_NCCL && !none && status == MR_OK)
        status = mr_nccl_carrier_create(&nccl, which == LINK_SENDER, &device.carrier, &why);
    if (w->version && which == LINK_RECEIVER)
        device.version = w->version;
    uint8_t uuid[MR_DEVICE_UUID_BYTES];
    ops->uuid(r->at[w->same_device ? LINK_SENDER : which].be, uuid);
    memcpy(device.uuid, uuid, sizeof uuid);
    const mr_device_link_desc desc = {.channel = e->channel,
                                      .peer = 1 - which,
                                      .epoch = EPOCH,
                                      .is_sender = which == LINK_SENDER,
                                      .n_slots = 3,
                                      .payload_bytes = BYTES,
                                      .way = w->way,
                                      .must = w->must,
                                      .device = none || status != MR_OK ? NULL : &device,
                                      .why = status != MR_OK ? &why : NULL};
    return mr_device_link_create(&desc, &e->link, err);
}

void link_rig_open(link_rig *r) {
    static const cuda_image images[] = {{"emulated", "every kernel"}, {NULL, NULL}};
    mr_err err = {0};
    *r = (link_rig){0};
    expect_ok(mr_local_hub_create(2, 256, &r->hub, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        link_rig_one *e = &r->at[i];
        expect_ok(mr_local_channel_open(r->hub, i, &e->channel, &err), &err);
        const mr_cuda_options options = {.driver = emulated_driver(), .images = images, .device = i};
        expect_ok(mr_cuda_backend_create(&options, &e->be, &err), &err);
        expect_ok(e->be->ops->buffer_create(e->be, MR_DEVICE_LINK_SLOTS * BYTES, &e->slots, &err), &err);
        e->rows = mr_alloc(BYTES);
        expect_ok(e->be->ops->pin(e->be, e->rows, BYTES, &err), &err);
    }
}

/* Ends one side as a rank that stops: transfers are given up, and then the memory goes. */
void link_rig_stop_end(link_rig_one *e) {
    mr_device_link_stop(e->link);
    bool reached_all = false;
    uint64_t last = 0;
    void *unused;
    int64_t limit_ns = mr_clock_now_ns() + LINK_LIMIT_NS;
    if (e->be->ops->link->queue(e->be, &unused, NULL) == MR_OK && e->be->ops->link->mark(e->be, &last, NULL) == MR_OK)
        while (e->be->ops->link->reached(e->be, last, &reached_all, NULL) == MR_OK && !reached_all)
            assert_true(mr_clock_now_ns() < limit_ns);
    assert_true(mr_device_link_destroy(e->link));
    e->be->ops->buffer_destroy(e->be, e->slots);
    e->be->ops->unpin(e->be, e->rows);
    mr_free(e->rows);
    mr_backend_destroy(e->be);
    mr_channel_destroy(e->channel);
    *e = (link_rig_one){0};
}

void link_rig_close(link_rig *r) {
    for (int32_t i = 0; i < 2; i++)
        if (r->at[i].be)
            link_rig_stop_end(&r->at[i]);
    mr_local_hub_destroy(r->hub);
    assert_int_equal(emulated_driver_counts().n_live, 0);
    assert_int_equal(emulated_driver_counts().n_refused, 0);
    assert_int_equal(fake_nccl_get_counts().n_live, 0);
}

void link_rig_prepare(const fake_nccl_options *nccl) {
    fake_nccl_reset(nccl ? nccl : &(fake_nccl_options){0});
    emulated_driver_reset(&(emulated_options){.n_devices = 2, .seed = 3, .max_delay_us = 50});
}

/* Polls both ends until both are open or one fails. Returns the status of the first that fails. */
mr_status link_rig_agree(link_rig *r, mr_err *err) {
    int64_t limit_ns = mr_clock_now_ns() + LINK_LIMIT_NS;
    mr_status status = MR_OK;
    bool did;
    while (status == MR_OK && !(mr_device_link_is_open(r->at[0].link) && mr_device_link_is_open(r->at[1].link))) {
        for (int32_t i = 0; i < 2 && status == MR_OK; i++)
            status = mr_device_link_poll(r->at[i].link, &did, err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
    return status;
}

mr_status link_rig_link(link_rig *r, const link_rig_wish *w, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < 2 && status == MR_OK; i++)
        status = link_rig_end(r, i, w, err);
    return status == MR_OK ? link_rig_agree(r, err) : status;
}

/* --- Rows -------------------------------------------------------------------------------------------------------- */

static float value(int32_t step, int32_t i) {
    return (float)(step * FLOATS + i) * 0.5f;
}

mr_frame link_rig_frame(int32_t step) {
    uint32_t rows = 1 + (uint32_t)(step * 5 % LINK_ROWS);
    return (mr_frame){.step = (uint64_t)step,
                      .rows = rows,
                      .type = 0,
                      .row_bytes = (uint32_t)ROW_BYTES,
                      .payload_bytes = rows * ROW_BYTES};
}

static void wait_for(mr_backend *be, mr_fence fence) {
    mr_err err = {0};
    expect_ok(be->ops->wait(be, fence, MR_NEVER, &err), &err);
}

/* Sends a step if a slot is free. */
bool link_rig_send(link_rig_one *e, int32_t step) {
    mr_link_rows rows;
    mr_err err = {0};
    bool is_free = false;
    const mr_frame f = link_rig_frame(step);
    mr_fence fence = 0;
    expect_ok(mr_device_link_reserve(e->link, &rows, &is_free, &err), &err);
    if (!is_free)
        return false;
    for (int32_t i = 0; i < (int32_t)(f.rows * LINK_COLUMNS); i++)
        e->rows[i] = value(step, i);
    if (rows.host) {
        memcpy(rows.host, e->rows, (size_t)f.payload_bytes);
    } else {
        expect_ok(e->be->ops->set(e->be, e->slots, rows.device_offset, e->rows, (size_t)f.payload_bytes, &fence, &err),
                  &err);
        /* A small set goes along with the next launch; a copy behind it settles it. */
        expect_ok(e->be->ops->get(e->be, e->slots, rows.device_offset, e->rows, (size_t)f.payload_bytes, &fence, &err),
                  &err);
        wait_for(e->be, fence);
    }
    mr_device_link_keep(e->link);
    expect_ok(mr_device_link_send(e->link, &f, &err), &err);
    return true;
}

/* Takes a step if it is here, and compares its rows. */
static bool take_step(link_rig_one *e, int32_t step) {
    mr_link_rows rows;
    mr_err err = {0};
    mr_frame f;
    bool is_here = false;
    const mr_frame want = link_rig_frame(step);
    mr_fence fence = 0;
    expect_ok(mr_device_link_peek(e->link, &f, &rows, &is_here, &err), &err);
    if (!is_here)
        return false;
    assert_int_equal(f.step, want.step);
    assert_int_equal(f.rows, want.rows);
    if (rows.host) {
        memcpy(e->rows, rows.host, (size_t)want.payload_bytes);
    } else {
        expect_ok(
            e->be->ops->get(e->be, e->slots, rows.device_offset, e->rows, (size_t)want.payload_bytes, &fence, &err),
            &err);
        wait_for(e->be, fence);
    }
    for (int32_t i = 0; i < (int32_t)(want.rows * LINK_COLUMNS); i++)
        assert_true(e->rows[i] == value(step, i));
    expect_ok(mr_device_link_release(e->link, &err), &err);
    return true;
}

void link_rig_carry(link_rig *r, int32_t n) {
    int64_t limit_ns = mr_clock_now_ns() + LINK_LIMIT_NS;
    bool did;
    mr_err err = {0};
    for (int32_t sent = 0, taken = 0; taken < n;) {
        sent += sent < n && link_rig_send(&r->at[LINK_SENDER], sent);
        taken += take_step(&r->at[LINK_RECEIVER], taken);
        for (int32_t i = 0; i < 2; i++)
            expect_ok(mr_device_link_poll(r->at[i].link, &did, &err), &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
}

/* Polls an end for some time, and expects an error with these words. */
void link_rig_expect_error(link_rig_one *e, mr_status status, const char *words) {
    int64_t limit_ns = mr_clock_now_ns() + LINK_LIMIT_NS;
    mr_err err = {0};
    mr_status got = MR_OK;
    for (bool did; got == MR_OK;) {
        got = mr_device_link_poll(e->link, &did, &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
    expect_fails(got, status, &err, words);
}

/* A frame from the sender's endpoint without a transfer: the sender is lost behind it. */
void link_rig_send_frame_alone(link_rig *r, const mr_frame *f) {
    mr_outbox *alone = NULL;
    uint8_t *payload = NULL;
    mr_err err = {0};
    expect_ok(
        mr_outbox_create(r->at[LINK_SENDER].channel, LINK_RECEIVER, MR_LINK_ACTIVATIONS, EPOCH, 1, 0, &alone, &err),
        &err);
    expect_ok(mr_outbox_reserve(alone, &payload, &err), &err);
    expect_ok(mr_outbox_send(alone, f, &err), &err);
    mr_outbox_destroy(alone); /* the receive was posted before, so the frame has arrived */
}
