/* backends/cpu/cpu_backend.c - buffers, weights and the operation table of the CPU backend. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/mem.h"

enum { PANELS_PER_CLAIM = 4 };

static void destroy(mr_backend *base) {
    cpu_backend *be = (cpu_backend *)base;
    mr_pool_destroy(be->pool);
    mr_free(be->scratch_memory);
    mr_readahead_destroy(be->ahead);
    mr_free(be);
}

static void describe(const mr_backend *base, mr_device_info *out) {
    const cpu_backend *be = (const cpu_backend *)base;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "CPU %s, %d thread%s", mr_isa_name(be->isa), be->n_threads,
             be->n_threads == 1 ? "" : "s");
    out->alignment = CPU_ALIGNMENT;
    out->host_addressable = true;
}

static mr_status buffer_create(mr_backend *base, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)base;
    mr_buffer *b = mr_alloc(sizeof *b);
    uint8_t *p = b ? mr_pages_alloc(bytes) : NULL;
    if (!p) {
        mr_free(b);
        size_t budget = mr_mem_get_stats().budget_bytes;
        if (budget)
            return mr_err_set(err, MR_E_NO_MEMORY,
                              "no memory for a buffer of %zu MiB (%zu of %zu MiB of the budget are in use); hint: more "
                              "stages, a smaller --ctx or a larger --mem",
                              bytes >> 20, mr_mem_get_stats().live_bytes >> 20, budget >> 20);
        return mr_err_set(err, MR_E_NO_MEMORY,
                          "no memory for a buffer of %zu MiB; hint: cut the model into more stages, or a smaller --ctx",
                          bytes >> 20);
    }
    *b = (mr_buffer){.base = p, .bytes = bytes};
    *out = b;
    return MR_OK;
}

static mr_status buffer_wrap(mr_backend *base, const void *host, size_t bytes, mr_buffer **out, mr_err *err) {
    (void)base;
    mr_buffer *b = mr_alloc(sizeof *b);
    if (!b)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a buffer");
    *b = (mr_buffer){.base = (uint8_t *)(uintptr_t)host, .bytes = bytes, .wrapped = true};
    *out = b;
    return MR_OK;
}

static void buffer_destroy(mr_backend *base, mr_buffer *b) {
    (void)base;
    if (!b)
        return;
    if (!b->wrapped)
        mr_pages_free(b->base, b->bytes);
    mr_free(b);
}

static mr_status check_range(const mr_buffer *b, size_t offset, size_t bytes, mr_err *err) {
    size_t end;
    if (!mr_add_size(offset, bytes, &end) || end > b->bytes)
        return mr_err_set(err, MR_E_INTERNAL, "bytes %zu + %zu are outside a buffer of %zu", offset, bytes, b->bytes);
    return MR_OK;
}

static mr_status set(mr_backend *base, mr_buffer *b, size_t offset, const void *src, size_t bytes, mr_fence *out,
                     mr_err *err) {
    (void)base;
    mr_status status = check_range(b, offset, bytes, err);
    if (status != MR_OK)
        return status;
    if (b->wrapped)
        return mr_err_set(err, MR_E_INTERNAL, "a wrapped buffer is read-only");
    memcpy(b->base + offset, src, bytes);
    *out = 0;
    return MR_OK;
}

static mr_status get(mr_backend *base, const mr_buffer *b, size_t offset, void *dst, size_t bytes, mr_fence *out,
                     mr_err *err) {
    (void)base;
    mr_status status = check_range(b, offset, bytes, err);
    if (status != MR_OK)
        return status;
    memcpy(dst, b->base + offset, bytes);
    *out = 0;
    return MR_OK;
}

static mr_status weight_bytes(const mr_backend *base, mr_type type, int32_t columns, int32_t rows, size_t *out,
                              mr_err *err) {
    (void)base;
    size_t panel = mr_panel_bytes(type, columns);
    size_t n_panels = ((size_t)rows + MR_PANEL - 1) / MR_PANEL;
    if (panel == 0)
        return mr_err_set(err, MR_E_UNSUPPORTED, "the CPU backend multiplies no %s matrices with %d columns",
                          mr_type_name(type), columns);
    if (!mr_mul_size(panel, n_panels, out))
        return mr_err_set(err, MR_E_TOO_LONG, "a %s matrix of %d x %d is too large", mr_type_name(type), rows, columns);
    return MR_OK;
}

typedef struct repack_job {
    mr_repack_args args;
    int32_t n_panels;
    atomic_int next; /* claimed by every thread of the pool */
} repack_job;

static void repack_some(void *ctx, int thread_idx, int n_threads) {
    (void)thread_idx;
    (void)n_threads;
    repack_job *job = ctx;
    for (;;) {
        int32_t first = atomic_fetch_add_explicit(&job->next, PANELS_PER_CLAIM, memory_order_relaxed);
        if (first >= job->n_panels)
            return;
        int32_t last = first + PANELS_PER_CLAIM;
        mr_repack(&job->args, first, last < job->n_panels ? last : job->n_panels);
    }
}

static mr_status weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    cpu_backend *be = (cpu_backend *)base;
    size_t bytes = 0;
    mr_status status = weight_bytes(base, t->type, t->ne[0], t->ne[1], &bytes, err);
    if (status == MR_OK)
        status = check_range(t->buffer, t->offset, bytes, err);
    if (status != MR_OK)
        return status;
    repack_job job = {
        .args = {.type = t->type, .k = t->ne[0], .n = t->ne[1], .src = src, .dst = cpu_data(t)},
        .n_panels = (t->ne[1] + MR_PANEL - 1) / MR_PANEL,
    };
    if (!mr_type_bytes(t->type, t->ne[0], &job.args.src_row_bytes))
        return mr_err_set(err, MR_E_INTERNAL, "a weight row of %d elements", t->ne[0]);
    mr_pool_run(be->pool, repack_some, &job);
    *out = 0;
    return MR_OK;
}

static mr_status wait(mr_backend *base, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    (void)base;
    (void)fence;
    (void)deadline_ns;
    (void)err;
    return MR_OK; /* every call is done when it returns */
}

static const mr_backend_ops OPS = {
    .destroy = destroy,
    .describe = describe,
    .supports = cpu_supports,
    .buffer_create = buffer_create,
    .buffer_wrap = buffer_wrap,
    .buffer_destroy = buffer_destroy,
    .set = set,
    .get = get,
    .weight_bytes = weight_bytes,
    .weight_load = weight_load,
    .program_create = cpu_program_create,
    .program_destroy = cpu_program_destroy,
    .submit = cpu_submit,
    .wait = wait,
};

mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err) {
    cpu_backend *be = mr_alloc(sizeof *be);
    if (!be)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the CPU backend");
    be->base.ops = &OPS;
    be->isa = mr_isa_detect();
    be->kernels = mr_kernels_get(be->isa);
    be->n_threads = options->n_threads;
    mr_status status = mr_pool_create(options->n_threads, options->cpu_ids, &be->pool, err);
    if (status != MR_OK) {
        mr_free(be);
        return status;
    }
    *out = &be->base;
    return MR_OK;
}
