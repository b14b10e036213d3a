/* Files of PowerInfer: the magic, the threshold, the widths of predictors, and the files that are refused. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

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

static model sparse_begin(void) {
    model m = model_begin();
    gguf_writer_sparse(m.w);
    return m;
}

/* Adds the first matrices of the predictors of layers [0, n), of width 24 and 25. */
static void add_predictors(model *m, int32_t n) {
    for (int32_t l = 0; l < n; l++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.fc1.weight", l);
        gguf_writer_matrix(m->w, name, MR_TYPE_F16, SHAPE.d_model, 24 + l, NULL);
    }
    model_end(m);
}

static void test_sparse_models(void **state) {
    (void)state;
    model m = sparse_begin();
    add_predictors(&m, 2);
    mr_model_info info = expect_read(&m);
    assert_true(info.is_sparse && info.sparse_threshold == 0.0f);
    assert_int_equal(info.n_shapes, 2);
    assert_int_equal(mr_model_layer(&info, 0)->n_predictor, 24);
    assert_int_equal(mr_model_layer(&info, 1)->n_predictor, 25);

    m = sparse_begin();
    gguf_writer_f32(m.w, "powerinfer.sparse_threshold", -0.75f);
    add_predictors(&m, 2);
    info = expect_read(&m);
    assert_true(info.is_sparse && info.sparse_threshold == -0.75f);

    m = sparse_begin(); /* a whole number */
    gguf_writer_u32(m.w, "powerinfer.sparse_threshold", 1);
    add_predictors(&m, 2);
    info = expect_read(&m);
    assert_true(info.is_sparse && info.sparse_threshold == 1.0f);

    m = model_begin(); /* the magic alone says it */
    gguf_writer_f32(m.w, "powerinfer.sparse_threshold", -0.75f);
    model_end(&m);
    info = expect_read(&m);
    assert_true(!info.is_sparse && info.sparse_threshold == 0.0f && mr_model_layer(&info, 0)->n_predictor == 0);
}

static void test_sparse_models_that_are_refused(void **state) {
    (void)state;
    const uint32_t nan_bits = 0x7fc00000u;
    model m = sparse_begin();
    add_predictors(&m, 1);
    expect_error(&m, MR_E_FORMAT, "tensor 'blk.1.fc1.weight' is missing; hint: a sparse model has a predictor");

    m = sparse_begin(); /* the magic, and no predictor */
    model_end(&m);
    expect_error(&m, MR_E_FORMAT, "tensor 'blk.0.fc1.weight' is missing; hint: a sparse model has a predictor");

    m = sparse_begin();
    gguf_writer_str(m.w, "powerinfer.sparse_threshold", "0.5");
    add_predictors(&m, 2);
    expect_error(&m, MR_E_FORMAT, "key 'powerinfer.sparse_threshold': the value is of type string");

    m = sparse_begin();
    gguf_writer_raw(m.w, "powerinfer.sparse_threshold", MR_GGUF_F32, &nan_bits, sizeof nan_bits);
    add_predictors(&m, 2);
    expect_error(&m, MR_E_FORMAT, "key 'powerinfer.sparse_threshold': not a number");

    m = sparse_begin();
    gguf_writer_u32(m.w, "llama.expert_count", 4);
    gguf_writer_u32(m.w, "llama.expert_used_count", 2);
    add_predictors(&m, 2);
    expect_error(&m, MR_E_UNSUPPORTED, "sparse models without experts only");

    m = (model){.w = gguf_writer_create()};
    gguf_writer_str(m.w, "general.architecture", "generic.gpu_index");
    model_end(&m);
    expect_error(&m, MR_E_UNSUPPORTED, "the file is a GPU index of PowerInfer (architecture 'generic.gpu_index')");

    mr_gguf *g = NULL;
    mr_err err = {0};
    m = sparse_begin();
    gguf_writer_version(m.w, 2);
    add_predictors(&m, 2);
    assert_int_equal(mr_gguf_open_memory(m.data, m.size, &g, &err), MR_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "a file of PowerInfer with GGUF version 2"));
    free(m.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sparse_models),
                                       cmocka_unit_test(test_sparse_models_that_are_refused)};
    return cmocka_run_group_tests_name("gguf_sparse", tests, NULL, NULL);
}
