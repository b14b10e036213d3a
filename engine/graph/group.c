/* engine/graph/group.c - finds nodes that may run at the same time. Nodes of a split form a group if the longest
 * dependency chain in front of them has the same length. Groups are numbered through all splits. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

/* Notes from which group on the results of n may be read. KV_WRITE changes its two state tensors: nodes that read them
 * and stand behind n run after n. */
static void note_written(const mr_node *n, int32_t *ready) {
    if (n->out != MR_NO_TENSOR)
        ready[n->out] = n->group + 1;
    if (n->op == MR_OP_KV_WRITE)
        ready[n->in[3]] = ready[n->in[4]] = n->group + 1;
}

/* Puts a KV_WRITE node behind the nodes that read the old state, and notes what n reads. read[t]: the last group that
 * reads tensor t, plus 1. */
static void wait_for_readers(mr_node *n, int32_t *read) {
    if (n->op == MR_OP_KV_WRITE)
        for (int k = 3; k <= 4; k++)
            n->group = read[n->in[k]] > n->group ? read[n->in[k]] : n->group;
    for (int k = 0; k < MR_MAX_INPUTS; k++)
        if (n->in[k] != MR_NO_TENSOR && read[n->in[k]] < n->group + 1)
            read[n->in[k]] = n->group + 1;
}

mr_status graph_group(mr_graph *g, mr_err *err) {
    /* ready[t]: the first group that may read tensor t. */
    int32_t *ready = mr_alloc_array((size_t)g->n_tensors + 1, sizeof *ready);
    int32_t *read = mr_alloc_array((size_t)g->n_tensors + 1, sizeof *read);
    mr_node *sorted = mr_alloc_array((size_t)g->n_nodes + 1, sizeof *sorted);
    mr_status status = MR_OK;
    if (!ready || !read || !sorted) {
        status = mr_err_set(err, MR_E_NO_MEMORY, "no memory to group %d nodes", g->n_nodes);
        goto out;
    }
    int32_t n_groups = 0, s = -1, base = 0; /* base: the first group of split s */
    for (int32_t i = 0; i < g->n_nodes; i++) {
        mr_node *n = &g->nodes[i];
        if (s < 0 || i == g->splits[s].last) {
            base = n_groups;
            s++;
        }
        n->group = base;
        for (int k = 0; k < MR_MAX_INPUTS; k++)
            if (n->in[k] != MR_NO_TENSOR && ready[n->in[k]] > n->group)
                n->group = ready[n->in[k]];
        wait_for_readers(n, read);
        note_written(n, ready);
        n_groups = n->group + 1 > n_groups ? n->group + 1 : n_groups;
        g->splits[s].last_group = n_groups - 1;
    }
    int32_t at = 0;
    for (int32_t group = 0; group < n_groups; group++)
        for (int32_t i = 0; i < g->n_nodes; i++)
            if (g->nodes[i].group == group)
                sorted[at++] = g->nodes[i];
    if (at > 0) /* an empty graph has no array */
        memcpy(g->nodes, sorted, (size_t)at * sizeof *sorted);
out:
    mr_free(ready);
    mr_free(read);
    mr_free(sorted);
    return status;
}
