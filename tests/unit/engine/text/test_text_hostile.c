/* Vocabularies with wrong descriptions, texts that are meant to be slow, and failed allocations. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/text/detok.h"
#include "engine/text/tokenizer.h"
#include "tests/support/test.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

static small_vocab vocab;

static void expect_refused(mr_status want, const char *text) {
    mr_err err = {0};
    mr_tokenizer *tok = NULL;
    assert_int_equal(mr_tokenizer_create(&vocab.desc, &tok, &err), want);
    assert_null(tok);
    assert_string_equal(err.text, text);
}

static void test_counts(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.bos_id = vocab.desc.eos_id = vocab.desc.unk_id = -1;
    vocab.desc.n_tokens = -1;
    expect_refused(MR_E_FORMAT, "the vocabulary has -1 tokens; 1 to 4194304 are allowed");
    vocab.desc.n_tokens = INT32_MAX;
    expect_refused(MR_E_FORMAT, "the vocabulary has 2147483647 tokens; 1 to 4194304 are allowed");
    small_spm(&vocab);
    vocab.desc.tokens = NULL;
    expect_refused(MR_E_FORMAT, "the vocabulary has 272 tokens; 1 to 4194304 are allowed");
    small_spm(&vocab);
    vocab.desc.n_types = 5;
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.token_type has 5 entries for 272 tokens");
    small_spm(&vocab);
    vocab.desc.n_scores = -7;
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.scores has -7 entries for 272 tokens");
    small_spm(&vocab);
    vocab.desc.scores = NULL;
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.scores has 272 entries for 272 tokens");
    small_bpe(&vocab);
    vocab.desc.n_merges = 0;
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.merges has 0 entries; 1 to 4194304 are allowed");
    vocab.desc.n_merges = INT32_MIN;
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.merges has -2147483648 entries; 1 to 4194304 are allowed");
}

static void test_names(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.model = (mr_str){NULL, 0};
    expect_refused(MR_E_FORMAT, "tokenizer.ggml.model is missing");
    vocab.desc.model = mr_str_from("bert\x1b[2J");
    expect_refused(MR_E_UNSUPPORTED, "unknown tokenizer model \"bert?[2J\"; known are llama, gpt2, gemma4");
    small_bpe(&vocab);
    vocab.desc.pre = mr_str_from("bloom");
    expect_refused(MR_E_UNSUPPORTED, "unknown pre-tokenizer \"bloom\"; known are gpt-2, llama-bpe, glm4, chatglm-bpe, "
                                     "qwen2, hunyuan, kimi-k2, qwen35, seed-coder, gpt-4o, tekken, deepseek-v3, "
                                     "deepseek-coder, deepseek-llm, starcoder, falcon and some of the same kinds");
}

static void test_values(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.bos_id = SPM_N;
    expect_refused(MR_E_FORMAT, "the bos token's id is 272, but there are 272 tokens");
    vocab.desc.bos_id = INT32_MIN;
    expect_refused(MR_E_FORMAT, "the bos token's id is -2147483648, but there are 272 tokens");
    small_spm(&vocab);
    vocab.desc.eom_id = 1 << 30;
    expect_refused(MR_E_FORMAT, "the eom token's id is 1073741824, but there are 272 tokens");
    small_spm(&vocab);
    vocab.desc.bos_id = -1;
    vocab.desc.add_bos = MR_SETTING_ON;
    expect_refused(MR_E_FORMAT, "add_bos_token is set, but there is no bos token");
    small_spm(&vocab);
    vocab.desc.eos_id = -1;
    vocab.desc.add_eos = MR_SETTING_ON;
    expect_refused(MR_E_FORMAT, "add_eos_token is set, but there is no eos token");
    small_spm(&vocab);
    vocab.types[9] = 7;
    expect_refused(MR_E_FORMAT, "token 9 has type 7, which is none of 0 to 6");
    small_spm(&vocab);
    vocab.scores[8] = NAN;
    expect_refused(MR_E_FORMAT, "the score of token 8 is not a number");
    small_spm(&vocab);
    vocab.tokens[3].len = MR_VOCAB_MAX_TOKEN_BYTES + 1;
    expect_refused(MR_E_FORMAT, "token 3 is 16385 bytes long; at most 16384 are allowed");
    small_spm(&vocab);
    vocab.tokens[3] = (mr_str){NULL, 4};
    expect_refused(MR_E_FORMAT, "token 3 is 4 bytes long; at most 16384 are allowed");
}

static void test_merges(void **state) {
    (void)state;
    static const char *const broken[] = {"", " ", "ab", "a ", " b"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        small_bpe(&vocab);
        vocab.merges[2] = mr_str_from(broken[i]);
        expect_refused(MR_E_FORMAT, "merge 2 is not two texts with a space between them");
    }
    small_bpe(&vocab);
    /* Unknown halves, an unknown result, bytes outside the alphabet, a control token, and a merge that is listed
     * twice. */
    static const char *const skipped[] = {"zz y", "z zz", "z y", "\xFF\xFE h", "<|eot_id|> h", "h e"};
    for (int i = 0; i < 6; i++)
        vocab.merges[vocab.desc.n_merges + i] = mr_str_from(skipped[i]);
    vocab.desc.n_merges += 6;
    mr_tokenizer *tok = small_create(&vocab);
    assert_int_equal(mr_tokenizer_n_skipped_merges(tok), 5);
    EXPECT_IDS(tok, "zyhe", 0, 'z', 'y', BPE_HE);
    mr_tokenizer_destroy(tok);
}

static void test_odd_tokens_are_taken(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.tokens[SPM_UNUSED] = mr_str_from("ab"); /* the text of another token */
    vocab.tokens[SPM_TOOL] = (mr_str){NULL, 0};   /* empty, although special */
    vocab.tokens[SPM_TOOLS] = (mr_str){NULL, 0};
    vocab.tokens[SPM_SPACES] = mr_str_from("\xE2\x96");   /* half a character */
    vocab.tokens[SPM_BYTE_0 + 1] = mr_str_from("<0xZZ>"); /* malformed, so no byte token in spite of its type */
    vocab.tokens[SPM_BYTE_0 + 2] = mr_str_from("<0x03>"); /* the byte of another byte token */
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "ab", MR_ENCODE_CONTINUES, SPM_AB);
    EXPECT_IDS(tok, "\x01", MR_ENCODE_CONTINUES, 0);
    EXPECT_IDS(tok, "\x03", MR_ENCODE_CONTINUES, SPM_BYTE_0 + 2);
    EXPECT_TEXT(tok, "a\uFFFDa", 0, SPM_A, SPM_TOOL, SPM_SPACES, SPM_A);
    mr_tokenizer_destroy(tok);
    small_spm(&vocab);
    vocab.desc.n_types = 0; /* without types, all tokens are normal except those with the text of a byte token */
    tok = small_create(&vocab);
    EXPECT_IDS(tok, "q", MR_ENCODE_CONTINUES, SPM_BYTE_0 + 'q');
    mr_tokenizer_destroy(tok);
}

/* a, aa, aaaa … : every merge makes a longer token. */
static void test_long_tokens_in_a_long_text(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    char *text = mr_alloc(N);
    memset(text, 'a', N);
    small_spm(&vocab);
    for (int i = 0; i < 13; i++) {
        vocab.tokens[SPM_SPACE + i] = (mr_str){text, (size_t)1 << i};
        vocab.types[SPM_SPACE + i] = MR_TOKEN_NORMAL;
        vocab.scores[SPM_SPACE + i] = (float)i;
    }
    mr_tokenizer *tok = small_create(&vocab);
    mr_token_buf ids = {0};
    int64_t start = mr_clock_now_ns();
    assert_int_equal(mr_tokenizer_encode(tok, (mr_str){text, N}, MR_ENCODE_CONTINUES, &ids, NULL), MR_OK);
    assert_true(mr_clock_now_ns() - start < 20 * MR_NS_PER_S);
    assert_int_equal(ids.n, N >> 12);
    mr_token_buf_deinit(&ids);
    mr_tokenizer_destroy(tok);
    mr_free(text);
}

/* After a failed allocation there is a status, nothing has leaked, and all objects still work. */
static mr_status scenario(const mr_tokenizer *tok, mr_token_buf *ids, mr_text_buf *text) {
    static const char input[] =
        "abab hello <u> [TOOL]ab 🦙\xFF 12345 <|eot_id|>  ababababababababababababababababababab";
    mr_token_buf_clear(ids);
    mr_text_buf_clear(text);
    mr_err err;
    mr_status s = mr_tokenizer_encode(tok, mr_str_from(input), MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_BOS, ids, &err);
    if (s) {
        assert_int_equal(ids->n, 0);
        assert_true(err.status == s && err.text[0]);
        return s;
    }
    s = mr_tokenizer_decode(tok, ids->ids, ids->n, MR_DECODE_SPECIAL, text, &err);
    assert_true(s == MR_OK || text->len == 0);
    return s;
}

/* Runs attempt with the 1st, 2nd, 3rd … allocation failing, until it makes fewer; returns how many that were. */
static int fail_each(mr_status (*attempt)(void *), void *arg) {
    for (int i = 0;; i++) {
        uint64_t before = mr_mem_get_stats().n_allocs;
        mr_mem_fail_at(i);
        mr_status s = attempt(arg);
        mr_mem_fail_at(-1);
        assert_true(s == MR_OK || s == MR_E_NO_MEMORY);
        if (mr_mem_get_stats().n_allocs - before <= (uint64_t)i) {
            assert_int_equal(s, MR_OK);
            return i;
        }
        /* If memory runs out while PCRE2 compiles for this machine, the pattern is interpreted, so a few calls
         * succeed. */
    }
}

static mr_status attempt_create(void *arg) {
    (void)arg;
    mr_err err = {0};
    mr_tokenizer *tok = NULL;
    mr_status s = mr_tokenizer_create(&vocab.desc, &tok, &err);
    assert_true(s ? !tok && err.text[0] : tok != NULL);
    mr_tokenizer_destroy(tok);
    return s;
}

static mr_status attempt_scenario(void *arg) {
    mr_token_buf ids = {0};
    mr_text_buf text = {0};
    mr_status s = scenario(arg, &ids, &text);
    if (s) {
        mr_mem_fail_at(-1);
        assert_int_equal(scenario(arg, &ids, &text), MR_OK); /* the same objects work when memory is available again */
    }
    mr_token_buf_deinit(&ids);
    mr_text_buf_deinit(&text);
    return s;
}

static void sweep(void) {
    int n_create = fail_each(attempt_create, NULL);
    mr_tokenizer *tok = small_create(&vocab);
    int n_use = fail_each(attempt_scenario, tok);
    mr_tokenizer_destroy(tok);
    print_message("each of %d + %d allocations failed once\n", n_create, n_use);
}

static void test_every_allocation_fails_once(void **state) {
    (void)state;
    small_spm(&vocab);
    sweep();
    static const char *const pres[] = {"gpt-2", "llama-bpe", "deepseek-llm"};
    for (int i = 0; i < 3; i++) {
        small_bpe(&vocab);
        vocab.desc.pre = mr_str_from(pres[i]);
        sweep();
    }
}

static void *encode_many(void *arg) {
    mr_token_buf ids = {0};
    mr_text_buf text = {0};
    for (int i = 0; i < 200; i++)
        if (scenario(arg, &ids, &text))
            return NULL;
    mr_token_buf_deinit(&ids);
    mr_text_buf_deinit(&text);
    return arg;
}

static void test_threads_share_a_tokenizer(void **state) {
    (void)state;
    small_bpe(&vocab);
    vocab.desc.pre = mr_str_from("deepseek-llm");
    mr_tokenizer *tok = small_create(&vocab);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_many, tok), 0);
    for (int i = 0; i < 4; i++) {
        void *result = NULL;
        assert_int_equal(pthread_join(threads[i], &result), 0);
        assert_ptr_equal(result, tok);
    }
    mr_tokenizer_destroy(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_odd_tokens_are_taken),
        cmocka_unit_test(test_long_tokens_in_a_long_text),
        cmocka_unit_test(test_every_allocation_fails_once),
        cmocka_unit_test(test_threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
