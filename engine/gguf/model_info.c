/* Reads the hyper-parameters of a model from the metadata. Names of keys: GGUF specification, "Standardized key-value
 * pairs". The keys of YaRN and of experts are those that the converters of llama.cpp write. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/model_info.h"

#include <inttypes.h>

#include "engine/base/fmath.h"
#include "engine/gguf/layer_info.h"
#include "engine/tensor/tensor.h"

enum { QUANTIZATION_VERSION = 2 /* the version of every GGUF file so far */ };

static void read_arch(model_keys *s, mr_model_info *m) {
    mr_str arch = {0}, name = {0};
    s->status = keys_need(s, mr_gguf_get_str(s->g, keys_name(s, "general.architecture"), &arch, s->err));
    if (s->status)
        return;
    bool valid = arch.len > 0 && arch.len < sizeof m->arch;
    for (size_t i = 0; valid && i < arch.len; i++) {
        char c = arch.data[i];
        valid = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
                c == '.';
    }
    if (!valid) {
        s->status =
            mr_err_set(s->err, MR_E_FORMAT, "key '%s': the %zu bytes are no name of an architecture", s->key, arch.len);
        return;
    }
    memcpy(m->arch, arch.data, arch.len);
    if (!keys_has(s, "general.name"))
        return;
    s->status = mr_gguf_get_str(s->g, s->key, &name, s->err);
    size_t n = name.len < sizeof m->name ? name.len : sizeof m->name - 1;
    for (size_t i = 0; i < n; i++)
        m->name[i] = (unsigned char)name.data[i] < 0x20 || name.data[i] == 0x7f ? '?' : name.data[i];
}

/* A file beside a model, which says which neurons PowerInfer keeps on a GPU. */
static void refuse_gpu_index(model_keys *s, const mr_model_info *m) {
    if (!s->status && strcmp(m->arch, "generic.gpu_index") == 0)
        s->status = mr_err_set(s->err, MR_E_UNSUPPORTED,
                               "the file is a GPU index of PowerInfer (architecture '%s'), not a model; hint: open the "
                               "model that it was made for, and name this file by --gpu-index",
                               m->arch);
}

static void read_sparse(model_keys *s, mr_model_info *m) {
    static const char THRESHOLD[] = "powerinfer.sparse_threshold";
    m->is_sparse = mr_gguf_is_sparse(s->g);
    if (s->status || !m->is_sparse || !mr_gguf_has_key(s->g, THRESHOLD))
        return;
    s->status = mr_gguf_get_f32(s->g, THRESHOLD, &m->sparse_threshold, s->err);
    if (!s->status && isnan(m->sparse_threshold))
        s->status = mr_err_set(s->err, MR_E_FORMAT,
                               "key '%s': not a number; hint: the scores of neurons are compared with it", THRESHOLD);
}

static float read_norm_eps(model_keys *s) {
    bool rms = !keys_has(s, "attention.layer_norm_epsilon") || keys_has(s, "attention.layer_norm_rms_epsilon");
    return keys_need_float(s, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 0, 1);
}

static void read_indexer(model_keys *s, mr_model_info *m) {
    if (!arch_habits_find(m->arch)->has_indexer)
        return;
    m->indexer_top_k = keys_opt_int(s, "attention.indexer.top_k", 1, MR_MODEL_MAX_CONTEXT, 2048);
    if (m->context_length > m->indexer_top_k)
        m->context_length = m->indexer_top_k;
}

/* Needs the ropes. */
static mr_temperature read_temperature(model_keys *s, const mr_model_info *m) {
    mr_temperature t = {.growth = keys_opt_float(s, "attention.temperature_scale", 0, 1e6f, 0)};
    if (t.growth > 0)
        t.length =
            keys_opt_int(s, "attention.temperature_length", 1, MR_MODEL_MAX_CONTEXT, m->ropes[0].original_context);
    return t;
}

/* A.expert_gating_func: 1 softmax over all experts, 2 sigmoid, 3 softmax over the chosen ones. */
static mr_route_score read_score(model_keys *s, mr_route_score fallback) {
    static const mr_route_score SCORES[] = {MR_ROUTE_SCORES, MR_ROUTE_SOFTMAX, MR_ROUTE_SIGMOID, MR_ROUTE_LOGIT};
    int32_t v = keys_opt_int(s, "expert_gating_func", 0, INT32_MAX, 0);
    if (v >= 0 && v <= 3)
        return v == 0 ? fallback : SCORES[v];
    if (!s->status)
        s->status = mr_err_set(s->err, MR_E_UNSUPPORTED, "key '%s': %d; 1 (softmax), 2 (sigmoid) and 3 are supported",
                               s->key, v);
    return fallback;
}

static void read_groups(model_keys *s, int32_t n_experts, mr_routing *r) {
    r->n_groups = keys_opt_int(s, "expert_group_count", 0, n_experts, 0);
    if (r->n_groups <= 1)
        return;
    r->n_groups_used = keys_need_int(s, "expert_group_used_count", 1, r->n_groups);
    r->n_group_best = r->score == MR_ROUTE_SIGMOID ? 2 : 1;
    if (!s->status && n_experts % r->n_groups != 0)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %d experts cannot stand in %d groups of one size",
                               keys_name(s, "expert_group_count"), n_experts, r->n_groups);
}

static void read_experts(model_keys *s, mr_model_info *m) {
    const arch_habits *habits = arch_habits_find(m->arch);
    m->n_experts = keys_opt_int(s, "expert_count", 0, MR_MODEL_MAX_EXPERTS, 0);
    if (m->n_experts == 0)
        return;
    if (!s->status && m->is_sparse)
        s->status =
            mr_err_set(s->err, MR_E_UNSUPPORTED, "key '%s': %d; this version runs sparse models without experts only",
                       s->key, m->n_experts);
    m->n_experts_used = keys_need_int(s, "expert_used_count", 1, m->n_experts);
    m->routing.score = read_score(s, habits->score);
    m->routing.is_normalised = keys_opt_bool(s, "expert_weights_norm", habits->normalises_weights);
    m->routing.scale = keys_opt_float(s, "expert_weights_scale", 0, 1e6f, 0);
    if (m->routing.scale == 1)
        m->routing.scale = 0;
    read_groups(s, m->n_experts, &m->routing);
}

/* Needs the layers. */
static void read_factors(model_keys *s, mr_model_info *m) {
    const float most = 1e6f, least = 1e-6f;
    const arch_habits *habits = arch_habits_find(m->arch);
    m->attention_scale = keys_opt_float(s, "attention.scale", 0, most, 0);
    if (s->status)
        return;
    if (habits->n_layers_of_largest == m->n_layers)
        m->attention_scale = 1.0f / sqrtf((float)(m->d_model / mr_model_layer(m, 0)->n_heads));
    if (habits->scales_embedding)
        m->embedding_scale = sqrtf((float)m->d_model);
    if (!habits->has_factors)
        return;
    m->embedding_scale = keys_opt_float(s, "embedding_scale", 0, most, 0);
    m->residual_scale = keys_opt_float(s, "residual_scale", 0, most, 0);
    m->logit_scale = 1.0f / keys_opt_float(s, "logit_scale", least, most, 1);
}

mr_status model_info_check_shape(const mr_gguf_tensor *t, int64_t columns, int64_t rows, mr_err *err) {
    if (t->ne[0] == columns && t->ne[1] == rows && t->ne[2] == 1 && t->ne[3] == 1)
        return MR_OK;
    return mr_err_set(err, MR_E_FORMAT,
                      "tensor '%s': the shape is %" PRId64 " x %" PRId64 " x %" PRId64 " x %" PRId64
                      ", but the metadata says %" PRId64 " x %" PRId64,
                      t->name, t->ne[0], t->ne[1], t->ne[2], t->ne[3], columns, rows);
}

/* The vocabulary size is the number of rows of the embedding. The token list, where the file has one, must be as
 * long. */
static mr_status read_vocab(const mr_gguf *g, mr_model_info *m, mr_err *err) {
    static const char TOKENS[] = "tokenizer.ggml.tokens";
    const mr_gguf_tensor *embd = mr_gguf_find_tensor(g, "token_embd.weight");
    const mr_gguf_tensor *output = mr_gguf_find_tensor(g, "output.weight");
    if (!embd)
        return mr_err_set(err, MR_E_FORMAT, "tensor 'token_embd.weight' is missing; hint: %s",
                          mr_gguf_n_tensors(g) ? "the file holds no whole language model"
                                               : "the file holds a vocabulary and no weights");
    if (embd->ne[1] > MR_MODEL_MAX_VOCAB)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s': %" PRId64 " rows; the limit is %d", embd->name, embd->ne[1],
                          MR_MODEL_MAX_VOCAB);
    m->vocab_size = (int32_t)embd->ne[1];
    m->tied_output = !output;
    mr_status status = model_info_check_shape(embd, m->d_model, m->vocab_size, err);
    if (!status && output)
        status = model_info_check_shape(output, m->d_model, m->vocab_size, err);
    if (status || !mr_gguf_has_key(g, TOKENS))
        return status;
    mr_gguf_array tokens;
    status = mr_gguf_get_array(g, TOKENS, MR_GGUF_ELEMS_STRINGS, &tokens, err);
    if (!status && tokens.n != (size_t)m->vocab_size)
        return mr_err_set(err, MR_E_FORMAT, "key '%s': %zu tokens, but tensor '%s' has %d rows", TOKENS, tokens.n,
                          embd->name, m->vocab_size);
    return status;
}

/* Checks that every layer has tensors, that no tensor is of a layer outside of the file's, and the quantisation
 * version. */
static mr_status check_tensors(const mr_gguf *g, const mr_model_info *m, mr_err *err) {
    bool seen[MR_MODEL_MAX_LAYERS] = {false};
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        const mr_type_info *type = mr_type_get(t->type);
        int32_t layer;
        mr_model_part part = mr_model_tensor_part(t->name, &layer);
        if (part == MR_MODEL_BAD_LAYER || (part == MR_MODEL_LAYER && layer >= m->n_layers + m->n_nextn_layers))
            return mr_err_set(err, MR_E_FORMAT, "tensor '%.100s' is of no layer of the model, which has %d", t->name,
                              m->n_layers + m->n_nextn_layers);
        if (part == MR_MODEL_LAYER && !mr_model_tensor_is_left_out(m, t))
            seen[layer] = true;
        if (type->block_elems > 1 && m->quantization_version && m->quantization_version != QUANTIZATION_VERSION)
            return mr_err_set(err, MR_E_UNSUPPORTED, "tensor '%.100s': quantization version %d; %d is supported",
                              t->name, m->quantization_version, QUANTIZATION_VERSION);
    }
    for (int32_t i = 0; i < m->n_layers; i++)
        if (!seen[i])
            return mr_err_set(err, MR_E_FORMAT, "the model has %d layers, but there is no tensor of layer %d",
                              m->n_layers, i);
    return MR_OK;
}

mr_status mr_model_info_read(const mr_gguf *g, mr_model_info *out, mr_err *err) {
    mr_model_info m = {0};
    model_keys s = {.g = g, .arch = m.arch, .err = err};
    read_arch(&s, &m);
    refuse_gpu_index(&s, &m);
    read_sparse(&s, &m);
    s.n_blocks = keys_need_int(&s, "block_count", 1, MR_MODEL_MAX_LAYERS);
    m.n_nextn_layers = keys_opt_int(&s, "nextn_predict_layers", 0, s.n_blocks - 1, 0);
    m.n_layers = s.n_blocks - m.n_nextn_layers;
    m.d_model = keys_need_int(&s, "embedding_length", 1, MR_MODEL_MAX_WIDTH);
    m.context_length = keys_need_int(&s, "context_length", 1, MR_MODEL_MAX_CONTEXT);
    m.norm_eps = read_norm_eps(&s);
    read_experts(&s, &m);
    layer_info_read(&s, &m);
    read_indexer(&s, &m);
    m.temperature = read_temperature(&s, &m);
    read_factors(&s, &m);
    m.file_type = keys_opt_int(&s, "general.file_type", 0, INT32_MAX, -1);
    m.quantization_version = keys_opt_int(&s, "general.quantization_version", 0, INT32_MAX, 0);
    mr_status status = s.status;
    if (!status)
        status = read_vocab(g, &m, err);
    if (!status)
        status = rope_info_read_factors(g, &m.ropes[0], err);
    if (!status)
        status = check_tensors(g, &m, err);
    if (!status)
        *out = m;
    return status;
}

int32_t mr_model_partitions(const mr_model_info *m) {
    int32_t most = 0;
    for (int32_t i = 0; i < m->n_shapes && m->is_sparse; i++) {
        int32_t n = mr_count_partitions(m->shapes[i].n_ff);
        most = n > most ? n : most;
    }
    return most;
}
