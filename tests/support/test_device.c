// SPDX-License-Identifier: Apache-2.0
#include "tests/support/test_device.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "tests/support/test_device_internal.h"

enum { ALIGNMENT = 256, RECORD_BYTES = 64 };

/* --- What calls cost --------------------------------------------------------------------------------------------- */

static int64_t cost_of_bytes(const test_device *d, size_t bytes) {
    return d->options.costs.call_ns + (int64_t)(d->options.costs.byte_ns * (double)bytes);
}

static int64_t cost_of_run(const test_device *d, const mr_program *p, const mr_run *run) {
    const test_device_costs *costs = &d->options.costs;
    int64_t ns = costs->call_ns;
    if (costs->program_ns)
        return ns + costs->program_ns(costs->ctx, &p->desc, run);
    for (int32_t i = 0; i < p->desc.n_nodes; i++) {
        const mr_node *n = &p->desc.nodes[i];
        mr_row_count rows = p->desc.tensors[n->out == MR_NO_TENSOR ? n->in[0] : n->out].row_count;
        ns += costs->node_ns + (rows == MR_ROWS_FIXED ? 0 : costs->row_ns * run->n_rows[rows]);
    }
    return ns;
}

/* --- Host memory, life -------------------------------------------------------------------------------------------- */

static mr_status pin(mr_backend *base, void *host, size_t bytes, mr_err *err) {
    test_device *d = (test_device *)base;
    int i = 0;
    while (i < MAX_PINNED && d->pinned[i].host)
        i++;
    if (i == MAX_PINNED)
        return mr_err_set(err, MR_E_NO_MEMORY, "the test device pins no more");
    d->pinned[i] = (pinned_range){host, bytes};
    return MR_OK;
}

static void unpin(mr_backend *base, void *host) {
    test_device *d = (test_device *)base;
    int i = 0;
    while (d->pinned[i].host != host) {
        i++;
        MR_ASSERT(i < MAX_PINNED);
    }
    d->pinned[i] = (pinned_range){0};
}

/* Counts a copy from or to memory that is not pinned. */
static void note_host_memory(test_device *d, const void *host, size_t bytes) {
    for (int i = 0; i < MAX_PINNED; i++) {
        const pinned_range *p = &d->pinned[i];
        size_t at = (size_t)((const uint8_t *)host - p->host);
        if (p->host && (const uint8_t *)host >= p->host && at <= p->bytes && bytes <= p->bytes - at)
            return;
    }
    d->stats.n_not_pinned++;
}

static void destroy(mr_backend *base) {
    test_device *d = (test_device *)base;
    for (int i = 0; i < MAX_BUFFERS; i++)
        MR_ASSERT(!d->buffers[i]);
    for (int i = 0; i < MAX_PINNED; i++)
        MR_ASSERT(!d->pinned[i].host);
    MR_ASSERT(d->n_programs == 0);
    test_device_queue_end(d);
    mr_backend_destroy(d->cpu);
    mr_free(d);
}

static void describe(const mr_backend *base, mr_device_info *out) {
    const test_device *d = (const test_device *)base;
    *out = (mr_device_info){.memory_bytes = d->options.memory_bytes,
                            .alignment = ALIGNMENT,
                            .host_addressable = d->options.host_addressable,
                            .keeps_source = d->options.keeps_source,
                            .exact = !d->options.is_inexact};
    snprintf(out->name, sizeof out->name, "%s", test_device_name(d));
}

/* Whoever asks about a node of these ops shows shapes and parameters as engine/graph makes them: the CPU does not look
 * at them, kernels of a device do. */
static bool is_whole(const mr_tensor *tensors, const mr_node *n) {
    const mr_tensor *w = &tensors[n->in[0]], *out = n->out == MR_NO_TENSOR ? NULL : &tensors[n->out];
    switch (n->op) {
    case MR_OP_EMBED:
        return tensors[n->in[1]].ne[0] == 1 && out->ne[0] == w->ne[0];
    case MR_OP_EXPERT_MATMUL:
        return n->in[2] != MR_NO_TENSOR && n->params.experts.n > 0 && n->params.experts.n_used > 0 &&
               w->ne[1] == out->ne[0] * n->params.experts.n;
    case MR_OP_HEAD_MATMUL:
        return n->params.heads.n > 0 && w->ne[1] % n->params.heads.n == 0 &&
               tensors[n->in[1]].ne[0] % n->params.heads.n == 0;
    default:
        return true;
    }
}

static bool supports(const mr_backend *base, const mr_tensor *tensors, const mr_node *n) {
    const test_device *d = (const test_device *)base;
    MR_ASSERT(is_whole(tensors, n));
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
    mr_status status = test_device_count(d, TEST_DEVICE_BUFFER_CREATE, err);
    if (status != MR_OK)
        return status;
    if (d->options.memory_bytes > 0 && bytes > d->options.memory_bytes - d->stats.live_bytes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %zu bytes on the %s", bytes, test_device_name(d));
    uint8_t *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the test device");
    bool is_host = d->options.host_addressable;
    memset(p, RUBBISH, mapped);
    MR_ASSERT(is_host || mprotect(p, mapped, PROT_NONE) == 0);
    device_buffer b = {.base = {.base = is_host ? p : NULL, .bytes = bytes},
                       .inside = {.base = p, .bytes = bytes},
                       .mapped_bytes = is_host ? 0 : mapped};
    status = add_buffer(d, &b, out, err);
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
              .src = src,
              .cost_ns = cost_of_bytes(d, bytes)};
    MR_ASSERT(c.buffer != NULL);
    d->stats.n_sets++;
    d->stats.set_bytes += bytes;
    note_host_memory(d, src, bytes);
    return test_device_give(d, &c, out, err);
}

static mr_status get(mr_backend *base, const mr_buffer *buffer, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err) {
    test_device *d = (test_device *)base;
    call c = {.kind = CALL_GET,
              .buffer = check_range(d, buffer, offset, bytes),
              .offset = offset,
              .bytes = bytes,
              .dst = dst,
              .cost_ns = cost_of_bytes(d, bytes)};
    MR_ASSERT(c.buffer != NULL);
    memset(dst, RUBBISH, bytes); /* a read before the fence is reached gets rubbish */
    d->stats.n_gets++;
    d->stats.get_bytes += bytes;
    note_host_memory(d, dst, bytes);
    return test_device_give(d, &c, out, err);
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
    call c = {.kind = CALL_LOAD, .src = src, .tensor = inside(d, t), .cost_ns = cost_of_bytes(d, t->bytes)};
    d->stats.n_loads++;
    return test_device_give(d, &c, out, err);
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
    mr_status status = test_device_count(d, TEST_DEVICE_PROGRAM_CREATE, err);
    if (status != MR_OK)
        return status;
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
        p->desc = *desc;
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
    status = test_device_give(d, &(call){.kind = CALL_PREPARE, .program = p}, &fence, err);
    if (status == MR_OK)
        status = test_device_wait_until(d, fence, MR_NEVER, err);
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
    call c = {.kind = CALL_SUBMIT, .program = program, .run = *run, .cost_ns = cost_of_run(d, program, run)};
    c.run.progress = NULL; /* stats belong to the calling thread */
    d->stats.n_submits++;
    return test_device_give(d, &c, out, err);
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
    .wait = test_device_wait,
    .mark = test_device_mark,
    .fence_ns = test_device_fence_ns,
    .pin = pin,
    .unpin = unpin,
};

mr_status test_device_create(const test_device_options *options, mr_backend **out, mr_err *err) {
    test_device *d = mr_alloc(sizeof *d);
    if (!d)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a test device");
    d->base.ops = &OPS;
    d->options = *options;
    d->timeline.clock = options->clock;
    d->stats.failed = TEST_DEVICE_CALLS;
    mr_status status = test_device_queue_start(d, err);
    if (status == MR_OK)
        status = mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 1}, &d->cpu, err);
    if (status != MR_OK) {
        destroy(&d->base);
        return status;
    }
    *out = &d->base;
    return MR_OK;
}

test_device_stats test_device_get_stats(mr_backend *device) {
    test_device *d = (test_device *)device;
    test_device_stats stats = d->stats;
    stats.busy_ns = d->timeline.busy_ns;
    stats.idle_ns = d->timeline.idle_ns;
    stats.n_gaps = d->timeline.n_gaps;
    return stats;
}

void test_device_reset(mr_backend *device, int32_t n_good) {
    test_device *d = (test_device *)device;
    d->options.n_good = n_good;
    d->n_calls = 0;
    d->stats = (test_device_stats){.live_bytes = d->stats.live_bytes, .failed = TEST_DEVICE_CALLS};
    test_timeline_reset(&d->timeline);
}
