/* engine/model/weights.c - the weights of a layer range: finds and checks the tensors in the file, chooses the backends
 * that hold each tensor, and loads the tensors. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/readahead.h"
#include "engine/model/weights_internal.h"
#include "engine/tensor/quant.h"

/* Sizes that a tensor may have. resolve() gives the number for a layer of a model. */
typedef enum dim { DIM_ONE, DIM_D, DIM_Q, DIM_KV, DIM_HEAD, DIM_FF, DIM_VOCAB, DIM_EXPERTS, DIM_FF_EXPERT } dim;

/* columns: elements of a row (the input of a product); rows: DIM_ONE for a vector. */
typedef struct tensor_spec {
    const char *name;
    dim columns, rows;
} tensor_spec;

static const tensor_spec LAYER[MR_LAYER_SLOTS] = {
    [MR_W_ATTN_NORM] = {"attn_norm.weight", DIM_D, DIM_ONE},
    [MR_W_Q] = {"attn_q.weight", DIM_D, DIM_Q},
    [MR_W_Q_BIAS] = {"attn_q.bias", DIM_Q, DIM_ONE},
    [MR_W_Q_NORM] = {"attn_q_norm.weight", DIM_HEAD, DIM_ONE},
    [MR_W_K] = {"attn_k.weight", DIM_D, DIM_KV},
    [MR_W_K_BIAS] = {"attn_k.bias", DIM_KV, DIM_ONE},
    [MR_W_K_NORM] = {"attn_k_norm.weight", DIM_HEAD, DIM_ONE},
    [MR_W_V] = {"attn_v.weight", DIM_D, DIM_KV},
    [MR_W_V_BIAS] = {"attn_v.bias", DIM_KV, DIM_ONE},
    [MR_W_O] = {"attn_output.weight", DIM_Q, DIM_D},
    [MR_W_O_BIAS] = {"attn_output.bias", DIM_D, DIM_ONE},
    [MR_W_FFN_NORM] = {"ffn_norm.weight", DIM_D, DIM_ONE},
    [MR_W_GATE] = {"ffn_gate.weight", DIM_D, DIM_FF},
    [MR_W_UP] = {"ffn_up.weight", DIM_D, DIM_FF},
    [MR_W_DOWN] = {"ffn_down.weight", DIM_FF, DIM_D},
    [MR_W_ROUTER] = {"ffn_gate_inp.weight", DIM_D, DIM_EXPERTS},
    [MR_W_GATE_EXPERTS] = {"ffn_gate_exps.weight", DIM_D, DIM_FF_EXPERT},
    [MR_W_UP_EXPERTS] = {"ffn_up_exps.weight", DIM_D, DIM_FF_EXPERT},
    [MR_W_DOWN_EXPERTS] = {"ffn_down_exps.weight", DIM_FF_EXPERT, DIM_D},
};
enum {
    DENSE_SLOTS = 1u << MR_W_GATE | 1u << MR_W_UP | 1u << MR_W_DOWN,
    EXPERT_SLOTS = 1u << MR_W_ROUTER | 1u << MR_W_GATE_EXPERTS | 1u << MR_W_UP_EXPERTS | 1u << MR_W_DOWN_EXPERTS,
};
static const tensor_spec TOKEN_EMBD = {"token_embd.weight", DIM_D, DIM_VOCAB};
static const tensor_spec OUTPUT_NORM = {"output_norm.weight", DIM_D, DIM_ONE};
static const tensor_spec OUTPUT = {"output.weight", DIM_D, DIM_VOCAB};
static const tensor_spec TIED_OUTPUT = {"token_embd.weight", DIM_D, DIM_VOCAB};
/* Ends the hint for a missing tensor of experts: files of early 2024 have one tensor for each expert. */
static const char OLD_EXPERTS[] = ", with all experts of a layer in one tensor; convert old files again";
static const char ROPE_FREQS[] = "rope_freqs.weight";

/* Whether the tensor holds one matrix for each expert, one behind the other. */
static bool is_of_experts(const tensor_spec *spec) {
    return spec->columns == DIM_FF_EXPERT || spec->rows == DIM_FF_EXPERT;
}

/* l: NULL for a tensor outside layers. */
static int64_t resolve(const mr_model_info *m, const mr_layer_info *l, dim d) {
    switch (d) {
    case DIM_ONE:
        return 1;
    case DIM_D:
        return m->d_model;
    case DIM_Q:
        return (int64_t)l->n_heads * l->k_dim;
    case DIM_KV:
        return (int64_t)l->n_kv_heads * l->k_dim;
    case DIM_HEAD:
        return l->k_dim;
    case DIM_FF:
    case DIM_FF_EXPERT:
        return l->n_ff;
    case DIM_VOCAB:
        return m->vocab_size;
    case DIM_EXPERTS:
        return m->n_experts;
    }
    return 0;
}

/* A matrix or table must have a type that this version multiplies. A vector must consist of floats. */
static mr_status check_type(const mr_gguf_tensor *t, bool is_vector, mr_err *err) {
    const mr_type_info *info = mr_type_get(t->type);
    bool is_float = t->type == MR_TYPE_F32 || t->type == MR_TYPE_F16 || t->type == MR_TYPE_BF16;
    if (info && info->is_weight && (!is_vector || is_float))
        return MR_OK;
    return mr_err_set(err, MR_E_UNSUPPORTED, "tensor '%s' has type %s, which this version does not %s; hint: %s",
                      t->name, mr_type_name(t->type), is_vector ? "read as a vector" : "multiply",
                      is_vector ? "vectors are F32, F16 or BF16"
                                : "matrices are F32, F16, BF16 or of a common quantised type");
}

static mr_status check_shape(const mr_gguf_tensor *t, int64_t columns, int64_t rows, int32_t n_matrices, mr_err *err) {
    char third[16] = "";
    if (t->ne[0] == columns && t->ne[1] == rows && t->ne[2] == n_matrices && t->ne[3] == 1)
        return MR_OK;
    if (n_matrices > 1)
        snprintf(third, sizeof third, ", %d", n_matrices);
    return mr_err_set(err, MR_E_FORMAT, "tensor '%s' has shape [%lld, %lld, %lld, %lld], wanted [%lld, %lld%s]",
                      t->name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3],
                      (long long)columns, (long long)rows, third);
}

/* Looks up the tensor called name and describes it in w, without a place on a backend. A missing optional tensor leaves
 * w empty. */
static mr_status find(const mr_weights *ws, const mr_layer_info *layer, const char *name, const tensor_spec *spec,
                      bool required, mr_storage storage, weight *w, mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(ws->gguf, name);
    if (!t)
        return required ? mr_err_set(err, MR_E_FORMAT, "tensor '%s' is missing; hint: a %s model needs it%s", name,
                                     ws->arch->name, is_of_experts(spec) ? OLD_EXPERTS : "")
                        : MR_OK;
    int64_t columns = resolve(ws->info, layer, spec->columns), rows = resolve(ws->info, layer, spec->rows);
    int32_t n_matrices = is_of_experts(spec) ? ws->info->n_experts : 1;
    mr_status status = check_shape(t, columns, rows, n_matrices, err);
    bool is_vector = spec->rows == DIM_ONE;
    if (status == MR_OK)
        status = check_type(t, is_vector, err);
    if (status != MR_OK)
        return status;
    /* Vectors become float32 when they are loaded. */
    mr_type type = is_vector ? MR_TYPE_F32 : t->type;
    if (!mr_tensor_init(&w->tensor, name, type, columns, rows * n_matrices, storage, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s': %lld columns do not fit type %s", name, (long long)columns,
                          mr_type_name(type));
    if (storage == MR_STORAGE_WEIGHT)
        status =
            ws->backend->ops->weight_bytes(ws->backend, type, (int32_t)columns, (int32_t)rows, &w->tensor.bytes, err);
    if (status == MR_OK && storage == MR_STORAGE_WEIGHT &&
        !mr_mul_size(w->tensor.bytes, (size_t)n_matrices, &w->tensor.bytes))
        status = mr_err_set(err, MR_E_TOO_LONG, "%d experts are too large", n_matrices);
    w->n_matrices = n_matrices;
    w->is_matrix = !is_vector;
    w->is_of_experts = is_of_experts(spec);
    w->source = t;
    w->is_mapped = storage == MR_STORAGE_FILE && w->is_matrix;
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "tensor '%s'", name);
}

static mr_status find_layer(mr_weights *ws, int32_t layer, mr_err *err) {
    weight *slots = ws->layers[layer - ws->range.first];
    const mr_layer_info *info = mr_model_layer(ws->info, layer);
    uint32_t required = ws->arch->required;
    if (info->k_dim != info->v_dim)
        return mr_err_set(err, MR_E_UNSUPPORTED, "heads of %d elements for keys and %d for values", info->k_dim,
                          info->v_dim);
    if (info->has_experts)
        required = (required & ~(uint32_t)DENSE_SLOTS) | EXPERT_SLOTS;
    for (int s = 0; s < MR_LAYER_SLOTS; s++) {
        uint32_t bit = 1u << s;
        if (!((required | ws->arch->optional) & bit))
            continue;
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", layer, LAYER[s].name);
        mr_storage storage = LAYER[s].rows == DIM_ONE ? MR_STORAGE_FILE : ws->matrices;
        mr_status status = find(ws, info, name, &LAYER[s], required & bit, storage, &slots[s], err);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}

/* Whether the tensor belongs to a part of the model that this stage computes. */
static bool is_of_stage(const mr_weights *ws, const mr_gguf_tensor *t) {
    int32_t layer;
    switch (mr_model_tensor_part(t->name, &layer)) {
    case MR_MODEL_LAYER:
        return layer >= ws->range.first && layer < ws->range.last;
    case MR_MODEL_EMBEDDING:
        return weights_is_head(ws);
    case MR_MODEL_OUTPUT:
        return weights_is_tail(ws);
    default:
        return true;
    }
}

static bool is_used(const mr_weights *ws, const mr_gguf_tensor *t) {
    int32_t layer;
    if (mr_model_tensor_part(t->name, &layer) != MR_MODEL_LAYER)
        return t == ws->token_embd.source || t == ws->output_norm.source || t == ws->output.source ||
               strcmp(t->name, ROPE_FREQS) == 0;
    for (int s = 0; s < MR_LAYER_SLOTS; s++)
        if (ws->layers[layer - ws->range.first][s].source == t)
            return true;
    return false;
}

/* Refuses a tensor of this stage that no slot uses. Leaving the tensor out would silently change what the model
 * computes. */
static mr_status check_all_used(const mr_weights *ws, mr_err *err) {
    for (int32_t i = 0; i < mr_gguf_n_tensors(ws->gguf); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(ws->gguf, i);
        if (is_of_stage(ws, t) && !is_used(ws, t))
            return mr_err_set(err, MR_E_UNSUPPORTED, "tensor '%.100s' is unknown to architecture %s in this version",
                              t->name, ws->arch->name);
    }
    return MR_OK;
}

/* Reads and checks the factors of the file's rope_freqs tensor. */
static mr_status read_rope_factors(const mr_weights *ws, float *out_factors, int32_t n_pairs, mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(ws->gguf, ROPE_FREQS);
    if (!t || t->type != MR_TYPE_F32 || t->ne[0] != n_pairs || t->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s' must be F32 with %d elements", ROPE_FREQS, n_pairs);
    mr_dequantize(t->type, t->data, out_factors, n_pairs);
    for (int32_t i = 0; i < n_pairs; i++)
        if (!(out_factors[i] > 0.0f && out_factors[i] < 1e6f))
            return mr_err_set(err, MR_E_FORMAT, "tensor '%s': factor %d is %g", ROPE_FREQS, i, (double)out_factors[i]);
    return MR_OK;
}

/* Makes the constant of rule R for RoPE number idx of the model. */
static mr_status make_angles(mr_weights *ws, int32_t idx, mr_err *err) {
    const mr_model_rope *rope = &ws->info->ropes[idx];
    int32_t n_pairs = rope->n_rot / 2;
    weight *w = &ws->rope_angles[idx];
    mr_tensor *t = &w->tensor;
    if (!mr_tensor_init(t, "rope_angles", MR_TYPE_F32, n_pairs, MR_ROPE_ROWS, MR_STORAGE_CONSTANT, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_FORMAT, "%d RoPE pairs", n_pairs);
    float *factors = mr_alloc_array((size_t)n_pairs, sizeof *factors);
    w->values = mr_alloc(t->bytes);
    mr_status status = factors && w->values ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for RoPE angles");
    if (status == MR_OK && rope->has_factors)
        status = read_rope_factors(ws, factors, n_pairs, err);
    if (status == MR_OK)
        mr_rope_angles(rope, rope->has_factors ? factors : NULL, t->row_bytes / sizeof(float), w->values,
                       &ws->rope_magnitude[idx]);
    mr_free(factors);
    return status;
}

static mr_status find_all(mr_weights *ws, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < ws->info->n_ropes && status == MR_OK; i++)
        status = make_angles(ws, i, err);
    for (int32_t l = ws->range.first; l < ws->range.last && status == MR_OK; l++)
        status = find_layer(ws, l, err);
    if (status == MR_OK && weights_is_head(ws))
        status = find(ws, NULL, TOKEN_EMBD.name, &TOKEN_EMBD, true, MR_STORAGE_FILE, &ws->token_embd, err);
    if (status == MR_OK && weights_is_tail(ws)) {
        const tensor_spec *output = ws->info->tied_output ? &TIED_OUTPUT : &OUTPUT;
        status = find(ws, NULL, OUTPUT_NORM.name, &OUTPUT_NORM, true, MR_STORAGE_FILE, &ws->output_norm, err);
        if (status == MR_OK)
            status = find(ws, NULL, output->name, output, true, ws->matrices, &ws->output, err);
    }
    return status == MR_OK ? check_all_used(ws, err) : status;
}

enum {
    OTHERS = 3 + MR_MODEL_MAX_ROPES, /* tensors outside layers */
    AHEAD_BYTES = 64 << 20,          /* how far the file is read ahead while loading */
};

/* Called by visit_all for every tensor of the stage. */
typedef mr_status visit_fn(mr_weights *ws, weight *w, void *ctx, mr_err *err);

static mr_status visit_all(mr_weights *ws, visit_fn *visit, void *ctx, mr_err *err) {
    weight *const others[OTHERS] = {&ws->token_embd, &ws->output_norm, &ws->output, &ws->rope_angles[0],
                                    &ws->rope_angles[1]};
    mr_status status = MR_OK;
    for (int i = 0; i < OTHERS && status == MR_OK; i++)
        if (weight_exists(others[i]))
            status = visit(ws, others[i], ctx, err);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < MR_LAYER_SLOTS && status == MR_OK; s++)
            if (weight_exists(&ws->layers[l][s]))
                status = visit(ws, &ws->layers[l][s], ctx, err);
    return status;
}

/* Chooses the backends that hold a tensor. A matrix goes to the first backend that multiplies by its type, has room and
 * stores a copy, and also to backends that need no copy. Matrices of experts go to the last backend, which runs the
 * experts. Vectors and constants go into every memory, so that no step copies them. */
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
        if (w->is_of_experts && !is_last)
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
    ws->matrices = desc->map && device.host_addressable ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    ws->layers = mr_alloc_array((size_t)(range.last - range.first), sizeof *ws->layers);
    mr_status status = ws->layers ? mr_arch_find(info->arch, &ws->arch, err)
                                  : mr_err_set(err, MR_E_NO_MEMORY, "no memory for the weights' table");
    if (status == MR_OK && info->n_experts > 0 && !ws->arch->has_experts)
        status = mr_err_set(err, MR_E_UNSUPPORTED,
                            "the model has %d experts; this version runs %s models without experts only",
                            info->n_experts, info->arch);
    if (status == MR_OK)
        status = find_all(ws, err);
    if (status == MR_OK)
        status = visit_all(ws, assign_places, NULL, err);
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

/* Matrices of experts stay on the last backend, so they do not count. */
static void keep_larger(const weight *w, mr_type type, const mr_gguf_tensor **best) {
    if (w->is_matrix && !w->is_of_experts && w->source->type == type && (!*best || w->source->bytes > (*best)->bytes))
        *best = w->source;
}

const mr_gguf_tensor *mr_weights_largest(const mr_weights *ws, mr_type type) {
    const mr_gguf_tensor *best = NULL;
    keep_larger(&ws->output, type, &best);
    for (int32_t l = 0; l < ws->range.last - ws->range.first; l++)
        for (int s = 0; s < MR_LAYER_SLOTS; s++)
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

/* --- Loading ----------------------------------------------------------------------------------------------------- */

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
        state->ranges[state->n_ranges++] = (mr_read_range){w->source->data, w->source->bytes};
    return MR_OK;
}

/* Starts a thread that reads the next tensors of the file while one tensor is repacked. */
static mr_status start_reading(mr_weights *ws, load_state *state, mr_err *err) {
    int32_t n_tensors = OTHERS + (ws->range.last - ws->range.first) * MR_LAYER_SLOTS;
    state->ranges = mr_alloc_array((size_t)n_tensors, sizeof *state->ranges);
    if (!state->ranges)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to load %d tensors", n_tensors);
    mr_status status = visit_all(ws, note_range, state, err);
    return status == MR_OK ? mr_readahead_create(AHEAD_BYTES, &state->ahead, err) : status;
}

static void stop_reading(load_state *state) {
    mr_readahead_destroy(state->ahead);
    mr_free(state->ranges);
}

/* Loads a vector of the file as float32. */
static mr_status load_vector(const weight *w, const mr_tensor *t, mr_err *err) {
    const mr_backend_ops *ops = t->home->ops;
    mr_fence fence = 0;
    float *values = mr_alloc_array((size_t)t->ne[0], sizeof *values);
    if (!values)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to convert tensor '%s'", t->name);
    mr_dequantize(w->source->type, w->source->data, values, t->ne[0]);
    mr_status status = ops->set(t->home, t->buffer, t->offset, values, (size_t)t->ne[0] * sizeof *values, &fence, err);
    if (status == MR_OK)
        status = ops->wait(t->home, fence, MR_NEVER, err);
    mr_free(values);
    return status;
}

/* Loads each matrix of a tensor by itself, because a matrix begins at a boundary of the backend's layout. */
static mr_status load_matrices(const weight *w, const mr_tensor *t, mr_err *err) {
    size_t n = (size_t)w->n_matrices;
    mr_tensor one = *t;
    mr_fence fence = 0;
    mr_status status = MR_OK;
    one.ne[1] = t->ne[1] / w->n_matrices;
    one.bytes = t->bytes / n;
    for (size_t i = 0; i < n && status == MR_OK; i++, one.offset += one.bytes)
        status = t->home->ops->weight_load(t->home, &one, w->source->data + i * (w->source->bytes / n), &fence, err);
    return status == MR_OK ? t->home->ops->wait(t->home, fence, MR_NEVER, err) : status;
}

/* Loads the copy of a tensor that one backend holds. */
static mr_status load_instance(const weight *w, const mr_tensor *t, mr_err *err) {
    const mr_backend_ops *ops = t->home->ops;
    mr_fence fence = 0;
    if (t->storage == MR_STORAGE_FILE)
        return load_vector(w, t, err);
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
        mr_gguf_release_pages(ws->gguf, w->source->data, w->source->bytes);
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
        w->tensor.offset = w->source->offset - ws->mapped_offset;
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
        status = visit_all(ws, load_one, &state, err);
    stop_reading(&state);
    if (status == MR_OK)
        status = map_file(ws, err);
    if (status == MR_OK)
        status = visit_all(ws, place_mapped, NULL, err);
    /* For each page that is touched, the kernel maps up to 2 MiB around it. These pages hold layers of other stages,
     * too, so the pages of the whole file are released. */
    mr_gguf_release_pages(ws->gguf, mr_gguf_file_data(ws->gguf), mr_gguf_file_bytes(ws->gguf));
    if (status == MR_OK && progress)
        progress(ctx, mr_weights_bytes(ws), mr_weights_bytes(ws)); /* done_bytes left out the paddings */
    return status == MR_OK ? MR_OK : mr_err_prefix(err, "loading layers %d to %d", ws->range.first, ws->range.last - 1);
}
