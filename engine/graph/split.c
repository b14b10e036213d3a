/* engine/graph/split.c - gives work tensors their home, and adds copies of the tensors that a split reads from another
 * memory. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

/* Gives every work tensor its home. A result lives in the memory of the backend that computes it. An input lives in the
 * memory of its first reader; add_copies adds an instance of it for every other memory. */
static void give_homes(mr_graph *g) {
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (graph_is_work(g, t))
            g->tensors[t].home = NULL;
    for (int32_t i = 0; i < g->n_nodes; i++) {
        const mr_node *n = &g->nodes[i];
        mr_backend *owner = g->backends.at[g->memory[n->backend]];
        if (n->out != MR_NO_TENSOR)
            g->tensors[n->out].home = owner;
        for (int k = 0; k < MR_MAX_INPUTS; k++) {
            mr_tensor *t = n->in[k] == MR_NO_TENSOR ? NULL : &g->tensors[n->in[k]];
            if (t && t->storage == MR_STORAGE_INPUT && !t->home)
                t->home = owner;
        }
    }
}

/* Adds a tensor with the values of id in another memory. */
static mr_status add_instance(mr_graph *g, int32_t id, int32_t memory, mr_storage storage, int32_t *out, mr_err *err) {
    mr_tensor t = g->tensors[id];
    t.storage = storage;
    t.home = g->backends.at[memory];
    t.buffer = NULL;
    int32_t made = graph_add_tensor(g, &t);
    if (made == MR_NO_TENSOR)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for copies");
    g->links[made].also = g->links[id].also;
    g->links[id].also = made;
    *out = made;
    return MR_OK;
}

static mr_status add_copy(mr_graph *g, int32_t src, int32_t memory, graph_copy copy, int32_t *out, mr_err *err) {
    /* A copy of an output in the host's memory stays readable, too: mr_graph_on_host. */
    bool is_output = g->is_host[memory] && g->tensors[src].storage == MR_STORAGE_OUTPUT;
    mr_status status = add_instance(g, src, memory, is_output ? MR_STORAGE_OUTPUT : MR_STORAGE_WORK, &copy.dst, err);
    if (status != MR_OK)
        return status;
    copy.src = src;
    copy.to_host = g->is_host[memory];
    if (!graph_grow((void **)&g->copies, g->n_copies, &g->cap_copies, sizeof *g->copies))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for copies");
    g->copies[g->n_copies++] = copy;
    *out = copy.dst;
    return MR_OK;
}

/* Adds the load of an offloaded product's matrix into the device's memory. Each split that needs the matrix loads
 * it. */
static mr_status add_load(mr_graph *g, int32_t s, int32_t id, int32_t *out, mr_err *err) {
    mr_backend *be = g->backends.at[g->splits[s].backend];
    mr_tensor t = g->tensors[id];
    t.storage = MR_STORAGE_WEIGHT;
    t.home = be;
    t.buffer = NULL;
    mr_status status = be->ops->weight_bytes(be, t.type, t.ne[0], t.ne[1], &t.bytes, err);
    if (status != MR_OK)
        return status;
    /* In the device's queue, the load stands behind the earlier splits. */
    graph_copy copy = {.src = MR_NO_TENSOR, .after = s - 1, .before = s, .is_late = true};
    copy.source = g->links[id].source;
    copy.dst = graph_add_tensor(g, &t);
    if (copy.dst == MR_NO_TENSOR || !graph_grow((void **)&g->copies, g->n_copies, &g->cap_copies, sizeof *g->copies))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for copies");
    g->copies[g->n_copies++] = copy;
    *out = copy.dst;
    return MR_OK;
}

/* Finds the tensor with the values of id in the memory of split s, or adds a copy; of an input, an instance that the
 * caller writes. made_by[id]: the split that computes tensor id. */
static mr_status bring(mr_graph *g, const int32_t *made_by, int32_t s, int32_t id, int32_t *out, mr_err *err) {
    int32_t memory = g->memory[g->splits[s].backend], host = g->backends.n - 1;
    *out = graph_reach(g, g->splits[s].backend, id);
    if (*out != MR_NO_TENSOR)
        return MR_OK;
    if (g->tensors[id].storage == MR_STORAGE_INPUT)
        return add_instance(g, id, memory, MR_STORAGE_INPUT, out, err);
    graph_copy copy = {.after = made_by[id], .before = s};
    int32_t src = graph_reach(g, host, id);
    mr_status status = MR_OK;
    if (memory == host)
        src = id;
    else if (src == MR_NO_TENSOR) /* from device to device: first into the host's memory */
        status = add_copy(g, id, host, copy, &src, err);
    copy.is_late = memory != host && src != id && g->tensors[id].home != g->backends.at[host];
    return status == MR_OK ? add_copy(g, src, memory, copy, out, err) : status;
}

static mr_status add_copies(mr_graph *g, mr_err *err) {
    /* Only tensors from before the copies are looked up: made_by needs no room for the tensors that are added here. */
    int32_t *made_by = mr_alloc_array((size_t)g->n_tensors + 1, sizeof *made_by);
    mr_status status = made_by ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for copies");
    for (int32_t t = 0; status == MR_OK && t < g->n_tensors; t++)
        made_by[t] = GRAPH_BEFORE_ALL;
    for (int32_t s = 0; s < g->n_splits && status == MR_OK; s++) {
        graph_split *split = &g->splits[s];
        split->first_copy = g->n_copies;
        for (int32_t i = split->first; i < split->last && status == MR_OK; i++) {
            mr_node *n = &g->nodes[i];
            if (n->out != MR_NO_TENSOR)
                made_by[n->out] = s;
            for (int k = 0; k < MR_MAX_INPUTS && status == MR_OK; k++) {
                if (n->in[k] == MR_NO_TENSOR)
                    continue;
                if (n->op == MR_OP_MATMUL && k == 0 && graph_reach(g, split->backend, n->in[0]) == MR_NO_TENSOR)
                    status = add_load(g, s, n->in[0], &n->in[0], err);
                else
                    status = bring(g, made_by, s, n->in[k], &n->in[k], err);
            }
        }
        split->last_copy = g->n_copies;
    }
    mr_free(made_by);
    return status;
}

/* Lists the copies that start as soon as their tensor is computed, in the order of the splits that compute them. */
static mr_status sort_issue(mr_graph *g, mr_err *err) {
    g->issue = mr_alloc_array((size_t)g->n_copies + 1, sizeof *g->issue);
    if (!g->issue)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for copies");
    for (int32_t after = GRAPH_BEFORE_ALL; after < g->n_splits; after++)
        for (int32_t c = 0; c < g->n_copies; c++)
            if (!g->copies[c].is_late && g->copies[c].after == after)
                g->issue[g->n_issue++] = c;
    return MR_OK;
}

mr_status graph_split_nodes(mr_graph *g, mr_err *err) {
    mr_status status = graph_sort_nodes(g, err);
    if (status != MR_OK)
        return status;
    g->n_built = g->n_tensors;
    give_homes(g);
    status = add_copies(g, err);
    return status == MR_OK ? sort_issue(g, err) : status;
}
