/* engine/graph/io.c - writes the inputs of a graph, and reads its outputs. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/graph/graph_internal.h"

/* Writes rows of one tensor: by one set, if they have the same distance in src as in the tensor. */
static mr_status set_tensor(mr_graph *g, int32_t tensor, const char *src, size_t row_bytes, int32_t n_rows,
                            mr_err *err) {
    const mr_tensor *t = &g->tensors[tensor];
    mr_backend *be = g->backends.at[graph_home(g, tensor)];
    mr_fence fence = 0;
    MR_ASSERT(n_rows <= t->ne[1] && row_bytes <= t->row_bytes);
    if (row_bytes == t->row_bytes)
        return be->ops->set(be, t->buffer, t->offset, src, row_bytes * (size_t)n_rows, &fence, err);
    mr_status status = MR_OK;
    for (int32_t r = 0; r < n_rows && status == MR_OK; r++)
        status = be->ops->set(be, t->buffer, t->offset + (size_t)r * t->row_bytes, src + (size_t)r * row_bytes,
                              row_bytes, &fence, err);
    return status;
}

/* Rows between a tensor and a buffer of its device. */
typedef struct device_rows {
    const mr_tensor *tensor;
    size_t tensor_offset; /* in the tensor's buffer */
    mr_buffer *buffer;
    size_t offset, row_bytes;
    int32_t n_rows;
    bool into_tensor;
} device_rows;

/* Copies rows by one copy, if they have the same distance in both. */
static mr_status copy_on_device(mr_backend *be, const device_rows *r, mr_fence *out, mr_err *err) {
    bool is_whole = r->row_bytes == r->tensor->row_bytes;
    int32_t n = is_whole ? 1 : r->n_rows;
    size_t bytes = is_whole ? r->row_bytes * (size_t)r->n_rows : r->row_bytes;
    mr_status status = MR_OK;
    for (int32_t i = 0; i < n && status == MR_OK; i++) {
        size_t in_tensor = r->tensor_offset + (size_t)i * r->tensor->row_bytes;
        size_t in_buffer = r->offset + (size_t)i * r->row_bytes;
        status = r->into_tensor
                     ? be->ops->link->copy(be, r->tensor->buffer, in_tensor, r->buffer, in_buffer, bytes, out, err)
                     : be->ops->link->copy(be, r->buffer, in_buffer, r->tensor->buffer, in_tensor, bytes, out, err);
    }
    return status;
}

mr_status mr_graph_copy_rows(mr_graph *g, int32_t tensor, const mr_buffer *src, size_t offset, size_t row_bytes,
                             int32_t n_rows, mr_err *err) {
    mr_backend *be = mr_graph_device(g, tensor);
    mr_status status = MR_OK;
    MR_ASSERT(be && n_rows <= g->tensors[tensor].ne[1] && row_bytes <= g->tensors[tensor].row_bytes);
    for (int32_t t = tensor; t != MR_NO_TENSOR && status == MR_OK; t = g->links[t].also) {
        const device_rows rows = {.tensor = &g->tensors[t],
                                  .tensor_offset = g->tensors[t].offset,
                                  .buffer = (mr_buffer *)(uintptr_t)src,
                                  .offset = offset,
                                  .row_bytes = row_bytes,
                                  .n_rows = n_rows,
                                  .into_tensor = true};
        mr_fence fence = 0;
        if (t == tensor || g->tensors[t].storage == MR_STORAGE_INPUT)
            status = copy_on_device(be, &rows, &fence, err);
    }
    return status;
}

mr_status mr_graph_set_rows(mr_graph *g, int32_t tensor, const void *src, size_t row_bytes, int32_t n_rows,
                            mr_err *err) {
    mr_status status = set_tensor(g, tensor, src, row_bytes, n_rows, err);
    for (int32_t t = g->links[tensor].also; t != MR_NO_TENSOR && status == MR_OK; t = g->links[t].also)
        if (g->tensors[t].storage == MR_STORAGE_INPUT)
            status = set_tensor(g, t, src, row_bytes, n_rows, err);
    return status;
}

size_t mr_graph_record_offset(const mr_graph *g, int32_t input) {
    MR_ASSERT(graph_in_record(g, input));
    return g->tensors[input].offset; /* the record begins at offset 0 */
}

mr_status mr_graph_set_record(mr_graph *g, const void *record, mr_err *err) {
    mr_status status = MR_OK;
    mr_fence fence = 0;
    for (int32_t b = 0; b < g->backends.n && status == MR_OK; b++)
        if (g->has_record[b])
            status = g->backends.at[b]->ops->set(g->backends.at[b], g->work[b], 0, record, g->stats.record_bytes,
                                                 &fence, err);
    return status;
}

mr_status graph_read(mr_graph *g, const mr_graph_read *r, mr_fence *out, mr_err *err) {
    const mr_tensor *t = &g->tensors[r->tensor];
    mr_backend *be = g->backends.at[graph_home(g, r->tensor)];
    size_t at = t->offset + (size_t)r->first_row * t->row_bytes;
    MR_ASSERT(r->first_row >= 0 && r->first_row + r->n_rows <= t->ne[1] && r->row_bytes <= t->row_bytes);
    if (r->buffer) {
        const device_rows rows = {.tensor = t,
                                  .tensor_offset = at,
                                  .buffer = r->buffer,
                                  .offset = r->offset,
                                  .row_bytes = r->row_bytes,
                                  .n_rows = r->n_rows};
        return copy_on_device(be, &rows, out, err);
    }
    if (r->row_bytes == t->row_bytes)
        return be->ops->get(be, t->buffer, at, r->dst, r->row_bytes * (size_t)r->n_rows, out, err);
    mr_status status = MR_OK;
    for (int32_t i = 0; i < r->n_rows && status == MR_OK; i++)
        status = be->ops->get(be, t->buffer, at + (size_t)i * t->row_bytes, (char *)r->dst + (size_t)i * r->row_bytes,
                              r->row_bytes, out, err);
    return status;
}

mr_status mr_graph_get_rows(mr_graph *g, int32_t tensor, int32_t first_row, int32_t n_rows, void *dst, size_t row_bytes,
                            mr_err *err) {
    mr_backend *be = g->backends.at[graph_home(g, tensor)];
    mr_fence fence = 0;
    mr_status status = graph_read(g, &(mr_graph_read){tensor, first_row, n_rows, dst, row_bytes, NULL, 0}, &fence, err);
    return status == MR_OK ? be->ops->wait(be, fence, MR_NEVER, err) : status;
}

const void *mr_graph_rows(const mr_graph *g, int32_t tensor, int32_t first_row) {
    const mr_tensor *t = &g->tensors[tensor];
    return t->buffer->base ? t->buffer->base + t->offset + (size_t)first_row * t->row_bytes : NULL;
}

int32_t mr_graph_on_host(const mr_graph *g, int32_t output) {
    int32_t t = output;
    while (t != MR_NO_TENSOR &&
           !(mr_graph_is_on_host(g, t) && (t == output || g->tensors[t].storage == MR_STORAGE_OUTPUT)))
        t = g->links[t].also;
    return t;
}
