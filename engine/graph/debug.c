/* engine/graph/debug.c - reads the environment variables of debug.h and prints the reports: splits, memory plan, times.
 * The passes and runs of a graph only call in here, so they stay free of formatting. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/debug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

static const char *const WORDS[] = {"splits", "plan", "timing"}; /* in the order of the bits */
enum { N_WORDS = sizeof WORDS / sizeof WORDS[0] };

/* Returns the bits of all known words. out_unknown: the first unknown word, or NULL; out_len: its length. */
static unsigned read_words(const char **out_unknown, int *out_len) {
    const char *at = getenv("MILLRACE_GRAPH_DEBUG");
    unsigned wanted = 0;
    *out_unknown = NULL;
    while (at && *at) {
        size_t len = strcspn(at, ",");
        int w = 0;
        while (w < N_WORDS && (strlen(WORDS[w]) != len || strncmp(WORDS[w], at, len) != 0))
            w++;
        if (w < N_WORDS) {
            wanted |= 1u << w;
        } else if (!*out_unknown) {
            *out_unknown = at;
            *out_len = (int)len;
        }
        at += len + (at[len] == ',');
    }
    return wanted;
}

unsigned mr_graph_debug_wanted(void) {
    const char *unknown;
    int len;
    return read_words(&unknown, &len);
}

bool mr_graph_reuse_wanted(void) {
    const char *reuse = getenv("MILLRACE_GRAPH_REUSE");
    return !reuse || strcmp(reuse, "off") != 0;
}

mr_status mr_graph_variables_check(mr_err *err) {
    const char *unknown, *reuse = getenv("MILLRACE_GRAPH_REUSE");
    int len;
    read_words(&unknown, &len);
    if (unknown)
        return mr_err_set(err, MR_E_INVALID, "MILLRACE_GRAPH_DEBUG: \"%.*s\" is not one of %s, %s, %s",
                          len < 80 ? len : 80, unknown, WORDS[0], WORDS[1], WORDS[2]);
    if (reuse && *reuse && strcmp(reuse, "on") != 0 && strcmp(reuse, "off") != 0)
        return mr_err_set(err, MR_E_INVALID, "MILLRACE_GRAPH_REUSE: \"%.80s\" is not one of on, off", reuse);
    return MR_OK;
}

/* --- Text -------------------------------------------------------------------------------------------------------- */

/* A report: a stream into memory, whose lines go to the log when the report is complete. */
typedef struct page {
    FILE *f; /* NULL: no memory; nothing is printed */
    char *text;
    size_t len;
    mr_device_info devices[MR_MAX_BACKENDS];
} page;

static void page_open(page *p, const mr_graph *g) {
    p->text = NULL;
    p->f = open_memstream(&p->text, &p->len);
    for (int32_t b = 0; b < g->backends.n; b++)
        g->backends.at[b]->ops->describe(g->backends.at[b], &p->devices[b]);
}

static void page_print(page *p) {
    bool good = p->f && fclose(p->f) == 0;
    char *rest = NULL; /* strtok_r: several stages of one process may print at the same time */
    for (char *line = good ? strtok_r(p->text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest))
        mr_log_always("graph", line);
    free(p->text);
}

/* Prints the ops of nodes [first, last) as "rms_norm, matmul x3, rope x2". */
static void print_ops(FILE *f, const mr_graph *g, int32_t first, int32_t last) {
    const char *comma = "";
    for (int op = 0; op < MR_OP_COUNT; op++) {
        int n = 0;
        for (int32_t i = first; i < last; i++)
            n += g->nodes[i].op == (mr_op)op;
        if (n == 0)
            continue;
        fprintf(f, n > 1 ? "%s%s x%d" : "%s%s", comma, mr_op_name((mr_op)op), n);
        comma = ", ";
    }
}

static void print_splits(const mr_graph *g) {
    const mr_graph_stats *stats = &g->stats;
    page p;
    page_open(&p, g);
    if (p.f) {
        fprintf(p.f, "graph of up to %d rows: %d nodes, %d splits, %d copies, %d groups\n", g->max_rows[MR_ROWS_STEP],
                stats->n_nodes, stats->n_splits, stats->n_copies, stats->n_groups);
        for (int32_t s = 0; s < g->n_splits; s++) {
            const graph_split *split = &g->splits[s];
            fprintf(p.f, "  split %3d on %s: ", s, p.devices[split->backend].name);
            print_ops(p.f, g, split->first, split->last);
            fputc('\n', p.f);
            for (int32_t c = split->first_copy; c < split->last_copy; c++) {
                const graph_copy *copy = &g->copies[c];
                if (copy->source) {
                    fprintf(p.f, "    loads %s, %zu bytes, for the run\n", g->tensors[copy->dst].name,
                            g->tensors[copy->dst].bytes);
                    continue;
                }
                fprintf(p.f, "    copies %s, %zu bytes, from %s to %s\n", g->tensors[copy->src].name,
                        g->tensors[copy->src].bytes, p.devices[graph_home(g, copy->src)].name,
                        p.devices[graph_home(g, copy->dst)].name);
            }
        }
    }
    page_print(&p);
}

static void print_plan(const mr_graph *g) {
    const mr_graph_stats *stats = &g->stats;
    page p;
    page_open(&p, g);
    size_t total = 0;
    for (int32_t b = 0; b < g->backends.n; b++)
        total += stats->work_bytes[b];
    if (p.f) {
        fprintf(p.f, "work memory of a graph of up to %d rows: %zu bytes; without sharing %zu\n",
                g->max_rows[MR_ROWS_STEP], total, stats->unshared_bytes);
        for (int32_t b = 0; b < g->backends.n; b++) {
            if (stats->work_bytes[b] == 0)
                continue;
            fprintf(p.f, "  on %s: %zu bytes\n  %12s %12s  %-9s %s\n", p.devices[b].name, stats->work_bytes[b],
                    "offset", "bytes", "groups", "tensor");
            for (int32_t t = 0; t < g->n_tensors; t++)
                if (graph_is_work(g, t) && g->ranges[t].first >= 0 && graph_home(g, t) == b)
                    fprintf(p.f, "  %12zu %12zu  %4d-%-4d %s\n", g->tensors[t].offset, g->tensors[t].bytes,
                            g->ranges[t].first, g->ranges[t].last, g->tensors[t].name);
        }
    }
    page_print(&p);
}

/* --- Time -------------------------------------------------------------------------------------------------------- */

struct graph_times {
    int64_t n_runs, run_ns;  /* number of runs, and their time */
    int64_t wait_ns;         /* time of all waits for devices */
    int64_t last_ns;         /* clock at the start of the split, or at the end of its last group */
    int32_t group, n_groups; /* the group that ends next, and the number of groups of the graph */
    int64_t group_ns[];      /* [n_groups] sums over all runs */
};

mr_status graph_debug_place(mr_graph *g, mr_err *err) {
    if (g->debug & MR_GRAPH_DEBUG_SPLITS)
        print_splits(g);
    if (g->debug & MR_GRAPH_DEBUG_PLAN)
        print_plan(g);
    if (!(g->debug & MR_GRAPH_DEBUG_TIMING))
        return MR_OK;
    g->times = mr_alloc(sizeof *g->times + (size_t)g->stats.n_groups * sizeof g->times->group_ns[0]);
    if (!g->times)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the times of a graph");
    g->times->n_groups = g->stats.n_groups;
    return MR_OK;
}

void graph_times_start(graph_times *t, int32_t group) {
    t->group = group;
    t->last_ns = mr_clock_now_ns();
}

void graph_times_group(graph_times *t) {
    int64_t now = mr_clock_now_ns();
    MR_ASSERT(t->group < t->n_groups);
    t->group_ns[t->group++] += now - t->last_ns;
    t->last_ns = now;
}

void graph_times_waited(graph_times *t, int64_t ns) {
    t->wait_ns += ns;
}

void graph_times_ran(graph_times *t, int64_t ns) {
    t->n_runs++;
    t->run_ns += ns;
}

/* A line of the table of times: all groups with the same set of ops. */
typedef struct op_time {
    uint32_t ops; /* bit i: op i */
    int32_t n_groups;
    int64_t ns;
} op_time;

static int by_time(const void *a, const void *b) {
    const op_time *x = a, *y = b;
    return x->ns < y->ns ? 1 : x->ns > y->ns ? -1 : 0;
}

/* Fills out[] with a sum for each set of ops; returns the number of sets. */
static int32_t sum_by_ops(const mr_graph *g, op_time *out) {
    int32_t n = 0;
    for (int32_t i = 0, end; i < g->n_nodes; i = end) {
        uint32_t ops = 0;
        for (end = i; end < g->n_nodes && g->nodes[end].group == g->nodes[i].group; end++)
            ops |= 1u << g->nodes[end].op;
        int32_t k = 0;
        while (k < n && out[k].ops != ops)
            k++;
        if (k == n)
            out[n++] = (op_time){.ops = ops};
        out[k].n_groups++;
        out[k].ns += g->times->group_ns[g->nodes[i].group];
    }
    return n;
}

static void print_share(FILE *f, const graph_times *t, int64_t ns) {
    fprintf(f, "  %12.3f %7.1f  ", (double)ns / (double)t->n_runs / 1e6, 100.0 * (double)ns / (double)t->run_ns);
}

static void print_times(const mr_graph *g, FILE *f, op_time *sums) {
    const graph_times *t = g->times;
    int32_t n = sum_by_ops(g, sums), n_groups = 0, n_layers = 0;
    int64_t rest = t->run_ns - t->wait_ns;
    for (int32_t i = 0; i < g->n_nodes; i++)
        n_layers += g->nodes[i].op == MR_OP_ATTENTION;
    qsort(sums, (size_t)n, sizeof *sums, by_time);
    for (int32_t k = 0; k < n; k++) {
        n_groups += sums[k].n_groups;
        rest -= sums[k].ns;
    }
    fprintf(f, "time of a graph of up to %d rows, %lld runs of %.3f ms; %d groups", g->max_rows[MR_ROWS_STEP],
            (long long)t->n_runs, (double)t->run_ns / (double)t->n_runs / 1e6, n_groups);
    if (n_layers > 0)
        fprintf(f, ", %.1f barriers for each of %d layers", (double)n_groups / n_layers, n_layers);
    fprintf(f, "\n  %12s %7s  %s\n", "ms in a run", "%", "ops of a group, and how many groups");
    for (int32_t k = 0; k < n; k++) {
        const char *plus = "";
        if (sums[k].ns == 0)
            continue; /* ran on a device: its time is part of the waits */
        print_share(f, t, sums[k].ns);
        for (int op = 0; op < MR_OP_COUNT; op++)
            if (sums[k].ops >> op & 1) {
                fprintf(f, "%s%s", plus, mr_op_name((mr_op)op));
                plus = " + ";
            }
        fprintf(f, " x%d\n", sums[k].n_groups);
    }
    if (t->wait_ns > 0) {
        print_share(f, t, t->wait_ns);
        fputs("waiting for devices\n", f);
    }
    print_share(f, t, rest);
    fputs("copies and everything else\n", f);
}

void graph_debug_destroy(mr_graph *g) {
    op_time *sums = g->times && g->times->n_runs > 0 ? mr_alloc_array((size_t)g->n_nodes + 1, sizeof *sums) : NULL;
    if (sums) {
        page p;
        page_open(&p, g);
        if (p.f)
            print_times(g, p.f, sums);
        page_print(&p);
    }
    mr_free(sums);
    mr_free(g->times);
    mr_free(g->ranges);
}
