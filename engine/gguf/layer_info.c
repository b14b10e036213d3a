/* Reads the numbers of each layer. A.attention.head_count, .attention.head_count_kv, .feed_forward_length and
 * .expert_feed_forward_length hold one number or one for each layer. Which layers have a sliding window or experts is
 * said by arrays, patterns or, for some architectures, by nothing but the architecture's name. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/layer_info.h"

#include <inttypes.h>
#include <stdio.h>

static const arch_habits HABITS[] = {
    {.arch = "deepseek2", .score = MR_ROUTE_SOFTMAX, .has_latent = true, .yarn_scales_scores = true},
    {.arch = "ernie4_5-moe", .score = MR_ROUTE_SOFTMAX, .normalises_weights = true},
    {.arch = "gemma3",
     .window_period = 6,
     .plain_window_rope = true,
     .window_freq_base = 10000,
     .scales_embedding = true,
     .n_layers_of_largest = 62},
    {.arch = "glm-dsa", .score = MR_ROUTE_SIGMOID, .has_latent = true, .has_indexer = true, .yarn_scales_scores = true},
    {.arch = "glm4moe", .score = MR_ROUTE_SIGMOID},
    {.arch = "gpt-oss", .window_period = 2},
    {.arch = "granite", .rope_is_a_choice = true, .has_factors = true},
    {.arch = "minimax-m2", .score = MR_ROUTE_SIGMOID, .normalises_weights = true},
    {.arch = "mistral3", .yarn_keeps_size = true},
    {.arch = "olmo2", .window_period = 4, .plain_window_rope = true}, /* Olmo 3 has the name and a window */
    {.arch = "qwen2moe", .score = MR_ROUTE_SOFTMAX},
    {.arch = "smollm3", .no_rope_period = 4},
};

const arch_habits *arch_habits_find(const char *arch) {
    static const arch_habits NONE = {0};
    for (size_t i = 0; i < sizeof HABITS / sizeof *HABITS; i++)
        if (strcmp(HABITS[i].arch, arch) == 0)
            return &HABITS[i];
    return &NONE;
}

/* The keys with a value for each layer, and the numbers from which patterns are made. */
typedef struct layer_reader {
    model_keys *keys;
    const arch_habits *habits;
    layer_key n_heads, n_kv_heads, n_ff, n_ff_expert, windows;
    int32_t window;
    bool has_rope;
    int32_t n_shared;      /* A.expert_shared_count: experts that every row takes, side by side as one */
    int32_t n_ff_shared;   /* A.expert_shared_feed_forward_length: their width together; 0: as wide as the others */
    int32_t n_dense;       /* A.leading_dense_block_count: the first layers have no experts */
    int32_t expert_period; /* A.interleave_moe_layer_step: the last of so many layers has experts */
} layer_reader;

static layer_reader reader_of(model_keys *keys, const mr_model_info *m) {
    return (layer_reader){
        .keys = keys,
        .habits = arch_habits_find(m->arch),
        .n_heads = keys_layers(keys, "attention.head_count"),
        .n_kv_heads = keys_layers(keys, "attention.head_count_kv"),
        .n_ff = keys_layers(keys, "feed_forward_length"),
        .n_ff_expert = keys_layers(keys, "expert_feed_forward_length"),
        .windows = keys_layers(keys, "attention.sliding_window_pattern"),
        .window = keys_opt_int(keys, "attention.sliding_window", 0, MR_MODEL_MAX_CONTEXT, 0),
        .has_rope = !arch_habits_find(m->arch)->rope_is_a_choice || keys_opt_bool(keys, "rope.scaling.finetuned", true),
        .n_shared = keys_opt_int(keys, "expert_shared_count", 0, MR_MODEL_MAX_EXPERTS, 0),
        .n_ff_shared = keys_opt_int(keys, "expert_shared_feed_forward_length", 0, MR_MODEL_MAX_FF, 0),
        .n_dense = keys_opt_int(keys, "leading_dense_block_count", 0, MR_MODEL_MAX_LAYERS, 0),
        .expert_period = keys_opt_int(keys, "interleave_moe_layer_step", 0, MR_MODEL_MAX_LAYERS, 1),
    };
}

/* Whether layer is the last one of a period; period 0: no layer is. */
static bool ends_period(int32_t layer, int32_t period) {
    return period > 0 && layer % period == period - 1;
}

static bool has_window(layer_reader *r, int32_t layer) {
    if (r->window == 0)
        return false;
    if (r->windows.is_array)
        return keys_layer_int(r->keys, &r->windows, layer, 0, 1, 0) != 0;
    int32_t period = keys_layer_int(r->keys, &r->windows, layer, 0, MR_MODEL_MAX_LAYERS, r->habits->window_period);
    return !ends_period(layer, period);
}

static int32_t rope_of(const layer_reader *r, const mr_model_info *m, int32_t layer, bool window) {
    if (!r->has_rope || ends_period(layer, r->habits->no_rope_period))
        return MR_MODEL_NO_ROPE;
    return window && m->n_ropes > 1 ? 1 : 0;
}

static int32_t width_of(layer_reader *r, int32_t layer, bool has_experts) {
    int32_t all = keys_layer_int(r->keys, &r->n_ff, layer, has_experts ? 0 : 1, MR_MODEL_MAX_FF, 0);
    int32_t width = has_experts ? keys_layer_int(r->keys, &r->n_ff_expert, layer, 1, MR_MODEL_MAX_FF, all) : all;
    if (!r->keys->status && width == 0) /* names the key that gave 0 */
        (void)keys_layer_int(r->keys, &r->n_ff, layer, 1, MR_MODEL_MAX_FF, 0);
    return width;
}

static int32_t shared_width(layer_reader *r, int32_t n_ff) {
    int64_t width = r->n_ff_shared > 0 ? r->n_ff_shared : (int64_t)r->n_shared * n_ff;
    if (!r->keys->status && width > MR_MODEL_MAX_FF)
        r->keys->status = mr_err_set(r->keys->err, MR_E_FORMAT, "key '%s': %d experts of width %d",
                                     keys_name(r->keys, "expert_shared_count"), r->n_shared, n_ff);
    return (int32_t)width;
}

/* Elements of a head. Without A.attention.key_length the heads of the first layer share d_model. */
static int32_t read_head_dim(model_keys *keys, const char *suffix, const mr_model_info *m, int32_t n_heads) {
    int32_t shared = n_heads > 0 ? m->d_model / n_heads : 0;
    int32_t dim = keys_opt_int(keys, suffix, 1, MR_MODEL_MAX_HEAD_DIM, shared);
    if (keys->status)
        return dim;
    if (dim < 1 || dim > MR_MODEL_MAX_HEAD_DIM || dim % 2 != 0)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "heads of %d elements; even numbers from 2 to %d are allowed",
                                  dim, MR_MODEL_MAX_HEAD_DIM);
    else if (!keys_has(keys, suffix) && m->d_model % n_heads != 0)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %d is no multiple of the %d heads",
                                  keys_name(keys, "embedding_length"), m->d_model, n_heads);
    return dim;
}

/* No key has the width of a predictor's hidden layer. */
static int32_t predictor_width(model_keys *keys, int32_t layer) {
    char name[32];
    if (keys->status)
        return 0;
    snprintf(name, sizeof name, "blk.%d.fc1.weight", layer);
    const mr_gguf_tensor *t = mr_gguf_find_tensor(keys->g, name);
    if (!t)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT,
                                  "tensor '%s' is missing; hint: a sparse model has a predictor in every layer", name);
    else if (t->ne[1] > MR_MODEL_MAX_FF)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "tensor '%s': %" PRId64 " rows; the limit is %d", name,
                                  t->ne[1], MR_MODEL_MAX_FF);
    return keys->status ? 0 : (int32_t)t->ne[1];
}

static mr_layer_info read_layer(layer_reader *r, const mr_model_info *m, int32_t layer, const mr_layer_info *first) {
    mr_layer_info l = {.k_dim = first->k_dim, .v_dim = first->v_dim};
    l.n_heads = keys_layer_int(r->keys, &r->n_heads, layer, 1, MR_MODEL_MAX_HEADS, 0);
    l.n_kv_heads = keys_layer_int(r->keys, &r->n_kv_heads, layer, 1, MR_MODEL_MAX_HEADS, l.n_heads);
    if (!r->keys->status && l.n_heads % l.n_kv_heads != 0)
        r->keys->status = mr_err_set(r->keys->err, MR_E_FORMAT, "key '%s': %d does not divide the %d heads",
                                     keys_name(r->keys, "attention.head_count_kv"), l.n_kv_heads, l.n_heads);
    bool window = has_window(r, layer);
    l.window = window ? r->window : 0;
    l.rope = rope_of(r, m, layer, window);
    l.has_experts = m->n_experts > 0 && layer >= r->n_dense && ends_period(layer, r->expert_period);
    l.n_ff = width_of(r, layer, l.has_experts);
    if (l.has_experts)
        l.n_ff_shared = shared_width(r, l.n_ff);
    if (m->is_sparse)
        l.n_predictor = predictor_width(r->keys, layer);
    return l;
}

static bool are_equal(const mr_layer_info *a, const mr_layer_info *b) {
    return a->n_heads == b->n_heads && a->n_kv_heads == b->n_kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim &&
           a->rope == b->rope && a->window == b->window && a->has_experts == b->has_experts && a->n_ff == b->n_ff &&
           a->n_ff_shared == b->n_ff_shared && a->n_predictor == b->n_predictor;
}

static void add_layer(model_keys *keys, mr_model_info *m, int32_t layer, const mr_layer_info *l) {
    int32_t shape = 0;
    while (shape < m->n_shapes && !are_equal(&m->shapes[shape], l))
        shape++;
    if (shape == MR_MODEL_MAX_SHAPES) {
        keys->status = mr_err_set(keys->err, MR_E_UNSUPPORTED, "the layers up to %d differ in more than %d ways", layer,
                                  MR_MODEL_MAX_SHAPES);
        return;
    }
    if (shape == m->n_shapes)
        m->shapes[m->n_shapes++] = *l;
    m->shape_of[layer] = (uint8_t)shape;
}

static void read_latent(model_keys *keys, const mr_layer_info *first, mr_model_info *m) {
    static const char K_DIM[] = "attention.key_length_mla";
    int32_t n_rot = m->ropes[0].n_rot;
    m->latent.q_rank = keys_opt_int(keys, "attention.q_lora_rank", 0, MR_MODEL_MAX_WIDTH, 0);
    if (!keys->status && !keys_has(keys, K_DIM)) {
        keys->status =
            mr_err_set(keys->err, MR_E_UNSUPPORTED,
                       "key '%s' is missing; hint: files of before April 2025 have matrices of another form; "
                       "convert the model again",
                       keys_name(keys, K_DIM));
        return;
    }
    m->latent.k_dim = keys_need_int(keys, K_DIM, n_rot + 1, MR_MODEL_MAX_HEAD_DIM);
    m->latent.v_dim = keys_need_int(keys, "attention.value_length_mla", 1, MR_MODEL_MAX_HEAD_DIM);
    if (!keys->status && first->k_dim != first->v_dim + n_rot)
        keys->status = mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %d is not the sum of %d and the %d that rotate",
                                  keys_name(keys, "attention.key_length"), first->k_dim, first->v_dim, n_rot);
}

/* Keys without which no layer can be described. */
static void need_keys(model_keys *keys) {
    static const char *const NEEDED[] = {"feed_forward_length", "attention.head_count"};
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED && !keys->status; i++)
        if (!keys_has(keys, NEEDED[i]))
            keys->status = keys_need(keys, MR_E_NOT_FOUND);
}

void layer_info_read(model_keys *keys, mr_model_info *m) {
    need_keys(keys);
    layer_reader r = reader_of(keys, m);
    int32_t n_heads = keys_layer_int(keys, &r.n_heads, 0, 1, MR_MODEL_MAX_HEADS, 0);
    mr_layer_info first = {.k_dim = read_head_dim(keys, "attention.key_length", m, n_heads)};
    first.v_dim = read_head_dim(keys, "attention.value_length", m, n_heads);
    rope_info_read(keys, r.habits, first.k_dim, m);
    if (r.habits->has_latent)
        read_latent(keys, &first, m);
    for (int32_t i = 0; i < m->n_layers && !keys->status; i++) {
        mr_layer_info l = read_layer(&r, m, i, &first);
        if (!keys->status && r.habits->has_latent && l.n_kv_heads != 1)
            keys->status = mr_err_set(keys->err, MR_E_FORMAT, "key '%s': %d; latent attention has one KV head",
                                      keys_name(keys, "attention.head_count_kv"), l.n_kv_heads);
        if (!keys->status)
            add_layer(keys, m, i, &l);
    }
}
