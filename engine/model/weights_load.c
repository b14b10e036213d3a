/* engine/model/weights_load.c - loads the tensors of a stage into the buffers of the backends. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/readahead.h"
#include "engine/model/weights_internal.h"
#include "engine/tensor/quant.h"

enum { AHEAD_BYTES = 64 << 20 /* how far the file is read ahead while loading */ };

typedef struct load_state {
    mr_load_progress *progress;
    void *ctx;
    size_t done_bytes;
    mr_readahead *ahead;
    mr_read_range *ranges; /* [n_ranges] ranges of the file, in the order of loading */
    int32_t n_ranges, at;
} load_state;

static mr_status note_range(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)ws;
    (void)err;
    load_state *state = ctx;
    if (w->source && !w->is_mapped)
        state->ranges[state->n_ranges++] = (mr_read_range){w->data, w->data_bytes};
    return MR_OK;
}

/* Starts a thread that reads the next tensors of the file while one tensor is repacked. */
static mr_status start_reading(mr_weights *ws, load_state *state, mr_err *err) {
    int32_t n_tensors = WEIGHTS_OUTSIDE_LAYERS + (ws->range.last - ws->range.first) * LAYER_SLOTS;
    state->ranges = mr_alloc_array((size_t)n_tensors, sizeof *state->ranges);
    if (!state->ranges)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to load %d tensors", n_tensors);
    mr_status status = weights_visit(ws, note_range, state, err);
    return status == MR_OK ? mr_readahead_create(AHEAD_BYTES, &state->ahead, err) : status;
}

static void stop_reading(load_state *state) {
    mr_readahead_destroy(state->ahead);
    mr_free(state->ranges);
}

/* Loads the vectors of a tensor as float32, each at the start of a row. */
static mr_status load_vectors(const weight *w, const mr_tensor *t, mr_err *err) {
    const mr_backend_ops *ops = t->home->ops;
    mr_fence fence = 0;
    size_t row_floats = t->row_bytes / sizeof(float), n_rows = (size_t)t->ne[1];
    float *values = mr_alloc_array(n_rows, t->row_bytes);
    if (!values)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to convert tensor '%s'", t->name);
    for (size_t i = 0; i < n_rows; i++)
        mr_dequantize(w->source->type, w->data + i * (w->data_bytes / n_rows), values + i * row_floats, t->ne[0]);
    mr_status status = ops->set(t->home, t->buffer, t->offset, values, n_rows * t->row_bytes, &fence, err);
    if (status == MR_OK)
        status = ops->wait(t->home, fence, MR_NEVER, err);
    mr_free(values);
    return status;
}

/* The number of parts that the matrices of a tensor are loaded in. One part: the layout of all rows as one matrix is
 * that of the matrices. */
static int32_t count_parts(const weight *w, const mr_tensor *t) {
    size_t together = 0;
    mr_status status = t->home->ops->weight_bytes(t->home, t->type, t->ne[0], t->ne[1], &together, NULL);
    return status == MR_OK && together == t->bytes ? 1 : w->n_matrices;
}

static mr_status load_matrices(const weight *w, const mr_tensor *t, mr_err *err) {
    size_t n = (size_t)count_parts(w, t);
    mr_tensor one = *t;
    mr_fence fence = 0;
    mr_status status = MR_OK;
    one.ne[1] = t->ne[1] / (int32_t)n;
    one.bytes = t->bytes / n;
    for (size_t i = 0; i < n && status == MR_OK; i++, one.offset += one.bytes)
        status = t->home->ops->weight_load(t->home, &one, w->data + i * (w->data_bytes / n), &fence, err);
    return status == MR_OK ? t->home->ops->wait(t->home, fence, MR_NEVER, err) : status;
}

/* Loads the copy of a tensor that one backend holds. */
static mr_status load_instance(const weight *w, const mr_tensor *t, mr_err *err) {
    const mr_backend_ops *ops = t->home->ops;
    mr_fence fence = 0;
    if (t->storage == MR_STORAGE_FILE)
        return load_vectors(w, t, err);
    if (t->storage == MR_STORAGE_WEIGHT)
        return load_matrices(w, t, err);
    mr_status status = ops->set(t->home, t->buffer, t->offset, w->values, t->bytes, &fence, err);
    return status == MR_OK ? ops->wait(t->home, fence, MR_NEVER, err) : status;
}

static mr_status load_one(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    load_state *state = ctx;
    mr_status status = MR_OK;
    if (w->source && !w->is_mapped)
        mr_readahead_post(state->ahead, state->ranges, state->n_ranges, state->at++);
    for (int32_t b = 0; b < ws->backends.n && status == MR_OK; b++) {
        if (!w->at[b].is_used)
            continue;
        mr_tensor t = weight_instance(ws, w, b);
        status = load_instance(w, &t, err);
        state->done_bytes += t.bytes;
    }
    if (w->source)
        mr_gguf_release_pages(ws->gguf, w->data, w->data_bytes);
    if (status == MR_OK && state->progress)
        state->progress(state->ctx, state->done_bytes, mr_weights_bytes(ws));
    return status;
}

/* Gives the last backend access to the mapped tensors. A backend that reads host memory gets the whole mapping. Any
 * other backend gets a copy of the embedding table, which is then the only mapped tensor. */
static mr_status map_file(mr_weights *ws, mr_err *err) {
    const mr_backend_ops *ops = ws->backend->ops;
    const mr_gguf_tensor *table = ws->token_embd.source;
    mr_device_info device;
    ops->describe(ws->backend, &device);
    if (device.host_addressable)
        return ops->buffer_wrap(ws->backend, mr_gguf_file_data(ws->gguf), mr_gguf_file_bytes(ws->gguf), &ws->mapped,
                                err);
    if (!table)
        return MR_OK;
    ws->mapped_offset = table->offset;
    mr_fence fence = 0;
    mr_status status = ops->buffer_create(ws->backend, table->bytes, &ws->mapped, err);
    if (status == MR_OK)
        status = ops->set(ws->backend, ws->mapped, 0, table->data, table->bytes, &fence, err);
    return status == MR_OK ? ops->wait(ws->backend, fence, MR_NEVER, err) : status;
}

static mr_status place_mapped(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)ctx;
    (void)err;
    if (w->is_mapped) {
        w->tensor.buffer = ws->mapped;
        w->tensor.offset = w->source->offset + (size_t)(w->data - w->source->data) - ws->mapped_offset;
    }
    return MR_OK;
}

mr_status mr_weights_load(mr_weights *ws, mr_load_progress *progress, void *ctx, mr_err *err) {
    load_state state = {.progress = progress, .ctx = ctx};
    mr_status status = MR_OK;
    for (int32_t b = 0; b < ws->backends.n && status == MR_OK; b++)
        if (ws->bytes[b] > 0)
            status = ws->backends.at[b]->ops->buffer_create(ws->backends.at[b], ws->bytes[b], &ws->buffers[b], err);
    if (status == MR_OK)
        status = start_reading(ws, &state, err);
    if (status == MR_OK)
        status = weights_visit(ws, load_one, &state, err);
    stop_reading(&state);
    if (status == MR_OK)
        status = map_file(ws, err);
    if (status == MR_OK)
        status = weights_visit(ws, place_mapped, NULL, err);
    /* For each page that is touched, the kernel maps up to 2 MiB around it. These pages hold layers of other stages,
     * too, so the pages of the whole file are released. */
    mr_gguf_release_pages(ws->gguf, mr_gguf_file_data(ws->gguf), mr_gguf_file_bytes(ws->gguf));
    if (status == MR_OK && progress)
        progress(ctx, mr_weights_bytes(ws), mr_weights_bytes(ws)); /* done_bytes left out the paddings */
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "loading layers %d to %d", ws->range.first, ws->range.last - 1);
}
