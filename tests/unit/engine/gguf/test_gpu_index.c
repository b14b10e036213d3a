/* GPU indices of PowerInfer: what is counted, and the malformed ones that are refused by name. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/gguf/gpu_index.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

enum { LAYERS = 2, NEURONS = 700 /* of each layer; three partitions */ };

/* An index that a test may change before it is written. n_bucket: elements of the list. */
typedef struct layer {
    int32_t marks[NEURONS], bucket[NEURONS], n_marks, n_bucket;
    mr_type type; /* of the marks */
    bool has_marks, has_bucket;
} layer;
typedef struct gpu_index {
    const char *arch; /* NULL: no key */
    layer layers[LAYERS + 1];
    mr_model_info info;
} gpu_index;

/* Layer l has the first of every `step` neurons below ends[l]. */
static gpu_index *make(const int32_t ends[LAYERS], int32_t step) {
    gpu_index *x = calloc(1, sizeof *x);
    assert_non_null(x);
    x->arch = "generic.gpu_index";
    x->info = (mr_model_info){.n_layers = LAYERS, .is_sparse = true, .n_shapes = 1, .shapes = {{.n_ff = NEURONS}}};
    for (int l = 0; l < LAYERS; l++) {
        layer *y = &x->layers[l];
        *y = (layer){.type = MR_TYPE_I32, .has_marks = true, .has_bucket = true, .n_marks = NEURONS};
        for (int32_t i = 0; i < ends[l]; i += step) {
            y->marks[i] = 1;
            y->bucket[y->n_bucket++] = i;
        }
        y->has_bucket = y->n_bucket > 0;
    }
    return x;
}

static mr_status read_index(const gpu_index *x, mr_gpu_index *out, mr_err *err) {
    gguf_writer *w = gguf_writer_create();
    mr_gguf *g = NULL;
    size_t n;
    if (x->arch)
        gguf_writer_str(w, "general.architecture", x->arch);
    gguf_writer_u64(w, "split.vram_capacity", 1 << 30);
    for (int l = 0; l <= LAYERS; l++) {
        const layer *y = &x->layers[l];
        char name[32];
        snprintf(name, sizeof name, "blk.%d.gpu_idx", l);
        if (y->has_marks)
            gguf_writer_vector(w, name, y->type, y->n_marks, y->marks);
        snprintf(name, sizeof name, "blk.%d.gpu_bucket", l);
        if (y->has_bucket)
            gguf_writer_vector(w, name, MR_TYPE_I32, y->n_bucket, y->bucket);
    }
    const uint8_t *data = gguf_writer_bytes(w, &n);
    expect_ok(mr_gguf_open_memory(data, n, &g, err), err);
    mr_status status = mr_gpu_index_read(g, &x->info, out, err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    return status;
}

static void test_counts(void **state) {
    (void)state;
    static const struct {
        int32_t ends[LAYERS], step;
        int64_t n, n_first;
        int32_t hot;
        bool is_prefix;
    } CASES[] = {
        {{512, 512}, 1, 1024, 1024, 2, true},
        {{NEURONS, 0}, 1, 700, 700, 2, true},
        {{0, 0}, 1, 0, 0, 0, true},
        {{100, 300}, 1, 400, 400, 2, true},
        {{NEURONS, NEURONS}, 2, 700, 512, 2, false},
        {{280, 280}, 2, 280, 256, 1, true},
        {{1, 1}, 1, 2, 2, 1, true},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        gpu_index *x = make(CASES[i].ends, CASES[i].step);
        mr_gpu_index got = {0};
        mr_err err = {0};
        expect_ok(read_index(x, &got, &err), &err);
        assert_int_equal(got.n_neurons, CASES[i].n);
        assert_int_equal(got.n_all, LAYERS * NEURONS);
        assert_int_equal(got.n_first, CASES[i].n_first);
        assert_int_equal(got.hot_partitions, CASES[i].hot);
        assert_true(mr_gpu_index_is_prefix(&got) == CASES[i].is_prefix);
        free(x);
    }
}

static void expect_refused(gpu_index *x, mr_status want, const char *words) {
    mr_gpu_index got = {.hot_partitions = -7};
    mr_err err = {0};
    mr_status status = read_index(x, &got, &err);
    if (status != want || !strstr(err.text, words))
        fail_msg("%s: '%s', expected '%s'", mr_status_name(status), err.text, words);
    assert_int_equal(got.hot_partitions, -7);
    free(x);
}

#define REFUSED(change, status, words)                                                                                 \
    do {                                                                                                               \
        gpu_index *x = make((const int32_t[]){300, 400}, 1);                                                           \
        change;                                                                                                        \
        expect_refused(x, status, words);                                                                              \
    } while (0)

static void test_malformed(void **state) {
    (void)state;
    REFUSED(x->arch = "llama", MR_E_INVALID, "no GPU index: its architecture is 'llama', not 'generic.gpu_index'");
    REFUSED(x->arch = "generic.gpu_inde", MR_E_INVALID, "no GPU index");
    REFUSED(x->arch = NULL, MR_E_INVALID, "key 'general.architecture' is missing");
    REFUSED(x->info.is_sparse = false, MR_E_INVALID, "this model has no magic 'PWRI'");
    REFUSED(x->layers[1].has_marks = false, MR_E_FORMAT, "'blk.1.gpu_idx' is missing");
    REFUSED(x->layers[0].has_bucket = false, MR_E_FORMAT, "'blk.0.gpu_bucket' is missing");
    REFUSED(x->layers[0].n_marks = NEURONS - 1, MR_E_FORMAT,
            "'blk.0.gpu_idx' of the GPU index is I32 with 1 dimensions and 699 elements, expected I32 with 1 dimension "
            "and 700");
    REFUSED(x->layers[1].type = MR_TYPE_F32, MR_E_FORMAT, "'blk.1.gpu_idx' of the GPU index is F32");
    REFUSED(x->layers[1].marks[699] = 2, MR_E_FORMAT, "'blk.1.gpu_idx' of the GPU index: element 699 is 2");
    REFUSED(x->layers[1].marks[699] = -1, MR_E_FORMAT, "element 699 is -1, allowed are 0 and 1");
    REFUSED(x->layers[0].n_bucket = 299, MR_E_FORMAT, "'blk.0.gpu_bucket' of the GPU index is I32");
    REFUSED(x->layers[0].n_bucket = 301, MR_E_FORMAT, "301 elements, expected I32 with 1 dimension and 300");
    REFUSED(x->layers[0].bucket[7] = 6, MR_E_FORMAT, "'blk.0.gpu_bucket' of the GPU index: element 7 is 6 behind 6");
    REFUSED(x->layers[0].bucket[0] = -1, MR_E_FORMAT, "element 0 is -1 behind -1");
    REFUSED(x->layers[1].bucket[399] = 700, MR_E_FORMAT,
            "element 399 is 700 behind 398, expected a greater number below");
    REFUSED(x->layers[1].bucket[399] = 600, MR_E_FORMAT, "names neuron 600, which 'blk.1.gpu_idx' does not mark");
    REFUSED(x->layers[2] = x->layers[1], MR_E_FORMAT, "has tensor 'blk.2.gpu_idx', but the model has 2 layers");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counts), cmocka_unit_test(test_malformed)};
    return cmocka_run_group_tests_name("gpu_index", tests, NULL, NULL);
}
