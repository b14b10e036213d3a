/* engine/model/weights_experts.c - the experts of a layer that a device holds beside the last backend, which has all of
 * them. Two lists say where each expert is computed: one in the memory of the device, one in the host's. An expert is
 * exchanged between two steps: its matrices are loaded into the place of another expert, then both lists change. All of
 * this stands in the device's queue in front of the next step. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"

const layer_slot HELD_SLOTS[HELD_TENSORS] = {W_GATE_EXPERTS,      W_UP_EXPERTS,      W_DOWN_EXPERTS,
                                             W_GATE_EXPERTS_BIAS, W_UP_EXPERTS_BIAS, W_DOWN_EXPERTS_BIAS};

enum { N_MATRICES = 3 }; /* the first ones of HELD_SLOTS */

static const weight *tensor_of(const mr_weights *ws, int32_t layer, int i) {
    return &ws->layers[layer][HELD_SLOTS[i]];
}

static int32_t last_backend(const mr_weights *ws) {
    return ws->backends.n - 1;
}

/* Rows of a tensor that belong to one expert. */
static int32_t rows_of_one(const mr_weights *ws, const weight *w) {
    return weight_is_matrix(w) ? w->tensor.ne[1] / w->n_matrices : w->tensor.ne[1] / ws->info->n_experts;
}

/* --- Places ------------------------------------------------------------------------------------------------------ */

/* How many experts of the layer a device gets, and which device. 0: the layer is on one backend, or has no experts, or
 * the device cannot run them. */
static int32_t count_held(const mr_weights *ws, int32_t layer, int32_t *out_backend) {
    const mr_backends *all = &ws->backends;
    int32_t b = mr_backends_of_layer(all, layer);
    mr_device_info device;
    all->at[b]->ops->describe(all->at[b], &device);
    *out_backend = b;
    if (!mr_model_layer(ws->info, ws->range.first + layer)->has_experts || b == last_backend(ws) ||
        mr_backends_of_experts(all, layer) != last_backend(ws) || device.host_addressable)
        return 0;
    for (int i = 0; i < N_MATRICES; i++) {
        weight w = *tensor_of(ws, layer, i);
        w.tensor.storage = MR_STORAGE_WEIGHT; /* on the device, also where the host reads the mapped file */
        if (!weights_fit(ws, &w, b))
            return 0;
    }
    return all->device_experts[b];
}

/* Bytes of tensor i for one expert on the device. */
static mr_status bytes_of_one(const mr_weights *ws, int32_t layer, int i, size_t *out, mr_err *err) {
    const weight *w = tensor_of(ws, layer, i);
    mr_backend *be = ws->backends.at[ws->held[layer].backend];
    int32_t rows = rows_of_one(ws, w);
    *out = w->tensor.row_bytes * (size_t)rows;
    return weight_is_matrix(w) ? be->ops->weight_bytes(be, w->tensor.type, w->tensor.ne[0], rows, out, err) : MR_OK;
}

static mr_status place_tensor(mr_weights *ws, int32_t layer, int i, mr_err *err) {
    held_experts *h = &ws->held[layer];
    weight_place *at = &h->at[i];
    if (!weight_exists(tensor_of(ws, layer, i)))
        return MR_OK;
    mr_status status = bytes_of_one(ws, layer, i, &at->bytes, err);
    if (status == MR_OK && !mr_mul_size(at->bytes, (size_t)h->n, &at->bytes))
        status = mr_err_set(err, MR_E_TOO_LONG, "%d experts of a layer are too large", h->n);
    if (status == MR_OK)
        status = weights_take(ws, PARTS_OUTSIDE_LAYERS + layer, h->backend, at->bytes, &at->offset, err);
    at->is_used = status == MR_OK;
    return status;
}

static mr_status place_layer(mr_weights *ws, int32_t layer, mr_err *err) {
    held_experts *h = &ws->held[layer];
    int32_t n_experts = ws->info->n_experts, n = count_held(ws, layer, &h->backend);
    if (n == 0)
        return MR_OK;
    if (n < 0 || n > n_experts)
        return mr_err_set(err, MR_E_INVALID,
                          "%d experts of each layer on a device, where the model has %d; hint: device_experts of the "
                          "plan file",
                          n, n_experts);
    h->experts = mr_alloc_array((size_t)n + 2 * (size_t)n_experts, sizeof *h->experts);
    if (!h->experts)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the places of %d experts", n_experts);
    h->n = n;
    h->places[0] = h->experts + n;
    h->places[1] = h->places[0] + n_experts;
    for (int32_t idx = 0; idx < n; idx++)
        h->experts[idx] = -1;
    for (int32_t e = 0; e < n_experts; e++) {
        h->places[0][e] = -1;
        h->places[1][e] = e;
    }
    mr_status status = MR_OK;
    for (int i = 0; i < HELD_TENSORS && status == MR_OK; i++)
        status = place_tensor(ws, layer, i, err);
    for (int side = 0; side < 2 && status == MR_OK; side++)
        status = weights_take(ws, PARTS_OUTSIDE_LAYERS + layer, side ? last_backend(ws) : h->backend,
                              (size_t)n_experts * sizeof(int32_t), &h->places_offset[side], err);
    return status;
}

mr_status held_place(mr_weights *ws, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t l = 0; l < ws->range.last - ws->range.first && status == MR_OK; l++)
        status = place_layer(ws, l, err);
    return status;
}

void held_destroy(mr_weights *ws) {
    for (int32_t l = 0; ws->held && l < ws->range.last - ws->range.first; l++)
        mr_free(ws->held[l].experts);
    mr_free(ws->held);
}

int32_t mr_weights_held_experts(const mr_weights *w, int32_t layer) {
    return w->held[layer].n;
}

const int32_t *mr_weights_held_list(const mr_weights *w, int32_t layer) {
    return w->held[layer].experts;
}

size_t mr_weights_held_bytes(const mr_weights *w, int32_t layer) {
    const held_experts *h = &w->held[layer];
    size_t bytes = 0;
    for (int i = 0; i < HELD_TENSORS && h->n > 0; i++)
        bytes += h->at[i].bytes / (size_t)h->n;
    return bytes;
}

mr_tensor held_tensor(const mr_weights *ws, int32_t layer, int i) {
    const held_experts *h = &ws->held[layer];
    const weight *w = tensor_of(ws, layer, i);
    mr_tensor t = {.name = ""};
    if (!h->at[i].is_used)
        return t;
    t = w->tensor;
    t.storage = weight_is_matrix(w) ? MR_STORAGE_WEIGHT : MR_STORAGE_FILE;
    t.ne[1] = rows_of_one(ws, w) * h->n;
    t.bytes = h->at[i].bytes;
    t.offset = h->at[i].offset;
    t.buffer = part_buffer(ws, PARTS_OUTSIDE_LAYERS + layer, h->backend);
    t.home = ws->backends.at[h->backend];
    return t;
}

mr_tensor held_places(const mr_weights *ws, int32_t layer, int side) {
    const held_experts *h = &ws->held[layer];
    int32_t b = side ? last_backend(ws) : h->backend;
    mr_tensor t;
    MR_ASSERT(
        mr_tensor_init(&t, "places of experts", MR_TYPE_I32, ws->info->n_experts, 1, MR_STORAGE_STATE, MR_ROWS_FIXED));
    t.bytes = (size_t)ws->info->n_experts * sizeof(int32_t);
    t.offset = h->places_offset[side];
    t.buffer = part_buffer(ws, PARTS_OUTSIDE_LAYERS + layer, b);
    t.home = ws->backends.at[b];
    return t;
}

/* The order of a layer has the number of each expert once. */
static mr_status check_order(const mr_weights *ws, int32_t layer, const int32_t *order, mr_err *err) {
    bool seen[MR_MODEL_MAX_EXPERTS] = {false}, is_good = true;
    for (int32_t i = 0; i < ws->info->n_experts && is_good; i++) {
        is_good = order[i] >= 0 && order[i] < ws->info->n_experts && !seen[order[i]];
        if (is_good)
            seen[order[i]] = true;
    }
    return is_good ? MR_OK
                   : mr_err_set(err, MR_E_INVALID, "the order of the experts of layer %d does not have each one once",
                                ws->range.first + layer);
}

/* --- Loading ----------------------------------------------------------------------------------------------------- */

/* Queues the load of the rows of an expert of tensor i into a place, and notes the fence. Matrices come from the file,
 * and biases from the host's memory, where they are float32. */
static mr_status load_rows(mr_weights *ws, int32_t layer, int i, int32_t idx, int32_t expert, mr_err *err) {
    const weight *w = tensor_of(ws, layer, i);
    mr_tensor t = held_tensor(ws, layer, i);
    mr_fence *fence = &ws->held[layer].fence;
    if (!t.name[0])
        return MR_OK;
    t.bytes /= (size_t)ws->held[layer].n;
    t.offset += t.bytes * (size_t)idx;
    t.ne[1] = rows_of_one(ws, w);
    if (weight_is_matrix(w)) {
        const uint8_t *rows = w->data + w->data_bytes / (size_t)w->n_matrices * (size_t)expert;
        return t.home->ops->weight_load(t.home, &t, rows, fence, err);
    }
    const mr_tensor all = weight_instance(ws, w, last_backend(ws));
    const uint8_t *row = all.buffer->base + all.offset + t.bytes * (size_t)expert;
    return t.home->ops->set(t.home, t.buffer, t.offset, row, t.bytes, fence, err);
}

/* Queues the loads of an expert, and notes its place. */
static mr_status load_expert(mr_weights *ws, int32_t layer, int32_t idx, int32_t expert, mr_err *err) {
    held_experts *h = &ws->held[layer];
    int32_t old = h->experts[idx];
    mr_status status = MR_OK;
    for (int i = 0; i < HELD_TENSORS && status == MR_OK; i++)
        status = load_rows(ws, layer, i, idx, expert, err);
    if (old >= 0) {
        h->places[0][old] = -1;
        h->places[1][old] = old;
    }
    h->experts[idx] = expert;
    h->places[0][expert] = idx;
    h->places[1][expert] = -1;
    return status;
}

/* Waits until the device has loaded the experts of the layer, and has copied its list, which may change then. */
static mr_status await_device(mr_weights *ws, int32_t layer, mr_err *err) {
    mr_backend *be = ws->backends.at[ws->held[layer].backend];
    return ws->held[layer].fence ? be->ops->wait(be, ws->held[layer].fence, MR_NEVER, err) : MR_OK;
}

/* Queues the lists of the layer, for the device and for the last backend. */
static mr_status send_lists(mr_weights *ws, int32_t layer, mr_err *err) {
    held_experts *h = &ws->held[layer];
    mr_status status = MR_OK;
    for (int side = 0; side < 2 && status == MR_OK; side++) {
        const mr_tensor t = held_places(ws, layer, side);
        mr_fence fence = 0;
        status = t.home->ops->set(t.home, t.buffer, t.offset, h->places[side], t.bytes, &fence, err);
        if (status == MR_OK && side == 1)
            status = t.home->ops->wait(t.home, fence, MR_NEVER, err);
        else if (status == MR_OK)
            h->fence = fence;
    }
    return status;
}

/* Releases the pages of the file that loads of the layer have read. */
static void release_pages(const mr_weights *ws, int32_t layer) {
    for (int i = 0; i < N_MATRICES; i++)
        mr_gguf_release_pages(ws->gguf, tensor_of(ws, layer, i)->data, tensor_of(ws, layer, i)->data_bytes);
}

size_t held_again_bytes(const mr_weights *ws) {
    size_t bytes = 0;
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        if (ws->parts[PARTS_OUTSIDE_LAYERS + l].is_kept[ws->held[l].backend])
            bytes += (size_t)ws->held[l].n * mr_weights_held_bytes(ws, l);
    return bytes;
}

/* order: of the experts of this layer; or NULL. */
static mr_status load_layer(mr_weights *ws, int32_t layer, const int32_t *order, load_telling *t, mr_err *err) {
    const held_experts *h = &ws->held[layer];
    mr_status status = order ? check_order(ws, layer, order, err) : MR_OK;
    for (int32_t idx = 0; idx < h->n && status == MR_OK; idx++) {
        status = load_expert(ws, layer, idx, order ? order[idx] : idx, err);
        t->done_bytes += mr_weights_held_bytes(ws, layer);
        if (status == MR_OK)
            status = load_tell(t, 0, err);
    }
    if (status == MR_OK)
        status = send_lists(ws, layer, err);
    mr_status end = await_device(ws, layer, status == MR_OK ? err : NULL);
    release_pages(ws, layer);
    return status == MR_OK ? end : status;
}

mr_status held_load(mr_weights *ws, const int32_t *order, load_telling *t, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t l = 0; l < ws->range.last - ws->range.first && status == MR_OK; l++)
        if (ws->held[l].n > 0)
            status = load_layer(ws, l, order ? order + (size_t)l * (size_t)ws->info->n_experts : NULL, t, err);
    return status;
}

/* --- Exchange between steps -------------------------------------------------------------------------------------- */

mr_status mr_weights_exchange_expert(mr_weights *w, int32_t layer, int32_t place, int32_t expert, mr_err *err) {
    const held_experts *h = &w->held[layer];
    MR_ASSERT(place >= 0 && place < h->n && expert >= 0 && expert < w->info->n_experts && h->places[0][expert] < 0);
    mr_status status = await_device(w, layer, err);
    if (status == MR_OK && !tensor_of(w, layer, 0)->is_mapped) /* so that one expert of each layer stays at most */
        release_pages(w, layer);
    if (status == MR_OK)
        status = load_expert(w, layer, place, expert, err);
    return status == MR_OK ? send_lists(w, layer, err) : status;
}
