/* engine/graph/run.c - finishes, places and runs a graph. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/graph/graph_internal.h"

/* Says what the node has that no backend runs. */
static mr_status unsupported(const mr_graph *g, const mr_node *n, mr_err *err) {
    const mr_tensor *t = &g->tensors[n->in[0] != MR_NO_TENSOR ? n->in[0] : n->out];
    if (n->op == MR_OP_KV_WRITE || n->op == MR_OP_ATTENTION) {
        const mr_tensor *keys = &g->tensors[n->in[n->op == MR_OP_ATTENTION ? 1 : 3]];
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "no backend runs %s on tensor '%s' with heads of %d elements and keys in %s",
                          mr_op_name(n->op), t->name, n->params.attention.head_dim, mr_type_name(keys->type));
    }
    return mr_err_set(err, MR_E_UNSUPPORTED, "no backend runs %s on tensor '%s' of type %s", mr_op_name(n->op), t->name,
                      mr_type_name(t->type));
}

static mr_status check_support(const mr_graph *g, mr_err *err) {
    for (int32_t i = 0; i < g->n_nodes; i++)
        if (!g->backend->ops->supports(g->backend, g->tensors, &g->nodes[i]))
            return unsupported(g, &g->nodes[i], err);
    return MR_OK;
}

mr_status mr_graph_finish(mr_graph *g, mr_backend *backend, mr_graph_stats *out, mr_err *err) {
    if (g->err.status != MR_OK)
        return mr_err_set(err, g->err.status, "%s", g->err.text);
    mr_device_info device;
    g->backend = backend;
    backend->ops->describe(backend, &device);
    graph_fuse(g);
    mr_status status = check_support(g, err);
    if (status == MR_OK)
        status = graph_group(g, err);
    mr_graph_stats stats = {.n_nodes = g->n_nodes};
    stats.n_groups = g->n_nodes ? g->nodes[g->n_nodes - 1].group + 1 : 0;
    if (status == MR_OK)
        status = graph_plan_memory(g, device.alignment, &stats.work_bytes, &stats.unshared_bytes, err);
    if (status == MR_OK)
        *out = stats;
    return status;
}

mr_status mr_graph_place(mr_graph *g, mr_buffer *work, mr_err *err) {
    for (int32_t t = 0; t < g->n_tensors; t++)
        if (graph_is_work(&g->tensors[t]))
            g->tensors[t].buffer = work;
    mr_program_desc desc = {.tensors = g->tensors, .nodes = g->nodes, .n_nodes = g->n_nodes};
    return g->backend->ops->program_create(g->backend, &desc, &g->program, err);
}

mr_status mr_graph_run(mr_graph *g, const mr_run *run, mr_err *err) {
    mr_fence fence;
    mr_status status = g->backend->ops->submit(g->backend, g->program, run, &fence, err);
    return status == MR_OK ? g->backend->ops->wait(g->backend, fence, MR_NEVER, err) : status;
}

mr_status mr_graph_set_rows(mr_graph *g, int32_t tensor, const void *src, size_t row_bytes, int32_t n_rows,
                            mr_err *err) {
    const mr_tensor *t = &g->tensors[tensor];
    mr_fence fence = 0;
    MR_ASSERT(n_rows <= t->ne[1] && row_bytes <= t->row_bytes);
    if (row_bytes == t->row_bytes)
        return g->backend->ops->set(g->backend, t->buffer, t->offset, src, row_bytes * (size_t)n_rows, &fence, err);
    mr_status status = MR_OK;
    for (int32_t r = 0; r < n_rows && status == MR_OK; r++)
        status = g->backend->ops->set(g->backend, t->buffer, t->offset + (size_t)r * t->row_bytes,
                                      (const char *)src + (size_t)r * row_bytes, row_bytes, &fence, err);
    return status;
}

mr_status mr_graph_get_rows(mr_graph *g, int32_t tensor, int32_t first_row, int32_t n_rows, void *dst, size_t row_bytes,
                            mr_err *err) {
    const mr_tensor *t = &g->tensors[tensor];
    mr_fence fence = 0;
    MR_ASSERT(first_row >= 0 && first_row + n_rows <= t->ne[1] && row_bytes <= t->row_bytes);
    mr_status status = MR_OK;
    for (int32_t r = 0; r < n_rows && status == MR_OK; r++)
        status = g->backend->ops->get(g->backend, t->buffer, t->offset + (size_t)(first_row + r) * t->row_bytes,
                                      (char *)dst + (size_t)r * row_bytes, row_bytes, &fence, err);
    return status == MR_OK ? g->backend->ops->wait(g->backend, fence, MR_NEVER, err) : status;
}

const mr_tensor *mr_graph_tensor(const mr_graph *g, int32_t tensor) {
    return &g->tensors[tensor];
}

const mr_node *mr_graph_nodes(const mr_graph *g, int32_t *out_n) {
    *out_n = g->n_nodes;
    return g->nodes;
}
