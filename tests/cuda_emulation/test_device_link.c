/* Links between emulated GPUs by every way: the same rows arrive in their order, with any slots and delays. What fails
 * at one end makes both take the way through the hosts. A peer that is lost in any state is given up in time. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backends/cuda/cuda_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "proto/carrier_channel.h"
#include "proto/channel_local.h"
#include "proto/device_link.h"
#include "proto/nccl/nccl_carrier.h"
#include "tests/cuda_emulation/driver.h"
#include "tests/cuda_emulation/fake_nccl.h"
#include "tests/support/test.h"

enum { COLUMNS = 24, ROWS = 11, N_STEPS = 23, EPOCH = 5, SENDER = 0, RECEIVER = 1, FLOATS = ROWS * COLUMNS };
enum { ABORT_HANGS = 70 }; /* exit status */
static const size_t ROW_BYTES = COLUMNS * sizeof(float), BYTES = FLOATS * sizeof(float);
static const int64_t LIMIT_NS = 20 * MR_NS_PER_S, LOSS_LIMIT_NS = 3 * MR_NS_PER_S;

/* --- One end ----------------------------------------------------------------------------------------------------- */

typedef struct end {
    mr_backend *be;
    mr_buffer *slots;
    mr_channel *channel;
    mr_device_link *link;
    float *rows; /* [ROWS, COLUMNS] in pinned memory */
} end;

typedef struct rig {
    mr_local_hub *hub;
    end at[2];
} rig;

/* What an end is made with. */
typedef struct wish {
    mr_way way;
    bool must, has_no_device, same_device;
    uint32_t version; /* of the receiver; 0: that of NCCL */
} wish;

static mr_status enter(void *ctx, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->enter(ctx, err);
}
static mr_status queue(void *ctx, void **out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->queue(ctx, out, err);
}
static mr_status mark(void *ctx, uint64_t *out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->mark(ctx, out, err);
}
static mr_status reached(void *ctx, uint64_t which, bool *out, mr_err *err) {
    return ((mr_backend *)ctx)->ops->link->reached(ctx, which, out, err);
}

/* Creates the link of an end. The status is that of the carrier or the link. */
static mr_status link_end(rig *r, int32_t which, const wish *w, mr_err *err) {
    end *e = &r->at[which];
    const mr_backend_link_ops *ops = e->be->ops->link;
    const mr_nccl_device nccl = {e->be, enter, queue, mark, reached};
    const mr_channel_carrier_desc pointers = {e->channel, 1 - which, EPOCH, which == SENDER};
    mr_err why = {0};
    mr_link_device device = {.address = ops->address(e->slots), .slot_bytes = BYTES};
    mr_status status = MR_OK;
    bool none = w->way == MR_WAY_HOST || (w->has_no_device && which == RECEIVER);
    if (w->way == MR_WAY_POINTERS && !none)
        status = mr_channel_carrier_create(&pointers, &device.carrier, &why);
    else if (!none)
        status = mr_nccl_version(&device.version, &why);
    if (w->way == MR_WAY_NCCL && !none && status == MR_OK)
        status = mr_nccl_carrier_create(&nccl, which == SENDER, &device.carrier, &why);
    if (w->version && which == RECEIVER)
        device.version = w->version;
    uint8_t uuid[MR_DEVICE_UUID_BYTES];
    ops->uuid(r->at[w->same_device ? SENDER : which].be, uuid);
    memcpy(device.uuid, uuid, sizeof uuid);
    const mr_device_link_desc desc = {.channel = e->channel,
                                      .peer = 1 - which,
                                      .epoch = EPOCH,
                                      .is_sender = which == SENDER,
                                      .n_slots = 3,
                                      .payload_bytes = BYTES,
                                      .way = w->way,
                                      .must = w->must,
                                      .device = none || status != MR_OK ? NULL : &device,
                                      .why = status != MR_OK ? &why : NULL};
    return mr_device_link_create(&desc, &e->link, err);
}

static void open_rig(rig *r) {
    static const cuda_image images[] = {{"emulated", "every kernel"}, {NULL, NULL}};
    mr_err err = {0};
    *r = (rig){0};
    expect_ok(mr_local_hub_create(2, 256, &r->hub, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        end *e = &r->at[i];
        expect_ok(mr_local_channel_open(r->hub, i, &e->channel, &err), &err);
        const mr_cuda_options options = {.driver = emulated_driver(), .images = images, .device = i};
        expect_ok(mr_cuda_backend_create(&options, &e->be, &err), &err);
        expect_ok(e->be->ops->buffer_create(e->be, MR_DEVICE_LINK_SLOTS * BYTES, &e->slots, &err), &err);
        e->rows = mr_alloc(BYTES);
        expect_ok(e->be->ops->pin(e->be, e->rows, BYTES, &err), &err);
    }
}

/* Ends one side as a rank that stops: transfers are given up, and then the memory goes. */
static void stop_end(end *e) {
    mr_device_link_stop(e->link);
    bool reached_all = false;
    uint64_t last = 0;
    void *unused;
    int64_t limit_ns = mr_clock_now_ns() + LIMIT_NS;
    if (e->be->ops->link->queue(e->be, &unused, NULL) == MR_OK && e->be->ops->link->mark(e->be, &last, NULL) == MR_OK)
        while (e->be->ops->link->reached(e->be, last, &reached_all, NULL) == MR_OK && !reached_all)
            assert_true(mr_clock_now_ns() < limit_ns);
    assert_true(mr_device_link_destroy(e->link));
    e->be->ops->buffer_destroy(e->be, e->slots);
    e->be->ops->unpin(e->be, e->rows);
    mr_free(e->rows);
    mr_backend_destroy(e->be);
    mr_channel_destroy(e->channel);
    *e = (end){0};
}

static void close_rig(rig *r) {
    for (int32_t i = 0; i < 2; i++)
        if (r->at[i].be)
            stop_end(&r->at[i]);
    mr_local_hub_destroy(r->hub);
    assert_int_equal(emulated_driver_counts().n_live, 0);
    assert_int_equal(emulated_driver_counts().n_refused, 0);
    assert_int_equal(fake_nccl_get_counts().n_live, 0);
}

static void prepare(const fake_nccl_options *nccl) {
    fake_nccl_reset(nccl ? nccl : &(fake_nccl_options){0});
    emulated_driver_reset(&(emulated_options){.n_devices = 2, .seed = 3, .max_delay_us = 50});
}

/* Polls both ends until both are open or one fails. Returns the status of the first that fails. */
static mr_status agree(rig *r, mr_err *err) {
    int64_t limit_ns = mr_clock_now_ns() + LIMIT_NS;
    mr_status status = MR_OK;
    bool did;
    while (status == MR_OK && !(mr_device_link_is_open(r->at[0].link) && mr_device_link_is_open(r->at[1].link))) {
        for (int32_t i = 0; i < 2 && status == MR_OK; i++)
            status = mr_device_link_poll(r->at[i].link, &did, err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
    return status;
}

static mr_status link_both(rig *r, const wish *w, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < 2 && status == MR_OK; i++)
        status = link_end(r, i, w, err);
    return status == MR_OK ? agree(r, err) : status;
}

/* --- Rows -------------------------------------------------------------------------------------------------------- */

static float value(int32_t step, int32_t i) {
    return (float)(step * FLOATS + i) * 0.5f;
}

static mr_frame frame_of(int32_t step) {
    uint32_t rows = 1 + (uint32_t)(step * 5 % ROWS);
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
static bool send_step(end *e, int32_t step) {
    mr_link_rows rows;
    mr_err err = {0};
    bool is_free = false;
    const mr_frame f = frame_of(step);
    mr_fence fence = 0;
    expect_ok(mr_device_link_reserve(e->link, &rows, &is_free, &err), &err);
    if (!is_free)
        return false;
    for (int32_t i = 0; i < (int32_t)(f.rows * COLUMNS); i++)
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
static bool take_step(end *e, int32_t step) {
    mr_link_rows rows;
    mr_err err = {0};
    mr_frame f;
    bool is_here = false;
    const mr_frame want = frame_of(step);
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
    for (int32_t i = 0; i < (int32_t)(want.rows * COLUMNS); i++)
        assert_true(e->rows[i] == value(step, i));
    expect_ok(mr_device_link_release(e->link, &err), &err);
    return true;
}

static void carry_steps(rig *r, int32_t n) {
    int64_t limit_ns = mr_clock_now_ns() + LIMIT_NS;
    bool did;
    mr_err err = {0};
    for (int32_t sent = 0, taken = 0; taken < n;) {
        sent += sent < n && send_step(&r->at[SENDER], sent);
        taken += take_step(&r->at[RECEIVER], taken);
        for (int32_t i = 0; i < 2; i++)
            expect_ok(mr_device_link_poll(r->at[i].link, &did, &err), &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
}

/* --- Tests ------------------------------------------------------------------------------------------------------- */

static void check_way(mr_way way, int32_t max_delay_us, int32_t n_asks) {
    rig r;
    mr_err err = {0};
    prepare(&(fake_nccl_options){.max_delay_us = max_delay_us, .n_asks = n_asks});
    open_rig(&r);
    expect_ok(link_both(&r, &(wish){.way = way, .must = true}, &err), &err);
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(mr_device_link_way(r.at[i].link), way);
        assert_string_equal(mr_device_link_why(r.at[i].link), "");
    }
    carry_steps(&r, N_STEPS);
    assert_int_equal(fake_nccl_get_counts().n_transfers, way == MR_WAY_NCCL ? 2 * (N_STEPS + 1) : 0);
    close_rig(&r);
}

static void test_rows_by_host(void **state) {
    (void)state;
    check_way(MR_WAY_HOST, 0, 0);
}

static void test_rows_by_nccl(void **state) {
    (void)state;
    check_way(MR_WAY_NCCL, 0, 0);
    check_way(MR_WAY_NCCL, 3000, 0);
    check_way(MR_WAY_NCCL, 100, 3);
}

/* While NCCL has not put a send into the queue, its frame does not go out, and nothing is asked of the receiver. */
static void test_a_frame_follows_its_send(void **state) {
    (void)state;
    rig r;
    mr_err err = {0};
    bool did;
    prepare(&(fake_nccl_options){.n_asks = INT32_MAX});
    open_rig(&r);
    expect_ok(link_both(&r, &(wish){.way = MR_WAY_NCCL}, &err), &err);
    assert_true(send_step(&r.at[SENDER], 0));
    for (int32_t i = 0; i < 20; i++)
        expect_ok(mr_device_link_poll(r.at[i % 2].link, &did, &err), &err);
    assert_false(mr_device_link_is_busy(r.at[RECEIVER].link));
    close_rig(&r);
}

static void test_a_channel_without_pointers(void **state) {
    (void)state;
    rig r;
    mr_err err = {0};
    prepare(NULL);
    open_rig(&r);
    expect_ok(link_both(&r, &(wish){.way = MR_WAY_POINTERS}, &err), &err);
    assert_int_equal(mr_device_link_way(r.at[SENDER].link), MR_WAY_HOST);
    expect_says(mr_device_link_why(r.at[SENDER].link), "does not take addresses of devices");
    carry_steps(&r, 5);
    close_rig(&r);
}

/* Both ends fall back, say why, and carry all rows; or fail, if they must not. */
static void check_fallback(const fake_nccl_options *nccl, const wish *base, const char *why) {
    for (int must = 0; must < 2; must++) {
        rig r;
        mr_err err = {0};
        wish w = *base;
        prepare(nccl);
        open_rig(&r);
        w.way = MR_WAY_NCCL;
        w.must = must == 1;
        mr_status status = link_both(&r, &w, &err);
        if (must) {
            expect_fails(status, MR_E_UNSUPPORTED, &err, why);
        } else {
            expect_ok(status, &err);
            for (int32_t i = 0; i < 2; i++) {
                assert_int_equal(mr_device_link_way(r.at[i].link), MR_WAY_HOST);
                expect_says(mr_device_link_why(r.at[i].link), why);
            }
            carry_steps(&r, 5);
        }
        close_rig(&r);
    }
}

static void test_what_keeps_nccl_from_a_hop(void **state) {
    (void)state;
    check_fallback(&(fake_nccl_options){.missing = true}, &(wish){0}, "no NCCL");
    check_fallback(NULL, &(wish){.has_no_device = true}, "no device for links");
    check_fallback(NULL, &(wish){.same_device = true}, "both stages are on one device");
    check_fallback(NULL, &(wish){.version = 22000}, "versions 22809 and 22000");
}

/* Each call fails once, at either end, before the first step. */
static void test_failures_while_the_ends_connect(void **state) {
    (void)state;
    static const struct {
        const char *fail;
        int32_t n;
        const char *why;
    } calls[] = {{"get_unique_id", 1, "make an id"},    {"comm_init_rank_config", 2, "connect two devices"},
                 {"connect", 2, "connect two devices"}, {"comm_get_async_error", 2, "state of a connection"},
                 {"send", 1, "send activations"},       {"recv", 1, "receive activations"},
                 {"transfer", 2, "activations"}};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int32_t at = 1; at <= calls[i].n; at++)
            check_fallback(&(fake_nccl_options){.fail = calls[i].fail, .fail_at = at, .max_delay_us = 100}, &(wish){0},
                           calls[i].why);
}

/* Polls an end for some time, and expects an error with these words. */
static void expect_error(end *e, mr_status status, const char *words) {
    int64_t limit_ns = mr_clock_now_ns() + LIMIT_NS;
    mr_err err = {0};
    mr_status got = MR_OK;
    for (bool did; got == MR_OK;) {
        got = mr_device_link_poll(e->link, &did, &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
    expect_fails(got, status, &err, words);
}

/* After the first step, a failure ends the stage. */
static void test_failures_of_transfers(void **state) {
    (void)state;
    for (int32_t which = 0; which < 2; which++) {
        rig r;
        mr_err err = {0};
        prepare(&(fake_nccl_options){.fail = which == SENDER ? "send" : "recv", .fail_at = 3});
        open_rig(&r);
        expect_ok(link_both(&r, &(wish){.way = MR_WAY_NCCL}, &err), &err);
        carry_steps(&r, 1);
        mr_link_rows rows;
        bool is_free = false, did;
        const mr_frame f = frame_of(1);
        expect_ok(mr_device_link_reserve(r.at[SENDER].link, &rows, &is_free, &err), &err);
        mr_device_link_keep(r.at[SENDER].link);
        mr_status status = mr_device_link_send(r.at[SENDER].link, &f, &err);
        if (which == SENDER) {
            expect_fails(status, MR_E_IO, &err, "send activations: system error");
            expect_ok(mr_device_link_poll(r.at[RECEIVER].link, &did, &err), &err); /* no frame went ahead of it */
            assert_false(mr_device_link_is_busy(r.at[RECEIVER].link));
        } else {
            expect_ok(status, &err);
            expect_ok(mr_device_link_poll(r.at[SENDER].link, &did, &err), &err);
            expect_error(&r.at[RECEIVER], MR_E_IO, "receive activations: system error");
        }
        close_rig(&r);
    }
}

/* The states in which a peer may be lost. */
typedef enum loss {
    LOSS_BEFORE_OFFER,
    LOSS_IN_CONNECT,
    LOSS_IDLE,
    LOSS_WITH_SEND,   /* the receiver is lost while a send is in the queue */
    LOSS_WITH_RECV,   /* the sender is lost while a recv is in the queue */
    LOSS_IN_TRANSFER, /* either end, after half of the bytes */
    LOSSES
} loss;

/* A frame from the sender's endpoint without a transfer: the sender is lost behind it. */
static void send_frame_alone(rig *r, const mr_frame *f) {
    mr_outbox *alone = NULL;
    uint8_t *payload = NULL;
    mr_err err = {0};
    expect_ok(mr_outbox_create(r->at[SENDER].channel, RECEIVER, MR_LINK_ACTIVATIONS, EPOCH, 1, 0, &alone, &err), &err);
    expect_ok(mr_outbox_reserve(alone, &payload, &err), &err);
    expect_ok(mr_outbox_send(alone, f, &err), &err);
    mr_outbox_destroy(alone); /* the receive was posted before, so the frame has arrived */
}

/* Brings both ends into the state. */
static void reach(rig *r, loss state, int32_t lost) {
    mr_err err = {0};
    bool did;
    const wish w = {.way = MR_WAY_NCCL};
    expect_ok(link_end(r, 1 - lost, &w, &err), &err);
    expect_ok(mr_device_link_poll(r->at[1 - lost].link, &did, &err), &err);
    if (state == LOSS_BEFORE_OFFER)
        return;
    expect_ok(link_end(r, lost, &w, &err), &err);
    for (int32_t i = 0; state == LOSS_IN_CONNECT && i < 6; i++)
        expect_ok(mr_device_link_poll(r->at[i % 2].link, &did, &err), &err);
    if (state == LOSS_IN_CONNECT)
        return;
    expect_ok(agree(r, &err), &err);
    if (state == LOSS_WITH_SEND || state == LOSS_IN_TRANSFER)
        assert_true(send_step(&r->at[SENDER], 0));
    const mr_frame alone = {.rows = 1, .row_bytes = (uint32_t)ROW_BYTES, .by_device = true};
    if (state == LOSS_WITH_RECV)
        send_frame_alone(r, &alone);
    int64_t limit_ns = mr_clock_now_ns() + LIMIT_NS;
    while ((state == LOSS_WITH_RECV || state == LOSS_IN_TRANSFER) && !mr_device_link_is_busy(r->at[RECEIVER].link)) {
        expect_ok(mr_device_link_poll(r->at[SENDER].link, &did, &err), &err);
        expect_ok(mr_device_link_poll(r->at[RECEIVER].link, &did, &err), &err);
        assert_true(mr_clock_now_ns() < limit_ns);
    }
}

/* In the trial of the ends, two transfers are counted; the next one stands still. */
static void prepare_loss(loss state) {
    prepare(&(fake_nccl_options){.max_delay_us = 100, .halt_at = state == LOSS_IN_TRANSFER ? 3 : 0});
}

static bool is_possible(loss state, int32_t lost) {
    return !(state == LOSS_WITH_SEND && lost == SENDER) && !(state == LOSS_WITH_RECV && lost == RECEIVER);
}

/* The peer goes away without a word but for its end of the channel. The other end gives up, and nothing is left. */
static void test_losses(void **state) {
    (void)state;
    for (int32_t s = 0; s < LOSSES; s++)
        for (int32_t lost = 0; lost < 2; lost++) {
            rig r;
            if (!is_possible((loss)s, lost))
                continue;
            prepare_loss((loss)s);
            open_rig(&r);
            reach(&r, (loss)s, lost);
            int64_t start_ns = mr_clock_now_ns();
            stop_end(&r.at[lost]);
            stop_end(&r.at[1 - lost]);
            assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS);
            assert_true((fake_nccl_get_counts().n_cut > 0) == (s >= LOSS_WITH_SEND));
            close_rig(&r);
        }
}

/* The channel says that the sender is gone: the receiver returns an error by itself, and not by a deadline. Where
 * nothing is on its way, it does so only when rows are wanted. */
static void test_a_lost_peer_is_noticed(void **state) {
    (void)state;
    static const loss states[] = {LOSS_BEFORE_OFFER, LOSS_IN_CONNECT, LOSS_IDLE, LOSS_WITH_RECV};
    for (size_t s = 0; s < sizeof states / sizeof *states; s++) {
        rig r;
        mr_err err = {0};
        mr_link_rows rows;
        mr_frame f;
        bool did, is_here = false;
        prepare_loss(states[s]);
        open_rig(&r);
        reach(&r, states[s], SENDER);
        stop_end(&r.at[SENDER]);
        int64_t start_ns = mr_clock_now_ns();
        if (states[s] == LOSS_IDLE) {
            expect_ok(mr_device_link_poll(r.at[RECEIVER].link, &did, &err), &err);
            expect_fails(mr_device_link_peek(r.at[RECEIVER].link, &f, &rows, &is_here, &err), MR_E_PEER_LOST, &err,
                         "endpoint 0 is gone");
        } else {
            expect_error(&r.at[RECEIVER], MR_E_PEER_LOST, "endpoint 0 is gone");
        }
        assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS);
        close_rig(&r);
    }
}

/* An abort that hangs ends the process in time, with a message. */
static void test_an_abort_that_hangs(void **state) {
    (void)state;
    int pipe_ends[2], status = 0;
    char text[512] = "";
    assert_int_equal(pipe(pipe_ends), 0);
    prepare(NULL); /* streams of the tests before end here: a child has no threads */
    int64_t start_ns = mr_clock_now_ns();
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        rig r;
        dup2(pipe_ends[1], STDERR_FILENO);
        prepare(&(fake_nccl_options){.abort_hangs = true});
        open_rig(&r);
        reach(&r, LOSS_WITH_SEND, RECEIVER);
        mr_device_link_stop(r.at[SENDER].link);
        _exit(0);
    }
    close(pipe_ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(mr_clock_now_ns() - start_ns < LOSS_LIMIT_NS);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ABORT_HANGS);
    assert_true(read(pipe_ends[0], text, sizeof text - 1) > 0);
    expect_says(text, "NCCL does not give up a connection to a lost rank in 2 s, this process ends");
    close(pipe_ends[0]);
}

/* A frame that lies about its rows is refused before anything is received. */
static void test_frames_that_lie(void **state) {
    (void)state;
    static const struct {
        mr_frame frame;
        const char *why;
    } lies[] = {{{.rows = ROWS + 1, .row_bytes = COLUMNS * 4, .by_device = true}, "on a hop of at most"},
                {{.rows = 0, .row_bytes = COLUMNS * 4, .by_device = true}, "0 bytes of rows"},
                {{.rows = 0, .row_bytes = 0}, "go by host"}};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        rig r;
        mr_err err = {0};
        prepare(NULL);
        open_rig(&r);
        expect_ok(link_both(&r, &(wish){.way = MR_WAY_NCCL}, &err), &err);
        send_frame_alone(&r, &lies[i].frame);
        expect_error(&r.at[RECEIVER], MR_E_PROTOCOL, lies[i].why);
        close_rig(&r);
    }
}

/* Each allocation fails once: an error, or the way through the hosts, and nothing is left. */
static void test_allocations(void **state) {
    (void)state;
    bool is_whole = false;
    for (int n = 0; !is_whole; n++) {
        rig r;
        mr_err err = {0};
        prepare(NULL);
        open_rig(&r);
        for (int32_t i = 0; i < 2; i++) { /* the emulation needs its threads */
            void *unused;
            expect_ok(queue(r.at[i].be, &unused, &err), &err);
        }
        mr_mem_fail_at(n);
        mr_status status = link_both(&r, &(wish){.way = MR_WAY_NCCL}, &err);
        mr_mem_fail_at(-1);
        is_whole = status == MR_OK && mr_device_link_way(r.at[SENDER].link) == MR_WAY_NCCL;
        if (status != MR_OK)
            assert_int_equal(status, MR_E_NO_MEMORY);
        else if (is_whole)
            assert_true(n > 8);
        assert_true(n < 40);
        close_rig(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_by_host),
        cmocka_unit_test(test_rows_by_nccl),
        cmocka_unit_test(test_a_frame_follows_its_send),
        cmocka_unit_test(test_a_channel_without_pointers),
        cmocka_unit_test(test_what_keeps_nccl_from_a_hop),
        cmocka_unit_test(test_failures_while_the_ends_connect),
        cmocka_unit_test(test_failures_of_transfers),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_a_lost_peer_is_noticed),
        cmocka_unit_test(test_an_abort_that_hangs),
        cmocka_unit_test(test_frames_that_lie),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
