/* Tokenizers from model files: valid keys, missing keys, and keys of a wrong type. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/vocab/vocab.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"

#define KEY(name) "tokenizer.ggml." name

#define SPACE "\xE2\x96\x81" /* how a space is written in the vocabulary */
static const char *const TOKENS[] = {"<unk>", "<s>", "</s>", SPACE, "a", "b", "ab", (SPACE "ab")};
static const float SCORES[] = {0, 0, 0, -10, -11, -12, -1, -2};
static const int32_t TYPES[] = {2, 3, 3, 1, 1, 1, 1, 1};
enum { N = 8 };

/* A whole SentencePiece-style vocabulary but for the key named without. */
static gguf_writer *write_spm(const char *without) {
    gguf_writer *w = gguf_writer_create();
    gguf_writer_str(w, "general.architecture", "llama");
    if (strcmp(without, KEY("model")) != 0)
        gguf_writer_str(w, KEY("model"), "llama");
    if (strcmp(without, KEY("tokens")) != 0)
        gguf_writer_strs(w, KEY("tokens"), TOKENS, N);
    if (strcmp(without, KEY("scores")) != 0)
        gguf_writer_f32s(w, KEY("scores"), SCORES, N);
    if (strcmp(without, KEY("token_type")) != 0)
        gguf_writer_i32s(w, KEY("token_type"), TYPES, N);
    if (strcmp(without, KEY("bos_token_id")) != 0)
        gguf_writer_u32(w, KEY("bos_token_id"), 1);
    if (strcmp(without, KEY("eos_token_id")) != 0)
        gguf_writer_u32(w, KEY("eos_token_id"), 2);
    if (strcmp(without, KEY("unknown_token_id")) != 0)
        gguf_writer_u32(w, KEY("unknown_token_id"), 0);
    return w;
}

/* Loads what w holds, and destroys w. */
static mr_status load(gguf_writer *w, mr_tokenizer **out, mr_err *err) {
    size_t size;
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    err->text[0] = 0;
    mr_status status = mr_gguf_open_memory(data, size, &g, err);
    if (status == MR_OK)
        status = mr_vocab_load(g, out, err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    return status;
}

static mr_tokenizer *load_good(gguf_writer *w) {
    mr_tokenizer *tok = NULL;
    mr_err err;
    expect_ok(load(w, &tok, &err), &err);
    return tok;
}

static void refuse(gguf_writer *w, mr_status wanted, const char *text) {
    mr_tokenizer *tok = NULL;
    mr_err err;
    mr_status status = load(w, &tok, &err);
    mr_tokenizer_destroy(tok);
    if (status != wanted || !strstr(err.text, text))
        fail_msg("status %d, text \"%s\", not %d with \"%s\"", (int)status, err.text, (int)wanted, text);
}

static void check_ids(const mr_tokenizer *tok, const char *text, unsigned flags, const int32_t *ids, size_t n) {
    mr_token_buf got = {0};
    mr_err err;
    expect_ok(mr_tokenizer_encode(tok, mr_str_from(text), flags, &got, &err), &err);
    assert_int_equal(got.n, n);
    assert_memory_equal(got.ids, ids, n * sizeof *ids);
    mr_token_buf_deinit(&got);
}

static void test_spm(void **state) {
    (void)state;
    mr_tokenizer *tok = load_good(write_spm(""));
    assert_int_equal(mr_tokenizer_n_tokens(tok), N);
    assert_int_equal(mr_tokenizer_bos_id(tok), 1);
    assert_int_equal(mr_tokenizer_eos_id(tok), 2);
    assert_int_equal(mr_tokenizer_unk_id(tok), 0);
    assert_true(mr_tokenizer_is_end(tok, 2));
    assert_true(mr_tokenizer_adds_bos(tok));
    check_ids(tok, "ab", MR_ENCODE_BOS, (const int32_t[]){1, 7}, 2);
    mr_tokenizer_destroy(tok);
}

static void test_settings_and_optional_keys(void **state) {
    (void)state;
    gguf_writer *w = write_spm(KEY("unknown_token_id"));
    gguf_writer_bool(w, KEY("add_bos_token"), false);
    gguf_writer_bool(w, KEY("add_eos_token"), true);
    gguf_writer_bool(w, KEY("add_space_prefix"), false);
    gguf_writer_u32(w, KEY("eot_token_id"), 5);
    gguf_writer_u32(w, KEY("eom_token_id"), 4);
    mr_tokenizer *tok = load_good(w);
    assert_false(mr_tokenizer_adds_bos(tok));
    assert_true(mr_tokenizer_adds_eos(tok));
    assert_int_equal(mr_tokenizer_unk_id(tok), -1);
    assert_true(mr_tokenizer_is_end(tok, 4) && mr_tokenizer_is_end(tok, 5));
    check_ids(tok, "ab", MR_ENCODE_BOS | MR_ENCODE_EOS, (const int32_t[]){6, 2}, 2);
    mr_tokenizer_destroy(tok);
}

static void test_none_as_a_number(void **state) {
    (void)state;
    gguf_writer *w = write_spm(KEY("bos_token_id"));
    gguf_writer_i32(w, KEY("bos_token_id"), -1);
    gguf_writer_u32(w, KEY("eom_token_id"), UINT32_MAX);
    mr_tokenizer *tok = load_good(w);
    assert_int_equal(mr_tokenizer_bos_id(tok), -1);
    mr_tokenizer_destroy(tok);
}

/* Converters write whole scores as integers, and bools as numbers. */
static void test_numbers_of_other_types(void **state) {
    (void)state;
    static const int32_t scores[N] = {0, 0, 0, -10, -11, -12, -1, -2};
    gguf_writer *w = write_spm(KEY("scores"));
    gguf_writer_i32s(w, KEY("scores"), scores, N);
    gguf_writer_raw(w, KEY("add_bos_token"), MR_GGUF_U8, "\0", 1);
    gguf_writer_u32(w, KEY("add_eos_token"), 1);
    mr_tokenizer *tok = load_good(w);
    check_ids(tok, "ab", MR_ENCODE_BOS | MR_ENCODE_EOS, (const int32_t[]){7, 2}, 2);
    assert_false(mr_tokenizer_adds_bos(tok));
    assert_true(mr_tokenizer_adds_eos(tok));
    mr_tokenizer_destroy(tok);
}

static void test_bpe(void **state) {
    (void)state;
    static const char *const tokens[] = {"a", "b", "ab", "<|endoftext|>"};
    static const char *const merges[] = {"a b"};
    static const int32_t types[] = {1, 1, 1, 3};
    gguf_writer *w = gguf_writer_create();
    gguf_writer_str(w, KEY("model"), "gpt2");
    gguf_writer_str(w, KEY("pre"), "gpt-2");
    gguf_writer_strs(w, KEY("tokens"), tokens, 4);
    gguf_writer_strs(w, KEY("merges"), merges, 1);
    gguf_writer_i32s(w, KEY("token_type"), types, 4);
    gguf_writer_strs(w, KEY("scores"), tokens, 4); /* no scores: BPE does not read them */
    mr_tokenizer *tok = load_good(w);
    check_ids(tok, "abb", 0, (const int32_t[]){2, 1}, 2);
    assert_true(mr_tokenizer_is_end(tok, 3));
    mr_tokenizer_destroy(tok);
}

static void test_missing(void **state) {
    (void)state;
    refuse(write_spm(KEY("model")), MR_E_NOT_FOUND, "no tokenizer");
    refuse(write_spm(KEY("tokens")), MR_E_FORMAT, KEY("tokens"));
    refuse(write_spm(KEY("scores")), MR_E_FORMAT, "scores");
}

static void test_wrong_type_or_size(void **state) {
    (void)state;
    gguf_writer *w = write_spm(KEY("tokens"));
    gguf_writer_u32(w, KEY("tokens"), 3);
    refuse(w, MR_E_FORMAT, KEY("tokens"));
    w = write_spm(KEY("model"));
    gguf_writer_u32(w, KEY("model"), 3);
    refuse(w, MR_E_FORMAT, KEY("model"));
    w = write_spm(KEY("model"));
    gguf_writer_str(w, KEY("model"), "wordpiece");
    refuse(w, MR_E_UNSUPPORTED, "wordpiece");
    w = write_spm(KEY("scores"));
    gguf_writer_strs(w, KEY("scores"), TOKENS, N);
    refuse(w, MR_E_FORMAT, KEY("scores"));
    w = write_spm(KEY("scores"));
    gguf_writer_f32s(w, KEY("scores"), SCORES, N - 1);
    refuse(w, MR_E_FORMAT, "scores");
    w = write_spm(KEY("token_type"));
    gguf_writer_i32s(w, KEY("token_type"), TYPES, N - 1);
    refuse(w, MR_E_FORMAT, "token_type");
    w = write_spm("");
    gguf_writer_str(w, KEY("add_bos_token"), "yes");
    refuse(w, MR_E_FORMAT, KEY("add_bos_token"));
    w = write_spm("");
    gguf_writer_u32s(w, KEY("merges"), (const uint32_t[]){1}, 1);
    refuse(w, MR_E_FORMAT, KEY("merges"));
    w = write_spm("");
    gguf_writer_u32(w, KEY("pre"), 1);
    refuse(w, MR_E_FORMAT, KEY("pre"));
}

static void test_ids_outside(void **state) {
    (void)state;
    const int64_t bad[] = {N, -2, 1 << 30};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        gguf_writer *w = write_spm(KEY("eos_token_id"));
        gguf_writer_i32(w, KEY("eos_token_id"), (int32_t)bad[i]);
        refuse(w, MR_E_FORMAT, KEY("eos_token_id"));
    }
    gguf_writer *w = write_spm("");
    gguf_writer_u64(w, KEY("eot_token_id"), UINT64_MAX - 7);
    refuse(w, MR_E_FORMAT, KEY("eot_token_id"));
    w = write_spm("");
    gguf_writer_f32(w, KEY("eot_token_id"), 1);
    refuse(w, MR_E_FORMAT, KEY("eot_token_id"));
}

static void test_failing_allocations(void **state) {
    (void)state;
    size_t size;
    gguf_writer *w = write_spm("");
    const uint8_t *data = gguf_writer_bytes(w, &size);
    mr_gguf *g = NULL;
    mr_err err;
    expect_ok(mr_gguf_open_memory(data, size, &g, &err), &err);
    mr_status status = MR_E_NO_MEMORY;
    int64_t n = 0;
    for (; status != MR_OK; n++) {
        mr_tokenizer *tok = NULL;
        mr_mem_fail_at(n);
        status = mr_vocab_load(g, &tok, &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || status == MR_E_NO_MEMORY);
        assert_true((tok != NULL) == (status == MR_OK));
        mr_tokenizer_destroy(tok);
    }
    assert_true(n > 5);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm),
        cmocka_unit_test(test_settings_and_optional_keys),
        cmocka_unit_test(test_bpe),
        cmocka_unit_test(test_none_as_a_number),
        cmocka_unit_test(test_numbers_of_other_types),
        cmocka_unit_test(test_missing),
        cmocka_unit_test(test_wrong_type_or_size),
        cmocka_unit_test(test_ids_outside),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
