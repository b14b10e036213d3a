/* Real vocabularies against the ids of their models' own tokenizers. Skipped if the folder of MILLRACE_TEST_VECTORS
 * is missing. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/gguf/gguf.h"
#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"
#include "tests/support/test.h"

#define SEPARATOR "\n__ggml_vocab_test__\n"

static const char *vectors_dir;

static mr_str optional_str(const mr_gguf *g, const char *key) {
    mr_str s = {NULL, 0};
    return mr_gguf_get_str(g, key, &s, NULL) ? (mr_str){NULL, 0} : s;
}

static int32_t optional_id(const mr_gguf *g, const char *key) {
    int32_t id;
    return mr_gguf_get_i32(g, key, &id, NULL) ? -1 : id;
}

static mr_setting optional_bool(const mr_gguf *g, const char *key) {
    bool on;
    return mr_gguf_get_bool(g, key, &on, NULL) ? MR_SETTING_DEFAULT : on ? MR_SETTING_ON : MR_SETTING_OFF;
}

/* Defines a function that copies the array of a key: NULL, and no elements, where the file does not have it. */
#define DEFINE_COPY(name, type, kind, get)                                                                             \
    static type *name(const mr_gguf *g, const char *key, int32_t *out_n) {                                             \
        mr_gguf_array a;                                                                                               \
        *out_n = 0;                                                                                                    \
        if (mr_gguf_get_array(g, key, kind, &a, NULL))                                                                 \
            return NULL;                                                                                               \
        type *out = mr_alloc_array(a.n, sizeof *out);                                                                  \
        assert_non_null(out);                                                                                          \
        for (size_t i = 0; i < a.n; i++)                                                                               \
            out[i] = get(&a, i);                                                                                       \
        *out_n = (int32_t)a.n;                                                                                         \
        return out;                                                                                                    \
    }
DEFINE_COPY(copy_strings, mr_str, MR_GGUF_ELEMS_STRINGS, mr_gguf_array_str)
DEFINE_COPY(copy_floats, float, MR_GGUF_ELEMS_FLOATS, mr_gguf_array_f32)
DEFINE_COPY(copy_ints, int32_t, MR_GGUF_ELEMS_INTEGERS, mr_gguf_array_i32)

static mr_tokenizer *load(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf", vectors_dir, name);
    mr_err err;
    mr_gguf *g = NULL;
    expect_ok(mr_gguf_open(path, &g, &err), &err);
    mr_vocab_desc d = mr_vocab_desc_empty();
    d.architecture = optional_str(g, "general.architecture");
    d.model = optional_str(g, "tokenizer.ggml.model");
    d.pre = optional_str(g, "tokenizer.ggml.pre");
    mr_str *tokens = copy_strings(g, "tokenizer.ggml.tokens", &d.n_tokens);
    mr_str *merges = copy_strings(g, "tokenizer.ggml.merges", &d.n_merges);
    float *scores = copy_floats(g, "tokenizer.ggml.scores", &d.n_scores);
    int32_t *types = copy_ints(g, "tokenizer.ggml.token_type", &d.n_types);
    d.tokens = tokens;
    d.merges = merges;
    d.scores = scores;
    d.types = types;
    d.bos_id = optional_id(g, "tokenizer.ggml.bos_token_id");
    d.eos_id = optional_id(g, "tokenizer.ggml.eos_token_id");
    d.unk_id = optional_id(g, "tokenizer.ggml.unknown_token_id");
    d.add_bos = optional_bool(g, "tokenizer.ggml.add_bos_token");
    d.add_eos = optional_bool(g, "tokenizer.ggml.add_eos_token");
    d.add_space_prefix = optional_bool(g, "tokenizer.ggml.add_space_prefix");
    mr_tokenizer *tok = NULL;
    expect_ok(mr_tokenizer_create(&d, &tok, &err), &err);
    mr_free(tokens);
    mr_free(merges);
    mr_free(scores);
    mr_free(types);
    mr_gguf_close(g);
    return tok;
}

static char *read_file(const char *name, const char *suffix) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf.%s", vectors_dir, name, suffix);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    size_t n = (size_t)ftell(f);
    rewind(f);
    char *data = mr_alloc(n + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, n, f), n);
    fclose(f);
    return data;
}

static void encode(const mr_tokenizer *tok, mr_str text, unsigned flags, mr_token_buf *out) {
    mr_err err;
    mr_token_buf_clear(out);
    expect_ok(mr_tokenizer_encode(tok, text, flags, out, &err), &err);
}

static void check_ids(const mr_token_buf *got, const int32_t *want, size_t n) {
    if (got->n == n && (n == 0 || memcmp(got->ids, want, n * sizeof *want) == 0))
        return;
    print_error("got  ");
    for (size_t i = 0; i < got->n; i++)
        print_error(" %d", got->ids[i]);
    print_error("\nwanted");
    for (size_t i = 0; i < n; i++)
        print_error(" %d", want[i]);
    print_error("\n");
    fail();
}

/* Checks one text: its ids are those in line, and decoding the ids gives the text. */
static void check_text(const mr_tokenizer *tok, mr_str text, const char *line) {
    int32_t want[4096];
    size_t n = 0;
    for (char *end;; line = end) {
        long id = strtol(line, &end, 10);
        if (end == line)
            break;
        assert_true(n < sizeof want / sizeof *want);
        want[n++] = (int32_t)id;
    }
    mr_token_buf ids = {0};
    mr_text_buf back = {0};
    mr_err err;
    encode(tok, text, 0, &ids);
    check_ids(&ids, want, n);
    expect_ok(mr_tokenizer_decode(tok, ids.ids, ids.n, 0, &back, &err), &err);
    assert_int_equal(back.len, text.len);
    assert_memory_equal(back.len ? back.data : "", text.len ? text.data : "", text.len);
    mr_token_buf_deinit(&ids);
    mr_text_buf_deinit(&back);
}

/* A vocabulary that the folder lacks is skipped. */
static void check_vocab(const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers/ggml-vocab-%s.gguf", vectors_dir, name);
    if (access(path, R_OK) != 0)
        skip();
    mr_tokenizer *tok = load(name);
    char *texts = read_file(name, "inp"), *lines = read_file(name, "out");
    char *text = texts, *line = lines;
    int n = 0;
    while (line && *line) {
        char *text_end = strstr(text, SEPARATOR), *line_end = strchr(line, '\n');
        if (line_end)
            *line_end = 0;
        size_t len = text_end ? (size_t)(text_end - text) : strlen(text);
        check_text(tok, (mr_str){text, len}, line);
        n++;
        if (!text_end)
            break;
        text = text_end + strlen(SEPARATOR);
        line = line_end ? line_end + 1 : NULL;
    }
    print_message("%s: %d texts, %d merges left out\n", name, n, mr_tokenizer_n_skipped_merges(tok));
    assert_true(n >= 46);
    assert_int_equal(mr_tokenizer_n_skipped_merges(tok), 0);
    mr_free(texts);
    mr_free(lines);
    mr_tokenizer_destroy(tok);
}

static void test_llama_spm(void **state) {
    (void)state;
    check_vocab("llama-spm");
}
static void test_phi_3(void **state) {
    (void)state;
    check_vocab("phi-3");
}
static void test_gpt_2(void **state) {
    (void)state;
    check_vocab("gpt-2");
}
static void test_llama_bpe(void **state) {
    (void)state;
    check_vocab("llama-bpe");
}
static void test_qwen2(void **state) {
    (void)state;
    check_vocab("qwen2");
}
static void test_deepseek_llm(void **state) {
    (void)state;
    check_vocab("deepseek-llm");
}
static void test_deepseek_coder(void **state) {
    (void)state;
    check_vocab("deepseek-coder");
}
static void test_qwen35(void **state) {
    (void)state;
    check_vocab("qwen35");
}
static void test_mpt(void **state) {
    (void)state;
    check_vocab("mpt");
}
static void test_starcoder(void **state) {
    (void)state;
    check_vocab("starcoder");
}
static void test_refact(void **state) {
    (void)state;
    check_vocab("refact");
}
static void test_command_r(void **state) {
    (void)state;
    check_vocab("command-r");
}
static void test_falcon(void **state) {
    (void)state;
    check_vocab("falcon");
}
static void test_gemma_4(void **state) {
    (void)state;
    check_vocab("gemma-4");
}

#define CHECK_CHAT(tok, text, ...)                                                                                     \
    check_chat(tok, text, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void check_chat(const mr_tokenizer *tok, const char *text, const int32_t *want, size_t n) {
    mr_token_buf ids = {0};
    encode(tok, mr_str_from(text), MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_BOS, &ids);
    check_ids(&ids, want, n);
    mr_token_buf_deinit(&ids);
}

static void check_ends(const mr_tokenizer *tok, int32_t n, const int32_t *want) {
    const int32_t *ends;
    int32_t n_ends;
    mr_tokenizer_ends(tok, &ends, &n_ends);
    assert_int_equal(n_ends, n);
    assert_memory_equal(ends, want, (size_t)n * sizeof *want);
}

static void test_chat_texts(void **state) {
    (void)state;
    mr_tokenizer *tok = load("llama-bpe");
    CHECK_CHAT(tok, "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>", 128000, 128006, 882, 128007, 271,
               9906, 128009);
    check_ends(tok, 2, (const int32_t[]){128001, 128009});
    mr_tokenizer_destroy(tok);
    tok = load("qwen2");
    CHECK_CHAT(tok, "<|im_start|>user\nHello<|im_end|>\n", 151644, 872, 198, 9707, 151645, 198);
    check_ends(tok, 2, (const int32_t[]){151643, 151645});
    mr_tokenizer_destroy(tok);
    tok = load("phi-3");
    CHECK_CHAT(tok, "<|user|>\nHello<|end|>\n<|assistant|>\n", 1, 32010, 15043, 32007, 32001);
    mr_tokenizer_destroy(tok);
}

/* A megabyte of one letter is one word: merging it must not take quadratic time. */
static void test_a_long_word(void **state) {
    (void)state;
    static const char *const names[] = {"llama-spm", "gpt-2", "deepseek-llm"};
    enum { N = 1000000 };
    char *text = mr_alloc(N);
    assert_non_null(text);
    memset(text, 'a', N);
    for (int i = 0; i < 3; i++) {
        mr_tokenizer *tok = load(names[i]);
        mr_token_buf ids = {0};
        int64_t start = mr_clock_now_ns();
        encode(tok, (mr_str){text, N}, 0, &ids);
        int64_t took = mr_clock_now_ns() - start;
        print_message("%s: %.2f s\n", names[i], (double)took / 1e9);
        /* Takes about 0.5 s; the limit leaves room for sanitizers and busy machines. */
        assert_true(took < 20 * MR_NS_PER_S);
        mr_token_buf_deinit(&ids);
        mr_tokenizer_destroy(tok);
    }
    mr_free(text);
}

int main(void) {
    const char *dir = getenv("MILLRACE_TEST_VECTORS");
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizers", dir ? dir : "");
    if (!dir || access(path, R_OK) != 0) {
        printf("skipped: MILLRACE_TEST_VECTORS is %s, and there are no tokenizers\n", dir ? dir : "not set");
        return 77;
    }
    vectors_dir = dir;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_spm),      cmocka_unit_test(test_phi_3),   cmocka_unit_test(test_gpt_2),
        cmocka_unit_test(test_llama_bpe),      cmocka_unit_test(test_qwen2),   cmocka_unit_test(test_deepseek_llm),
        cmocka_unit_test(test_deepseek_coder), cmocka_unit_test(test_qwen35),  cmocka_unit_test(test_mpt),
        cmocka_unit_test(test_starcoder),      cmocka_unit_test(test_refact),  cmocka_unit_test(test_command_r),
        cmocka_unit_test(test_falcon),         cmocka_unit_test(test_gemma_4), cmocka_unit_test(test_chat_texts),
        cmocka_unit_test(test_a_long_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
