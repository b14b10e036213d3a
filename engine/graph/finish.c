/* engine/graph/finish.c - calls the passes that finish a graph, places its tensors, and creates its programs. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/graph/debug.h"
#include "engine/graph/graph_internal.h"

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

/* Notes which backends run splits. Returns whether the host has work in a run: splits, or copies between devices. */
static bool note_users(mr_graph *g) {
    bool needs_host = false;
    for (int32_t s = 0; s < g->n_splits; s++) {
        int32_t b = g->splits[s].backend;
        g->runs_on[b] = true;
        needs_host = needs_host || g->is_host[b] || b != g->splits[0].backend;
    }
    return needs_host;
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
    g->stats.needs_host = note_users(g);
    g->stats.n_groups = g->n_nodes ? g->nodes[g->n_nodes - 1].group + 1 : 0;
    if (status == MR_OK)
        status = graph_plan_memory(g, &g->stats, err);
    if (status == MR_OK)
        *out = g->stats;
    return status;
}

mr_status mr_graph_place(mr_graph *g, mr_buffer *const *work, mr_err *err) {
    for (int32_t b = 0; b < g->backends.n; b++)
        g->work[b] = work[b];
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (graph_is_work(g, t))
            g->tensors[t].buffer = work[graph_home(g, t)];
    mr_status status = mr_graph_flight_create(g->n_copies, &g->flight, err);
    for (int32_t s = 0; s < g->n_splits && status == MR_OK; s++) {
        graph_split *split = &g->splits[s];
        mr_backend *be = g->backends.at[split->backend];
        mr_program_desc desc = graph_program(g, split);
        desc.scratch = work[g->memory[split->backend]];
        desc.scratch_offset = g->scratch_at[split->backend];
        status = be->ops->program_create(be, &desc, &split->program, err);
    }
    return status == MR_OK ? graph_debug_place(g, err) : status;
}

mr_backend *mr_graph_device(const mr_graph *g, int32_t tensor) {
    int32_t home = graph_home(g, tensor);
    bool is_alone = !g->is_host[home] && g->backends.at[home]->ops->link;
    for (int32_t t = g->links[tensor].also; t != MR_NO_TENSOR; t = g->links[t].also)
        is_alone = is_alone && (g->tensors[t].storage != MR_STORAGE_INPUT || graph_home(g, t) == home);
    return is_alone ? g->backends.at[home] : NULL;
}

bool mr_graph_is_on_host(const mr_graph *g, int32_t tensor) {
    return g->is_host[graph_home(g, tensor)];
}

const mr_tensor *mr_graph_tensor(const mr_graph *g, int32_t tensor) {
    return &g->tensors[tensor];
}

const mr_node *mr_graph_nodes(const mr_graph *g, int32_t *out_n) {
    *out_n = g->n_nodes;
    return g->nodes;
}
