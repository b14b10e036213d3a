/* engine/graph/run.c - calls the passes that finish a graph, places its tensors, and runs it: submits the splits to
 * their backends in order, and starts and awaits the copies between them. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "engine/graph/graph_internal.h"

/* Longest time of a wait for a device without a call of progress. */
enum { PROGRESS_NS = 100000 };

/* Notes the backends and finds out which of them share the host's memory. */
static mr_status use_backends(mr_graph *g, const mr_backends *backends, mr_err *err) {
    int32_t last = backends->n - 1;
    MR_ASSERT(backends->n >= 1 && backends->n <= MR_MAX_BACKENDS);
    g->backends = *backends;
    for (int32_t b = 0; b < backends->n; b++) {
        mr_device_info device;
        backends->at[b]->ops->describe(backends->at[b], &device);
        g->is_host[b] = device.host_addressable;
        g->memory[b] = g->is_host[b] ? last : b;
        if (b == last && b > 0 && !device.host_addressable)
            return mr_err_set(err, MR_E_INVALID, "backend '%s' stands last of %d, but the host cannot use its memory",
                              device.name, backends->n);
    }
    return MR_OK;
}

mr_status mr_graph_finish(mr_graph *g, const mr_backends *backends, mr_graph_stats *out, mr_err *err) {
    if (g->err.status != MR_OK)
        return mr_err_set(err, g->err.status, "%s", g->err.text);
    mr_status status = use_backends(g, backends, err);
    if (status != MR_OK)
        return status;
    g->debug = mr_graph_debug_wanted();
    graph_fuse(g);
    status = graph_assign(g, err);
    if (status == MR_OK)
        status = graph_split_nodes(g, err);
    if (status == MR_OK)
        status = graph_group(g, err);
    g->stats = (mr_graph_stats){.n_nodes = g->n_nodes, .n_splits = g->n_splits, .n_copies = g->n_copies};
    g->stats.n_groups = g->n_nodes ? g->nodes[g->n_nodes - 1].group + 1 : 0;
    if (status == MR_OK)
        status = graph_plan_memory(g, &g->stats, err);
    if (status == MR_OK)
        *out = g->stats;
    return status;
}

mr_status mr_graph_place(mr_graph *g, mr_buffer *const *work, mr_err *err) {
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (graph_is_work(g, t))
            g->tensors[t].buffer = work[graph_home(g, t)];
    mr_status status = MR_OK;
    for (int32_t s = 0; s < g->n_splits && status == MR_OK; s++) {
        graph_split *split = &g->splits[s];
        mr_backend *be = g->backends.at[split->backend];
        mr_program_desc desc = {
            .tensors = g->tensors, .nodes = g->nodes + split->first, .n_nodes = split->last - split->first};
        status = be->ops->program_create(be, &desc, &split->program, err);
    }
    return status == MR_OK ? graph_debug_place(g, err) : status;
}

/* --- Running ----------------------------------------------------------------------------------------------------- */

/* One run, and which of its work has been started. */
typedef struct flight {
    mr_graph *g;
    const mr_run *run;
    mr_run own;                     /* run with all row counts; if times are measured, its progress notes them */
    int32_t next_issue;             /* index into g->issue of the next copy to start */
    int32_t next_settle;            /* index into g->copies: earlier copies no longer read the host's memory */
    mr_fence last[MR_MAX_BACKENDS]; /* of the last work given to each backend */
    bool is_busy[MR_MAX_BACKENDS];  /* nobody has waited for last yet */
} flight;

static void note_group(void *ctx) {
    flight *f = ctx;
    graph_times_group(f->g->times);
    if (f->run->progress)
        f->run->progress(f->run->progress_ctx);
}

/* Waits for the fence, and calls the caller's progress function every PROGRESS_NS meanwhile. */
static mr_status wait_until(flight *f, int32_t b, mr_fence fence, mr_err *err) {
    mr_backend *be = f->g->backends.at[b];
    if (!f->run->progress)
        return be->ops->wait(be, fence, MR_NEVER, err);
    for (;;) {
        mr_status status = be->ops->wait(be, fence, mr_clock_now_ns() + PROGRESS_NS, err);
        if (status != MR_E_TIMEOUT)
            return status;
        f->run->progress(f->run->progress_ctx);
    }
}

static mr_status wait_for(flight *f, int32_t b, mr_fence fence, mr_err *err) {
    int64_t start_ns = f->g->times ? mr_clock_now_ns() : 0;
    mr_status status = wait_until(f, b, fence, err);
    if (f->g->times && !f->g->is_host[b])
        graph_times_waited(f->g->times, mr_clock_now_ns() - start_ns);
    return status;
}

/* The device that carries out the copy. */
static int32_t device_of(const mr_graph *g, const graph_copy *c) {
    return graph_home(g, c->to_host ? c->src : c->dst);
}

/* Starts a copy. Only the rows that are real in this run are copied. */
static mr_status start_copy(flight *f, graph_copy *c, mr_err *err) {
    const mr_tensor *dst = &f->g->tensors[c->dst], *src = c->source ? dst : &f->g->tensors[c->src];
    int32_t b = device_of(f->g, c);
    mr_backend *be = f->g->backends.at[b];
    size_t bytes =
        src->row_count == MR_ROWS_FIXED ? src->bytes : src->row_bytes * (size_t)f->own.n_rows[src->row_count];
    mr_status status;
    if (c->source)
        status = be->ops->weight_load(be, dst, c->source, &c->fence, err);
    else if (c->to_host)
        status = be->ops->get(be, src->buffer, src->offset, dst->buffer->base + dst->offset, bytes, &c->fence, err);
    else
        status = be->ops->set(be, dst->buffer, dst->offset, src->buffer->base + src->offset, bytes, &c->fence, err);
    if (status == MR_OK) {
        f->last[b] = c->fence;
        f->is_busy[b] = true;
    }
    return status;
}

/* Starts the copies of tensors that this split has computed. */
static mr_status start_copies_after(flight *f, int32_t split, mr_err *err) {
    mr_graph *g = f->g;
    mr_status status = MR_OK;
    for (; f->next_issue < g->n_issue && g->copies[g->issue[f->next_issue]].after == split && status == MR_OK;
         f->next_issue++)
        status = start_copy(f, &g->copies[g->issue[f->next_issue]], err);
    return status;
}

/* Waits until the copies for earlier splits have read the host's memory. Needed before the host computes, because it
 * may overwrite the copied tensors. */
static mr_status settle_copies(flight *f, int32_t split, mr_err *err) {
    mr_graph *g = f->g;
    mr_status status = MR_OK;
    for (; f->next_settle < g->splits[split].first_copy && status == MR_OK; f->next_settle++) {
        const graph_copy *c = &g->copies[f->next_settle];
        if (!c->to_host && !c->source)
            status = wait_for(f, device_of(g, c), c->fence, err);
    }
    return status;
}

/* Provides the copies that the split reads. The host waits for copies into its memory. A device needs no wait: copies
 * into its memory stand in its queue before the split. */
static mr_status fetch_copies(flight *f, const graph_split *split, mr_err *err) {
    mr_graph *g = f->g;
    mr_status status = MR_OK;
    for (int32_t i = split->first_copy; i < split->last_copy && status == MR_OK; i++) {
        graph_copy *c = &g->copies[i];
        if (c->to_host)
            status = wait_for(f, device_of(g, c), c->fence, err);
        else if (c->is_late)
            status = start_copy(f, c, err);
    }
    return status;
}

static mr_status run_split(flight *f, int32_t s, mr_err *err) {
    mr_graph *g = f->g;
    const graph_split *split = &g->splits[s];
    int32_t b = split->backend;
    mr_backend *be = g->backends.at[b];
    bool on_host = g->is_host[b];
    mr_status status = fetch_copies(f, split, err);
    if (status == MR_OK && on_host)
        status = settle_copies(f, s, err);
    if (g->times)
        graph_times_start(g->times, g->nodes[split->first].group);
    if (status == MR_OK)
        status = be->ops->submit(be, split->program, &f->own, &f->last[b], err);
    if (status != MR_OK)
        return status;
    f->is_busy[b] = !on_host;
    return on_host ? wait_for(f, b, f->last[b], err) : MR_OK;
}

/* Waits for the last work of every device. No work may be left when a run ends, not even after an error. */
static mr_status land(flight *f, mr_status status, mr_err *err) {
    for (int32_t b = 0; b < f->g->backends.n; b++) {
        if (!f->is_busy[b])
            continue;
        mr_status end = wait_for(f, b, f->last[b], status == MR_OK ? err : NULL);
        status = status == MR_OK ? end : status;
    }
    return status;
}

mr_status mr_graph_run(mr_graph *g, const mr_run *run, mr_err *err) {
    flight f = {.g = g, .run = run};
    int64_t start_ns = g->times ? mr_clock_now_ns() : 0;
    f.own = *run;
    f.own.n_rows[MR_ROWS_SLOTS] = run->n_rows[MR_ROWS_STEP] * g->n_experts_used;
    if (g->times) {
        f.own.progress = note_group;
        f.own.progress_ctx = &f;
    }
    mr_status status = start_copies_after(&f, GRAPH_BEFORE_ALL, err);
    for (int32_t s = 0; s < g->n_splits && status == MR_OK; s++) {
        status = run_split(&f, s, err);
        if (status == MR_OK)
            status = start_copies_after(&f, s, err);
    }
    status = land(&f, status, err);
    if (g->times)
        graph_times_ran(g->times, mr_clock_now_ns() - start_ns);
    return status;
}

mr_status mr_graph_set_rows(mr_graph *g, int32_t tensor, const void *src, size_t row_bytes, int32_t n_rows,
                            mr_err *err) {
    const mr_tensor *t = &g->tensors[tensor];
    mr_backend *be = g->backends.at[graph_home(g, tensor)];
    mr_fence fence = 0;
    MR_ASSERT(n_rows <= t->ne[1] && row_bytes <= t->row_bytes);
    if (row_bytes == t->row_bytes)
        return be->ops->set(be, t->buffer, t->offset, src, row_bytes * (size_t)n_rows, &fence, err);
    mr_status status = MR_OK;
    for (int32_t r = 0; r < n_rows && status == MR_OK; r++)
        status = be->ops->set(be, t->buffer, t->offset + (size_t)r * t->row_bytes,
                              (const char *)src + (size_t)r * row_bytes, row_bytes, &fence, err);
    return status;
}

mr_status mr_graph_get_rows(mr_graph *g, int32_t tensor, int32_t first_row, int32_t n_rows, void *dst, size_t row_bytes,
                            mr_err *err) {
    const mr_tensor *t = &g->tensors[tensor];
    mr_backend *be = g->backends.at[graph_home(g, tensor)];
    mr_fence fence = 0;
    MR_ASSERT(first_row >= 0 && first_row + n_rows <= t->ne[1] && row_bytes <= t->row_bytes);
    mr_status status = MR_OK;
    for (int32_t r = 0; r < n_rows && status == MR_OK; r++)
        status = be->ops->get(be, t->buffer, t->offset + (size_t)(first_row + r) * t->row_bytes,
                              (char *)dst + (size_t)r * row_bytes, row_bytes, &fence, err);
    return status == MR_OK ? be->ops->wait(be, fence, MR_NEVER, err) : status;
}

const mr_tensor *mr_graph_tensor(const mr_graph *g, int32_t tensor) {
    return &g->tensors[tensor];
}

const mr_node *mr_graph_nodes(const mr_graph *g, int32_t *out_n) {
    *out_n = g->n_nodes;
    return g->nodes;
}
