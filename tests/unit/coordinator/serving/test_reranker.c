/* The template and the rank head of a reranker: what is read, what is refused, prompts and scores. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>

#include "coordinator/serving/rerank/reranker.h"
#include "engine/base/mem.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

enum { WIDTH = 4, MAX_VALUES = 32 };

#define FIRST_LOGIT_WEIGHT 1.5F
#define KEY_LABELS "qwen3.classifier.output_labels"

/* What a file has. */
typedef struct file_desc {
    bool has_head;
    mr_type type;
    int n_dims;
    int64_t ne[3];
    int n_labels;              /* -1: no key */
    const char *template_text; /* NULL: no key */
    float weight;              /* the first weight of the head */
} file_desc;

static const file_desc GOOD = {
    true, MR_TYPE_F32, 2, {WIDTH, 2, 1}, 2, "<q>{query}</q> {x}{<d>{document}{", FIRST_LOGIT_WEIGHT};

static mr_status load(const file_desc *f, mr_reranker **out, mr_err *err) {
    static const mr_model_info info = {.arch = "qwen3", .d_model = WIDTH};
    static const char *const labels[] = {"yes", "no", "perhaps"};
    const float head[MAX_VALUES] = {f->weight, 0, 0, 0.25F, 0, 0.5F, 0, -2};
    gguf_writer *w = gguf_writer_create();
    mr_gguf *g;
    size_t n;
    if (f->n_labels >= 0)
        gguf_writer_strs(w, KEY_LABELS, labels, (size_t)f->n_labels);
    if (f->template_text)
        gguf_writer_str(w, "tokenizer.chat_template.rerank", f->template_text);
    if (f->has_head)
        gguf_writer_tensor(w, "cls.output.weight", f->type, f->n_dims, f->ne, head);
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    expect_ok(mr_gguf_open_memory(bytes, n, &g, err), err);
    mr_status status = mr_reranker_load(g, &info, out, err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    return status;
}

static void test_files(void **state) {
    (void)state;
    static const struct {
        file_desc file;
        mr_status want;
        const char *words;
    } cases[] = {
        {{true, MR_TYPE_F32, 2, {WIDTH + 1, 2}, 2, "{query}{document}", 1}, MR_E_FORMAT, "5 x 2"},
        {{true, MR_TYPE_F32, 2, {WIDTH, 1}, 1, "{query}{document}", 1}, MR_E_FORMAT, "cls.output.weight"},
        {{true, MR_TYPE_F32, 1, {WIDTH}, 1, "{query}{document}", 1}, MR_E_FORMAT, "1 dimensions, 4 x 1"},
        {{true, MR_TYPE_F32, 3, {WIDTH, 2, 2}, 2, "{query}{document}", 1}, MR_E_FORMAT, "3 dimensions"},
        {{true, MR_TYPE_I32, 2, {WIDTH, 2}, 2, "{query}{document}", 1}, MR_E_UNSUPPORTED, "type I32"},
        {{true, MR_TYPE_F32, 2, {WIDTH, 2}, 3, "{query}{document}", 1}, MR_E_FORMAT, KEY_LABELS " has 3 labels"},
        {{true, MR_TYPE_F32, 2, {WIDTH, 2}, 2, "{query}{document}", NAN}, MR_E_FORMAT, "nan"},
        {{true, MR_TYPE_F32, 2, {WIDTH, 2}, 2, NULL, 1}, MR_E_FORMAT, "no tokenizer.chat_template.rerank"},
        {{true, MR_TYPE_F32, 2, {WIDTH, 2}, 2, "{query}", 1}, MR_E_FORMAT, "{document}"},
    };
    mr_reranker *r = NULL;
    mr_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        expect_fails(load(&cases[i].file, &r, &err), cases[i].want, &err, cases[i].words);
        assert_null(r);
    }
    file_desc f = GOOD;
    f.has_head = false;
    expect_ok(load(&f, &r, &err), &err);
    assert_null(r); /* no reranker, and no error */
    f = GOOD;
    f.n_labels = -1;
    expect_ok(load(&f, &r, &err), &err);
    assert_non_null(r);
    mr_reranker_destroy(r);
}

static void test_prompts(void **state) {
    (void)state;
    static const char want[] = "<q>a {document}</q> {x}{<d>{query} b{";
    mr_reranker *r = NULL;
    mr_text_buf out = {0};
    mr_err err = {0};
    expect_ok(load(&GOOD, &r, &err), &err);
    assert_true(mr_reranker_prompt(r, mr_str_from("a {document}"), mr_str_from("{query} b"), &out));
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.data, want, out.len);
    mr_text_buf_deinit(&out);
    mr_reranker_destroy(r);
}

static void test_scores(void **state) {
    (void)state;
    static const float rows[][WIDTH] = {{0, 0, 0, 0},    {1, 0, 0, 0},   {2, 3, 4, -5},
                                        {-400, 0, 0, 0}, {400, 0, 9, 0}, {-4e4F, 9, 9, 1}};
    mr_reranker *r = NULL;
    mr_err err = {0};
    expect_ok(load(&GOOD, &r, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const float *x = rows[i];
        double yes = 1.5 * (double)x[0] + 0.25 * (double)x[3], no = 0.5 * (double)x[1] - 2 * (double)x[3];
        double want = 1 / (1 + exp(no - yes)), got = mr_reranker_score(r, x);
        if (!(fabs(got - want) <= 1e-14 * want + 1e-300))
            fail_msg("row %zu: %.17g, not %.17g", i, got, want);
    }
    mr_reranker_destroy(r);
}

/* Each allocation fails once. */
static void test_no_memory(void **state) {
    (void)state;
    static const mr_model_info info = {.arch = "qwen3", .d_model = WIDTH};
    static const float head[2 * WIDTH];
    static const int64_t ne[] = {WIDTH, 2};
    mr_err err = {0};
    mr_gguf *g;
    size_t n;
    gguf_writer *w = gguf_writer_create();
    gguf_writer_str(w, "tokenizer.chat_template.rerank", GOOD.template_text);
    gguf_writer_tensor(w, "cls.output.weight", MR_TYPE_F32, 2, ne, head);
    const uint8_t *bytes = gguf_writer_bytes(w, &n);
    expect_ok(mr_gguf_open_memory(bytes, n, &g, &err), &err);
    mr_status status = MR_E_NO_MEMORY;
    int64_t at = 0;
    for (; status != MR_OK && at < 100; at++) {
        mr_reranker *r = NULL;
        mr_mem_fail_at(at);
        status = mr_reranker_load(g, &info, &r, &err);
        mr_mem_fail_at(-1);
        assert_true(status == (r ? MR_OK : MR_E_NO_MEMORY));
        mr_reranker_destroy(r);
    }
    assert_true(status == MR_OK && at > 2);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_prompts),
                                       cmocka_unit_test(test_scores), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
