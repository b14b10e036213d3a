/* engine/graph/run.c - runs a graph: submits the splits to their backends in order, and starts and awaits the copies
 * between them. A run that has to wait notes in its flight where it stands, and goes on there at the next poll. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "engine/graph/graph_internal.h"

/* Longest time of a wait for a device without a call of progress. */
enum { PROGRESS_NS = 100000 };

struct mr_graph_flight {
    mr_graph *g;                 /* NULL: no run is under way */
    mr_run run;                  /* with all row counts; if times are measured, its progress notes them */
    void (*progress)(void *ctx); /* of the caller */
    void *progress_ctx;
    mr_graph_read reads[MR_GRAPH_MAX_READS];
    int32_t n_reads;
    int32_t split;                   /* the first one that the host has not computed or a device has not queued */
    bool is_submitted;               /* that one; the host waits for it */
    bool is_queued;                  /* the backends have all work of the run */
    int32_t next_issue;              /* index into g->issue of the next copy to start */
    int32_t next_fetch;              /* index into g->copies: splits have fetched the earlier copies */
    int32_t next_settle;             /* index into g->copies: earlier copies no longer read the host's memory */
    mr_fence first[MR_MAX_BACKENDS]; /* mark in front of all work; of backends that run splits */
    mr_fence last[MR_MAX_BACKENDS];  /* of the last work given to each backend; at the end, a mark */
    bool is_busy[MR_MAX_BACKENDS];   /* nobody has waited for last yet */
    int64_t split_ns;                /* when the host began to compute the present split */
    int64_t start_ns, wait_ns;       /* if times are measured: start of the run, and of a wait that goes on; else 0 */
    int64_t worked_ns;               /* of the last run that has ended */
    int32_t max_copies;
    mr_fence copied[]; /* [max_copies]: a fence of the device that carries out the copy */
};

mr_status mr_graph_flight_create(int32_t max_copies, mr_graph_flight **out, mr_err *err) {
    mr_graph_flight *f = mr_alloc(sizeof *f + (size_t)max_copies * sizeof f->copied[0]);
    if (!f)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the runs of a graph");
    f->max_copies = max_copies;
    *out = f;
    return MR_OK;
}

static void note_group(void *ctx) {
    const mr_graph_flight *f = ctx;
    graph_times_group(f->g->times);
    if (f->progress)
        f->progress(f->progress_ctx);
}

/* Waits for the fence. MR_E_TIMEOUT: the deadline came first. */
static mr_status await(mr_graph_flight *f, int32_t b, mr_fence fence, int64_t deadline_ns, mr_err *err) {
    mr_graph *g = f->g;
    mr_backend *be = g->backends.at[b];
    bool is_timed = g->times && !g->is_host[b];
    if (is_timed && f->wait_ns == 0)
        f->wait_ns = mr_clock_now_ns();
    mr_status status = be->ops->wait(be, fence, deadline_ns, err);
    if (is_timed && status != MR_E_TIMEOUT) {
        graph_times_waited(g->times, mr_clock_now_ns() - f->wait_ns);
        f->wait_ns = 0;
    }
    return status;
}

static void note_work(mr_graph_flight *f, int32_t b, mr_fence fence) {
    f->last[b] = fence;
    f->is_busy[b] = true;
}

/* Puts a mark into the queue of each backend that runs splits. */
static mr_status mark(mr_graph_flight *f, mr_fence *out, mr_err *err) {
    mr_graph *g = f->g;
    mr_status status = MR_OK;
    for (int32_t b = 0; b < g->backends.n && status == MR_OK; b++) {
        if (!g->runs_on[b])
            continue;
        status = g->backends.at[b]->ops->mark(g->backends.at[b], &out[b], err);
        if (status == MR_OK)
            note_work(f, b, out[b]);
    }
    return status;
}

/* The device that carries out the copy. */
static int32_t device_of(const mr_graph *g, const graph_copy *c) {
    return graph_home(g, c->to_host ? c->src : c->dst);
}

/* Starts copy i. Only the rows that are real in this run are copied. */
static mr_status start_copy(mr_graph_flight *f, int32_t i, mr_err *err) {
    const graph_copy *c = &f->g->copies[i];
    const mr_tensor *dst = &f->g->tensors[c->dst], *src = c->source ? dst : &f->g->tensors[c->src];
    int32_t b = device_of(f->g, c);
    mr_backend *be = f->g->backends.at[b];
    size_t bytes =
        src->row_count == MR_ROWS_FIXED ? src->bytes : src->row_bytes * (size_t)f->run.n_rows[src->row_count];
    mr_fence *fence = &f->copied[i];
    mr_status status;
    if (c->source)
        status = be->ops->weight_load(be, dst, c->source, fence, err);
    else if (c->to_host)
        status = be->ops->get(be, src->buffer, src->offset, dst->buffer->base + dst->offset, bytes, fence, err);
    else
        status = be->ops->set(be, dst->buffer, dst->offset, src->buffer->base + src->offset, bytes, fence, err);
    if (status == MR_OK)
        note_work(f, b, *fence);
    return status;
}

/* Starts the copies of tensors that this split has computed. */
static mr_status start_copies_after(mr_graph_flight *f, int32_t split, mr_err *err) {
    const mr_graph *g = f->g;
    mr_status status = MR_OK;
    for (; f->next_issue < g->n_issue && g->copies[g->issue[f->next_issue]].after == split && status == MR_OK;
         f->next_issue++)
        status = start_copy(f, g->issue[f->next_issue], err);
    return status;
}

/* Provides the copies that the split reads. The host waits for copies into its memory. A device needs no wait: copies
 * into its memory stand in its queue before the split. */
static mr_status fetch_copies(mr_graph_flight *f, const graph_split *split, int64_t deadline_ns, mr_err *err) {
    const mr_graph *g = f->g;
    for (; f->next_fetch < split->last_copy; f->next_fetch++) {
        const graph_copy *c = &g->copies[f->next_fetch];
        mr_status status = MR_OK;
        if (c->to_host)
            status = await(f, device_of(g, c), f->copied[f->next_fetch], deadline_ns, err);
        else if (c->is_late)
            status = start_copy(f, f->next_fetch, err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* Waits until the copies for earlier splits have read the host's memory. Needed before the host computes, because it
 * may overwrite the copied tensors. */
static mr_status settle_copies(mr_graph_flight *f, const graph_split *split, int64_t deadline_ns, mr_err *err) {
    const mr_graph *g = f->g;
    for (; f->next_settle < split->first_copy; f->next_settle++) {
        const graph_copy *c = &g->copies[f->next_settle];
        mr_status status = MR_OK;
        if (!c->to_host && !c->source)
            status = await(f, device_of(g, c), f->copied[f->next_settle], deadline_ns, err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

static mr_status submit_split(mr_graph_flight *f, const graph_split *split, int64_t deadline_ns, mr_err *err) {
    mr_graph *g = f->g;
    mr_backend *be = g->backends.at[split->backend];
    mr_fence fence = 0;
    mr_status status = fetch_copies(f, split, deadline_ns, err);
    if (status == MR_OK && g->is_host[split->backend])
        status = settle_copies(f, split, deadline_ns, err);
    if (status != MR_OK)
        return status;
    if (g->times)
        graph_times_start(g->times, g->nodes[split->first].group);
    f->split_ns = g->works ? mr_clock_now_ns() : 0;
    status = graph_works_before(g, split->backend, err);
    if (status == MR_OK)
        status = be->ops->submit(be, split->program, &f->run, &fence, err);
    if (status == MR_OK)
        note_work(f, split->backend, fence);
    if (status == MR_OK)
        status = graph_works_after(g, split->backend, err);
    if (status != MR_OK)
        return status;
    f->is_submitted = true;
    return MR_OK;
}

/* Brings the next split to the point at which the run may go on: into the queue of a device, or to its end on the
 * host. */
static mr_status run_split(mr_graph_flight *f, int64_t deadline_ns, mr_err *err) {
    const graph_split *split = &f->g->splits[f->split];
    int32_t b = split->backend;
    mr_status status = f->is_submitted ? MR_OK : submit_split(f, split, deadline_ns, err);
    if (status == MR_OK && f->g->is_host[b])
        status = await(f, b, f->last[b], deadline_ns, err);
    if (status == MR_OK && f->g->is_host[b])
        graph_works_computed(f->g, f->split_ns);
    if (status == MR_OK)
        status = start_copies_after(f, f->split, err);
    if (status != MR_OK)
        return status;
    f->is_submitted = false;
    f->split++;
    return MR_OK;
}

/* Queues what follows the last split. */
static mr_status queue_end(mr_graph_flight *f, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < f->n_reads && status == MR_OK; i++) {
        mr_fence fence = 0;
        if (f->reads[i].n_rows == 0)
            continue;
        status = graph_read(f->g, &f->reads[i], &fence, err);
        if (status == MR_OK)
            note_work(f, graph_home(f->g, f->reads[i].tensor), fence);
    }
    f->is_queued = true;
    return status == MR_OK ? mark(f, f->last, err) : status;
}

/* Goes on with the run. MR_E_TIMEOUT: there is still something to wait for. */
static mr_status advance(mr_graph_flight *f, int64_t deadline_ns, mr_err *err) {
    mr_status status = MR_OK;
    while (f->split < f->g->n_splits && status == MR_OK)
        status = mr_run_is_stopped(&f->run) ? mr_err_set(err, MR_E_CANCELLED, "the run was stopped")
                                            : run_split(f, deadline_ns, err);
    if (status == MR_OK && !f->is_queued)
        status = queue_end(f, err);
    for (int32_t b = 0; b < f->g->backends.n && status == MR_OK; b++) {
        if (f->is_busy[b])
            status = await(f, b, f->last[b], deadline_ns, err);
        f->is_busy[b] = f->is_busy[b] && status != MR_OK;
    }
    return status;
}

static int64_t longest_work(const mr_graph_flight *f) {
    int64_t most_ns = 0, from_ns, to_ns;
    for (int32_t b = 0; b < f->g->backends.n; b++) {
        mr_backend *be = f->g->backends.at[b];
        if (f->g->runs_on[b] && be->ops->fence_ns(be, f->first[b], &from_ns, NULL) == MR_OK &&
            be->ops->fence_ns(be, f->last[b], &to_ns, NULL) == MR_OK && to_ns - from_ns > most_ns)
            most_ns = to_ns - from_ns;
    }
    return most_ns;
}

/* Ends the run. No work of it may be left, not even after an error. */
static mr_status land(mr_graph_flight *f, mr_status status, mr_err *err) {
    mr_graph *g = f->g;
    for (int32_t b = 0; b < g->backends.n; b++) {
        if (!f->is_busy[b])
            continue;
        mr_status end = await(f, b, f->last[b], MR_NEVER, status == MR_OK ? err : NULL);
        status = status == MR_OK ? end : status;
    }
    f->worked_ns = status == MR_OK ? longest_work(f) : 0;
    if (status == MR_OK)
        graph_works_end(g);
    if (g->times)
        graph_times_ran(g->times, mr_clock_now_ns() - f->start_ns);
    f->g = NULL;
    return status;
}

mr_status mr_graph_start(mr_graph *g, const mr_run *run, const mr_graph_read *reads, int32_t n_reads,
                         mr_graph_flight *f, mr_err *err) {
    MR_ASSERT(!f->g && g->n_copies <= f->max_copies && n_reads <= MR_GRAPH_MAX_READS);
    *f = (mr_graph_flight){.g = g,
                           .run = *run,
                           .progress = run->progress,
                           .progress_ctx = run->progress_ctx,
                           .n_reads = n_reads,
                           .max_copies = f->max_copies};
    for (int32_t i = 0; i < n_reads; i++)
        f->reads[i] = reads[i];
    f->run.n_rows[MR_ROWS_SLOTS] = run->n_rows[MR_ROWS_STEP] * g->n_experts_used;
    if (g->times) {
        f->start_ns = mr_clock_now_ns();
        f->run.progress = note_group;
        f->run.progress_ctx = f;
    }
    graph_works_begin(g);
    mr_status status = mark(f, f->first, err);
    if (status == MR_OK)
        status = start_copies_after(f, GRAPH_BEFORE_ALL, err);
    if (status == MR_OK)
        status = advance(f, 0, err);
    return status == MR_E_TIMEOUT ? MR_OK : land(f, status, err);
}

mr_status mr_graph_poll(mr_graph_flight *f, int64_t deadline_ns, bool *out_done, mr_err *err) {
    mr_status status = f->g ? advance(f, deadline_ns, err) : MR_OK;
    bool is_done = status != MR_E_TIMEOUT;
    status = is_done && f->g ? land(f, status, err) : MR_OK;
    if (status == MR_OK)
        *out_done = is_done;
    return status;
}

bool mr_graph_flight_has_begun(const mr_graph_flight *f) {
    bool begun = true;
    for (int32_t b = 0; f->g && b < f->g->backends.n && begun; b++)
        if (f->g->runs_on[b])
            begun = f->g->backends.at[b]->ops->wait(f->g->backends.at[b], f->first[b], 0, NULL) == MR_OK;
    return begun;
}

int64_t mr_graph_flight_ns(const mr_graph_flight *f) {
    return f->worked_ns;
}

void mr_graph_flight_destroy(mr_graph_flight *f) {
    if (f && f->g)
        (void)land(f, MR_E_CANCELLED, NULL);
    mr_free(f);
}

mr_status mr_graph_run(mr_graph *g, const mr_run *run, mr_err *err) {
    mr_status status = mr_graph_start(g, run, NULL, 0, g->flight, err);
    for (bool done = false; status == MR_OK && !done;) {
        int64_t deadline_ns = run->progress ? mr_clock_now_ns() + PROGRESS_NS : MR_NEVER;
        status = mr_graph_poll(g->flight, deadline_ns, &done, err);
        if (status == MR_OK && !done && run->progress)
            run->progress(run->progress_ctx);
    }
    return status;
}
