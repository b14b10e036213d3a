// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rng.h"
#include "engine/base/thread.h"
#include "tests/support/queue.h"

enum { MAX_BUFFERS = 64, QUEUE_CALLS = 256, ALIGNMENT = 256, RECORD_BYTES = 64, RUBBISH = 0xa5 };

typedef enum call_kind { CALL_SET, CALL_GET, CALL_LOAD, CALL_SUBMIT, CALL_MARK, CALL_PREPARE, CALL_END } call_kind;

typedef struct device_buffer {
    mr_buffer base;   /* the host's view: no address unless host_addressable */
    mr_buffer inside; /* the view of the device's thread */
    size_t mapped_bytes;
} device_buffer;

typedef struct call {
    call_kind kind;
    mr_fence fence;
    bool breaks;           /* this call breaks the device */
    device_buffer *buffer; /* SET, GET */
    size_t offset, bytes;
    const void *src;     /* SET, LOAD */
    void *dst;           /* GET */
    mr_tensor tensor;    /* LOAD: the device's view */
    mr_program *program; /* SUBMIT, PREPARE */
    mr_run run;
} call;

/* A program of the CPU backend over the device's view of the tensors. */
struct mr_program {
    mr_tensor *tensors;
    mr_program *inside;
    int32_t n_tensors;
    mr_buffer **panels; /* [n_tensors]: of matrices whose source was kept, else NULL */
};

typedef struct mark {
    mr_fence fence; /* 0: none */
    int64_t ns;
} mark;

typedef struct test_device {
    mr_backend base;
    test_device_options options;
    mr_backend *cpu; /* used by the device's thread, and by the host while the thread waits */
    mr_queue *queue;
    mr_thread *thread;
    device_buffer *buffers[MAX_BUFFERS];
    int n_programs;
    uint64_t n_delays;
    mr_fence issued;
    int32_t n_calls;           /* since the last reset */
    mr_mutex memory_lock;      /* guards buffers and the protection of their pages */
    mr_mutex lock;             /* guards the fields below */
    mr_cond reached;           /* done or n_held changed */
    int32_t n_held;            /* waits of the host until calls begin */
    mr_fence done, broken_at;  /* broken_at 0: the device works */
    mark marks[MR_KEPT_MARKS]; /* the last ones that were reached */
    int n_marks;
    test_device_stats stats; /* written by the calling thread only */
} test_device;

/* --- The device's thread ----------------------------------------------------------------------------------------- */

static void delay(test_device *d) {
    if (d->options.max_delay_us == 0)
        return;
    uint64_t us = (mr_rng_u64(d->options.seed, 77, d->n_delays++) >> 33) % (uint64_t)d->options.max_delay_us;
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

static void open_pages(test_device *d, int protection) {
    for (int i = 0; i < MAX_BUFFERS; i++)
        if (d->buffers[i] && d->buffers[i]->mapped_bytes > 0)
            MR_ASSERT(mprotect(d->buffers[i]->inside.base, d->buffers[i]->mapped_bytes, protection) == 0);
}

/* Makes the panels of the matrices whose source was kept. */
static mr_status prepare(test_device *d, const call *c) {
    const mr_backend_ops *ops = d->cpu->ops;
    mr_program *p = c->program;
    mr_fence fence;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < p->n_tensors && status == MR_OK; i++) {
        mr_tensor *t = &p->tensors[i];
        const uint8_t *src;
        if (t->storage != MR_STORAGE_WEIGHT || !d->options.keeps_source || !t->buffer)
            continue;
        memcpy(&src, t->buffer->base + t->offset, sizeof src);
        status = ops->weight_bytes(d->cpu, t->type, t->ne[0], t->ne[1], &t->bytes, NULL);
        if (status == MR_OK)
            status = ops->buffer_create(d->cpu, t->bytes, &p->panels[i], NULL);
        t->buffer = p->panels[i];
        t->offset = 0;
        if (status == MR_OK)
            status = ops->weight_load(d->cpu, t, src, &fence, NULL);
    }
    return status;
}

static mr_status work(test_device *d, call *c) {
    mr_fence fence;
    switch (c->kind) {
    case CALL_SET:
        memcpy(c->buffer->inside.base + c->offset, c->src, c->bytes);
        return MR_OK;
    case CALL_GET:
        memcpy(c->dst, c->buffer->inside.base + c->offset, c->bytes);
        return MR_OK;
    case CALL_LOAD:
        if (!d->options.keeps_source)
            return d->cpu->ops->weight_load(d->cpu, &c->tensor, c->src, &fence, NULL);
        memcpy(c->tensor.buffer->base + c->tensor.offset, &c->src, sizeof c->src);
        return MR_OK;
    case CALL_PREPARE:
        return prepare(d, c);
    case CALL_MARK:
        return MR_OK;
    default:
        return d->cpu->ops->submit(d->cpu, c->program->inside, &c->run, &fence, NULL);
    }
}

static void serve(void *ctx) {
    test_device *d = ctx;
    call c;
    mr_thread_set_denormals_flushed();
    while (mr_queue_pop(d->queue, &c, MR_NEVER) == MR_OK && c.kind != CALL_END) {
        delay(d);
        mr_mutex_lock(&d->lock);
        while (d->n_held > 0)
            mr_cond_wait_until(&d->reached, &d->lock, MR_NEVER);
        mr_mutex_unlock(&d->lock);
        bool works = d->broken_at == 0 && !c.breaks; /* only this thread writes broken_at */
        mr_mutex_lock(&d->memory_lock);
        if (works) {
            open_pages(d, PROT_READ | PROT_WRITE);
            works = work(d, &c) == MR_OK;
            open_pages(d, PROT_NONE);
        }
        mr_mutex_unlock(&d->memory_lock);
        delay(d);
        mr_mutex_lock(&d->lock);
        if (!works && d->broken_at == 0)
            d->broken_at = c.fence;
        if (c.kind == CALL_MARK)
            d->marks[d->n_marks++ % MR_KEPT_MARKS] = (mark){c.fence, mr_clock_now_ns()};
        d->done = c.fence;
        mr_cond_broadcast(&d->reached);
        mr_mutex_unlock(&d->lock);
    }
}

/* --- Calls ------------------------------------------------------------------------------------------------------- */

static mr_status broken(mr_err *err) {
    return mr_err_set(err, MR_E_DEVICE, "the test device is broken");
}

/* Queues the call. */
static mr_status give(test_device *d, call *c, mr_fence *out, mr_err *err) {
    c->fence = ++d->issued;
    if (c->kind != CALL_PREPARE)
        c->breaks = ++d->n_calls > d->options.n_good && d->options.n_good > 0;
    mr_mutex_lock(&d->lock);
    bool is_broken = d->broken_at != 0;
    int waiting = (int)(d->issued - d->done);
    d->stats.most_waiting = waiting > d->stats.most_waiting ? waiting : d->stats.most_waiting;
    if (is_broken)
        d->issued--;
    mr_mutex_unlock(&d->lock);
    if (is_broken)
        return broken(err);
    MR_ASSERT(mr_queue_push(d->queue, c, MR_NEVER) == MR_OK);
    *out = c->fence;
    return MR_OK;
}

/* Call with the lock held. */
static void release(test_device *d, int32_t n_waits) {
    d->n_held = n_waits < d->n_held ? d->n_held - n_waits : 0;
    mr_cond_broadcast(&d->reached);
}

static mr_status device_wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    test_device *d = (test_device *)base;
    MR_ASSERT(fence <= d->issued);
    mr_mutex_lock(&d->lock);
    bool in_time = true;
    d->stats.n_waits += d->done < fence && deadline_ns > mr_clock_now_ns();
    if (deadline_ns == MR_NEVER)
        release(d, d->n_held);
    while (d->done < fence && in_time)
        in_time = mr_cond_wait_until(&d->reached, &d->lock, deadline_ns);
    if (!in_time)
        release(d, 1);
    bool reached = d->done >= fence, is_broken = d->broken_at != 0 && d->broken_at <= fence;
    mr_mutex_unlock(&d->lock);
    if (!reached)
        return mr_err_set(err, MR_E_TIMEOUT, "the test device is not ready");
    return is_broken ? broken(err) : MR_OK;
}

static mr_status device_mark(mr_backend *base, mr_fence *out, mr_err *err) {
    test_device *d = (test_device *)base;
    d->stats.n_marks++;
    return give(d, &(call){.kind = CALL_MARK}, out, err);
}

static mr_status fence_ns(mr_backend *base, mr_fence fence, int64_t *out_ns, mr_err *err) {
    test_device *d = (test_device *)base;
    int i = 0;
    mr_mutex_lock(&d->lock);
    while (i < MR_KEPT_MARKS && (fence == 0 || d->marks[i].fence != fence))
        i++;
    if (i < MR_KEPT_MARKS)
        *out_ns = d->marks[i].ns;
    bool is_reached = d->done >= fence;
    mr_mutex_unlock(&d->lock);
    if (i < MR_KEPT_MARKS)
        return MR_OK;
    return is_reached ? mr_err_set(err, MR_E_INVALID, "the test device does not keep the time of that mark")
                      : mr_err_set(err, MR_E_TIMEOUT, "the test device has not reached the mark");
}

static mr_status pin(mr_backend *base, void *host, size_t bytes, mr_err *err) {
    (void)base;
    (void)host;
    (void)bytes;
    (void)err;
    return MR_OK;
}

static void unpin(mr_backend *base, void *host) {
    (void)base;
    (void)host;
}

static void destroy(mr_backend *base) {
    test_device *d = (test_device *)base;
    for (int i = 0; i < MAX_BUFFERS; i++)
        MR_ASSERT(!d->buffers[i]);
    MR_ASSERT(d->n_programs == 0);
    mr_mutex_lock(&d->lock);
    release(d, d->n_held);
    mr_mutex_unlock(&d->lock);
    if (d->thread)
        MR_ASSERT(mr_queue_push(d->queue, &(call){.kind = CALL_END}, MR_NEVER) == MR_OK);
    mr_thread_join(d->thread);
    mr_queue_destroy(d->queue);
    mr_backend_destroy(d->cpu);
    mr_cond_deinit(&d->reached);
    mr_mutex_deinit(&d->lock);
    mr_mutex_deinit(&d->memory_lock);
    mr_free(d);
}

static void describe(const mr_backend *base, mr_device_info *out) {
    const test_device *d = (const test_device *)base;
    *out = (mr_device_info){.name = "test device",
                            .memory_bytes = d->options.memory_bytes,
                            .alignment = ALIGNMENT,
                            .host_addressable = d->options.host_addressable,
                            .keeps_source = d->options.keeps_source,
                            .exact = !d->options.is_inexact};
}

static bool supports(const mr_backend *base, const mr_tensor *tensors, const mr_node *n) {
    const test_device *d = (const test_device *)base;
    const mr_tensor *t = &tensors[n->out == MR_NO_TENSOR ? n->in[0] : n->out];
    return (d->options.ops >> n->op & 1) && t->ne[1] >= d->options.min_rows &&
           d->cpu->ops->supports(d->cpu, tensors, n);
}

/* --- Memory ------------------------------------------------------------------------------------------------------ */

static mr_status add_buffer(test_device *d, const device_buffer *made, mr_buffer **out, mr_err *err) {
    int i = 0;
    while (i < MAX_BUFFERS && d->buffers[i])
        i++;
    device_buffer *b = mr_alloc(sizeof *b);
    if (!b || i == MAX_BUFFERS) {
        mr_free(b);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a buffer of the test device");
    }
    *b = *made;
    mr_mutex_lock(&d->memory_lock);
    d->buffers[i] = b;
    mr_mutex_unlock(&d->memory_lock);
    d->stats.live_bytes += b->base.bytes;
    *out = &b->base;
    return MR_OK;
}

static mr_status buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err) {
    test_device *d = (test_device *)base;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mapped = mr_round_up(bytes + 1, page);
    if (d->options.memory_bytes > 0 && bytes > d->options.memory_bytes - d->stats.live_bytes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu bytes on the test device", bytes);
    uint8_t *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the test device");
    bool is_host = d->options.host_addressable;
    memset(p, RUBBISH, mapped);
    MR_ASSERT(is_host || mprotect(p, mapped, PROT_NONE) == 0);
    device_buffer b = {.base = {.base = is_host ? p : NULL, .bytes = bytes},
                       .inside = {.base = p, .bytes = bytes},
                       .mapped_bytes = is_host ? 0 : mapped};
    mr_status status = add_buffer(d, &b, out, err);
    if (status != MR_OK)
        munmap(p, mapped);
    return status;
}

static mr_status buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)base;
    (void)host;
    (void)bytes;
    (void)out;
    return mr_err_set(err, MR_E_UNSUPPORTED, "the test device wraps no memory of the host");
}

static void buffer_destroy(mr_backend *base, mr_buffer *buffer) {
    test_device *d = (test_device *)base;
    if (!buffer)
        return;
    device_buffer *b = (device_buffer *)buffer;
    int i = 0;
    while (d->buffers[i] != b)
        i++;
    mr_mutex_lock(&d->memory_lock);
    d->buffers[i] = NULL;
    mr_mutex_unlock(&d->memory_lock);
    d->stats.live_bytes -= b->base.bytes;
    munmap(b->inside.base, mr_round_up(b->base.bytes + 1, (size_t)sysconf(_SC_PAGESIZE)));
    mr_free(b);
}

/* The buffer if it belongs to this device and contains the range, else NULL. */
static device_buffer *check_range(const test_device *d, const mr_buffer *buffer, size_t offset, size_t bytes) {
    for (int i = 0; i < MAX_BUFFERS; i++)
        if (d->buffers[i] && &d->buffers[i]->base == buffer) {
            MR_ASSERT(offset <= buffer->bytes && bytes <= buffer->bytes - offset);
            return d->buffers[i];
        }
    return NULL;
}

static mr_status set(mr_backend *base, mr_buffer *buffer, size_t offset, const void *src, size_t bytes, mr_fence *out,
                     mr_err *err) {
    test_device *d = (test_device *)base;
    call c = {.kind = CALL_SET,
              .buffer = check_range(d, buffer, offset, bytes),
              .offset = offset,
              .bytes = bytes,
              .src = src};
    MR_ASSERT(c.buffer != NULL);
    d->stats.n_sets++;
    d->stats.set_bytes += bytes;
    return give(d, &c, out, err);
}

static mr_status get(mr_backend *base, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err) {
    test_device *d = (test_device *)base;
    call c = {.kind = CALL_GET,
              .buffer = check_range(d, buffer, offset, bytes),
              .offset = offset,
              .bytes = bytes,
              .dst = dst};
    MR_ASSERT(c.buffer != NULL);
    memset(dst, RUBBISH, bytes); /* a read before the fence is reached gets rubbish */
    d->stats.n_gets++;
    d->stats.get_bytes += bytes;
    return give(d, &c, out, err);
}

/* The device's view of a tensor. The tensor lies in a buffer of this device, or in any buffer if host_addressable. */
static mr_tensor inside(const test_device *d, const mr_tensor *t) {
    mr_tensor made = *t;
    device_buffer *b = check_range(d, t->buffer, t->offset, 0);
    MR_ASSERT(b || (d->options.host_addressable && t->storage != MR_STORAGE_WEIGHT && t->buffer->base));
    made.buffer = b ? &b->inside : t->buffer;
    return made;
}

static mr_status weight_bytes(const mr_backend *base, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err) {
    const test_device *d = (const test_device *)base;
    if (!(d->options.ops >> MR_OP_MATMUL & 1))
        return mr_err_set(err, MR_E_UNSUPPORTED, "the test device multiplies no matrices");
    mr_status status = d->cpu->ops->weight_bytes(d->cpu, type, columns, rows, out, err);
    if (status == MR_OK && d->options.keeps_source)
        *out = RECORD_BYTES;
    return status;
}

static mr_status weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    test_device *d = (test_device *)base;
    call c = {.kind = CALL_LOAD, .src = src, .tensor = inside(d, t)};
    d->stats.n_loads++;
    return give(d, &c, out, err);
}

/* --- Programs ---------------------------------------------------------------------------------------------------- */

static void program_destroy(mr_backend *base, mr_program *p) {
    test_device *d = (test_device *)base;
    if (!p)
        return;
    if (p->inside) {
        d->cpu->ops->program_destroy(d->cpu, p->inside);
        d->n_programs--;
    }
    for (int32_t i = 0; p->panels && i < p->n_tensors; i++)
        d->cpu->ops->buffer_destroy(d->cpu, p->panels[i]);
    mr_free(p->panels);
    mr_free(p->tensors);
    mr_free(p);
}

static void take_tensor(const test_device *d, mr_program *p, const mr_program_desc *desc, int32_t id) {
    if (id != MR_NO_TENSOR)
        p->tensors[id] = inside(d, &desc->tensors[id]);
}

static mr_status program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err) {
    test_device *d = (test_device *)base;
    mr_program *p = mr_alloc(sizeof *p);
    mr_fence fence = 0;
    int32_t n = 0;
    for (int32_t i = 0; i < desc->n_nodes; i++) {
        MR_ASSERT(supports(base, desc->tensors, &desc->nodes[i]));
        n = desc->nodes[i].out >= n ? desc->nodes[i].out + 1 : n;
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            n = desc->nodes[i].in[k] >= n ? desc->nodes[i].in[k] + 1 : n;
    }
    if (p) {
        p->n_tensors = n;
        p->tensors = mr_alloc_array((size_t)n, sizeof *p->tensors);
        p->panels = mr_alloc_array((size_t)n, sizeof *p->panels);
    }
    if (!p || !p->tensors || !p->panels) {
        program_destroy(base, p);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a program of the test device");
    }
    for (int32_t i = 0; i < desc->n_nodes; i++) {
        take_tensor(d, p, desc, desc->nodes[i].out);
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            take_tensor(d, p, desc, desc->nodes[i].in[k]);
    }
    mr_status status = give(d, &(call){.kind = CALL_PREPARE, .program = p}, &fence, err);
    if (status == MR_OK)
        status = device_wait(base, fence, MR_NEVER, err);
    mr_program_desc own = {.tensors = p->tensors, .nodes = desc->nodes, .n_nodes = desc->n_nodes};
    if (status == MR_OK)
        status = d->cpu->ops->program_create(d->cpu, &own, &p->inside, err);
    if (status == MR_OK) {
        d->n_programs++;
        *out = p;
    } else {
        program_destroy(base, p);
    }
    return status;
}

static mr_status submit(mr_backend *base, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err) {
    test_device *d = (test_device *)base;
    call c = {.kind = CALL_SUBMIT, .program = program, .run = *run};
    c.run.progress = NULL; /* stats belong to the calling thread */
    d->stats.n_submits++;
    return give(d, &c, out, err);
}

static const mr_backend_ops OPS = {
    .destroy = destroy,
    .describe = describe,
    .supports = supports,
    .buffer_create = buffer_create,
    .buffer_wrap = buffer_wrap,
    .buffer_destroy = buffer_destroy,
    .set = set,
    .get = get,
    .weight_bytes = weight_bytes,
    .weight_load = weight_load,
    .program_create = program_create,
    .program_destroy = program_destroy,
    .submit = submit,
    .wait = device_wait,
    .mark = device_mark,
    .fence_ns = fence_ns,
    .pin = pin,
    .unpin = unpin,
};

mr_status test_device_create(const test_device_options *options, mr_backend **out, mr_err *err) {
    test_device *d = mr_alloc(sizeof *d);
    if (!d)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a test device");
    d->base.ops = &OPS;
    d->options = *options;
    mr_mutex_init(&d->lock);
    mr_mutex_init(&d->memory_lock);
    mr_cond_init(&d->reached);
    mr_status status = mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &d->cpu, err);
    if (status == MR_OK)
        status = mr_queue_create(sizeof(call), QUEUE_CALLS, &d->queue, err);
    if (status == MR_OK)
        status = mr_thread_create("test device", 0, serve, d, &d->thread, err);
    if (status != MR_OK) {
        destroy(&d->base);
        return status;
    }
    *out = &d->base;
    return MR_OK;
}

test_device_stats test_device_get_stats(mr_backend *device) {
    test_device *d = (test_device *)device;
    return d->stats;
}

void test_device_reset(mr_backend *device, int32_t n_good) {
    test_device *d = (test_device *)device;
    d->options.n_good = n_good;
    d->n_calls = 0;
    d->stats = (test_device_stats){.live_bytes = d->stats.live_bytes};
}

void test_device_hold(mr_backend *device, int32_t n_waits) {
    test_device *d = (test_device *)device;
    mr_mutex_lock(&d->lock);
    d->n_held = n_waits;
    mr_mutex_unlock(&d->lock);
}
