/* Reads the hyper-parameters of a model from the metadata. Names of keys: GGUF specification, "Standardized key-value
 * pairs". The keys of YaRN and of experts are those that the converters of llama.cpp write. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/model_info.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    KEY_BYTES = 128,
    QUANTIZATION_VERSION = 2, /* the version of every GGUF file so far */
};

/* State of the reads of one model. After the first error the functions below read nothing, so the caller reads all
 * fields and checks the status once. */
typedef struct source {
    const mr_gguf *g;
    const char *arch;
    mr_status status;
    mr_err *err;
    char key[KEY_BYTES];
} source;

/* Writes the full name of a key to s->key: the architecture, a dot and suffix, or suffix alone where suffix starts with
 * "general.". */
static const char *make_key(source *s, const char *suffix) {
    bool general = strncmp(suffix, "general.", 8) == 0;
    snprintf(s->key, sizeof s->key, "%s%s%s", general ? "" : s->arch, general ? "" : ".", suffix);
    return s->key;
}

/* Whether the file has the key. Always false after an error. */
static bool has(source *s, const char *suffix) {
    return !s->status && mr_gguf_has_key(s->g, make_key(s, suffix));
}

static int64_t check_range(source *s, int64_t v, int64_t min, int64_t max) {
    if (v < min || v > max)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %" PRId64 " is out of the range %" PRId64 " to %" PRId64,
                               s->key, v, min, max);
    return v;
}

/* The caller needs the key, so a missing key is an error of the file. */
static mr_status missing_is_format(source *s, mr_status status) {
    if (status == MR_E_NOT_FOUND)
        return mr_err_set(s->err, MR_E_FORMAT,
                          "key '%s' is missing; hint: the file holds no language model that this "
                          "program knows, or it was converted by a very old converter",
                          s->key);
    return status;
}

static int32_t need_int(source *s, const char *suffix, int64_t min, int64_t max) {
    int64_t v = 0;
    if (s->status)
        return 0;
    s->status = missing_is_format(s, mr_gguf_get_i64(s->g, make_key(s, suffix), &v, s->err));
    return s->status ? 0 : (int32_t)check_range(s, v, min, max);
}

static int32_t opt_int(source *s, const char *suffix, int64_t min, int64_t max, int32_t fallback) {
    return has(s, suffix) ? need_int(s, suffix, min, max) : fallback;
}

/* Reads one number for all layers, or an array with the same number for each layer. */
static int32_t need_layer_int(source *s, const char *suffix, int32_t n_layers, int64_t min, int64_t max) {
    mr_gguf_array a;
    if (!has(s, suffix) || mr_gguf_get_array(s->g, s->key, MR_GGUF_ELEMS_ANY, &a, NULL) != MR_OK)
        return need_int(s, suffix, min, max);
    s->status = mr_gguf_get_array(s->g, s->key, MR_GGUF_ELEMS_INTEGERS, &a, s->err);
    if (s->status)
        return 0;
    if (a.n != (size_t)n_layers) {
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %zu values for %d layers", s->key, a.n, n_layers);
        return 0;
    }
    int64_t first = check_range(s, mr_gguf_array_i64(&a, 0), min, max);
    for (int32_t i = 1; i < n_layers && !s->status; i++) {
        int64_t v = mr_gguf_array_i64(&a, (size_t)i);
        if (v != first)
            s->status = mr_err_set(s->err, MR_E_UNSUPPORTED,
                                   "key '%s': layers differ, %" PRId64 " in layer 0 and %" PRId64 " in layer %d",
                                   s->key, first, v, i);
    }
    return (int32_t)first;
}

static int32_t opt_layer_int(source *s, const char *suffix, int32_t n_layers, int64_t min, int64_t max,
                             int32_t fallback) {
    return has(s, suffix) ? need_layer_int(s, suffix, n_layers, min, max) : fallback;
}

/* Reads a finite number in [min, max]. */
static float need_float(source *s, const char *suffix, float min, float max) {
    float v = 0;
    if (s->status)
        return 0;
    s->status = missing_is_format(s, mr_gguf_get_f32(s->g, make_key(s, suffix), &v, s->err));
    if (!s->status && !(v >= min && v <= max))
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %g is out of the range %g to %g", s->key, (double)v,
                               (double)min, (double)max);
    return v;
}

static float opt_float(source *s, const char *suffix, float min, float max, float fallback) {
    return has(s, suffix) ? need_float(s, suffix, min, max) : fallback;
}

static void read_arch(source *s, mr_model_info *m) {
    mr_str arch = {0}, name = {0};
    s->status = missing_is_format(s, mr_gguf_get_str(s->g, make_key(s, "general.architecture"), &arch, s->err));
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
    if (!has(s, "general.name"))
        return;
    s->status = mr_gguf_get_str(s->g, s->key, &name, s->err);
    size_t n = name.len < sizeof m->name ? name.len : sizeof m->name - 1;
    for (size_t i = 0; i < n; i++)
        m->name[i] = (unsigned char)name.data[i] < 0x20 || name.data[i] == 0x7f ? '?' : name.data[i];
}

static void read_attention(source *s, mr_model_info *m) {
    m->n_heads = need_layer_int(s, "attention.head_count", m->n_layers, 1, MR_MODEL_MAX_HEADS);
    m->n_kv_heads = opt_layer_int(s, "attention.head_count_kv", m->n_layers, 1, MR_MODEL_MAX_HEADS, m->n_heads);
    if (!s->status && m->n_heads % m->n_kv_heads != 0)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %d does not divide the %d heads",
                               make_key(s, "attention.head_count_kv"), m->n_kv_heads, m->n_heads);
    int32_t dim = s->status ? 0 : m->d_model / m->n_heads;
    int32_t key_dim = opt_int(s, "attention.key_length", 1, MR_MODEL_MAX_HEAD_DIM, dim);
    int32_t value_dim = opt_int(s, "attention.value_length", 1, MR_MODEL_MAX_HEAD_DIM, dim);
    if (s->status)
        return;
    if (key_dim != value_dim)
        s->status =
            mr_err_set(s->err, MR_E_UNSUPPORTED, "heads of %d elements for keys and %d for values", key_dim, value_dim);
    else if (key_dim < 2 || key_dim > MR_MODEL_MAX_HEAD_DIM || key_dim % 2 != 0)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "heads of %d elements; even numbers from 2 to %d are allowed",
                               key_dim, MR_MODEL_MAX_HEAD_DIM);
    else if (!mr_gguf_has_key(s->g, make_key(s, "attention.key_length")) && m->d_model % m->n_heads != 0)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %d is no multiple of the %d heads",
                               make_key(s, "embedding_length"), m->d_model, m->n_heads);
    m->head_dim = key_dim;
    bool rms = !has(s, "attention.layer_norm_epsilon") || has(s, "attention.layer_norm_rms_epsilon");
    m->norm_eps = need_float(s, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 0, 1);
    m->sliding_window = opt_int(s, "attention.sliding_window", 0, MR_MODEL_MAX_CONTEXT, 0);
    if (!s->status && m->sliding_window > 0 && has(s, "attention.sliding_window_pattern"))
        s->status = mr_err_set(s->err, MR_E_UNSUPPORTED, "key '%s': a sliding window in some layers only", s->key);
}

/* Older converters wrote a factor without a scaling type, and meant linear scaling. */
static mr_rope_scaling read_scaling_type(source *s, bool has_factor) {
    mr_str type = {0};
    if (!has(s, "rope.scaling.type"))
        return has_factor ? MR_ROPE_SCALING_LINEAR : MR_ROPE_SCALING_NONE;
    s->status = mr_gguf_get_str(s->g, s->key, &type, s->err);
    if (s->status || mr_str_is(type, "none"))
        return MR_ROPE_SCALING_NONE;
    if (mr_str_is(type, "linear"))
        return MR_ROPE_SCALING_LINEAR;
    if (mr_str_is(type, "yarn"))
        return MR_ROPE_SCALING_YARN;
    char text[24] = {0};
    for (size_t i = 0; i < type.len && i + 1 < sizeof text; i++)
        text[i] = type.data[i] >= 0x20 && type.data[i] < 0x7f ? type.data[i] : '?';
    s->status =
        mr_err_set(s->err, MR_E_UNSUPPORTED, "key '%s': '%s'; none, linear and yarn are supported", s->key, text);
    return MR_ROPE_SCALING_NONE;
}

static void read_rope(source *s, const mr_model_info *m, mr_model_rope *r) {
    static const char FACTOR[] = "rope.scaling.factor", LINEAR[] = "rope.scale_linear";
    const float least = 1e-3f, most = 1e6f;
    r->n_rot = opt_int(s, "rope.dimension_count", 2, m->head_dim, m->head_dim);
    if (!s->status && r->n_rot % 2 != 0)
        s->status =
            mr_err_set(s->err, MR_E_FORMAT, "key '%s': %d is odd", make_key(s, "rope.dimension_count"), r->n_rot);
    r->freq_base = opt_float(s, "rope.freq_base", 1, 1e15f, 10000);
    /* Some converters wrote a factor of 0 for no scaling. */
    float factor = has(s, FACTOR) ? need_float(s, FACTOR, 0, most) : opt_float(s, LINEAR, 0, most, 0);
    r->scaling = read_scaling_type(s, factor != 0 && factor != 1);
    r->factor = r->scaling == MR_ROPE_SCALING_NONE || factor == 0 ? 1 : factor;
    if (!s->status && r->factor < least)
        s->status = mr_err_set(s->err, MR_E_FORMAT, "key '%s': %g is out of the range %g to %g", make_key(s, FACTOR),
                               (double)r->factor, (double)least, (double)most);
    r->original_context =
        opt_int(s, "rope.scaling.original_context_length", 1, MR_MODEL_MAX_CONTEXT, m->context_length);
    r->attn_factor = opt_float(s, "rope.scaling.attn_factor", least, most, 1) *
                     opt_float(s, "rope.scaling.yarn_attn_factor", least, most, 1);
    r->ext_factor = opt_float(s, "rope.scaling.yarn_ext_factor", 0, most, r->scaling == MR_ROPE_SCALING_YARN ? 1 : 0);
    r->beta_fast = opt_float(s, "rope.scaling.yarn_beta_fast", least, most, 32);
    r->beta_slow = opt_float(s, "rope.scaling.yarn_beta_slow", least, most, 1);
}

static void read_experts(source *s, mr_model_info *m) {
    m->n_experts = opt_int(s, "expert_count", 0, MR_MODEL_MAX_EXPERTS, 0);
    if (m->n_experts == 0)
        return;
    m->n_experts_used = need_int(s, "expert_used_count", 1, m->n_experts);
    m->n_ff_expert = opt_layer_int(s, "expert_feed_forward_length", m->n_layers, 1, MR_MODEL_MAX_FF, m->n_ff);
}

/* Checks that t is a matrix [columns, rows], or a vector [columns] where rows is 1. */
static mr_status check_shape(const mr_gguf_tensor *t, int64_t columns, int64_t rows, mr_err *err) {
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
    mr_status status = check_shape(embd, m->d_model, m->vocab_size, err);
    if (!status && output)
        status = check_shape(output, m->d_model, m->vocab_size, err);
    if (status || !mr_gguf_has_key(g, TOKENS))
        return status;
    mr_gguf_array tokens;
    status = mr_gguf_get_array(g, TOKENS, MR_GGUF_ELEMS_STRINGS, &tokens, err);
    if (!status && tokens.n != (size_t)m->vocab_size)
        return mr_err_set(err, MR_E_FORMAT, "key '%s': %zu tokens, but tensor '%s' has %d rows", TOKENS, tokens.n,
                          embd->name, m->vocab_size);
    return status;
}

static mr_status check_rope_factors(const mr_gguf *g, mr_model_rope *r, mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(g, "rope_freqs.weight");
    r->has_factors = t != NULL;
    if (!t)
        return MR_OK;
    if (t->type != MR_TYPE_F32)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s': the type is %s, not F32", t->name, mr_type_name(t->type));
    return check_shape(t, r->n_rot / 2, 1, err);
}

/* Checks that every layer has tensors, that no tensor is of another layer, and the quantisation version. */
static mr_status check_tensors(const mr_gguf *g, const mr_model_info *m, mr_err *err) {
    bool seen[MR_MODEL_MAX_LAYERS] = {false};
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        const mr_type_info *type = mr_type_get(t->type);
        int32_t layer;
        mr_model_part part = mr_model_tensor_part(t->name, &layer);
        if (part == MR_MODEL_BAD_LAYER || (part == MR_MODEL_LAYER && layer >= m->n_layers))
            return mr_err_set(err, MR_E_FORMAT, "tensor '%.100s' is of no layer of the model, which has %d", t->name,
                              m->n_layers);
        if (part == MR_MODEL_LAYER)
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
    source s = {.g = g, .arch = m.arch, .err = err};
    read_arch(&s, &m);
    m.n_layers = need_int(&s, "block_count", 1, MR_MODEL_MAX_LAYERS);
    m.d_model = need_int(&s, "embedding_length", 1, MR_MODEL_MAX_WIDTH);
    m.context_length = need_int(&s, "context_length", 1, MR_MODEL_MAX_CONTEXT);
    m.n_ff = need_layer_int(&s, "feed_forward_length", m.n_layers, 1, MR_MODEL_MAX_FF);
    read_attention(&s, &m);
    read_rope(&s, &m, &m.rope);
    read_experts(&s, &m);
    m.file_type = opt_int(&s, "general.file_type", 0, INT32_MAX, -1);
    m.quantization_version = opt_int(&s, "general.quantization_version", 0, INT32_MAX, 0);
    mr_status status = s.status;
    if (!status)
        status = read_vocab(g, &m, err);
    if (!status)
        status = check_rope_factors(g, &m.rope, err);
    if (!status)
        status = check_tensors(g, &m, err);
    if (!status)
        *out = m;
    return status;
}
