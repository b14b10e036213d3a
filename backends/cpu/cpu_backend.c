/* backends/cpu/cpu_backend.c - creates the CPU backend, describes it, and loads weights: matrices of the file are
 * repacked into panels on all threads. Programs are in cpu_program.c. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/cpu_backend.h"

#include <stdio.h>
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "backends/host_memory.h"
#include "engine/base/mem.h"

enum { PANELS_PER_TASK = 4 };

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
    out->exact = true;
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
} repack_job;

static int32_t count_repack_tasks(void *ctx, int32_t group) {
    (void)group;
    return (((const repack_job *)ctx)->n_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
}

static void repack_some(void *ctx, int32_t group, int32_t task, int thread_idx) {
    const repack_job *job = ctx;
    int32_t first = task * PANELS_PER_TASK, last = first + PANELS_PER_TASK;
    (void)group;
    (void)thread_idx;
    mr_repack(&job->args, first, last < job->n_panels ? last : job->n_panels);
}

static mr_status weight_load(mr_backend *base, const mr_tensor *t, const uint8_t *src, mr_fence *out, mr_err *err) {
    cpu_backend *be = (cpu_backend *)base;
    size_t bytes = 0;
    mr_status status = weight_bytes(base, t->type, t->ne[0], t->ne[1], &bytes, err);
    if (status == MR_OK)
        status = mr_host_check_range(t->buffer, t->offset, bytes, err);
    if (status != MR_OK)
        return status;
    repack_job job = {
        .args = {.type = t->type, .k = t->ne[0], .n = t->ne[1], .src = src, .dst = cpu_data(t)},
        .n_panels = (t->ne[1] + MR_PANEL - 1) / MR_PANEL,
    };
    if (!mr_type_bytes(t->type, t->ne[0], &job.args.src_row_bytes))
        return mr_err_set(err, MR_E_INTERNAL, "a weight row of %d elements", t->ne[0]);
    mr_pool_run(be->pool, &(mr_pool_job){.n_groups = 1, .count = count_repack_tasks, .run = repack_some, .ctx = &job});
    *out = mr_host_fence(base);
    return MR_OK;
}

static const mr_backend_ops OPS = {
    .destroy = destroy,
    .describe = describe,
    .supports = cpu_supports,
    .buffer_create = mr_host_buffer_create,
    .buffer_wrap = mr_host_buffer_wrap,
    .buffer_destroy = mr_host_buffer_destroy,
    .set = mr_host_set,
    .get = mr_host_get,
    .weight_bytes = weight_bytes,
    .weight_load = weight_load,
    .program_create = cpu_program_create,
    .program_destroy = cpu_program_destroy,
    .submit = cpu_submit,
    .wait = mr_host_wait,
    .mark = mr_host_mark,
    .fence_ns = mr_host_fence_ns,
    .pin = mr_host_pin,
    .unpin = mr_host_unpin,
};

static int64_t waited_ns(void *ctx, int32_t n_threads) {
    return mr_pool_waited_ns(((cpu_backend *)ctx)->pool, n_threads);
}

mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err) {
    cpu_backend *be = mr_alloc(sizeof *be);
    if (!be)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the CPU backend");
    be->host.base.ops = &OPS;
    be->isa = mr_isa_detect();
    be->kernels = mr_kernels_get(be->isa);
    be->n_threads = options->n_threads;
    be->adapts = options->adapts;
    cpu_choice_past_init(&be->choices, be->n_threads, waited_ns, be);
    mr_status status = mr_pool_create(options->n_threads, options->cpu_ids, &be->pool, err);
    if (status != MR_OK) {
        mr_free(be);
        return status;
    }
    *out = &be->host.base;
    return MR_OK;
}
