/* The numbers of layers that differ, layers that predict further tokens, and the kinds
 * that layers are sorted into. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "engine/gguf/model_info.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

static const gguf_model_shape SHAPE = {
    .type = MR_TYPE_F16,
    .d_model = 64,
    .n_ff = 96,
    .n_heads = 4,
    .n_kv_heads = 2,
    .vocab_size = 11,
    .context_length = 128,
};

/* A model of so many layers, to whose keys and tensors a test adds. */
static gguf_writer *model_of(const char *arch, int32_t n_layers) {
    gguf_model_shape shape = SHAPE;
    gguf_writer *w = gguf_writer_create();
    shape.arch = arch;
    shape.n_layers = n_layers;
    gguf_writer_model_keys(w, &shape);
    gguf_writer_model_tensors(w, &shape);
    return w;
}

/* Takes the writer over. */
static mr_status read_model(gguf_writer *w, mr_model_info *out, mr_err *err) {
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    expect_ok(mr_gguf_open_memory(data, size, &g, err), err);
    mr_status status = mr_model_info_read(g, out, err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    return status;
}

static mr_model_info expect_read(gguf_writer *w) {
    mr_model_info info = {0};
    mr_err err = {0};
    expect_ok(read_model(w, &info, &err), &err);
    return info;
}

static void expect_error(gguf_writer *w, const char *text) {
    mr_model_info info;
    mr_err err = {0};
    expect_fails(read_model(w, &info, &err), MR_E_FORMAT, &err, text);
}

static void expect_windows(gguf_writer *w, const char *want) {
    mr_model_info info = expect_read(w);
    for (int32_t l = 0; l < info.n_layers; l++)
        assert_int_equal(mr_model_layer(&info, l)->window, want[l] == 'w' ? 32 : 0);
}

/* A number, an array of truth values or numbers, the architecture, or nothing says which layers have the window. */
static void test_windows(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        int32_t period; /* -1: no key */
        const char *want;
    } cases[] = {{"llama", -1, "wwwwww"}, {"llama", 0, "wwwwww"}, {"llama", 1, "------"},  {"llama", 2, "w-w-w-"},
                 {"llama", 6, "wwwww-"},  {"llama", 9, "wwwwww"}, {"olmo2", -1, "www-ww"}, {"olmo2", 3, "ww-ww-"}};
    static const bool bools[] = {false, true, true, false, false, true};
    static const uint32_t numbers[] = {0, 1, 1, 0, 0, 1};
    char key[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer *w = model_of(cases[i].arch, 6);
        snprintf(key, sizeof key, "%s.attention.sliding_window", cases[i].arch);
        gguf_writer_u32(w, key, 32);
        snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", cases[i].arch);
        if (cases[i].period >= 0)
            gguf_writer_u32(w, key, (uint32_t)cases[i].period);
        expect_windows(w, cases[i].want);
    }
    for (int i = 0; i < 3; i++) {
        gguf_writer *w = model_of("llama", 6);
        if (i > 0)
            gguf_writer_u32(w, "llama.attention.sliding_window", 32);
        if (i < 2)
            gguf_writer_bools(w, "llama.attention.sliding_window_pattern", bools, 6);
        else
            gguf_writer_u32s(w, "llama.attention.sliding_window_pattern", numbers, 6);
        expect_windows(w, i > 0 ? "-ww--w" : "------");
    }
    gguf_writer *w = model_of("llama", 6);
    gguf_writer_u32(w, "llama.attention.sliding_window", 32);
    gguf_writer_u32s(w, "llama.attention.sliding_window_pattern", (const uint32_t[]){0, 1, 2, 0, 0, 0}, 6);
    expect_error(w, "sliding_window_pattern': 2 is out of the range 0 to 1");
}

/* LongRoPE: a run of a longer context than the original one has other factors. */
static void test_factors_by_context(void **state) {
    (void)state;
    for (int with_type = 0; with_type < 2; with_type++) {
        gguf_writer *w = model_of("phi3", 2);
        gguf_writer_u32(w, "phi3.rope.scaling.original_context_length", 32);
        gguf_writer_f32(w, "phi3.rope.scaling.attn_factor", 1.5f);
        if (with_type)
            gguf_writer_str(w, "phi3.rope.scaling.type", "longrope");
        gguf_writer_vector(w, "rope_factors_long.weight", MR_TYPE_F32, 8, NULL);
        gguf_writer_vector(w, "rope_factors_short.weight", MR_TYPE_F32, 8, NULL);
        mr_model_info info = expect_read(w);
        const mr_model_rope *r = &info.ropes[0];
        assert_int_equal(r->scaling, with_type ? MR_ROPE_SCALING_LONGROPE : MR_ROPE_SCALING_NONE);
        assert_true(r->factor == 1 && r->ext_factor == 0 && r->attn_factor == 1.5f);
        assert_int_equal(r->factors, MR_ROPE_FACTORS_BY_CONTEXT);
        assert_string_equal(mr_model_rope_factors(r, 32), "rope_factors_short.weight");
        assert_string_equal(mr_model_rope_factors(r, 33), "rope_factors_long.weight");
    }
}

/* Scores grow from the original context on, or from a length that the file says. */
static void test_temperature(void **state) {
    (void)state;
    for (int with_length = 0; with_length < 2; with_length++) {
        gguf_writer *w = model_of("mistral3", 2);
        gguf_writer_u32(w, "mistral3.rope.scaling.original_context_length", 16);
        gguf_writer_f32(w, "mistral3.attention.temperature_scale", 0.25f);
        if (with_length)
            gguf_writer_u32(w, "mistral3.attention.temperature_length", 24);
        mr_model_info info = expect_read(w);
        assert_true(info.temperature.growth == 0.25f);
        assert_int_equal(info.temperature.length, with_length ? 24 : 16);
        assert_int_equal(info.context_length, SHAPE.context_length);
    }
    assert_int_equal(expect_read(model_of("mistral3", 2)).temperature.length, 0);
    gguf_writer *w = model_of("mistral3", 2);
    gguf_writer_f32(w, "mistral3.attention.temperature_scale", 0.25f);
    gguf_writer_u32(w, "mistral3.attention.temperature_length", 0);
    expect_error(w, "key 'mistral3.attention.temperature_length': 0 is out of the range");
}

/* A model of latent attention, but for the key that is named. n_tensors: of so many of its two layers. */
static gguf_writer *latent_model(const char *arch, const char *without, int32_t n_tensors) {
    static const struct {
        const char *key;
        uint32_t value;
    } KEYS[] = {{"attention.key_length", 40},     {"attention.value_length", 32},
                {"attention.key_length_mla", 20}, {"attention.value_length_mla", 12},
                {"rope.dimension_count", 8},      {"rope.scaling.original_context_length", 32},
                {"attention.q_lora_rank", 24}};
    gguf_model_shape shape = SHAPE;
    shape.arch = arch;
    shape.n_layers = 2;
    shape.n_kv_heads = strcmp(without, "one KV head") == 0 ? 2 : 1;
    gguf_writer *w = gguf_writer_create();
    gguf_writer_model_keys(w, &shape);
    shape.n_layers = n_tensors;
    gguf_writer_model_tensors(w, &shape);
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s.%s", arch, KEYS[i].key);
        if (strcmp(KEYS[i].key, without) != 0)
            gguf_writer_u32(w, key, KEYS[i].value);
    }
    return w;
}

static void test_latent_attention(void **state) {
    (void)state;
    gguf_writer *w = latent_model("deepseek2", "", 2);
    gguf_writer_str(w, "deepseek2.rope.scaling.type", "yarn");
    gguf_writer_f32(w, "deepseek2.rope.scaling.factor", 40);
    gguf_writer_f32(w, "deepseek2.rope.scaling.yarn_log_multiplier", 0.1f);
    mr_model_info info = expect_read(w);
    assert_true(info.latent.q_rank == 24 && info.latent.k_dim == 20 && info.latent.v_dim == 12);
    assert_int_equal(mr_model_kv_bytes(&info, 1, MR_TYPE_F16), (40 + 32) * 2);
    /* 0.1 ln 40 = 0.368888: the magnitude that YaRN gives by itself, 1.368888, is 1 in the end */
    assert_true(info.ropes[0].score_factor > 1.87385f && info.ropes[0].score_factor < 1.87386f);
    assert_true(info.ropes[0].attn_factor * 1.368888f > 0.99999f && info.ropes[0].attn_factor * 1.368888f < 1.00001f);
    info = expect_read(latent_model("deepseek2", "attention.q_lora_rank", 2));
    assert_true(info.latent.q_rank == 0 && info.ropes[0].score_factor == 1);
    expect_error(latent_model("deepseek2", "attention.key_length", 2),
                 "attention.key_length': 16 is not the sum of 32 and the 8");
    expect_error(latent_model("deepseek2", "attention.value_length_mla", 2), "value_length_mla' is missing");
    expect_error(latent_model("deepseek2", "one KV head", 2), "latent attention has one KV head");
    mr_err err = {0};
    expect_fails(read_model(latent_model("deepseek2", "attention.key_length_mla", 2), &info, &err), MR_E_UNSUPPORTED,
                 &err, "key_length_mla' is missing; hint: files of before");
}

/* The context ends where the indexer would leave positions out. The indexer's tensors count nowhere. */
static void test_indexer(void **state) {
    (void)state;
    static const char TENSOR[] = "blk.1.indexer.k_norm.bias";
    mr_model_info info = expect_read(latent_model("glm-dsa", "", 2));
    assert_true(info.indexer_top_k == 2048 && info.context_length == 128);
    for (int is_glm = 0; is_glm < 2; is_glm++) {
        gguf_writer *w = latent_model(is_glm ? "glm-dsa" : "deepseek2", "", 2);
        gguf_writer_u32(w, is_glm ? "glm-dsa.attention.indexer.top_k" : "deepseek2.attention.indexer.top_k", 100);
        gguf_writer_vector(w, TENSOR, MR_TYPE_F32, 64, NULL);
        size_t size;
        const uint8_t *data = gguf_writer_bytes(w, &size);
        mr_gguf *g = NULL;
        uint8_t kind[2];
        int32_t n_kinds;
        assert_int_equal(mr_gguf_open_memory(data, size, &g, NULL), MR_OK);
        assert_int_equal(mr_model_info_read(g, &info, NULL), MR_OK);
        assert_int_equal(info.indexer_top_k, is_glm ? 100 : 0);
        assert_int_equal(info.context_length, is_glm ? 100 : 128);
        for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
            const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
            assert_int_equal(mr_model_tensor_is_left_out(&info, t), is_glm && strcmp(t->name, TENSOR) == 0);
        }
        size_t more = is_glm ? 0 : 64 * sizeof(float);
        assert_int_equal(mr_model_layer_bytes(g, &info, 1), mr_model_layer_bytes(g, &info, 0) + more);
        assert_int_equal(mr_model_layer_read_bytes(g, &info, 1), mr_model_layer_bytes(g, &info, 1));
        assert_int_equal(mr_model_layer_kinds(g, &info, 2, kind, &n_kinds, NULL), MR_OK);
        assert_int_equal(n_kinds, is_glm ? 1 : 2);
        mr_gguf_close(g);
        gguf_writer_destroy(w);
    }
    gguf_writer *w = latent_model("glm-dsa", "", 2);
    gguf_writer_u32(w, "glm-dsa.attention.indexer.top_k", 0);
    expect_error(w, "attention.indexer.top_k': 0 is out of the range 1 to");
    w = latent_model("glm-dsa", "", 1);
    gguf_writer_vector(w, TENSOR, MR_TYPE_F32, 64, NULL);
    expect_error(w, "there is no tensor of layer 1");
}

/* Layers with a window may turn by frequencies of their own, and some layers have no RoPE. */
static void test_ropes_of_layers(void **state) {
    (void)state;
    gguf_writer *w = model_of("olmo2", 5);
    gguf_writer_u32(w, "olmo2.attention.sliding_window", 32);
    gguf_writer_f32(w, "olmo2.rope.freq_base", 5e5f);
    gguf_writer_str(w, "olmo2.rope.scaling.type", "yarn");
    gguf_writer_f32(w, "olmo2.rope.scaling.factor", 4);
    mr_model_info info = expect_read(w);
    assert_int_equal(info.n_ropes, 2);
    assert_int_equal(info.ropes[0].scaling, MR_ROPE_SCALING_YARN);
    assert_int_equal(info.ropes[1].scaling, MR_ROPE_SCALING_NONE);
    assert_true(info.ropes[1].freq_base == 5e5f && info.ropes[1].n_rot == info.ropes[0].n_rot);
    for (int32_t l = 0; l < 5; l++)
        assert_int_equal(mr_model_layer(&info, l)->rope, l == 3 ? 0 : 1);

    w = model_of("llama", 4);
    gguf_writer_u32(w, "llama.attention.sliding_window", 32);
    gguf_writer_u32(w, "llama.attention.sliding_window_pattern", 2);
    gguf_writer_f32(w, "llama.rope.freq_base_swa", 777);
    info = expect_read(w);
    assert_true(info.n_ropes == 2 && info.ropes[0].freq_base == 10000 && info.ropes[1].freq_base == 777);
    for (int32_t l = 0; l < 4; l++)
        assert_int_equal(mr_model_layer(&info, l)->rope, l % 2 == 0 ? 1 : 0);

    w = model_of("smollm3", 9);
    info = expect_read(w);
    assert_int_equal(info.n_ropes, 1);
    for (int32_t l = 0; l < 9; l++)
        assert_int_equal(mr_model_layer(&info, l)->rope, l % 4 == 3 ? MR_MODEL_NO_ROPE : 0);
}

static void test_layers_with_experts(void **state) {
    (void)state;
    static const struct {
        int32_t n_dense, period; /* -1: no key */
        const char *want;
    } cases[] = {{-1, -1, "eeeeee"}, {0, 1, "eeeeee"},  {2, -1, "--eeee"}, {-1, 2, "-e-e-e"},
                 {3, 2, "---e-e"},   {6, -1, "------"}, {-1, 0, "------"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer *w = model_of("llama", 6);
        gguf_writer_u32(w, "llama.expert_count", 4);
        gguf_writer_u32(w, "llama.expert_used_count", 2);
        gguf_writer_u32(w, "llama.expert_feed_forward_length", 48);
        if (cases[i].n_dense >= 0)
            gguf_writer_u32(w, "llama.leading_dense_block_count", (uint32_t)cases[i].n_dense);
        if (cases[i].period >= 0)
            gguf_writer_u32(w, "llama.interleave_moe_layer_step", (uint32_t)cases[i].period);
        mr_model_info info = expect_read(w);
        for (int32_t l = 0; l < 6; l++) {
            const mr_layer_info *layer = mr_model_layer(&info, l);
            assert_int_equal(layer->has_experts, cases[i].want[l] == 'e');
            assert_int_equal(layer->n_ff, layer->has_experts ? 48 : 96);
        }
    }
}

/* Without keys a row's weights are the softmax over its experts, but for some architectures. */
static void test_routing(void **state) {
    (void)state;
    static const struct {
        const char *arch;
        int32_t gating, norm; /* -1: no key */
        mr_route_score score;
        bool is_normalised;
    } cases[] = {
        {"llama", -1, -1, MR_ROUTE_LOGIT, false},       {"llama", 0, -1, MR_ROUTE_LOGIT, false},
        {"llama", 1, 0, MR_ROUTE_SOFTMAX, false},       {"llama", 2, 1, MR_ROUTE_SIGMOID, true},
        {"llama", 3, -1, MR_ROUTE_LOGIT, false},        {"glm4moe", -1, 1, MR_ROUTE_SIGMOID, true},
        {"minimax-m2", -1, -1, MR_ROUTE_SIGMOID, true}, {"ernie4_5-moe", -1, -1, MR_ROUTE_SOFTMAX, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf_writer *w = model_of(cases[i].arch, 2);
        char key[64];
        snprintf(key, sizeof key, "%s.expert_count", cases[i].arch);
        gguf_writer_u32(w, key, 8);
        snprintf(key, sizeof key, "%s.expert_used_count", cases[i].arch);
        gguf_writer_u32(w, key, 2);
        snprintf(key, sizeof key, "%s.expert_gating_func", cases[i].arch);
        if (cases[i].gating >= 0)
            gguf_writer_u32(w, key, (uint32_t)cases[i].gating);
        snprintf(key, sizeof key, "%s.expert_weights_norm", cases[i].arch);
        if (cases[i].norm >= 0)
            gguf_writer_bool(w, key, cases[i].norm);
        mr_model_info info = expect_read(w);
        assert_int_equal(info.routing.score, cases[i].score);
        assert_int_equal(info.routing.is_normalised, cases[i].is_normalised);
        assert_true(info.routing.scale == 0 && info.routing.n_groups <= 1);
        assert_int_equal(mr_model_layer(&info, 0)->n_ff_shared, 0);
    }
}

static gguf_writer *with_experts(void) {
    gguf_writer *w = model_of("llama", 2);
    gguf_writer_u32(w, "llama.expert_count", 8);
    gguf_writer_u32(w, "llama.expert_used_count", 2);
    return w;
}

static void test_groups_and_shared_experts(void **state) {
    (void)state;
    gguf_writer *w = with_experts();
    gguf_writer_u32(w, "llama.expert_gating_func", 2);
    gguf_writer_u32(w, "llama.expert_group_count", 4);
    gguf_writer_u32(w, "llama.expert_group_used_count", 3);
    gguf_writer_f32(w, "llama.expert_weights_scale", 2.5f);
    gguf_writer_u32(w, "llama.expert_shared_count", 3);
    mr_model_info info = expect_read(w);
    assert_true(info.routing.n_groups == 4 && info.routing.n_groups_used == 3 && info.routing.n_group_best == 2);
    assert_true(info.routing.scale == 2.5f);
    assert_int_equal(mr_model_layer(&info, 0)->n_ff_shared, 3 * 96);
    w = with_experts();
    gguf_writer_u32(w, "llama.expert_shared_count", 3);
    gguf_writer_u32(w, "llama.expert_shared_feed_forward_length", 40);
    info = expect_read(w);
    assert_int_equal(mr_model_layer(&info, 1)->n_ff_shared, 40);
    w = with_experts();
    gguf_writer_u32(w, "llama.expert_group_count", 3);
    gguf_writer_u32(w, "llama.expert_group_used_count", 2);
    expect_error(w, "key 'llama.expert_group_count': 8 experts cannot stand in 3 groups of one size");
    w = with_experts();
    gguf_writer_u32(w, "llama.expert_group_count", 4);
    expect_error(w, "key 'llama.expert_group_used_count' is missing");
    w = with_experts();
    gguf_writer_u32(w, "llama.expert_gating_func", 4);
    mr_err err = {0};
    expect_fails(read_model(w, &info, &err), MR_E_UNSUPPORTED, &err, "expert_gating_func': 4; 1 (softmax)");
    w = with_experts();
    gguf_writer_u32(w, "llama.expert_feed_forward_length", MR_MODEL_MAX_FF);
    gguf_writer_u32(w, "llama.expert_shared_count", MR_MODEL_MAX_EXPERTS);
    expect_error(w, "key 'llama.expert_shared_count': 4096 experts of width 4194304");
}

/* Layers that predict further tokens count in the keys and have tensors, but are no layers of the model. */
static void test_layers_that_predict_further(void **state) {
    (void)state;
    gguf_writer *w = model_of("llama", 5);
    gguf_writer_u32(w, "llama.nextn_predict_layers", 2);
    gguf_writer_vector(w, "blk.4.nextn.enorm.weight", MR_TYPE_F32, 64, NULL);
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    assert_int_equal(mr_gguf_open_memory(data, size, &g, NULL), MR_OK);
    mr_model_info info;
    assert_int_equal(mr_model_info_read(g, &info, NULL), MR_OK);
    assert_int_equal(info.n_layers, 3);
    assert_int_equal(info.n_nextn_layers, 2);
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        bool is_last = strncmp(t->name, "blk.3.", 6) == 0 || strncmp(t->name, "blk.4.", 6) == 0;
        assert_int_equal(mr_model_tensor_is_left_out(&info, t), is_last);
    }
    mr_gguf_close(g);
    gguf_writer_destroy(w);

    w = model_of("llama", 3);
    gguf_writer_u32(w, "llama.nextn_predict_layers", 1);
    gguf_writer_vector(w, "blk.3.nextn.enorm.weight", MR_TYPE_F32, 64, NULL);
    expect_error(w, "tensor 'blk.3.nextn.enorm.weight' is of no layer of the model, which has 3");
}

static void test_layer_kinds(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mr_type type;
        int64_t n;
    } more[] = {{"blk.1.attn_q.bias", MR_TYPE_F32, 64}, {"blk.2.attn_q.bias", MR_TYPE_F32, 64},
                {"blk.4.attn_q.bias", MR_TYPE_F32, 64}, {"blk.4.extra.weight", MR_TYPE_F32, 8},
                {"blk.5.attn_q.bias", MR_TYPE_F16, 64}, {"blk.6.attn_k.bias", MR_TYPE_F32, 64},
                {"blk.7.attn_q.bias", MR_TYPE_F32, 32}, {"blk.8.extra.weight", MR_TYPE_F32, 8},
                {"blk.8.attn_q.bias", MR_TYPE_F32, 64}};
    static const uint8_t want[] = {0, 1, 1, 0, 2, 3, 4, 5, 2}, want_of_3[] = {0, 1, 1, 0, 2, 2, 2, 2, 2};
    gguf_model_shape shape = SHAPE;
    shape.n_layers = 9;
    gguf_writer *w = gguf_writer_create();
    gguf_writer_model_keys(w, &shape);
    gguf_writer_model_tensors(w, &shape);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
        gguf_writer_vector(w, more[i].name, more[i].type, more[i].n, NULL);
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    mr_model_info info;
    uint8_t kind[9];
    int32_t n;
    assert_int_equal(mr_gguf_open_memory(data, size, &g, NULL), MR_OK);
    assert_int_equal(mr_model_info_read(g, &info, NULL), MR_OK);
    assert_int_equal(mr_model_layer_kinds(g, &info, 16, kind, &n, NULL), MR_OK);
    assert_int_equal(n, 6);
    assert_memory_equal(kind, want, sizeof want);
    assert_int_equal(mr_model_layer_kinds(g, &info, 3, kind, &n, NULL), MR_OK);
    assert_int_equal(n, 3);
    assert_memory_equal(kind, want_of_3, sizeof want_of_3);
    mr_mem_fail_at(0);
    assert_int_equal(mr_model_layer_kinds(g, &info, 3, kind, &n, NULL), MR_E_NO_MEMORY);
    mr_mem_fail_at(-1);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

/* Layers with the same tensors are of two kinds where only some have the window. */
static void test_kinds_of_equal_tensors(void **state) {
    (void)state;
    gguf_writer *w = model_of("llama", 4);
    gguf_writer_u32(w, "llama.attention.sliding_window", 32);
    gguf_writer_u32(w, "llama.attention.sliding_window_pattern", 2);
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    mr_model_info info;
    uint8_t kind[4];
    int32_t n;
    assert_int_equal(mr_gguf_open_memory(data, size, &g, NULL), MR_OK);
    assert_int_equal(mr_model_info_read(g, &info, NULL), MR_OK);
    assert_int_equal(mr_model_layer_kinds(g, &info, 16, kind, &n, NULL), MR_OK);
    assert_int_equal(n, 2);
    assert_memory_equal(kind, ((uint8_t[]){0, 1, 0, 1}), 4);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

/* Latent attention has a matrix for each head in tensors with three dimensions. They are no experts. */
static void test_work_of_latent_layers(void **state) {
    (void)state;
    mr_gguf *g = NULL;
    mr_model_info info;
    mr_err err;
    expect_ok(mr_gguf_open(MILLRACE_SOURCE_DIR "/tests/golden/arch/deepseek2.gguf", &g, &err), &err);
    expect_ok(mr_model_info_read(g, &info, &err), &err);
    assert_false(mr_model_layer(&info, 0)->has_experts);
    assert_int_equal(mr_model_layer_read_bytes(g, &info, 0), mr_model_layer_bytes(g, &info, 0));
    int32_t last = info.n_layers - 1;
    assert_true(mr_model_layer(&info, last)->has_experts);
    mr_layer_work work = mr_model_layer_work(g, &info, last);
    /* Three matrices for each expert, in F32. */
    double expert = 3.0 * info.d_model * mr_model_layer(&info, last)->n_ff;
    assert_true((double)work.expert_bytes == 4 * expert * info.n_experts);
    assert_int_equal(work.bytes + work.expert_bytes, mr_model_layer_bytes(g, &info, last));
    /* Everything but norms and the bias of the choice is a matrix. */
    double matrices = (double)work.bytes / 4 + expert * info.n_experts_used;
    assert_true(work.n_products < matrices && work.n_products > 0.95 * matrices);
    mr_gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors_by_context),
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_indexer),
        cmocka_unit_test(test_ropes_of_layers),
        cmocka_unit_test(test_layers_with_experts),
        cmocka_unit_test(test_routing),
        cmocka_unit_test(test_groups_and_shared_experts),
        cmocka_unit_test(test_layers_that_predict_further),
        cmocka_unit_test(test_layer_kinds),
        cmocka_unit_test(test_work_of_latent_layers),
        cmocka_unit_test(test_kinds_of_equal_tensors),
    };
    return cmocka_run_group_tests_name("gguf_layers", tests, NULL, NULL);
}
