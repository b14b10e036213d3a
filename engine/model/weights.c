/* engine/model/weights.c - the weights of a layer range: chooses the backends that hold each tensor, and adds up the
 * bytes. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"

mr_status weights_visit(mr_weights *ws, weight_visitor *visit, void *ctx, mr_err *err) {
    weight *const others[WEIGHTS_OUTSIDE_LAYERS] = {&ws->token_embd, &ws->output_norm, &ws->output, &ws->rope_angles[0],
                                                    &ws->rope_angles[1]};
    mr_status status = MR_OK;
    for (int i = 0; i < WEIGHTS_OUTSIDE_LAYERS && status == MR_OK; i++)
        if (weight_exists(others[i]))
            status = visit(ws, others[i], ctx, err);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < LAYER_SLOTS && status == MR_OK; s++)
            if (weight_exists(&ws->layers[l][s]))
                status = visit(ws, &ws->layers[l][s], ctx, err);
    return status;
}

/* Chooses the backends that hold a tensor. A matrix goes to the first backend that multiplies by its type, has room and
 * stores a copy, and also to backends that need no copy. Stacks of matrices go to the last backend, which runs
 * experts and heads. Vectors and constants go into every memory, so that no step copies them. */
static mr_status assign_places(mr_weights *ws, weight *w, void *ctx, mr_err *err) {
    (void)ctx;
    if (w->is_mapped)
        return MR_OK;
    const mr_tensor *t = &w->tensor;
    bool is_matrix = t->storage == MR_STORAGE_WEIGHT, is_taken = false;
    for (int32_t b = 0; b < ws->backends.n; b++) {
        mr_backend *be = ws->backends.at[b];
        bool is_last = b == ws->backends.n - 1;
        size_t bytes = t->bytes;
        mr_device_info device;
        be->ops->describe(be, &device);
        if (is_matrix ? is_taken && !device.keeps_source : !is_last && device.host_addressable)
            continue;
        if (w->is_stack && !is_last)
            continue;
        if (is_matrix && !is_last && be->ops->weight_bytes(be, t->type, t->ne[0], t->ne[1], &bytes, NULL) != MR_OK)
            continue;
        size_t limit = is_last || device.keeps_source ? 0 : ws->backends.matrix_bytes[b];
        if (is_matrix && limit > 0 && (bytes > limit || ws->bytes[b] > limit - bytes))
            continue;
        is_taken = is_taken || !device.keeps_source;
        w->at[b] = (weight_place){.is_used = true, .offset = ws->bytes[b], .bytes = bytes};
        if (!mr_add_size(ws->bytes[b], mr_round_up(bytes, device.alignment), &ws->bytes[b]))
            return mr_err_set(err, MR_E_TOO_LONG, "the weights of layers %d to %d are too large", ws->range.first,
                              ws->range.last);
    }
    return MR_OK;
}

mr_status mr_weights_create(const mr_weights_desc *desc, const mr_backends *backends, mr_weights **out, mr_err *err) {
    mr_layer_range range = desc->range;
    const mr_model_info *info = desc->info;
    mr_device_info device;
    mr_backend *last = backends->at[backends->n - 1];
    last->ops->describe(last, &device);
    if (range.first < 0 || range.first >= range.last || range.last > info->n_layers)
        return mr_err_set(err, MR_E_INVALID, "layers %d to %d of a model with %d", range.first, range.last,
                          info->n_layers);
    mr_weights *ws = mr_alloc(sizeof *ws);
    if (!ws)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    ws->gguf = desc->gguf;
    ws->info = info;
    ws->backends = *backends;
    ws->backend = last;
    ws->range = range;
    ws->max_context = desc->max_context;
    ws->matrices = desc->map && device.host_addressable ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    ws->layers = mr_alloc_array((size_t)(range.last - range.first), sizeof *ws->layers);
    mr_status status = ws->layers ? mr_arch_find(info->arch, &ws->arch, err)
                                  : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    if (status == MR_OK)
        status = weights_find(ws, err);
    if (status == MR_OK)
        status = weights_visit(ws, assign_places, NULL, err);
    if (status != MR_OK) {
        mr_weights_destroy(ws);
        return status;
    }
    *out = ws;
    return MR_OK;
}

void mr_weights_destroy(mr_weights *ws) {
    if (!ws)
        return;
    for (int32_t b = 0; b < ws->backends.n; b++)
        ws->backends.at[b]->ops->buffer_destroy(ws->backends.at[b], ws->buffers[b]);
    ws->backend->ops->buffer_destroy(ws->backend, ws->mapped);
    mr_free(ws->layers);
    for (int32_t i = 0; i < MR_MODEL_MAX_ROPES; i++)
        mr_free(ws->rope_angles[i].values);
    mr_free(ws);
}

size_t mr_weights_bytes(const mr_weights *ws) {
    size_t bytes = 0;
    for (int32_t b = 0; b < ws->backends.n; b++)
        bytes += ws->bytes[b];
    return bytes;
}

size_t mr_weights_bytes_on(const mr_weights *ws, int32_t b) {
    return ws->bytes[b];
}

/* Stacks of matrices stay on the last backend, so they do not count. */
static void keep_larger(const weight *w, mr_type type, const mr_gguf_tensor **best) {
    if (w->is_matrix && !w->is_stack && w->source->type == type && (!*best || w->source->bytes > (*best)->bytes))
        *best = w->source;
}

const mr_gguf_tensor *mr_weights_largest(const mr_weights *ws, mr_type type) {
    const mr_gguf_tensor *best = NULL;
    keep_larger(&ws->output, type, &best);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < LAYER_SLOTS; s++)
            keep_larger(&ws->layers[l][s], type, &best);
    return best;
}

mr_tensor weight_instance(const mr_weights *ws, const weight *w, int32_t b) {
    mr_tensor t = w->tensor;
    t.bytes = w->at[b].bytes;
    t.offset = w->at[b].offset;
    t.buffer = ws->buffers[b];
    t.home = ws->backends.at[b];
    return t;
}
