/* Hyper-parameters from the metadata of a file: defaults, ranges, and errors that name the key. */
// SPDX-License-Identifier: Apache-2.0
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/le.h"
#include "engine/base/mem.h"
#include "engine/gguf/model_info.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

static const gguf_model_shape SHAPE = {
    .type = MR_TYPE_F16,
    .n_layers = 2,
    .d_model = 64,
    .n_ff = 96,
    .n_heads = 4,
    .n_kv_heads = 2,
    .vocab_size = 11,
    .context_length = 128,
};

/* A model whose keys a test may add to and change. */
typedef struct model {
    gguf_writer *w;
    uint8_t *data;
    size_t size;
} model;

static model model_begin(void) {
    model m = {.w = gguf_writer_create()};
    gguf_writer_model_keys(m.w, &SHAPE);
    return m;
}

static void model_end(model *m) {
    gguf_writer_model_tensors(m->w, &SHAPE);
    const uint8_t *data = gguf_writer_bytes(m->w, &m->size);
    m->data = malloc(m->size);
    assert_non_null(m->data);
    memcpy(m->data, data, m->size);
    gguf_writer_destroy(m->w);
}

/* The bytes after a key's or tensor's name. */
static uint8_t *model_find(const model *m, const char *name) {
    uint8_t *p = memmem(m->data, m->size, name, strlen(name));
    assert_non_null(p);
    return p + strlen(name);
}

static void model_set_u32(const model *m, const char *key, uint32_t v) {
    mr_store_le32(model_find(m, key) + 4, v);
}

static mr_status model_read(const model *m, mr_model_info *info, mr_err *err) {
    mr_gguf *g = NULL;
    expect_ok(mr_gguf_open_memory(m->data, m->size, &g, err), err);
    mr_status status = mr_model_info_read(g, info, err);
    mr_gguf_close(g);
    return status;
}

static mr_model_info expect_read(model *m) {
    mr_model_info info = {0};
    mr_err err = {0};
    expect_ok(model_read(m, &info, &err), &err);
    free(m->data);
    return info;
}

static void expect_error(model *m, mr_status want, const char *text) {
    mr_model_info info = {.n_layers = -7};
    mr_err err = {0};
    mr_status status = model_read(m, &info, &err);
    if (status != want || !strstr(err.text, text))
        fail_msg("%s: '%s', expected '%s'", mr_status_name(status), err.text, text);
    assert_int_equal(info.n_layers, -7);
    free(m->data);
}

static void test_plain_model(void **state) {
    (void)state;
    model m = model_begin();
    model_end(&m);
    mr_model_info info = expect_read(&m);
    const mr_layer_info *layer = mr_model_layer(&info, 0);
    assert_int_equal(info.n_shapes, 1);
    assert_ptr_equal(mr_model_layer(&info, 1), layer);
    assert_string_equal(info.arch, "llama");
    assert_string_equal(info.name, "test model");
    assert_int_equal(info.n_layers, 2);
    assert_int_equal(info.d_model, 64);
    assert_int_equal(layer->n_ff, 96);
    assert_int_equal(layer->n_heads, 4);
    assert_int_equal(layer->n_kv_heads, 2);
    assert_int_equal(layer->k_dim, 16);
    assert_true(info.norm_eps == 1e-5f);
    assert_int_equal(info.vocab_size, 11);
    assert_int_equal(info.context_length, 128);
    assert_int_equal(info.ropes[0].n_rot, 16);
    assert_true(info.ropes[0].freq_base == 10000);
    assert_int_equal(info.ropes[0].scaling, MR_ROPE_SCALING_NONE);
    assert_true(info.ropes[0].factor == 1 && info.ropes[0].attn_factor == 1 && info.ropes[0].ext_factor == 0);
    assert_true(info.ropes[0].beta_fast == 32 && info.ropes[0].beta_slow == 1);
    assert_int_equal(info.ropes[0].original_context, 128);
    assert_int_equal(info.n_experts, 0);
    assert_int_equal(info.n_experts_used, 0);
    assert_false(info.tied_output);
    assert_int_equal(info.file_type, -1);
    assert_int_equal(info.quantization_version, 0);
}

static void test_optional_keys(void **state) {
    (void)state;
    model m = model_begin();
    gguf_writer_u32(m.w, "llama.attention.key_length", 20);
    gguf_writer_u32(m.w, "llama.attention.value_length", 28);
    gguf_writer_u64(m.w, "llama.attention.sliding_window", 32);
    gguf_writer_u32(m.w, "llama.rope.dimension_count", 10);
    gguf_writer_u32(m.w, "llama.rope.freq_base", 500000);
    gguf_writer_str(m.w, "llama.rope.scaling.type", "yarn");
    gguf_writer_f32(m.w, "llama.rope.scaling.factor", 4);
    gguf_writer_u32(m.w, "llama.rope.scaling.original_context_length", 32);
    gguf_writer_f32(m.w, "llama.rope.scaling.attn_factor", 0.5f);
    gguf_writer_f32(m.w, "llama.rope.scaling.yarn_attn_factor", 3);
    gguf_writer_f32(m.w, "llama.rope.scaling.yarn_ext_factor", 0.25f);
    gguf_writer_f32(m.w, "llama.rope.scaling.yarn_beta_fast", 16);
    gguf_writer_f32(m.w, "llama.rope.scaling.yarn_beta_slow", 2);
    gguf_writer_u32(m.w, "llama.expert_count", 8);
    gguf_writer_u32(m.w, "llama.expert_used_count", 2);
    gguf_writer_u32(m.w, "llama.expert_feed_forward_length", 48);
    gguf_writer_u32(m.w, "general.file_type", 1);
    gguf_writer_u32(m.w, "general.quantization_version", 2);
    gguf_writer_vector(m.w, "rope_freqs.weight", MR_TYPE_F32, 5, NULL);
    model_end(&m);
    mr_model_info info = expect_read(&m);
    const mr_layer_info *layer = mr_model_layer(&info, 0);
    assert_int_equal(layer->k_dim, 20);
    assert_int_equal(layer->v_dim, 28);
    assert_true(layer->has_experts);
    assert_int_equal(mr_model_kv_bytes(&info, 1, MR_TYPE_F16), 2 * (20 + 28) * 2);
    assert_int_equal(layer->window, 32);
    assert_int_equal(info.ropes[0].n_rot, 10);
    assert_true(info.ropes[0].freq_base == 5e5f);
    assert_int_equal(info.ropes[0].scaling, MR_ROPE_SCALING_YARN);
    assert_true(info.ropes[0].factor == 4 && info.ropes[0].attn_factor == 1.5f && info.ropes[0].ext_factor == 0.25f);
    assert_true(info.ropes[0].beta_fast == 16 && info.ropes[0].beta_slow == 2);
    assert_int_equal(info.ropes[0].original_context, 32);
    assert_int_equal(info.ropes[0].factors, MR_ROPE_FACTORS_FIXED);
    assert_int_equal(info.n_experts, 8);
    assert_int_equal(info.n_experts_used, 2);
    assert_int_equal(layer->n_ff, 48);
    assert_int_equal(info.file_type, 1);
    assert_int_equal(info.quantization_version, 2);
}

static void test_rope_scaling(void **state) {
    (void)state;
    static const struct {
        const char *type, *factor_key;
        float factor;
        mr_rope_scaling want;
        float want_factor, want_ext;
    } cases[] = {
        {"linear", "llama.rope.scaling.factor", 2, MR_ROPE_SCALING_LINEAR, 2, 0},
        {"none", "llama.rope.scaling.factor", 2, MR_ROPE_SCALING_NONE, 1, 0},
        {"yarn", "llama.rope.scaling.factor", 2, MR_ROPE_SCALING_YARN, 2, 1},
        {NULL, "llama.rope.scaling.factor", 2, MR_ROPE_SCALING_LINEAR, 2, 0},
        {NULL, "llama.rope.scale_linear", 4, MR_ROPE_SCALING_LINEAR, 4, 0},
        {NULL, "llama.rope.scaling.factor", 0, MR_ROPE_SCALING_NONE, 1, 0},
        {NULL, "llama.rope.scaling.factor", 1, MR_ROPE_SCALING_NONE, 1, 0},
        {"linear", "llama.rope.scaling.factor", 0, MR_ROPE_SCALING_LINEAR, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = model_begin();
        if (cases[i].type)
            gguf_writer_str(m.w, "llama.rope.scaling.type", cases[i].type);
        gguf_writer_f32(m.w, cases[i].factor_key, cases[i].factor);
        model_end(&m);
        mr_model_info info = expect_read(&m);
        assert_int_equal(info.ropes[0].scaling, cases[i].want);
        assert_true(info.ropes[0].factor == cases[i].want_factor && info.ropes[0].ext_factor == cases[i].want_ext);
    }
}

/* One value of a key of the plain model each. */
static void test_values_out_of_range(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t v;
        mr_status want;
        const char *text;
    } cases[] = {
        {"llama.block_count", 0, MR_E_FORMAT, "key 'llama.block_count': 0 is out of the range 1 to 4096"},
        {"llama.block_count", 4097, MR_E_FORMAT, "key 'llama.block_count': 4097 is out of the range 1 to 4096"},
        {"llama.block_count", 1, MR_E_FORMAT,
         "tensor 'blk.1.attn_norm.weight' is of no layer of the model, which has 1"},
        {"llama.block_count", 3, MR_E_FORMAT, "the model has 3 layers, but there is no tensor of layer 2"},
        {"llama.context_length", 0, MR_E_FORMAT, "key 'llama.context_length': 0 is out of the range"},
        {"llama.context_length", 0xffffffff, MR_E_FORMAT, "key 'llama.context_length': 4294967295 is out of the range"},
        {"llama.embedding_length", 0, MR_E_FORMAT, "key 'llama.embedding_length': 0 is"},
        {"llama.embedding_length", (1 << 20) + 1, MR_E_FORMAT, "key 'llama.embedding_length': 1048577 is"},
        {"llama.embedding_length", 66, MR_E_FORMAT, "key 'llama.embedding_length': 66 is no multiple of the 4 heads"},
        {"llama.embedding_length", 72, MR_E_FORMAT,
         "tensor 'token_embd.weight': the shape is 64 x 11 x 1 x 1, but the metadata says 72 x 11"},
        {"llama.embedding_length", 60, MR_E_FORMAT, "heads of 15 elements"},
        {"llama.embedding_length", 3, MR_E_FORMAT, "heads of 0 elements"},
        {"llama.embedding_length", 65536, MR_E_FORMAT, "heads of 16384 elements; even numbers from 2 to 4096"},
        {"llama.feed_forward_length", 0, MR_E_FORMAT, "key 'llama.feed_forward_length': 0 is"},
        {"llama.attention.head_count", 0, MR_E_FORMAT, "key 'llama.attention.head_count': 0 is"},
        {"llama.attention.head_count", 20000, MR_E_FORMAT, "key 'llama.attention.head_count': 20000 is"},
        {"llama.attention.head_count_kv", 0, MR_E_FORMAT, "key 'llama.attention.head_count_kv': 0 is"},
        {"llama.attention.head_count_kv", 3, MR_E_FORMAT,
         "key 'llama.attention.head_count_kv': 3 does not divide the 4 heads"},
        {"llama.attention.head_count_kv", 8, MR_E_FORMAT,
         "key 'llama.attention.head_count_kv': 8 does not divide the 4 heads"},
        {"llama.attention.layer_norm_rms_epsilon", 0x7fc00000, MR_E_FORMAT,
         "rms_epsilon': nan is out of the range 0 to 1"},
        {"llama.attention.layer_norm_rms_epsilon", 0x7f800000, MR_E_FORMAT,
         "rms_epsilon': inf is out of the range 0 to 1"},
        {"llama.attention.layer_norm_rms_epsilon", 0xbf800000, MR_E_FORMAT,
         "rms_epsilon': -1 is out of the range 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = model_begin();
        model_end(&m);
        model_set_u32(&m, cases[i].key, cases[i].v);
        expect_error(&m, cases[i].want, cases[i].text);
    }
}

static void test_missing_keys(void **state) {
    (void)state;
    static const char *const keys[] = {
        "general.architecture",
        "llama.block_count",
        "llama.context_length",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char text[100];
        model m = model_begin();
        model_end(&m);
        uint8_t *end = model_find(&m, keys[i]);
        end[-(ptrdiff_t)strlen(keys[i])] = 'x';
        snprintf(text, sizeof text, "key '%s' is missing; hint: ", keys[i]);
        expect_error(&m, MR_E_FORMAT, text);
    }
    /* The epsilon of the plain layer norm has another key and does not replace the one of the RMS norm. */
    model m = model_begin();
    gguf_writer_f32(m.w, "llama.attention.layer_norm_epsilon", 0.5f);
    model_end(&m);
    assert_true(expect_read(&m).norm_eps == 1e-5f);
}

/* Keys that are added to the plain model: a number, an array or a text. */
static void test_bad_optional_keys(void **state) {
    (void)state;
    static const struct {
        const char *key;
        char kind; /* type of the value: u, f or s */
        double v;
        const char *s;
        mr_status want;
        const char *text;
    } cases[] = {
        {"llama.attention.key_length", 'u', 21, NULL, MR_E_FORMAT, "heads of 21 elements; even numbers"},
        {"llama.attention.value_length", 'u', 5, NULL, MR_E_FORMAT, "heads of 5 elements; even numbers"},
        {"llama.nextn_predict_layers", 'u', 2, NULL, MR_E_FORMAT,
         "nextn_predict_layers': 2 is out of the range 0 to 1"},
        {"llama.attention.sliding_window_pattern", 's', 0, "x", MR_E_FORMAT, "pattern': the value is of type string"},
        {"llama.leading_dense_block_count", 'u', 4097, NULL, MR_E_FORMAT, "count': 4097 is out of the range 0 to 4096"},
        {"llama.attention.value_length", 'u', 4097, NULL, MR_E_FORMAT,
         "value_length': 4097 is out of the range 1 to 4096"},
        {"llama.rope.dimension_count", 'u', 18, NULL, MR_E_FORMAT, "dimension_count': 18 is out of the range 2 to 16"},
        {"llama.rope.dimension_count", 'u', 5, NULL, MR_E_FORMAT, "key 'llama.rope.dimension_count': 5 is odd"},
        {"llama.rope.freq_base", 'f', 0, NULL, MR_E_FORMAT, "key 'llama.rope.freq_base': 0 is out of the range"},
        {"llama.rope.freq_base", 's', 0, "10000", MR_E_FORMAT, "freq_base': the value is of type string, not a number"},
        {"llama.rope.scaling.type", 's', 0, "dynamic", MR_E_UNSUPPORTED,
         "key 'llama.rope.scaling.type': 'dynamic'; none, linear, yarn and longrope are supported"},
        {"llama.rope.scaling.type", 's', 0, "longrope", MR_E_FORMAT, "tensor 'rope_factors_short.weight' is missing"},
        {"llama.rope.scaling.type", 's', 0, "\x1b[2J", MR_E_UNSUPPORTED, "'?[2J'"},
        {"llama.rope.scaling.type", 'u', 2, NULL, MR_E_FORMAT, "scaling.type': the value is of type u32, not a string"},
        {"llama.rope.scaling.factor", 'f', -1, NULL, MR_E_FORMAT, "scaling.factor': -1 is out of the range"},
        {"llama.rope.scaling.factor", 'f', 1e-5, NULL, MR_E_FORMAT, "scaling.factor': 1e-05 is out of the range"},
        {"llama.rope.scaling.yarn_beta_fast", 'f', 0, NULL, MR_E_FORMAT, "yarn_beta_fast': 0 is out of the range"},
        {"llama.rope.scaling.original_context_length", 'u', 0, NULL, MR_E_FORMAT, "context_length': 0 is out of"},
        {"llama.expert_count", 'u', 8, NULL, MR_E_FORMAT, "key 'llama.expert_used_count' is missing"},
        {"llama.expert_count", 'u', 5000, NULL, MR_E_FORMAT, "key 'llama.expert_count': 5000 is out of"},
        {"general.file_type", 'u', 4294967295.0, NULL, MR_E_FORMAT, "key 'general.file_type': 4294967295 is out of"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        model m = model_begin();
        if (cases[i].kind == 'u')
            gguf_writer_u32(m.w, cases[i].key, (uint32_t)cases[i].v);
        else if (cases[i].kind == 'f')
            gguf_writer_f32(m.w, cases[i].key, (float)cases[i].v);
        else
            gguf_writer_str(m.w, cases[i].key, cases[i].s);
        model_end(&m);
        expect_error(&m, cases[i].want, cases[i].text);
    }
}

/* The writer's keys with one left out, so that an array can stand in its place. */
static model model_with_array(const char *key, const uint32_t *values, size_t n) {
    model m = {.w = gguf_writer_create()}, plain = model_begin();
    model_end(&plain);
    mr_gguf *g = NULL;
    assert_int_equal(mr_gguf_open_memory(plain.data, plain.size, &g, NULL), MR_OK);
    for (int32_t i = 0; i < mr_gguf_n_keys(g); i++) {
        const char *name = mr_gguf_key_name(g, i);
        uint32_t u;
        mr_str s;
        if (strcmp(name, key) == 0)
            gguf_writer_u32s(m.w, name, values, n);
        else if (mr_gguf_get_u32(g, name, &u, NULL) == MR_OK)
            gguf_writer_u32(m.w, name, u);
        else if (mr_gguf_get_str(g, name, &s, NULL) == MR_OK)
            gguf_writer_str(m.w, name, strcmp(name, "general.name") == 0 ? "array" : "llama");
    }
    gguf_writer_f32(m.w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    mr_gguf_close(g);
    free(plain.data);
    return m;
}

static void test_numbers_for_each_layer(void **state) {
    (void)state;
    static const char *const keys[] = {"llama.attention.head_count", "llama.attention.head_count_kv",
                                       "llama.feed_forward_length"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char text[100];
        for (uint32_t second = 2; second <= 4; second += 2) {
            model m = model_with_array(keys[i], (const uint32_t[]){4, second}, 2);
            model_end(&m);
            mr_model_info info = expect_read(&m);
            assert_int_equal(info.n_shapes, second == 4 ? 1 : 2);
            for (int32_t l = 0; l < 2; l++) {
                const mr_layer_info *layer = mr_model_layer(&info, l);
                int32_t want = l == 0 ? 4 : (int32_t)second;
                assert_int_equal(i == 0 ? layer->n_heads : i == 1 ? layer->n_kv_heads : layer->n_ff, want);
                assert_int_equal(layer->k_dim, 16); /* of the first layer's heads */
            }
        }

        model m = model_with_array(keys[i], (const uint32_t[]){4, 4, 4}, 3);
        model_end(&m);
        snprintf(text, sizeof text, "key '%s': 3 values for 2 layers", keys[i]);
        expect_error(&m, MR_E_FORMAT, text);

        m = model_with_array(keys[i], (const uint32_t[]){4, 0}, 2);
        model_end(&m);
        snprintf(text, sizeof text, "key '%s': 0 is out of the range", keys[i]);
        expect_error(&m, MR_E_FORMAT, text);
    }
    model m = model_with_array("llama.block_count", (const uint32_t[]){2, 2}, 2);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "key 'llama.block_count': the value is of type array of u32, not an integer");
    m = model_with_array("llama.attention.head_count", (const uint32_t[]){4, 3}, 2);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "key 'llama.attention.head_count_kv': 2 does not divide the 3 heads");
}

static void test_vocabulary_and_tensors_must_agree(void **state) {
    (void)state;
    static const char *const two[] = {"a", "b"};
    model m = model_with_array("", NULL, 0);
    model_end(&m);
    assert_int_equal(expect_read(&m).vocab_size, 11); /* without a token list */

    m = model_with_array("", NULL, 0);
    gguf_writer_strs(m.w, "tokenizer.ggml.tokens", two, 2);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "key 'tokenizer.ggml.tokens': 2 tokens, but tensor 'token_embd.weight' has 11 rows");

    m = model_with_array("", NULL, 0);
    gguf_writer_u32s(m.w, "tokenizer.ggml.tokens", (const uint32_t[]){1}, 1);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT,
                 "key 'tokenizer.ggml.tokens': the value is of type array of u32, not an array of str");

    m = model_begin();
    gguf_writer_vector(m.w, "rope_freqs.weight", MR_TYPE_F32, 7, NULL);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT,
                 "tensor 'rope_freqs.weight': the shape is 7 x 1 x 1 x 1, but the metadata says 8 x 1");

    m = model_begin();
    gguf_writer_vector(m.w, "rope_freqs.weight", MR_TYPE_F16, 8, NULL);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "tensor 'rope_freqs.weight': the type is F16, not F32");

    m = model_begin();
    gguf_writer_vector(m.w, "rope_factors_short.weight", MR_TYPE_F32, 8, NULL);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "tensor 'rope_factors_long.weight' is missing");

    m = model_begin();
    gguf_writer_vector(m.w, "rope_factors_short.weight", MR_TYPE_F32, 8, NULL);
    gguf_writer_vector(m.w, "rope_factors_long.weight", MR_TYPE_F32, 9, NULL);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT,
                 "tensor 'rope_factors_long.weight': the shape is 9 x 1 x 1 x 1, but the metadata says 8 x 1");

    m = model_begin();
    gguf_writer_vector(m.w, "blk.2.extra", MR_TYPE_F32, 1, NULL);
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "tensor 'blk.2.extra' is of no layer of the model, which has 2");

    m = model_begin();
    gguf_writer_u32(m.w, "general.quantization_version", 3);
    gguf_writer_vector(m.w, "blk.0.extra", MR_TYPE_Q8_0, 32, NULL);
    model_end(&m);
    expect_error(&m, MR_E_UNSUPPORTED, "tensor 'blk.0.extra': quantization version 3; 2 is supported");

    m = model_begin();
    model_end(&m);
    model_find(&m, "token_embd.weigh")[0] = 'x';
    expect_error(&m, MR_E_FORMAT,
                 "tensor 'token_embd.weight' is missing; hint: the file holds no whole language model");
}

static void test_parts_of_a_model(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mr_model_part part;
        int32_t layer;
    } cases[] = {
        {"token_embd.weight", MR_MODEL_EMBEDDING, -1},
        {"output.weight", MR_MODEL_OUTPUT, -1},
        {"output_norm.weight", MR_MODEL_OUTPUT, -1},
        {"output_normal", MR_MODEL_SHARED, -1},
        {"rope_freqs.weight", MR_MODEL_SHARED, -1},
        {"blk.0.attn_q.weight", MR_MODEL_LAYER, 0},
        {"blk.10.x", MR_MODEL_LAYER, 10},
        {"blk.4095.x", MR_MODEL_LAYER, 4095},
        {"blk.4096.x", MR_MODEL_BAD_LAYER, -1},
        {"blk.00.x", MR_MODEL_BAD_LAYER, -1},
        {"blk.01.x", MR_MODEL_BAD_LAYER, -1},
        {"blk..x", MR_MODEL_BAD_LAYER, -1},
        {"blk.-1.x", MR_MODEL_BAD_LAYER, -1},
        {"blk.1x", MR_MODEL_BAD_LAYER, -1},
        {"blk.1", MR_MODEL_BAD_LAYER, -1},
        {"blk.99999999999999999999.x", MR_MODEL_BAD_LAYER, -1},
        {"blkx", MR_MODEL_SHARED, -1},
        {"v.blk.0.attn_q.weight", MR_MODEL_ENCODER, -1},
        {"a.conv1d.1.weight", MR_MODEL_ENCODER, -1},
        {"mm.0.weight", MR_MODEL_ENCODER, -1},
        {"vocab.weight", MR_MODEL_SHARED, -1},
        {"blk.", MR_MODEL_BAD_LAYER, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int32_t layer = -1;
        assert_int_equal(mr_model_tensor_part(cases[i].name, &layer), cases[i].part);
        assert_int_equal(layer, cases[i].layer);
        assert_int_equal(mr_model_tensor_part(cases[i].name, NULL), cases[i].part);
    }
}

static void test_bytes_of_parts(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        gguf_model_shape shape = SHAPE;
        shape.tied_output = tied;
        gguf_writer *w = gguf_writer_create();
        gguf_writer_model_keys(w, &shape);
        gguf_writer_vector(w, "rope_freqs.weight", MR_TYPE_F32, 8, NULL);
        gguf_writer_model_tensors(w, &shape);
        size_t size, embedding = 64 * 11 * 2, norm = 64 * 4;
        const uint8_t *data = gguf_writer_bytes(w, &size);
        mr_gguf *g = NULL;
        mr_model_info info;
        assert_int_equal(mr_gguf_open_memory(data, size, &g, NULL), MR_OK);
        assert_int_equal(mr_model_info_read(g, &info, NULL), MR_OK);
        assert_int_equal(info.tied_output, tied);
        assert_int_equal(mr_model_embedding_bytes(g), embedding);
        assert_int_equal(mr_model_output_bytes(g), embedding + norm);
        assert_int_equal(mr_model_shared_bytes(g), 32);
        for (int32_t i = 0; i < 2; i++)
            assert_int_equal(mr_model_layer_bytes(g, &info, i),
                             2 * norm + 2 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96));
        assert_int_equal(mr_model_layer_bytes(g, &info, 2), 0);
        mr_gguf_close(g);
        gguf_writer_destroy(w);
    }
}

/* Facts about real files: one line for each that is asked for by name. */
static void check_known_file(const char *name, const mr_gguf *g, const mr_model_info *info) {
    if (strcmp(name, "ggml-vocab-llama-bpe.gguf") == 0) {
        mr_gguf_array merges, tokens;
        assert_int_equal(mr_gguf_get_array(g, "tokenizer.ggml.merges", MR_GGUF_ELEMS_STRINGS, &merges, NULL), MR_OK);
        assert_int_equal(mr_gguf_get_array(g, "tokenizer.ggml.tokens", MR_GGUF_ELEMS_STRINGS, &tokens, NULL), MR_OK);
        assert_int_equal(merges.n, 280147);
        assert_int_equal(tokens.n, 128256);
        assert_true(mr_str_is(mr_gguf_array_str(&tokens, 0), "!"));
        assert_true(mr_str_is(mr_gguf_array_str(&tokens, 128000), "<|begin_of_text|>"));
    } else if (strcmp(name, "yarn-F16.gguf") == 0) {
        assert_int_equal(info->ropes[0].scaling, MR_ROPE_SCALING_YARN);
        assert_true(info->ropes[0].factor == 4 && info->ropes[0].ext_factor == 1);
        assert_int_equal(info->ropes[0].original_context, 2048);
    } else if (strcmp(name, "mixtral-F16.gguf") == 0) {
        assert_int_equal(info->n_experts, 8);
        assert_int_equal(info->n_experts_used, 2);
    } else if (strcmp(name, "ropefreqs-F16.gguf") == 0) {
        assert_int_equal(info->ropes[0].factors, MR_ROPE_FACTORS_FIXED);
    } else if (strcmp(name, "qwen3-Q8_0.gguf") == 0) {
        assert_int_equal(mr_model_layer(info, 0)->k_dim, 128);
    } else if (strcmp(name, "qwen2-Q8_0.gguf") == 0) {
        assert_true(info->tied_output);
    }
}

static int check_directory(const char *vectors, const char *folder, bool models) {
    char path[1024];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", vectors, folder);
    DIR *dir = opendir(path);
    if (!dir)
        return 0;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        size_t len = strlen(e->d_name);
        if (len < 5 || strcmp(e->d_name + len - 5, ".gguf") != 0)
            continue;
        mr_gguf *g = NULL;
        mr_model_info info = {0};
        mr_err err = {0};
        snprintf(path, sizeof path, "%s/%s/%s", vectors, folder, e->d_name);
        expect_ok(mr_gguf_open(path, &g, &err), &err);
        mr_status status = mr_model_info_read(g, &info, &err);
        if (!models) {
            assert_int_equal(status, MR_E_FORMAT);
            expect_says(err.text, "the file holds a vocabulary and no weights");
        } else if (status) {
            fail_msg("%s: %s", path, err.text);
        } else {
            assert_int_equal(info.vocab_size, 600);
            assert_int_equal(info.d_model, 256);
            size_t sum = mr_model_embedding_bytes(g) + mr_model_output_bytes(g) + mr_model_shared_bytes(g);
            for (int32_t i = 0; i < info.n_layers; i++)
                sum += mr_model_layer_bytes(g, &info, i);
            assert_true(sum <= mr_gguf_file_bytes(g) + (info.tied_output ? mr_model_embedding_bytes(g) : 0));
        }
        check_known_file(e->d_name, g, &info);
        mr_gguf_close(g);
        n++;
    }
    closedir(dir);
    return n;
}

static void test_real_files(void **state) {
    (void)state;
    const char *vectors = getenv("MILLRACE_TEST_VECTORS");
    int n_models = vectors ? check_directory(vectors, "models", true) : 0;
    int n_vocabularies = vectors ? check_directory(vectors, "tokenizers", false) : 0;
    if (n_models + n_vocabularies == 0)
        print_message("skipped: no files in MILLRACE_TEST_VECTORS\n");
    else
        print_message("%d models and %d vocabularies read\n", n_models, n_vocabularies);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_model),
        cmocka_unit_test(test_optional_keys),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_values_out_of_range),
        cmocka_unit_test(test_missing_keys),
        cmocka_unit_test(test_bad_optional_keys),
        cmocka_unit_test(test_numbers_for_each_layer),
        cmocka_unit_test(test_vocabulary_and_tensors_must_agree),
        cmocka_unit_test(test_parts_of_a_model),
        cmocka_unit_test(test_bytes_of_parts),
        cmocka_unit_test(test_real_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
