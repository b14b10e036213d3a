/* The tensors that a stage takes from a model file, and the errors for tensors that do not fit. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/cpu_backend.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "tests/support/test.h"
#include "tests/support/tiny_model.h"

static mr_backend *backend;

static int open_backend(void **state) {
    (void)state;
    return mr_cpu_backend_create(&(mr_cpu_options){.n_threads = 2}, &backend, NULL) == MR_OK ? 0 : -1;
}

static int close_backend(void **state) {
    (void)state;
    mr_backend_destroy(backend);
    return 0;
}

static mr_status create(const tiny_model *m, int32_t first, int32_t last, mr_weights **out, mr_err *err) {
    mr_weights_desc desc = {.gguf = m->gguf, .info = &m->info, .range = {first, last}};
    return mr_weights_create(&desc, &(mr_backends){.at = {backend}, .n = 1}, out, err);
}

/* Takes the model over. Creating layers [first, last) fails with want, and the text holds both parts. */
static void expect_error_in(tiny_model *m, int32_t first, int32_t last, mr_status want, const char *text,
                            const char *more) {
    mr_weights *w = NULL;
    mr_err err = {0};
    mr_status status = create(m, first, last, &w, &err);
    if (status != want || !strstr(err.text, text) || !strstr(err.text, more))
        fail_msg("%s: '%s', expected %s: '%s' and '%s'", mr_status_name(status), err.text, mr_status_name(want), text,
                 more);
    assert_null(w);
    tiny_model_destroy(m);
}

static void expect_error(tiny_model *m, mr_status want, const char *text, const char *more) {
    expect_error_in(m, 0, m->info.n_layers, want, text, more);
}

/* Takes the model over. */
static size_t expect_loads(tiny_model *m, int32_t first, int32_t last) {
    mr_weights *w = NULL;
    mr_err err = {0};
    expect_ok(create(m, first, last, &w, &err), &err);
    size_t bytes = mr_weights_bytes(w);
    mr_weights_destroy(w);
    tiny_model_destroy(m);
    return bytes;
}

static tiny_model *edited(tiny_desc d, tiny_edit edit) {
    d.edit = edit;
    return tiny_model_create(&d);
}

/* --- Tensors that do not fit ------------------------------------------------------------------------------------- */

static const char *const LAYER_TENSORS[] = {
    "attn_norm.weight", "attn_q.weight",   "attn_k.weight", "attn_v.weight",   "attn_output.weight",
    "ffn_norm.weight",  "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
};
static const char *const QWEN2_TENSORS[] = {"attn_q.bias", "attn_k.bias", "attn_v.bias"};
static const char *const QWEN3_TENSORS[] = {"attn_q_norm.weight", "attn_k_norm.weight"};

static void expect_missing(const char *arch, const char *suffix) {
    char name[64];
    tiny_desc d = tiny_default(arch, MR_TYPE_F32);
    snprintf(name, sizeof name, "blk.1.%s", suffix);
    tiny_edit edit = {.name = name, .kind = TINY_LEAVE_OUT};
    expect_error(edited(d, edit), MR_E_FORMAT, name, "missing");
    expect_loads(edited(d, edit), 0, 1); /* the missing tensor belongs to another stage */
}

static void test_a_missing_tensor_is_named(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    for (size_t a = 0; a < 3; a++)
        for (size_t i = 0; i < sizeof LAYER_TENSORS / sizeof *LAYER_TENSORS; i++)
            expect_missing(archs[a], LAYER_TENSORS[i]);
    for (size_t i = 0; i < sizeof QWEN2_TENSORS / sizeof *QWEN2_TENSORS; i++)
        expect_missing("qwen2", QWEN2_TENSORS[i]);
    for (size_t i = 0; i < sizeof QWEN3_TENSORS / sizeof *QWEN3_TENSORS; i++)
        expect_missing("qwen3", QWEN3_TENSORS[i]);
    tiny_edit norm = {.name = "output_norm.weight", .kind = TINY_LEAVE_OUT};
    expect_error(edited(tiny_default("llama", MR_TYPE_F16), norm), MR_E_FORMAT, "output_norm.weight", "missing");
    expect_loads(edited(tiny_default("llama", MR_TYPE_F16), norm), 0, 1);
}

static void test_a_wrong_shape_is_named(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t columns, rows;
        const char *wanted;
    } cases[] = {
        {"blk.0.attn_norm.weight", 63, 0, "wanted [64, 1]"},    {"blk.0.attn_norm.weight", 64, 2, "wanted [64, 1]"},
        {"blk.0.attn_q.weight", 64, 63, "wanted [64, 64]"},     {"blk.0.attn_q.weight", 65, 64, "wanted [64, 64]"},
        {"blk.0.attn_k.weight", 64, 64, "wanted [64, 32]"},     {"blk.1.attn_v.weight", 32, 64, "wanted [64, 32]"},
        {"blk.1.ffn_down.weight", 64, 160, "wanted [160, 64]"}, {"output_norm.weight", 1, 0, "wanted [64, 1]"},
        {"blk.0.attn_q.bias", 32, 0, "wanted [64, 1]"},         {"blk.0.attn_q_norm.weight", 64, 0, "wanted [16, 1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *arch = strstr(cases[i].name, "bias")     ? "qwen2"
                           : strstr(cases[i].name, "q_norm") ? "qwen3"
                                                             : "llama";
        tiny_edit edit = {
            .name = cases[i].name, .kind = TINY_SHAPE, .columns = cases[i].columns, .rows = cases[i].rows};
        expect_error(edited(tiny_default(arch, MR_TYPE_F32), edit), MR_E_FORMAT, cases[i].name, cases[i].wanted);
    }
}

/* Parts of one matrix: the shape of the whole is checked, and the parts take what matrices of their own take. */
static void test_parts_of_a_matrix(void **state) {
    (void)state;
    tiny_desc d = tiny_default("phi3", MR_TYPE_F32), apart = tiny_default("llama", MR_TYPE_F32);
    static const struct {
        const char *name, *wanted;
    } cases[] = {{"blk.0.attn_qkv.weight", "wanted [64, 128]"}, {"blk.1.ffn_up.weight", "wanted [64, 320]"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_missing("phi3", cases[i].name + strlen("blk.0."));
        for (int64_t rows = 64; rows <= 129; rows += 65) {
            tiny_edit edit = {.name = cases[i].name, .kind = TINY_SHAPE, .columns = 64, .rows = rows};
            expect_error(edited(d, edit), MR_E_FORMAT, cases[i].name, cases[i].wanted);
        }
    }
    assert_int_equal(expect_loads(tiny_model_create(&d), 0, 2), expect_loads(tiny_model_create(&apart), 0, 2));
}

static void test_a_wrong_type_is_named(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mr_type type;
    } cases[] = {
        {"blk.0.attn_q.weight", MR_TYPE_I16},    {"blk.1.ffn_up.weight", MR_TYPE_Q8_1},
        {"blk.1.ffn_down.weight", MR_TYPE_I8},   {"token_embd.weight", MR_TYPE_Q8_1},
        {"output.weight", MR_TYPE_F64},          {"blk.0.attn_norm.weight", MR_TYPE_Q8_0},
        {"blk.1.ffn_norm.weight", MR_TYPE_Q4_0}, {"output_norm.weight", MR_TYPE_I32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tiny_edit edit = {.name = cases[i].name, .kind = TINY_TYPE, .type = cases[i].type};
        expect_error(edited(tiny_default("llama", MR_TYPE_F32), edit), MR_E_UNSUPPORTED, cases[i].name,
                     mr_type_name(cases[i].type));
    }
    /* Vectors in half precision are accepted. */
    static const mr_type halves[] = {MR_TYPE_F16, MR_TYPE_BF16};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        tiny_edit half = {.name = "blk.0.attn_norm.weight", .kind = TINY_TYPE, .type = halves[i]};
        expect_loads(edited(tiny_default("llama", MR_TYPE_F32), half), 0, 2);
    }
}

static tiny_desc with_experts(const char *arch) {
    tiny_desc d = tiny_default(arch, MR_TYPE_F32);
    d.n_experts = 4;
    d.n_experts_used = 2;
    return d;
}

/* Experts stand in for gate, up and down: those are then unknown, and the experts' tensors needed. */
static void test_tensors_of_experts(void **state) {
    (void)state;
    static const char *const names[] = {"blk.1.ffn_gate_inp.weight", "blk.1.ffn_gate_exps.weight",
                                        "blk.1.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"};
    static const char *const wanted[] = {"wanted [64, 4]", "wanted [64, 160, 4]", "wanted [64, 160, 4]",
                                         "wanted [160, 64, 4]"};
    tiny_desc d = with_experts("llama"), dense = tiny_default("llama", MR_TYPE_F32);
    for (size_t i = 0; i < 4; i++) {
        expect_error(edited(d, (tiny_edit){.name = names[i], .kind = TINY_LEAVE_OUT}), MR_E_FORMAT, names[i],
                     i == 0 ? "missing" : "one tensor");
        tiny_edit shape = {.name = names[i], .kind = TINY_SHAPE, .columns = 32, .rows = 32};
        expect_error(edited(d, shape), MR_E_FORMAT, names[i], wanted[i]);
        gguf_writer *w = tiny_model_write(&dense);
        gguf_writer_vector(w, names[i], MR_TYPE_F32, 16, NULL);
        expect_error(tiny_model_open(w), MR_E_UNSUPPORTED, names[i], "llama");
    }
    gguf_writer *w = tiny_model_write(&d);
    gguf_writer_vector(w, "blk.1.ffn_up.weight", MR_TYPE_F32, 16, NULL);
    expect_error(tiny_model_open(w), MR_E_UNSUPPORTED, "blk.1.ffn_up.weight", "llama");
    /* Four matrices instead of one, and the router, which is padded to 16 columns. */
    size_t ffn = 3 * 64 * 160 * sizeof(float), router = 64 * 16 * sizeof(float);
    size_t bytes = expect_loads(tiny_model_create(&d), 0, 1);
    assert_int_equal(bytes, expect_loads(tiny_model_create(&dense), 0, 1) + 3 * ffn + router);
}

static tiny_desc sparse_model(const char *arch) {
    tiny_desc d = tiny_default(arch, MR_TYPE_F16);
    d.n_predictor = 32;
    return d;
}

/* Tensors of sparse models. */
static void test_sparse_models(void **state) {
    (void)state;
    static const char *const archs[] = {"llama", "bamboo"};
    static const char *const names[] = {"blk.1.ffn_gate.weight", "blk.1.ffn_up.weight", "blk.1.ffn_down_t.weight",
                                        "blk.1.fc2.weight"};
    static const struct {
        const char *name;
        int64_t columns, rows;
        const char *wanted;
    } shapes[] = {
        {"blk.0.ffn_down_t.weight", 160, 64, "wanted [64, 160]"}, {"blk.0.fc1.weight", 63, 32, "wanted [64, 32]"},
        {"blk.1.fc1.weight", 64, 33, "wanted [33, 160]"},         {"blk.0.fc2.weight", 32, 159, "wanted [32, 160]"},
        {"blk.1.fc2.weight", 31, 160, "wanted [32, 160]"},
    };
    for (size_t a = 0; a < 2; a++) {
        size_t whole = expect_loads(edited(sparse_model(archs[a]), (tiny_edit){0}), 0, 2);
        assert_int_equal(whole > 0, 1);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            expect_error(edited(sparse_model(archs[a]), (tiny_edit){.name = names[i], .kind = TINY_LEAVE_OUT}),
                         MR_E_FORMAT, names[i], "missing");
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            expect_error(edited(sparse_model(archs[a]), (tiny_edit){.name = shapes[i].name,
                                                                    .kind = TINY_SHAPE,
                                                                    .columns = shapes[i].columns,
                                                                    .rows = shapes[i].rows}),
                         MR_E_FORMAT, strstr(shapes[i].wanted, "[33") ? "blk.1.fc2.weight" : shapes[i].name,
                         shapes[i].wanted);
        expect_error(edited(sparse_model(archs[a]),
                            (tiny_edit){.name = "blk.1.ffn_up.weight", .kind = TINY_TYPE, .type = MR_TYPE_Q8_0}),
                     MR_E_UNSUPPORTED, "'blk.1.ffn_up.weight' has type Q8_0, and gate has type F16", "hint:");
        expect_loads(edited(sparse_model(archs[a]),
                            (tiny_edit){.name = "blk.1.ffn_up.weight", .kind = TINY_TYPE, .type = MR_TYPE_F32}),
                     0, 2);
        static const char *const strange[] = {"blk.1.ffn_down.weight", "blk.0.fc1.bias", "blk.1.fc3.weight"};
        for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
            tiny_desc d = sparse_model(archs[a]);
            gguf_writer *w = tiny_model_write(&d);
            gguf_writer_vector(w, strange[i], MR_TYPE_F32, 16, NULL);
            expect_error(tiny_model_open(w), MR_E_UNSUPPORTED, strange[i], archs[a]);
        }
    }
    tiny_desc plain = tiny_default("llama", MR_TYPE_F16);
    gguf_writer *predicted = tiny_model_write(&plain); /* without the magic */
    gguf_writer_matrix(predicted, "blk.0.fc1.weight", MR_TYPE_F16, 64, 32, NULL);
    expect_error(tiny_model_open(predicted), MR_E_UNSUPPORTED, "blk.0.fc1.weight", "llama");
    expect_error(edited(sparse_model("qwen3"), (tiny_edit){0}), MR_E_UNSUPPORTED, "no sparse qwen3 models",
                 "llama and bamboo");
    expect_error(edited(tiny_default("bamboo", MR_TYPE_F16), (tiny_edit){0}), MR_E_UNSUPPORTED, "PWRI", "predictors");
}

/* A tensor that no layer uses would silently change the model. The stage that has its layer refuses the file. */
static void test_an_unknown_tensor_is_named(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int32_t first, last; /* layers of a stage that refuses the tensor */
        int32_t other;       /* first layer of a stage without the tensor; -1: every stage has it */
    } cases[] = {
        {"blk.0.attn_q_norm.weight", 0, 1, 1}, {"blk.1.attn_sinks", 1, 2, 0},
        {"blk.1.ffn_gate.scale", 0, 2, 0},     {"output.bias", 1, 2, 0},
        {"token_embd.bias", 0, 2, 1},          {"position_embd.weight", 1, 2, -1},
        {"rope_factors.weight", 0, 1, -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int ok = 0; ok < (cases[i].other < 0 ? 1 : 2); ok++) {
            tiny_desc d = tiny_default("llama", MR_TYPE_F32);
            gguf_writer *w = tiny_model_write(&d);
            gguf_writer_vector(w, cases[i].name, MR_TYPE_F32, 16, NULL);
            if (ok)
                expect_loads(tiny_model_open(w), cases[i].other, cases[i].other + 1);
            else
                expect_error_in(tiny_model_open(w), cases[i].first, cases[i].last, MR_E_UNSUPPORTED, cases[i].name,
                                "llama");
        }
    }
}

static void test_models_of_other_kinds(void **state) {
    (void)state;
    tiny_desc d = with_experts("qwen2");
    expect_error(tiny_model_create(&d), MR_E_UNSUPPORTED, "4 experts", "qwen2");
    tiny_desc dense = tiny_default("gpt-oss", MR_TYPE_F32);
    expect_error(tiny_model_create(&dense), MR_E_UNSUPPORTED, "layer 0 has no experts", "gpt-oss");
    d.arch = "gemma9";
    expect_error(tiny_model_create(&d), MR_E_UNSUPPORTED, "'gemma9'",
                 "it runs bamboo, deepseek2, dots1, ernie4_5-moe, gemma3, ");
}

static void test_ranges_outside_the_model(void **state) {
    (void)state;
    static const int32_t ranges[][2] = {{-1, 1}, {0, 0}, {1, 1}, {1, 0}, {0, 3}, {2, 3}, {INT32_MIN, INT32_MAX}};
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        expect_error_in(tiny_model_create(&d), ranges[i][0], ranges[i][1], MR_E_INVALID, "layers", "with 2");
}

static void test_rope_factors_that_are_none(void **state) {
    (void)state;
    static const float bad[] = {0.0f, -1.0f, NAN, INFINITY, 1e9f};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tiny_desc d = tiny_default("llama", MR_TYPE_F32);
        float factors[8] = {1, 1, 1, bad[i], 1, 1, 1, 1};
        gguf_writer *w = tiny_model_write(&d);
        gguf_writer_vector(w, "rope_freqs.weight", MR_TYPE_F32, 8, factors);
        expect_error(tiny_model_open(w), MR_E_FORMAT, "rope_freqs.weight", "factor 3");
    }
    tiny_desc d = tiny_default("llama", MR_TYPE_F32);
    d.rope_factors = true;
    expect_loads(tiny_model_create(&d), 0, 2);
}

/* --- Sizes and loading ------------------------------------------------------------------------------------------- */

/* Cut or whole, the layers take the same; every stage has the RoPE constant. */
static void test_stages_add_up_to_the_model(void **state) {
    (void)state;
    static const mr_type types[] = {MR_TYPE_F32, MR_TYPE_F16, MR_TYPE_Q8_0, MR_TYPE_Q4_K, MR_TYPE_Q6_K};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        tiny_desc d = tiny_default("llama", types[t]);
        d.n_layers = 3;
        size_t whole = expect_loads(tiny_model_create(&d), 0, 3), head = expect_loads(tiny_model_create(&d), 0, 1);
        size_t middle = expect_loads(tiny_model_create(&d), 1, 2), tail = expect_loads(tiny_model_create(&d), 2, 3);
        size_t angles = head + middle + tail - whole;
        assert_int_equal(head, middle); /* the embedding is read from the file */
        assert_true(tail > head);
        assert_true(angles > 0 && angles % 2 == 0 && angles <= 4096);
    }
}

typedef struct seen {
    size_t last, total;
    int n;
} seen;

static bool note_progress(void *ctx, size_t done, size_t total) {
    seen *s = ctx;
    assert_true(done >= s->last && done <= total && (s->n == 0 || total == s->total));
    *s = (seen){.last = done, .total = total, .n = s->n + 1};
    return true;
}

static void test_loading_reports_its_progress(void **state) {
    (void)state;
    tiny_desc d = tiny_default("qwen2", MR_TYPE_Q8_0);
    tiny_model *m = tiny_model_create(&d);
    mr_weights *w = NULL;
    seen s = {0};
    assert_int_equal(create(m, 0, 2, &w, NULL), MR_OK);
    assert_int_equal(mr_weights_load(w, note_progress, &s, NULL), MR_OK);
    assert_true(s.n > 20);
    assert_int_equal(s.total, mr_weights_bytes(w));
    assert_int_equal(s.last, s.total);
    mr_weights_destroy(w);
    tiny_model_destroy(m);
}

static void test_failing_allocations(void **state) {
    (void)state;
    tiny_desc d = tiny_default("llama", MR_TYPE_F16);
    d.rope_factors = true;
    tiny_model *m = tiny_model_create(&d);
    size_t before = mr_mem_get_stats().live_bytes;
    mr_status status = MR_E_NO_MEMORY;
    int n = 0;
    for (; status != MR_OK; n++) {
        mr_weights *w = NULL;
        mr_err err = {0};
        assert_true(n < 100);
        mr_mem_fail_at(n);
        status = create(m, 0, 2, &w, &err);
        if (status == MR_OK)
            status = mr_weights_load(w, NULL, NULL, &err);
        mr_mem_fail_at(-1);
        if (status != MR_OK && (status != MR_E_NO_MEMORY || !strstr(err.text, "no memory")))
            fail_msg("allocation %d: %s: '%s'", n, mr_status_name(status), err.text);
        mr_weights_destroy(w);
        assert_int_equal(mr_mem_get_stats().live_bytes, before);
    }
    print_message("%d allocations\n", n - 1);
    mr_weights_destroy(NULL);
    tiny_model_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_missing_tensor_is_named),  cmocka_unit_test(test_sparse_models),
        cmocka_unit_test(test_a_wrong_shape_is_named),     cmocka_unit_test(test_a_wrong_type_is_named),
        cmocka_unit_test(test_parts_of_a_matrix),          cmocka_unit_test(test_an_unknown_tensor_is_named),
        cmocka_unit_test(test_tensors_of_experts),         cmocka_unit_test(test_models_of_other_kinds),
        cmocka_unit_test(test_ranges_outside_the_model),   cmocka_unit_test(test_rope_factors_that_are_none),
        cmocka_unit_test(test_stages_add_up_to_the_model), cmocka_unit_test(test_loading_reports_its_progress),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests_name("model_weights", tests, open_backend, close_backend);
}
