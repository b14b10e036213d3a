/* proto/nccl/nccl_carrier.c - a communicator of two devices, from its id to its abort. A call of NCCL may go on after
 * it has returned. The communicator is asked until the call is done, and only then is the next one made. */
// SPDX-License-Identifier: Apache-2.0
#include "proto/nccl/nccl_carrier.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "proto/nccl/nccl_library.h"

_Static_assert((int)sizeof(nccl_id) == (int)MR_CARRIER_ID_BYTES, "a link brings the id to its peer");
enum { EXIT_ABORT_HANGS = 70 };

typedef struct transfer {
    void *address;
    size_t bytes;
    uint64_t mark; /* behind it in the queue of the device, once it is launched */
} transfer;

typedef struct nccl_carrier {
    mr_carrier base;
    const nccl_library *nccl;
    mr_nccl_device device;
    bool is_sender;
    nccl_stream stream;
    nccl_comm comm;     /* NULL: there is none */
    bool is_issued;     /* transfer n_launched has been given to NCCL */
    uint64_t n_started; /* transfers; those from n_launched on are not in the queue yet */
    mr_carried carried;
    transfer transfers[MR_CARRIER_TRANSFERS];
} nccl_carrier;

static mr_status failed(const nccl_carrier *c, nccl_result result, const char *what, mr_err *err) {
    return mr_err_set(err, MR_E_IO, "NCCL: %s: %s (%d); hint: NCCL_DEBUG=INFO in the environment says more", what,
                      c->nccl->get_error_string(result), result);
}

/* Whether the last call is done. */
static mr_status is_done(const nccl_carrier *c, const char *what, bool *out, mr_err *err) {
    nccl_result state = NCCL_OK, result = c->nccl->comm_get_async_error(c->comm, &state);
    if (result != NCCL_OK)
        return failed(c, result, "ask for the state of a connection", err);
    if (state != NCCL_OK && state != NCCL_IN_PROGRESS)
        return failed(c, state, what, err);
    *out = state == NCCL_OK;
    return MR_OK;
}

static mr_status make_id(mr_carrier *base, uint8_t out[MR_CARRIER_ID_BYTES], mr_err *err) {
    nccl_carrier *c = (nccl_carrier *)base;
    nccl_id id;
    nccl_result result = c->nccl->get_unique_id(&id);
    if (result != NCCL_OK)
        return failed(c, result, "make an id", err);
    memcpy(out, id.internal, MR_CARRIER_ID_BYTES);
    return MR_OK;
}

static mr_status connect_devices(mr_carrier *base, const uint8_t bytes[MR_CARRIER_ID_BYTES], mr_err *err) {
    nccl_carrier *c = (nccl_carrier *)base;
    nccl_config config = {.size = sizeof config,
                          .magic = (unsigned)NCCL_CONFIG_MAGIC,
                          .version = NCCL_NEEDED_VERSION,
                          .blocking = 0,
                          .cga_cluster_size = NCCL_NOT_SET,
                          .min_ctas = NCCL_NOT_SET,
                          .max_ctas = NCCL_NOT_SET,
                          .split_share = NCCL_NOT_SET};
    nccl_id id;
    void *queue = NULL;
    memcpy(id.internal, bytes, sizeof id.internal);
    mr_status status = c->device.queue(c->device.ctx, &queue, err);
    if (status == MR_OK)
        status = c->device.enter(c->device.ctx, err);
    if (status != MR_OK)
        return status;
    c->stream = queue;
    nccl_result result = c->nccl->comm_init_rank_config(&c->comm, 2, id, c->is_sender ? 0 : 1, &config);
    return result == NCCL_OK || result == NCCL_IN_PROGRESS ? MR_OK : failed(c, result, "connect two devices", err);
}

static mr_status poll_connect(mr_carrier *base, bool *out_connected, mr_err *err) {
    return is_done((nccl_carrier *)base, "connect two devices", out_connected, err);
}

/* --- Transfers --------------------------------------------------------------------------------------------------- */

static const char *verb(const nccl_carrier *c) {
    return c->is_sender ? "send activations" : "receive activations";
}

static mr_status issue(nccl_carrier *c, mr_err *err) {
    const transfer *t = &c->transfers[c->carried.n_launched % MR_CARRIER_TRANSFERS];
    mr_status status = c->device.enter(c->device.ctx, err);
    if (status != MR_OK)
        return status;
    nccl_result result = c->is_sender ? c->nccl->send(t->address, t->bytes, NCCL_INT8, 1, c->comm, c->stream)
                                      : c->nccl->recv(t->address, t->bytes, NCCL_INT8, 0, c->comm, c->stream);
    c->is_issued = true;
    return result == NCCL_OK || result == NCCL_IN_PROGRESS ? MR_OK : failed(c, result, verb(c), err);
}

/* Gives transfers to NCCL, each when the one before stands in the queue. */
static mr_status launch(nccl_carrier *c, mr_err *err) {
    bool done = true;
    mr_status status = MR_OK;
    while (c->carried.n_launched < c->n_started && done && status == MR_OK) {
        if (!c->is_issued)
            status = issue(c, err);
        if (status == MR_OK)
            status = is_done(c, verb(c), &done, err);
        if (status == MR_OK && done)
            status =
                c->device.mark(c->device.ctx, &c->transfers[c->carried.n_launched % MR_CARRIER_TRANSFERS].mark, err);
        if (status == MR_OK && done) {
            c->is_issued = false;
            c->carried.n_launched++;
        }
    }
    return status;
}

static mr_status start(mr_carrier *base, void *address, size_t bytes, mr_err *err) {
    nccl_carrier *c = (nccl_carrier *)base;
    if (c->n_started - c->carried.n_done >= MR_CARRIER_TRANSFERS)
        return mr_err_set(err, MR_E_INTERNAL, "more than %d payloads of a link are under way", MR_CARRIER_TRANSFERS);
    c->transfers[c->n_started++ % MR_CARRIER_TRANSFERS] = (transfer){.address = address, .bytes = bytes};
    return launch(c, err);
}

static mr_status poll(mr_carrier *base, mr_carried *out, mr_err *err) {
    nccl_carrier *c = (nccl_carrier *)base;
    bool reached = true, alive = false;
    mr_status status = launch(c, err);
    if (status == MR_OK && c->carried.n_done < c->n_started && !c->is_issued)
        status = is_done(c, verb(c), &alive, err); /* a communicator may fail while its transfers are in the queue */
    while (status == MR_OK && c->carried.n_done < c->carried.n_launched && reached) {
        uint64_t mark = c->transfers[c->carried.n_done % MR_CARRIER_TRANSFERS].mark;
        status = c->device.reached(c->device.ctx, mark, &reached, err);
        c->carried.n_done += status == MR_OK && reached;
    }
    *out = c->carried;
    return status;
}

/* --- The end ----------------------------------------------------------------------------------------------------- */

/* Shared with the helper thread. */
typedef struct abort_call {
    const nccl_library *nccl;
    nccl_comm comm;
    mr_mutex lock;
    mr_cond changed;
    bool is_done;
} abort_call;

static void abort_comm(void *ctx) {
    abort_call *a = ctx;
    (void)a->nccl->comm_abort(a->comm);
    mr_mutex_lock(&a->lock);
    a->is_done = true;
    mr_cond_broadcast(&a->changed);
    mr_mutex_unlock(&a->lock);
}

/* Ends the process if the abort does not return. */
static void abort_in_time(const nccl_carrier *c) {
    abort_call a = {.nccl = c->nccl, .comm = c->comm};
    mr_thread *helper = NULL;
    mr_err err;
    mr_mutex_init(&a.lock);
    mr_cond_init(&a.changed);
    int64_t deadline_ns = mr_clock_now_ns() + MR_NCCL_ABORT_NS;
    bool in_time = true;
    if (mr_thread_create("nccl abort", 0, abort_comm, &a, &helper, &err) != MR_OK)
        abort_comm(&a); /* without a deadline */
    mr_mutex_lock(&a.lock);
    while (!a.is_done && in_time)
        in_time = mr_cond_wait_until(&a.changed, &a.lock, deadline_ns) || a.is_done;
    mr_mutex_unlock(&a.lock);
    if (!in_time) {
        mr_log_write(MR_LOG_ERROR, "link",
                     "NCCL does not give up a connection to a lost rank in %d s, this process ends",
                     (int)(MR_NCCL_ABORT_NS / MR_NS_PER_S));
        _exit(EXIT_ABORT_HANGS);
    }
    mr_thread_join(helper);
    mr_cond_deinit(&a.changed);
    mr_mutex_deinit(&a.lock);
}

static bool destroy(mr_carrier *base) {
    nccl_carrier *c = (nccl_carrier *)base;
    if (c->comm)
        abort_in_time(c);
    mr_free(c);
    return true;
}

mr_status mr_nccl_version(uint32_t *out, mr_err *err) {
    const nccl_library *nccl;
    mr_status status = nccl_library_load(&nccl, err);
    if (status == MR_OK)
        *out = (uint32_t)nccl->version;
    return status;
}

mr_status mr_nccl_carrier_create(const mr_nccl_device *device, bool is_sender, mr_carrier **out, mr_err *err) {
    static const mr_carrier_ops OPS = {.make_id = make_id,
                                       .connect = connect_devices,
                                       .poll_connect = poll_connect,
                                       .start = start,
                                       .poll = poll,
                                       .destroy = destroy};
    const nccl_library *nccl;
    mr_status status = nccl_library_load(&nccl, err);
    if (status != MR_OK)
        return status;
    nccl_carrier *c = mr_alloc(sizeof *c);
    if (!c)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a link between devices");
    *c = (nccl_carrier){.base.ops = &OPS, .nccl = nccl, .device = *device, .is_sender = is_sender};
    *out = &c->base;
    return MR_OK;
}
