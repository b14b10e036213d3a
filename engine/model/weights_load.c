/* engine/model/weights_load.c - loads the tensors of a stage into the buffers of the backends. A backend in the host's
 * memory repacks matrices where they lie in the mapped file. Everything else goes through a ring of buffers: a device
 * repacks one part of a tensor while the next part is read from the file. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/readahead.h"
#include "engine/model/staging.h"
#include "engine/model/weights_internal.h"
#include "engine/tensor/quant.h"

enum {
    AHEAD_BYTES = 64 << 20, /* how far the file is read ahead while loading */
    PIECE_BYTES = 4 << 20,  /* of a tensor at a time; more only where a panel has more */
};

typedef struct load_state {
    load_telling telling;
    mr_readahead *ahead;
    mr_read_range *ranges; /* [n_ranges] ranges of the file, in the order of loading */
    int32_t n_ranges, at;
    staging staging;
} load_state;

/* Whether the load reads the rows of the tensor in the file. */
static bool is_read(const mr_weights *ws, const weight *w) {
    bool wants = false;
    for (int32_t b = 0; b < ws->backends.n; b++)
        wants = wants || part_wants_load(ws, w, b);
    return w->source && wants;
}

static mr_status note_range(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)err;
    load_state *state = ctx;
    if (is_read(ws, w))
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

/* --- One tensor on one backend ----------------------------------------------------------------------------------- */

static bool is_in_host_memory(const mr_tensor *t) {
    mr_device_info device;
    t->home->ops->describe(t->home, &device);
    return device.host_addressable;
}

static bool is_staged(const mr_tensor *t) {
    return t->storage != MR_STORAGE_WEIGHT || !is_in_host_memory(t);
}

/* The number of parts that the matrices of a tensor are loaded in. One part: the layout of all rows as one matrix is
 * that of the matrices. */
static int32_t count_parts(const weight *w, const mr_tensor *t) {
    size_t together = 0;
    mr_status status = t->home->ops->weight_bytes(t->home, t->type, t->ne[0], t->ne[1], &together, NULL);
    return status == MR_OK && together == t->bytes ? 1 : w->n_matrices;
}

/* Bytes of a row in a staging buffer: as in the file, or as float32. */
static size_t staged_row_bytes(const weight *w, const mr_tensor *t) {
    return weight_is_matrix(w) ? w->data_bytes / (size_t)t->ne[1] : t->row_bytes;
}

/* Rows of a tensor that go through a staging buffer at a time: whole panels of a matrix. */
static int32_t staged_rows(const weight *w, const mr_tensor *t) {
    int32_t unit = t->storage == MR_STORAGE_WEIGHT ? MR_PANEL : 1;
    int64_t n = (int64_t)(PIECE_BYTES / staged_row_bytes(w, t)) / unit * unit;
    n = n > unit ? n : unit;
    return n < t->ne[1] ? (int32_t)n : t->ne[1];
}

/* Writes rows [first, first + n) as the backend takes them. */
static void fill(const weight *w, const mr_tensor *t, int32_t first, int32_t n, uint8_t *out) {
    size_t row_bytes = staged_row_bytes(w, t), at = (size_t)first * row_bytes;
    size_t source_row_bytes = w->data_bytes / (size_t)t->ne[1];
    if (w->values || weight_is_matrix(w)) {
        memcpy(out, (w->values ? (const uint8_t *)w->values : w->data) + at, (size_t)n * row_bytes);
        return;
    }
    for (int32_t i = 0; i < n; i++)
        mr_dequantize(w->source->type, w->data + (size_t)(first + i) * source_row_bytes,
                      (float *)(void *)(out + (size_t)i * row_bytes), t->ne[0]);
}

/* Loads the rows of a matrix, and sets the bytes that they take on the backend. */
static mr_status load_matrix(mr_tensor *rows, const uint8_t *data, mr_fence *fence, mr_err *err) {
    const mr_backend_ops *ops = rows->home->ops;
    mr_status status = ops->weight_bytes(rows->home, rows->type, rows->ne[0], rows->ne[1], &rows->bytes, err);
    return status == MR_OK ? ops->weight_load(rows->home, rows, data, fence, err) : status;
}

/* Loads rows [first, first + n) from where they lie in the file. offset: as in send_rows. */
static mr_status load_in_place(const weight *w, const mr_tensor *t, int32_t first, int32_t n, size_t *offset,
                               mr_err *err) {
    mr_tensor part = *t;
    mr_fence fence = 0;
    part.ne[1] = n;
    part.offset = *offset;
    mr_status status = load_matrix(&part, w->data + (size_t)first * staged_row_bytes(w, t), &fence, err);
    *offset += part.bytes;
    return status == MR_OK ? t->home->ops->wait(t->home, fence, MR_NEVER, err) : status;
}

/* Sends rows [first, first + n). *offset: where they go in the buffer; grows by their bytes there. */
static mr_status send_rows(staging *ring, const weight *w, const mr_tensor *t, int32_t first, int32_t n, size_t *offset,
                           mr_err *err) {
    const mr_backend_ops *ops = t->home->ops;
    mr_tensor part = *t;
    mr_fence fence = 0;
    uint8_t *data = NULL;
    part.ne[1] = n;
    part.offset = *offset;
    part.bytes = (size_t)n * t->row_bytes;
    mr_status status = staging_take(ring, &data, err);
    if (status != MR_OK)
        return status;
    fill(w, t, first, n, data);
    if (t->storage == MR_STORAGE_WEIGHT)
        status = load_matrix(&part, data, &fence, err);
    else
        status = ops->set(t->home, t->buffer, part.offset, data, part.bytes, &fence, err);
    *offset += part.bytes;
    if (status == MR_OK)
        staging_give(ring, t->home, fence);
    return status;
}

mr_status load_tell(const load_telling *t, size_t more_bytes, mr_err *err) {
    bool goes_on = !t->progress || t->progress(t->ctx, t->done_bytes + more_bytes, t->total_bytes);
    return goes_on ? MR_OK : mr_err_set(err, MR_E_CANCELLED, "the load was stopped");
}

/* Rows that are loaded at a time. A backend that keeps the address of the source takes the whole matrix at once. */
static int32_t rows_at_once(const weight *w, const mr_tensor *t, int32_t rows) {
    mr_device_info device;
    t->home->ops->describe(t->home, &device);
    int32_t n = staged_rows(w, t);
    return device.keeps_source || n > rows ? rows : n;
}

/* Loads a tensor in pieces, so that the load of a large one can be stopped. */
static mr_status load_pieces(load_state *state, const weight *w, const mr_tensor *t, mr_err *err) {
    bool is_matrix = t->storage == MR_STORAGE_WEIGHT, staged = is_staged(t);
    int32_t rows = is_matrix ? t->ne[1] / count_parts(w, t) : t->ne[1], at_once = rows_at_once(w, t, rows);
    size_t offset = t->offset;
    mr_status status = MR_OK;
    for (int32_t matrix = 0; matrix < t->ne[1]; matrix += rows)
        for (int32_t done = 0; done < rows && status == MR_OK; done += at_once) {
            int32_t n = rows - done < at_once ? rows - done : at_once;
            status = staged ? send_rows(&state->staging, w, t, matrix + done, n, &offset, err)
                            : load_in_place(w, t, matrix + done, n, &offset, err);
            if (status == MR_OK)
                status = load_tell(&state->telling, offset - t->offset, err);
        }
    return status;
}

/* --- All tensors ------------------------------------------------------------------------------------------------ */

/* Notes the largest staging buffer that a tensor needs. */
static mr_status note_staging(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    size_t *most = ctx;
    (void)err;
    for (int32_t b = 0; b < ws->backends.n; b++) {
        mr_tensor t = weight_instance(ws, w, b);
        if (!part_wants_load(ws, w, b) || !is_staged(&t))
            continue;
        size_t bytes = (size_t)staged_rows(w, &t) * staged_row_bytes(w, &t);
        *most = bytes > *most ? bytes : *most;
    }
    return MR_OK;
}

static mr_status load_one(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    load_state *state = ctx;
    mr_status status = MR_OK;
    if (w->is_mapped)
        return MR_OK;
    if (is_read(ws, w))
        mr_readahead_post(state->ahead, state->ranges, state->n_ranges, state->at++);
    for (int32_t b = 0; b < ws->backends.n && status == MR_OK; b++) {
        if (!part_wants_load(ws, w, b))
            continue;
        mr_tensor t = weight_instance(ws, w, b);
        status = load_pieces(state, w, &t, err);
        state->telling.done_bytes += t.bytes;
    }
    ws->parts[w->part].n_loaded += status == MR_OK;
    if (w->source)
        mr_gguf_release_pages(ws->gguf, w->data, w->data_bytes);
    return status;
}

/* Loads all tensors that do not stay in the mapped file. */
static mr_status load_all(mr_weights *ws, load_state *state, mr_err *err) {
    size_t staging_bytes = 1;
    mr_status status = weights_visit(ws, note_staging, &staging_bytes, err);
    if (status == MR_OK)
        status = staging_init(&state->staging, &ws->backends, mr_round_up(staging_bytes, 64), err);
    if (status == MR_OK)
        status = start_reading(ws, state, err);
    if (status == MR_OK)
        status = weights_visit(ws, load_one, state, err);
    stop_reading(state);
    mr_status end = staging_deinit(&state->staging, status == MR_OK ? err : NULL);
    if (end != MR_OK)
        parts_forget_loads(ws);
    return status == MR_OK ? end : status;
}

static mr_status map_file(mr_weights *ws, mr_err *err) {
    return ws->can_map ? ws->backend->ops->buffer_wrap(ws->backend, mr_gguf_file_data(ws->gguf),
                                                       mr_gguf_file_bytes(ws->gguf), &ws->mapped, err)
                       : MR_OK;
}

static mr_status place_mapped(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)ctx;
    (void)err;
    if (w->is_mapped) {
        w->tensor.buffer = ws->mapped;
        w->tensor.offset = w->source->offset + (size_t)(w->data - w->source->data);
    }
    return MR_OK;
}

mr_status mr_weights_load(mr_weights *ws, mr_load_progress *progress, void *ctx, mr_err *err) {
    mr_status status = parts_create(ws, err);
    load_state state = {
        .telling = {.progress = progress, .ctx = ctx, .total_bytes = mr_weights_bytes(ws) - mr_weights_kept_bytes(ws)}};
    if (status == MR_OK)
        state.telling.total_bytes += held_again_bytes(ws);
    if (status == MR_OK)
        status = load_all(ws, &state, err);
    if (status == MR_OK)
        status = map_file(ws, err);
    if (status == MR_OK)
        status = weights_visit(ws, place_mapped, NULL, err);
    if (status == MR_OK)
        status = held_load(ws, ws->expert_order, &state.telling, err);
    /* For each page that is touched, the kernel maps up to 2 MiB around it. These pages hold layers of other stages,
     * too, so the pages of the whole file are released. */
    mr_gguf_release_pages(ws->gguf, mr_gguf_file_data(ws->gguf), mr_gguf_file_bytes(ws->gguf));
    state.telling.done_bytes = state.telling.total_bytes; /* until here without the paddings */
    if (status == MR_OK)
        status = load_tell(&state.telling, 0, err);
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "loading layers %d to %d", ws->range.first, ws->range.last - 1);
}
