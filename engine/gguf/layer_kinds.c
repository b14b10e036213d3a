/* Finds the layers of a model that have the same numbers and tensors and therefore take the same time. A layer's sum
 * starts from a digest of the numbers, each tensor adds a digest, and layers with equal sums are of one kind. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/gguf/model_info.h"

static uint64_t mix(uint64_t h) {
    h = (h ^ h >> 33) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 33;
}

/* Digest of a tensor's name behind "blk.N", its type and its shape. */
static uint64_t tensor_digest(const mr_gguf_tensor *t) {
    uint64_t h = mix((uint64_t)t->type);
    for (const char *p = strchr(t->name + 4, '.'); p && *p; p++)
        h = mix(h ^ (uint64_t)(unsigned char)*p);
    for (int d = 0; d < MR_GGUF_MAX_DIMS; d++)
        h = mix(h ^ (uint64_t)t->ne[d]);
    return h;
}

mr_status mr_model_layer_kinds(const mr_gguf *g, const mr_model_info *info, int32_t max_kinds, uint8_t *out_kind,
                               int32_t *out_n_kinds, mr_err *err) {
    uint64_t *digest = mr_alloc_array((size_t)info->n_layers, sizeof *digest);
    if (!digest)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to compare %d layers", (int)info->n_layers);
    for (int32_t l = 0; l < info->n_layers; l++)
        digest[l] = mix(1u + info->shape_of[l]);
    /* The digests are added, so the order of the tensors in the file does not matter. */
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        int32_t layer;
        if (mr_model_tensor_part(t->name, &layer) == MR_MODEL_LAYER && !mr_model_tensor_is_left_out(info, t))
            digest[layer] += tensor_digest(t);
    }
    int32_t n = 0;
    for (int32_t l = 0; l < info->n_layers; l++) {
        int32_t before = 0;
        while (digest[before] != digest[l])
            before++;
        if (before < l)
            out_kind[l] = out_kind[before];
        else
            out_kind[l] = (uint8_t)(n < max_kinds ? n++ : max_kinds - 1);
    }
    mr_free(digest);
    *out_n_kinds = n;
    return MR_OK;
}
