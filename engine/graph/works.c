/* engine/graph/works.c - notes when the backends of a graph compute, for a trace. The work of a device is the time
 * between two marks in its queue. A backend keeps the times of its last marks only, so they are asked for while the run
 * goes on. At the end of the run, the times of a device are moved to the clock of the process: a last mark shows how
 * far the two clocks are apart, but for the time until the host sees the mark. The least of these differences is the
 * best one; it may grow slowly, as clocks drift. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

enum {
    MAX_OPEN = MR_KEPT_MARKS / 4, /* works of one device whose times are not known yet */
    DRIFT = 10000,                /* two clocks drift apart by 1 ns in so many ns at most */
};

/* A work that is in the queue of a device. */
typedef struct open_work {
    mr_fence start, end;
} open_work;

struct graph_works {
    open_work open[MR_MAX_BACKENDS][MAX_OPEN]; /* [n_open], the oldest one first */
    int32_t n_open[MR_MAX_BACKENDS];
    int64_t apart_ns[MR_MAX_BACKENDS]; /* from the clock of a device to that of the process */
    int64_t known_ns[MR_MAX_BACKENDS]; /* when that was found; 0: never */
    int32_t n, max;
    int32_t *backend; /* [max]: of each work */
    mr_graph_work at[];
};

mr_status mr_graph_note_work(mr_graph *g, mr_err *err) {
    size_t n = (size_t)g->n_splits;
    graph_works *w = mr_alloc(sizeof *w + n * (sizeof w->at[0] + sizeof *w->backend));
    if (!w)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the times of %d splits", g->n_splits);
    w->max = g->n_splits;
    w->backend = (int32_t *)(void *)(w->at + n);
    mr_free(g->works);
    g->works = w;
    return MR_OK;
}

const mr_graph_work *mr_graph_works(const mr_graph *g, int32_t *out_n) {
    *out_n = g->works ? g->works->n : 0;
    return g->works ? g->works->at : NULL;
}

void graph_works_begin(mr_graph *g) {
    graph_works *w = g->works;
    if (!w)
        return;
    w->n = 0;
    for (int32_t b = 0; b < g->backends.n; b++)
        w->n_open[b] = 0;
}

static void add(mr_graph *g, int32_t b, int64_t start_ns, int64_t end_ns) {
    graph_works *w = g->works;
    MR_ASSERT(w->n < w->max);
    w->backend[w->n] = b;
    w->at[w->n++] = (mr_graph_work){.is_host = g->is_host[b], .start_ns = start_ns, .end_ns = end_ns};
}

/* Notes the works that have ended. all: none is under way any more, so the others are given up. */
static void settle(mr_graph *g, int32_t b, bool all) {
    graph_works *w = g->works;
    mr_backend *be = g->backends.at[b];
    int32_t n = 0;
    for (int32_t i = 0; i < w->n_open[b]; i++) {
        int64_t start_ns, end_ns;
        const open_work o = w->open[b][i];
        if (be->ops->fence_ns(be, o.end, &end_ns, NULL) != MR_OK) {
            w->open[b][n++] = o;
        } else if (be->ops->fence_ns(be, o.start, &start_ns, NULL) == MR_OK) {
            add(g, b, start_ns, end_ns);
        }
    }
    w->n_open[b] = all ? 0 : n;
}

mr_status graph_works_before(mr_graph *g, int32_t b, mr_err *err) {
    graph_works *w = g->works;
    if (!w || g->is_host[b])
        return MR_OK;
    settle(g, b, false);
    if (w->n_open[b] == MAX_OPEN)
        return MR_OK;
    return g->backends.at[b]->ops->mark(g->backends.at[b], &w->open[b][w->n_open[b]].start, err);
}

mr_status graph_works_after(mr_graph *g, int32_t b, mr_err *err) {
    graph_works *w = g->works;
    if (!w || g->is_host[b] || w->n_open[b] == MAX_OPEN)
        return MR_OK;
    open_work *o = &w->open[b][w->n_open[b]];
    mr_status status = g->backends.at[b]->ops->mark(g->backends.at[b], &o->end, err);
    w->n_open[b] += status == MR_OK;
    return status;
}

void graph_works_computed(mr_graph *g, int64_t start_ns) {
    if (!g->works)
        return;
    add(g, g->backends.n - 1, start_ns, mr_clock_now_ns());
    for (int32_t b = 0; b < g->backends.n; b++)
        settle(g, b, false);
}

/* Finds how far the clock of an idle device is apart from that of the process. False: it was never found. */
static bool compare_clocks(mr_graph *g, int32_t b) {
    graph_works *w = g->works;
    mr_backend *be = g->backends.at[b];
    mr_fence mark;
    int64_t there_ns;
    if (be->ops->mark(be, &mark, NULL) != MR_OK || be->ops->wait(be, mark, MR_NEVER, NULL) != MR_OK ||
        be->ops->fence_ns(be, mark, &there_ns, NULL) != MR_OK)
        return w->known_ns[b] != 0;
    int64_t now_ns = mr_clock_now_ns(), apart_ns = now_ns - there_ns;
    int64_t most_ns = w->apart_ns[b] + (now_ns - w->known_ns[b]) / DRIFT;
    w->apart_ns[b] = w->known_ns[b] == 0 || apart_ns < most_ns ? apart_ns : most_ns;
    w->known_ns[b] = now_ns;
    return true;
}

/* Moves the works of a device to the clock of the process. Without a common time they are left out. */
static void move_clock(mr_graph *g, int32_t b) {
    graph_works *w = g->works;
    bool has_time = compare_clocks(g, b);
    int64_t apart_ns = w->apart_ns[b];
    int32_t n = 0;
    for (int32_t i = 0; i < w->n; i++) {
        if (w->backend[i] == b && !has_time)
            continue;
        w->at[n] = w->at[i];
        w->backend[n] = w->backend[i];
        w->at[n].start_ns += w->backend[i] == b ? apart_ns : 0;
        w->at[n++].end_ns += w->backend[i] == b ? apart_ns : 0;
    }
    w->n = n;
}

void graph_works_end(mr_graph *g) {
    for (int32_t b = 0; g->works && b < g->backends.n; b++) {
        if (g->is_host[b] || !g->runs_on[b])
            continue;
        settle(g, b, true);
        move_clock(g, b);
    }
}
