/* worker/files/file_layers.c - chooses the tensors of a layer range and has the file client fetch them. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/files/file_layers.h"

#include <string.h>

#include "engine/base/mem.h"
#include "proto/limits.h"

mr_status mr_file_layers_open(mr_file_client *c, const mr_file_wait *wait, mr_gguf **out, mr_err *err) {
    const mr_file_client_config *config = mr_file_client_get_config(c);
    int32_t n = config->n_parts;
    mr_file_range headers[MR_MAX_FILE_PARTS];
    mr_part_place places[MR_MAX_FILE_PARTS];
    for (int32_t i = 0; i < n; i++) {
        const mr_file_part *p = &config->parts[i];
        headers[i] = (mr_file_range){p->first_block * MR_FILE_BLOCK_BYTES, p->header_bytes};
        places[i] = (mr_part_place){p->bytes, p->n_sources == 0};
    }
    mr_status status = mr_file_client_fetch(c, headers, n, wait, err);
    return status == MR_OK ? mr_gguf_open_places(config->model_path, places, n, mr_file_client_path(c), out, err)
                           : status;
}

/* Whether a stage of this range reads the tensor. */
static bool is_needed(const mr_model_info *info, mr_layer_range range, const mr_gguf_tensor *t) {
    bool is_head = range.first == 0, is_tail = range.last == info->n_layers;
    int32_t layer;
    switch (mr_model_tensor_part(t->name, &layer)) {
    case MR_MODEL_LAYER:
        return layer >= range.first && layer < range.last && !mr_model_tensor_is_left_out(info, t);
    case MR_MODEL_EMBEDDING:
        return is_head || (is_tail && info->tied_output);
    case MR_MODEL_OUTPUT:
        return is_tail;
    case MR_MODEL_ENCODER:
        return false;
    default:
        return true;
    }
}

size_t mr_file_layers_bytes(const mr_gguf *g, const mr_model_info *info, mr_layer_range range) {
    size_t bytes = 0;
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++)
        if (is_needed(info, range, mr_gguf_tensor_at(g, i)))
            bytes += mr_gguf_tensor_at(g, i)->bytes;
    return bytes;
}

/* Whether to fetch the tensor. range NULL: for measuring, as in the header. */
static bool is_wanted(const mr_model_info *info, const mr_layer_range *range, const mr_gguf_tensor *t) {
    const mr_layer_range no_layers = {-1, -1}; /* only what every stage reads: RoPE factors, by which a stage divides */
    int32_t layer;
    if (range)
        return is_needed(info, *range, t);
    if (mr_model_tensor_is_left_out(info, t))
        return false;
    if (info->n_experts > 0 && mr_model_tensor_part(t->name, &layer) == MR_MODEL_LAYER)
        return t->n_dims == 1 || strstr(t->name, ".ffn_gate_inp."); /* norms, biases, the router */
    return is_needed(info, no_layers, t);
}

mr_status mr_file_layers_fetch(mr_file_client *c, const mr_gguf *g, const mr_model_info *info,
                               const mr_layer_range *range, const mr_file_wait *wait, mr_err *err) {
    int32_t n = 0;
    mr_file_range *ranges = mr_alloc_array((size_t)mr_gguf_n_tensors(g), sizeof *ranges);
    if (!ranges)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a list of %d tensors", mr_gguf_n_tensors(g));
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        if (is_wanted(info, range, t))
            ranges[n++] = (mr_file_range){t->offset, t->bytes};
    }
    mr_status status = mr_file_client_fetch(c, ranges, n, wait, err);
    mr_free(ranges);
    return status;
}
