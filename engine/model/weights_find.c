/* engine/model/weights_find.c - finds and checks the tensors of a layer range in the file, by the tables of the
 * architecture. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model/weights_internal.h"
#include "engine/tensor/quant.h"

static const tensor_spec TOKEN_EMBD = {.name = "token_embd.weight", .columns = SIZE_D, .rows = SIZE_VOCAB};
static const tensor_spec OUTPUT_NORM = {.name = "output_norm.weight", .columns = SIZE_D, .rows = SIZE_ONE};
static const tensor_spec OUTPUT = {.name = "output.weight", .columns = SIZE_D, .rows = SIZE_VOCAB};
/* Ends the hint for a missing tensor of experts: files of early 2024 have one tensor for each expert. */
static const char OLD_EXPERTS[] = ", with all experts of a layer in one tensor; convert old files again";
static const char RANK_HEAD[] = "cls.output.weight"; /* the coordinator computes it: coordinator/serving/rerank */

/* l: NULL for a tensor outside layers. */
static int64_t resolve(const mr_model_info *m, const mr_layer_info *l, tensor_size size) {
    switch (size) {
    case SIZE_ONE:
        return 1;
    case SIZE_D:
        return m->d_model;
    case SIZE_Q:
        return (int64_t)l->n_heads * l->k_dim;
    case SIZE_K:
        return (int64_t)l->n_kv_heads * l->k_dim;
    case SIZE_V:
        return (int64_t)l->n_kv_heads * l->v_dim;
    case SIZE_A:
        return (int64_t)l->n_heads * l->v_dim;
    case SIZE_HEADS:
        return l->n_heads;
    case SIZE_K_HEAD:
        return l->k_dim;
    case SIZE_V_HEAD:
        return l->v_dim;
    case SIZE_LATENT_Q_RANK:
        return m->latent.q_rank;
    case SIZE_LATENT_Q:
        return (int64_t)l->n_heads * m->latent.k_dim;
    case SIZE_LATENT_A:
        return (int64_t)l->n_heads * m->latent.v_dim;
    case SIZE_LATENT_K_HEAD:
        return m->latent.k_dim - m->ropes[0].n_rot;
    case SIZE_LATENT_V_HEAD:
        return m->latent.v_dim;
    case SIZE_FF:
        return l->n_ff;
    case SIZE_PREDICTOR:
        return l->n_predictor;
    case SIZE_SHARED:
        return l->n_ff_shared;
    case SIZE_EXPERTS:
        return m->n_experts;
    case SIZE_VOCAB:
        return m->vocab_size;
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

/* A tensor that is looked up: rows [first_row, first_row + rows of spec) of the file's matrix of all_rows. */
typedef struct tensor_wish {
    const char *name;
    const tensor_spec *spec;
    const mr_layer_info *layer;  /* NULL outside layers */
    mr_op op;                    /* as in weight */
    int32_t home;                /* as in weight */
    int64_t first_row, all_rows; /* all_rows 0: the tensor is no part of another */
    int64_t n_rows;              /* of the tensor, if they are fewer than the spec says; else 0 */
} tensor_wish;

static bool is_of_vectors(const tensor_spec *spec) {
    return spec->flags & VECTORS || (spec->rows == SIZE_ONE && !(spec->flags & ONE_ROW));
}

static mr_op op_of(const mr_model_info *m, const tensor_spec *spec) {
    if (is_of_vectors(spec))
        return MR_OP_COUNT;
    if (m->is_sparse && spec->flags & OF_NEURONS)
        return spec->slot == W_DOWN_ROWS ? MR_OP_AXPY : MR_OP_SPARSE_GATE_UP;
    return spec->flags & OF_EXPERTS ? MR_OP_EXPERT_MATMUL : spec->flags & OF_HEADS ? MR_OP_HEAD_MATMUL : MR_OP_MATMUL;
}

static int32_t count_matrices(const mr_model_info *m, const mr_layer_info *l, const tensor_spec *spec) {
    return spec->flags & OF_EXPERTS ? m->n_experts : spec->flags & OF_HEADS ? l->n_heads : 1;
}

/* Describes the rows of t in w, without a place on a backend. */
static mr_status describe(const mr_weights *ws, const tensor_wish *wish, const mr_gguf_tensor *t, weight *w,
                          mr_err *err) {
    const tensor_spec *spec = wish->spec;
    int64_t columns = resolve(ws->info, wish->layer, spec->columns), rows = resolve(ws->info, wish->layer, spec->rows);
    int64_t all_rows = wish->all_rows ? wish->all_rows : rows;
    rows = wish->n_rows ? wish->n_rows : rows;
    int32_t n_matrices = count_matrices(ws->info, wish->layer, spec);
    mr_status status = check_shape(t, columns, all_rows, n_matrices, err);
    bool is_vector = wish->op == MR_OP_COUNT;
    if (status == MR_OK)
        status = check_type(t, is_vector, err);
    if (status != MR_OK)
        return status;
    /* Vectors become float32 when they are loaded. */
    mr_type type = is_vector ? MR_TYPE_F32 : t->type;
    bool is_read_by_rows = wish->op == MR_OP_EMBED || wish->op == MR_OP_SPARSE_GATE_UP || wish->op == MR_OP_AXPY;
    mr_storage storage = is_vector || is_read_by_rows ? MR_STORAGE_FILE : MR_STORAGE_WEIGHT;
    if (!mr_tensor_init(&w->tensor, wish->name, type, columns, rows * n_matrices, storage, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s': %lld columns do not fit type %s", wish->name,
                          (long long)columns, mr_type_name(type));
    size_t row_bytes = t->bytes / (size_t)(all_rows * n_matrices);
    w->source = t;
    w->data = t->data + (size_t)wish->first_row * row_bytes;
    w->data_bytes = (size_t)(rows * n_matrices) * row_bytes;
    w->n_matrices = n_matrices;
    w->op = wish->op;
    w->home = wish->home;
    return MR_OK;
}

/* A missing optional tensor leaves w empty. */
static mr_status find(const mr_weights *ws, const tensor_wish *wish, weight *w, mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(ws->gguf, wish->name);
    if (t)
        return describe(ws, wish, t, w, err);
    return wish->spec->flags & OPTIONAL
               ? MR_OK
               : mr_err_set(err, MR_E_FORMAT, "tensor '%s' is missing; hint: a %s model needs it%s", wish->name,
                            ws->arch->name, wish->spec->flags & OF_EXPERTS ? OLD_EXPERTS : "");
}

/* Rows of the tensors before this one in the file's matrix, and of all of its parts; 0 where it is no part. */
static void find_part(const mr_weights *ws, const mr_layer_info *layer, const tensor_spec *table,
                      const tensor_spec *spec, int64_t *out_first, int64_t *out_all) {
    int32_t n_parts = 0;
    *out_first = *out_all = 0;
    for (const tensor_spec *s = table; s->name; s++) {
        if (strcmp(s->name, spec->name) != 0)
            continue;
        n_parts++;
        *out_all += resolve(ws->info, layer, s->rows);
        *out_first += s < spec ? resolve(ws->info, layer, s->rows) : 0;
    }
    if (n_parts == 1)
        *out_all = 0;
}

/* Finds the matrix of neurons in two parts: the hot partitions on the layer's backend, the cold ones on the last. */
static mr_status find_neurons(mr_weights *ws, tensor_wish wish, weight layer[LAYER_SLOTS], int32_t n_cold,
                              mr_err *err) {
    static const struct {
        layer_slot hot, cold;
    } SLOTS[] = {{W_GATE, W_GATE_COLD}, {W_UP, W_UP_COLD}, {W_DOWN_ROWS, W_DOWN_ROWS_COLD}};
    int64_t rows = resolve(ws->info, wish.layer, wish.spec->rows);
    int32_t n_hot = mr_count_partitions((int32_t)rows) - n_cold, last = ws->backends.n - 1;
    layer_slot cold = W_GATE_COLD;
    for (size_t i = 0; i < sizeof SLOTS / sizeof *SLOTS; i++)
        cold = SLOTS[i].hot == wish.spec->slot ? SLOTS[i].cold : cold;
    if (n_hot <= 0 || wish.home == last) {
        wish.home = last;
        return find(ws, &wish, &layer[wish.spec->slot], err);
    }
    wish.all_rows = rows;
    wish.n_rows = (int64_t)n_hot * MR_PARTITION;
    mr_status status = find(ws, &wish, &layer[wish.spec->slot], err);
    wish.first_row = wish.n_rows;
    wish.n_rows = rows - wish.first_row;
    wish.home = last;
    return status == MR_OK ? find(ws, &wish, &layer[cold], err) : status;
}

static mr_status find_table(mr_weights *ws, int32_t layer, const tensor_spec *table, mr_err *err) {
    const mr_layer_info *info = mr_model_layer(ws->info, layer);
    const unsigned absent = (info->has_experts ? IN_DENSE : IN_EXPERTS) | (info->n_ff_shared > 0 ? 0 : IN_SHARED) |
                            (ws->info->latent.q_rank > 0 ? IN_PLAIN_Q : IN_LATENT_Q) |
                            (ws->info->is_sparse ? NOT_SPARSE : IN_SPARSE);
    mr_status status = MR_OK;
    for (const tensor_spec *spec = table; spec->name && status == MR_OK; spec++) {
        char name[64];
        if (spec->flags & absent)
            continue;
        snprintf(name, sizeof name, "blk.%d.%s", layer, spec->name);
        int32_t idx = layer - ws->range.first;
        tensor_wish wish = {.name = name,
                            .spec = spec,
                            .layer = info,
                            .op = op_of(ws->info, spec),
                            .home = spec->flags & OF_EXPERTS ? mr_backends_of_experts(&ws->backends, idx)
                                                             : mr_backends_of_layer(&ws->backends, idx)};
        find_part(ws, info, table, spec, &wish.first_row, &wish.all_rows);
        int32_t n_cold = mr_backends_cold_partitions(&ws->backends, idx);
        bool has_cold = n_cold > 0 && (wish.op == MR_OP_SPARSE_GATE_UP || wish.op == MR_OP_AXPY);
        status = has_cold ? find_neurons(ws, wish, ws->layers[idx], n_cold, err)
                          : find(ws, &wish, &ws->layers[idx][spec->slot], err);
    }
    return status;
}

static bool has_slot(const mr_arch *arch, layer_slot slot) {
    for (int i = 0; i < MAX_TABLES && arch->tensors[i]; i++)
        for (const tensor_spec *s = arch->tensors[i]; s->name; s++)
            if (s->slot == slot)
                return true;
    return false;
}

/* gate and up of a sparse part are multiplied with the same activations. */
static mr_status check_sparse_types(const mr_weights *ws, int32_t layer, mr_err *err) {
    const weight *of_layer = ws->layers[layer - ws->range.first];
    const mr_tensor *gate = &of_layer[W_GATE].tensor, *up = &of_layer[W_UP].tensor;
    if (!of_layer[W_UP].source || mr_type_activation(gate->type) == mr_type_activation(up->type))
        return MR_OK;
    return mr_err_set(err, MR_E_UNSUPPORTED,
                      "tensor '%s' has type %s, and gate has type %s; hint: in a sparse model both are F32 or F16, "
                      "or both are BF16, or both are quantised",
                      up->name, mr_type_name(up->type), mr_type_name(gate->type));
}

static mr_status find_layer(mr_weights *ws, int32_t layer, mr_err *err) {
    const mr_layer_info *info = mr_model_layer(ws->info, layer);
    if (info->has_experts && !has_slot(ws->arch, W_ROUTER))
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "the model has %d experts; this version runs %s models without experts only",
                          ws->info->n_experts, ws->arch->name);
    if (!info->has_experts && !has_slot(ws->arch, W_GATE))
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "layer %d has no experts; this version runs %s models with experts in all layers only", layer,
                          ws->arch->name);
    if (ws->info->is_sparse && !has_slot(ws->arch, W_PREDICT_IN))
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "the file has the magic of PowerInfer; this version runs no sparse %s models; hint: "
                          "llama and bamboo models may be sparse",
                          ws->arch->name);
    if (!ws->info->is_sparse && strcmp(ws->arch->name, "bamboo") == 0)
        return mr_err_set(err, MR_E_UNSUPPORTED,
                          "a bamboo model without the magic 'PWRI'; this version runs bamboo models with predictors "
                          "only");
    mr_status status = MR_OK;
    for (int i = 0; i < MAX_TABLES && ws->arch->tensors[i] && status == MR_OK; i++)
        status = find_table(ws, layer, ws->arch->tensors[i], err);
    if (status == MR_OK && ws->info->is_sparse)
        status = check_sparse_types(ws, layer, err);
    return status;
}

/* Whether the tensor belongs to a part of the model that this stage computes. */
static bool is_of_stage(const mr_weights *ws, const mr_gguf_tensor *t) {
    int32_t layer;
    switch (mr_model_tensor_part(t->name, &layer)) {
    case MR_MODEL_LAYER:
        return layer >= ws->range.first && layer < ws->range.last && !mr_model_tensor_is_left_out(ws->info, t);
    case MR_MODEL_EMBEDDING:
        return weights_is_head(ws);
    case MR_MODEL_OUTPUT:
        return weights_is_tail(ws);
    case MR_MODEL_ENCODER:
        return false;
    default:
        return true;
    }
}

/* Whether the tensor has factors of RoPE, be it for another context. */
static bool is_of_rope(const mr_weights *ws, const char *name) {
    const char *of_short = mr_model_rope_factors(&ws->info->ropes[0], 0);
    const char *of_long = mr_model_rope_factors(&ws->info->ropes[0], INT32_MAX);
    return of_short && (strcmp(name, of_short) == 0 || strcmp(name, of_long) == 0);
}

static bool is_used(const mr_weights *ws, const mr_gguf_tensor *t) {
    int32_t layer;
    if (mr_model_tensor_part(t->name, &layer) != MR_MODEL_LAYER)
        return t == ws->token_embd.source || t == ws->output_norm.source || t == ws->output.source ||
               is_of_rope(ws, t->name) || strcmp(t->name, RANK_HEAD) == 0;
    for (int s = 0; s < LAYER_SLOTS; s++)
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

/* Reads the factors of a tensor that mr_model_info_read has checked, but for its values. */
static mr_status read_rope_factors(const mr_weights *ws, const char *name, float *out_factors, int32_t n_pairs,
                                   mr_err *err) {
    const mr_gguf_tensor *t = mr_gguf_find_tensor(ws->gguf, name);
    if (!t || t->type != MR_TYPE_F32 || t->ne[0] != n_pairs)
        return mr_err_set(err, MR_E_FORMAT, "tensor '%s' must be F32 with %d elements", name, n_pairs);
    mr_dequantize(t->type, t->data, out_factors, n_pairs);
    for (int32_t i = 0; i < n_pairs; i++)
        if (!(out_factors[i] > 0.0f && out_factors[i] < 1e6f))
            return mr_err_set(err, MR_E_FORMAT, "tensor '%s': factor %d is %g", name, i, (double)out_factors[i]);
    return MR_OK;
}

/* Makes the constant of rule R for RoPE number idx of the model. */
static mr_status make_angles(mr_weights *ws, int32_t idx, mr_err *err) {
    const mr_model_rope *rope = &ws->info->ropes[idx];
    const char *name = mr_model_rope_factors(rope, ws->max_context);
    int32_t n_pairs = rope->n_rot / 2;
    weight *w = &ws->rope_angles[idx];
    mr_tensor *t = &w->tensor;
    if (!mr_tensor_init(t, "rope_angles", MR_TYPE_F32, n_pairs, MR_ROPE_ROWS, MR_STORAGE_CONSTANT, MR_ROWS_FIXED))
        return mr_err_set(err, MR_E_FORMAT, "%d RoPE pairs", n_pairs);
    w->op = MR_OP_COUNT;
    w->home = ws->backends.n - 1;
    float *factors = mr_alloc_array((size_t)n_pairs, sizeof *factors);
    w->values = mr_alloc(t->bytes);
    mr_status status = factors && w->values ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for RoPE angles");
    if (status == MR_OK && name)
        status = read_rope_factors(ws, name, factors, n_pairs, err);
    if (status == MR_OK)
        mr_rope_angles(rope, name ? factors : NULL, t->row_bytes / sizeof(float), w->values, &ws->rope_magnitude[idx]);
    mr_free(factors);
    return status;
}

mr_status weights_find(mr_weights *ws, mr_err *err) {
    mr_status status = MR_OK;
    for (int32_t i = 0; i < ws->info->n_ropes && status == MR_OK; i++)
        status = make_angles(ws, i, err);
    for (int32_t l = ws->range.first; l < ws->range.last && status == MR_OK; l++)
        status = find_layer(ws, l, err);
    const tensor_spec *output = ws->info->tied_output ? &TOKEN_EMBD : &OUTPUT;
    int32_t first = mr_backends_of_layer(&ws->backends, 0);
    int32_t last = mr_backends_of_layer(&ws->backends, ws->range.last - ws->range.first - 1);
    const tensor_wish embedding = {.name = TOKEN_EMBD.name, .spec = &TOKEN_EMBD, .op = MR_OP_EMBED, .home = first};
    const tensor_wish norm = {.name = OUTPUT_NORM.name, .spec = &OUTPUT_NORM, .op = MR_OP_COUNT, .home = last};
    const tensor_wish matrix = {.name = output->name, .spec = output, .op = MR_OP_MATMUL, .home = last};
    if (status == MR_OK && weights_is_head(ws))
        status = find(ws, &embedding, &ws->token_embd, err);
    if (status == MR_OK && weights_is_tail(ws))
        status = find(ws, &norm, &ws->output_norm, err);
    if (status == MR_OK && weights_is_tail(ws))
        status = find(ws, &matrix, &ws->output, err);
    return status == MR_OK ? check_all_used(ws, err) : status;
}
