/* Assigns each tensor to a part of the model by the tensor's name, and adds up the bytes of the parts and of a
 * position's keys and values. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/model_info.h"

static bool starts_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Parses "N.", where N is a decimal number below MR_MODEL_MAX_LAYERS without leading zeros. Returns -1 for other
 * texts. */
static int32_t parse_layer(const char *text) {
    int32_t layer = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9' && layer < MR_MODEL_MAX_LAYERS; p++)
        layer = 10 * layer + (*p - '0');
    bool plain = p > text && *p == '.' && (*text != '0' || p == text + 1);
    return plain && layer < MR_MODEL_MAX_LAYERS ? layer : -1;
}

mr_model_part mr_model_tensor_part(const char *name, int32_t *out_layer) {
    if (starts_with(name, "blk.")) {
        int32_t layer = parse_layer(name + 4);
        if (layer < 0)
            return MR_MODEL_BAD_LAYER;
        if (out_layer)
            *out_layer = layer;
        return MR_MODEL_LAYER;
    }
    if (starts_with(name, "token_embd."))
        return MR_MODEL_EMBEDDING;
    if (starts_with(name, "output_norm.") || starts_with(name, "output."))
        return MR_MODEL_OUTPUT;
    if (starts_with(name, "v.") || starts_with(name, "a.") || starts_with(name, "mm."))
        return MR_MODEL_ENCODER;
    return MR_MODEL_SHARED;
}

bool mr_model_tensor_is_left_out(const mr_model_info *info, const mr_gguf_tensor *t) {
    int32_t layer;
    mr_model_part part = mr_model_tensor_part(t->name, &layer);
    if (part != MR_MODEL_LAYER)
        return part == MR_MODEL_ENCODER;
    const char *behind_layer = strchr(t->name + strlen("blk."), '.');
    return layer >= info->n_layers || (info->indexer_top_k > 0 && starts_with(behind_layer, ".indexer."));
}

bool mr_model_tensor_is_of_experts(const mr_model_info *info, const mr_gguf_tensor *t) {
    /* Latent attention has tensors with a matrix for each head, so the number of dimensions does not tell. */
    return info->n_experts > 0 && t->n_dims == 3 && strstr(t->name, "_exps.");
}

/* Whether a stage with the layer reads the tensor. */
static bool is_of_layer(const mr_model_info *info, const mr_gguf_tensor *t, int32_t layer) {
    int32_t n;
    return mr_model_tensor_part(t->name, &n) == MR_MODEL_LAYER && n == layer && !mr_model_tensor_is_left_out(info, t);
}

/* Tensors do not overlap, so the sums cannot exceed the size of the file. */
static size_t part_bytes(const mr_gguf *g, mr_model_part part) {
    size_t bytes = 0;
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        if (mr_model_tensor_part(t->name, NULL) == part)
            bytes += t->bytes;
    }
    return bytes;
}

mr_layer_work mr_model_layer_work(const mr_gguf *g, const mr_model_info *info, int32_t layer) {
    mr_layer_work work = {0};
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        if (!is_of_layer(info, t, layer))
            continue;
        bool of_experts = mr_model_tensor_is_of_experts(info, t);
        double products = t->n_dims > 1 ? (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] : 0;
        work.n_products += of_experts ? products / info->n_experts * info->n_experts_used : products;
        *(of_experts ? &work.expert_bytes : &work.bytes) += t->bytes;
    }
    return work;
}

size_t mr_model_layer_bytes(const mr_gguf *g, const mr_model_info *info, int32_t layer) {
    mr_layer_work work = mr_model_layer_work(g, info, layer);
    return work.bytes + work.expert_bytes;
}

size_t mr_model_layer_read_bytes(const mr_gguf *g, const mr_model_info *info, int32_t layer) {
    mr_layer_work work = mr_model_layer_work(g, info, layer);
    size_t n_experts = info->n_experts > 0 ? (size_t)info->n_experts : 1;
    return work.bytes + work.expert_bytes / n_experts * (size_t)info->n_experts_used;
}

size_t mr_model_kv_bytes(const mr_model_info *m, int32_t layer, mr_type type) {
    const mr_layer_info *l = mr_model_layer(m, layer);
    size_t k = 0, v = 0;
    bool fits = mr_type_bytes(type, (int64_t)l->n_kv_heads * l->k_dim, &k) &&
                mr_type_bytes(type, (int64_t)l->n_kv_heads * l->v_dim, &v);
    return fits ? k + v : 0;
}

size_t mr_model_embedding_bytes(const mr_gguf *g) {
    return part_bytes(g, MR_MODEL_EMBEDDING);
}

size_t mr_model_output_bytes(const mr_gguf *g) {
    bool tied = !mr_gguf_find_tensor(g, "output.weight");
    return part_bytes(g, MR_MODEL_OUTPUT) + (tied ? mr_model_embedding_bytes(g) : 0);
}

size_t mr_model_shared_bytes(const mr_gguf *g) {
    return part_bytes(g, MR_MODEL_SHARED);
}

size_t mr_model_encoder_bytes(const mr_gguf *g) {
    return part_bytes(g, MR_MODEL_ENCODER);
}
