/* Encoding and decoding with small vocabularies whose every token is known. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/tokenizer.h"
#include "tests/support/test.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

enum { SPECIAL = MR_ENCODE_PARSE_SPECIAL, BOS = MR_ENCODE_BOS, EOS = MR_ENCODE_EOS, CONTINUES = MR_ENCODE_CONTINUES };

static small_vocab vocab;

static mr_tokenizer *spm(void) {
    small_spm(&vocab);
    return small_create(&vocab);
}

static mr_tokenizer *bpe(const char *pre) {
    small_bpe(&vocab);
    vocab.desc.pre = mr_str_from(pre);
    return small_create(&vocab);
}

static void test_spm_merges_by_score_from_the_left(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    /* "ab" merges first everywhere. Then "▁ab" has a better score than "abab". */
    EXPECT_IDS(tok, "ab", 0, SPM_SPACE_AB);
    EXPECT_IDS(tok, "abab", 0, SPM_SPACE_AB, SPM_AB);
    EXPECT_IDS(tok, "abab", CONTINUES, SPM_ABAB);
    EXPECT_IDS(tok, "ababab", CONTINUES, SPM_ABAB, SPM_AB);
    EXPECT_IDS(tok, " ab", 0, SPM_SPACE, SPM_SPACE_AB);
    EXPECT_IDS(tok, "  ", 0, SPM_SPACES, SPM_SPACE);
    EXPECT_IDS(tok, "bba", CONTINUES, SPM_B, SPM_UNUSED);
    expect_ids(tok, mr_str_from(""), 0, NULL, 0);
    mr_tokenizer_destroy(tok);
}

static void test_spm_falls_back_to_bytes(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    EXPECT_IDS(tok, "🦙", CONTINUES, SPM_LLAMA);
    EXPECT_IDS(tok, "é", CONTINUES, SPM_BYTE_0 + 0xC3, SPM_BYTE_0 + 0xA9);
    EXPECT_IDS(tok, "a\xFF\xC3", CONTINUES, SPM_A, SPM_BYTE_0 + 0xFF, SPM_BYTE_0 + 0xC3);
    EXPECT_IDS(tok, "▁ab", CONTINUES, SPM_SPACE_AB); /* the character ▁ itself is read as a space */
    mr_tokenizer_destroy(tok);
}

static void test_spm_without_byte_tokens(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.types[SPM_BYTE_0 + 0xA9] = MR_TOKEN_NORMAL; /* the second byte of é */
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "aéb", CONTINUES, SPM_A, 0, SPM_B);
    mr_tokenizer_destroy(tok);
    vocab.desc.unk_id = -1;
    tok = small_create(&vocab);
    EXPECT_IDS(tok, "aéb", CONTINUES, SPM_A, SPM_B);
    mr_tokenizer_destroy(tok);
}

static void test_spm_with_spaces_inside_tokens(void **state) {
    (void)state;
    small_spm(&vocab);
    /* A token across a word boundary must be found, so the text may not be split at spaces. */
    vocab.tokens[SPM_UNUSED] = mr_str_from("b▁");
    vocab.scores[SPM_UNUSED] = 5;
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "ab ab", CONTINUES, SPM_A, SPM_UNUSED, SPM_AB);
    mr_tokenizer_destroy(tok);
}

static void test_special_tokens_only_on_request(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    EXPECT_IDS(tok, "<s>ab", SPECIAL, 1, SPM_SPACE_AB);
    EXPECT_IDS(tok, "ab<|im_end|>ab</s>", SPECIAL, SPM_SPACE_AB, SPM_IM_END, SPM_SPACE_AB, 2);
    EXPECT_IDS(tok, "<unk>", SPECIAL, 0);
    mr_token_buf ids = {0};
    mr_err err;
    const char *text = "<s><unk></s><|im_start|>[TOOL]S<0x41>";
    expect_ok(mr_tokenizer_encode(tok, mr_str_from(text), 0, &ids, &err), &err);
    for (size_t i = 0; i < ids.n; i++)
        assert_true(mr_tokenizer_type(tok, ids.ids[i]) != MR_TOKEN_CONTROL && ids.ids[i] != 0);
    mr_text_buf back = {0};
    expect_ok(mr_tokenizer_decode(tok, ids.ids, ids.n, 0, &back, &err), &err);
    expect_says(back.data, "<0x41>"); /* the user typed this text, so it is no byte token */
    mr_text_buf_deinit(&back);
    mr_token_buf_deinit(&ids);
    mr_tokenizer_destroy(tok);
}

static void test_user_defined_tokens_always(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    EXPECT_IDS(tok, "ab[TOOL]ab", 0, SPM_SPACE_AB, SPM_TOOL, SPM_SPACE_AB);
    EXPECT_IDS(tok, "[TOOL]", 0, SPM_TOOL);
    /* The longest of the allowed special tokens is chosen. */
    EXPECT_IDS(tok, "[TOOL]S", SPECIAL, SPM_TOOLS);
    EXPECT_IDS(tok, "[TOOL]S", 0, SPM_TOOL, SPM_SPACE, SPM_BYTE_0 + 'S');
    EXPECT_IDS(tok, "[TOO", CONTINUES, SPM_BYTE_0 + '[', SPM_BYTE_0 + 'T', SPM_BYTE_0 + 'O', SPM_BYTE_0 + 'O');
    mr_tokenizer_destroy(tok);
}

/* Gemma's runs of spaces are user-defined tokens, and no space is added in front of a text. */
static void test_user_defined_spaces(void **state) {
    (void)state;
    static const char *const ways[] = {"▁▁▁", "   "};
    for (int i = 0; i < 2; i++) {
        small_spm(&vocab);
        vocab.tokens[SPM_TOOL] = mr_str_from(ways[i]);
        vocab.desc.add_space_prefix = MR_SETTING_OFF;
        mr_tokenizer *tok = small_create(&vocab);
        EXPECT_IDS(tok, "ab   ab  ab", 0, SPM_AB, SPM_TOOL, SPM_AB, SPM_SPACE, SPM_SPACE_AB);
        EXPECT_IDS(tok, "     ab ab", 0, SPM_TOOL, SPM_SPACE, SPM_SPACE_AB, SPM_SPACE_AB);
        EXPECT_TEXT(tok, "ab   ab", 0, SPM_AB, SPM_TOOL, SPM_AB);
        mr_tokenizer_destroy(tok);
        vocab.desc.add_space_prefix = MR_SETTING_ON;
        tok = small_create(&vocab);
        EXPECT_TEXT(tok, "   ab", 0, SPM_TOOL, SPM_AB);
        EXPECT_TEXT(tok, "ab   ", 0, SPM_SPACE_AB, SPM_TOOL);
        mr_tokenizer_destroy(tok);
    }
}

static void test_repeated_special_tokens(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.tokens[SPM_IM_START] = vocab.tokens[SPM_IM_END] = vocab.tokens[SPM_TOOL];
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "[TOOL]", SPECIAL, SPM_IM_START);
    EXPECT_IDS(tok, "[TOOL]", 0, SPM_TOOL);
    assert_int_equal(mr_tokenizer_find(tok, mr_str_from("[TOOL]")), SPM_IM_START);
    mr_tokenizer_destroy(tok);
}

static void test_phi3_tokens_take_the_space_behind_them(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.architecture = mr_str_from("phi3");
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "<|im_start|>\n \t\u3000ab<s> ab", SPECIAL, SPM_IM_START, SPM_SPACE_AB, 1, SPM_SPACE, SPM_SPACE_AB);
    EXPECT_IDS(tok, "<|im_end|>\n<|im_start|>\n", SPECIAL, SPM_IM_END, SPM_IM_START);
    mr_tokenizer_destroy(tok);
}

static void test_bos_and_eos(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    EXPECT_IDS(tok, "ab", BOS | EOS, 1, SPM_SPACE_AB);
    EXPECT_IDS(tok, "", BOS, 1);
    EXPECT_IDS(tok, "<s>ab", BOS | SPECIAL, 1, SPM_SPACE_AB); /* one BOS only */
    EXPECT_IDS(tok, "ab<s>", BOS | SPECIAL, 1, SPM_SPACE_AB, 1);
    mr_tokenizer_destroy(tok);
    small_spm(&vocab);
    vocab.desc.add_bos = MR_SETTING_OFF;
    vocab.desc.add_eos = MR_SETTING_ON;
    tok = small_create(&vocab);
    assert_false(mr_tokenizer_adds_bos(tok));
    assert_true(mr_tokenizer_adds_eos(tok));
    EXPECT_IDS(tok, "ab", BOS | EOS, SPM_SPACE_AB, 2);
    EXPECT_IDS(tok, "ab", 0, SPM_SPACE_AB);
    mr_tokenizer_destroy(tok);
    /* Byte-level models differ where the file does not say whether to add BOS. */
    tok = bpe("llama-bpe");
    EXPECT_IDS(tok, "h", BOS, BPE_BOS, 'h');
    mr_tokenizer_destroy(tok);
    tok = bpe("qwen2");
    EXPECT_IDS(tok, "h", BOS, 'h');
    mr_tokenizer_destroy(tok);
}

static void test_space_prefix_can_be_off(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.add_space_prefix = MR_SETTING_OFF;
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "ab", 0, SPM_AB);
    EXPECT_TEXT(tok, " ab", 0, SPM_SPACE_AB);
    mr_tokenizer_destroy(tok);
}

static void test_spm_by_merges(void **state) {
    (void)state;
    small_spm(&vocab);
    vocab.desc.model = mr_str_from("gemma4");
    vocab.desc.n_scores = 0;
    static const char *const merges[] = {"a b", "ab ab", "▁ ▁", "▁ ab", "b a", "x y"};
    vocab.desc.n_merges = sizeof merges / sizeof *merges;
    for (int i = 0; i < vocab.desc.n_merges; i++)
        vocab.merges[i] = mr_str_from(merges[i]);
    mr_tokenizer *tok = small_create(&vocab);
    assert_int_equal(mr_tokenizer_n_skipped_merges(tok), 1);
    assert_true(mr_tokenizer_adds_bos(tok) && !mr_tokenizer_adds_space_prefix(tok));
    EXPECT_IDS(tok, "ab", 0, SPM_AB);
    EXPECT_IDS(tok, " abab", 0, SPM_SPACE, SPM_ABAB); /* by score, it would be "▁ab" and "ab" */
    EXPECT_IDS(tok, "   ab", 0, SPM_SPACES, SPM_SPACE_AB);
    EXPECT_IDS(tok, "bba", 0, SPM_B, SPM_UNUSED);
    EXPECT_IDS(tok, "é🦙a", 0, SPM_BYTE_0 + 0xC3, SPM_BYTE_0 + 0xA9, SPM_LLAMA, SPM_A);
    EXPECT_IDS(tok, "a[TOOL]\xFF", 0, SPM_A, SPM_TOOL, SPM_BYTE_0 + 0xFF);
    EXPECT_TEXT(tok, " abab", 0, 1, SPM_SPACE, SPM_ABAB);
    mr_tokenizer_destroy(tok);
    vocab.desc.n_merges = 0;
    mr_err err;
    expect_fails(mr_tokenizer_create(&vocab.desc, &tok, &err), MR_E_FORMAT, &err, "merges has 0 entries");
}

static void test_bpe_merges_by_rank(void **state) {
    (void)state;
    mr_tokenizer *tok = bpe("gpt-2");
    EXPECT_IDS(tok, "hello", 0, BPE_HELL, 'o');
    EXPECT_IDS(tok, "lll", 0, BPE_LL, 'l');
    EXPECT_IDS(tok, "hhell", 0, 'h', BPE_HELL);
    /* The merge "h e" has a better rank than "Ġ h". */
    EXPECT_IDS(tok, " hello", 0, ' ', BPE_HELL, 'o');
    EXPECT_IDS(tok, " h", 0, BPE_SPACE_H);
    EXPECT_IDS(tok, "ö", 0, BPE_O_UMLAUT);
    EXPECT_IDS(tok, "<|eot_id|>", SPECIAL, BPE_EOT);
    EXPECT_IDS(tok, "h<u>h", 0, 'h', BPE_USER, 'h');
    mr_tokenizer_destroy(tok);
}

static void test_ignore_merges_takes_whole_words(void **state) {
    (void)state;
    mr_tokenizer *tok = bpe("llama-bpe");
    EXPECT_IDS(tok, " hello", 0, BPE_WORD);
    EXPECT_IDS(tok, "hello hello", 0, BPE_HELL, 'o', BPE_WORD);
    mr_tokenizer_destroy(tok);
}

static void test_bpe_without_merges(void **state) {
    (void)state;
    small_bpe(&vocab);
    vocab.desc.n_merges = 0;
    vocab.desc.pre = mr_str_from("kimi-k2");
    mr_tokenizer *tok = small_create(&vocab);
    /* The lowest id merges first, so "he" before "ll" before "hell"; a control token is no result of a merge. */
    EXPECT_IDS(tok, "hellohe", 0, BPE_HELL, 'o', BPE_HE);
    EXPECT_IDS(tok, "lll", 0, BPE_LL, 'l');
    EXPECT_IDS(tok, " hellx", 0, ' ', BPE_HELL, 'x');
    EXPECT_IDS(tok, " hello", 0, BPE_WORD); /* no merges lead to it: a whole word comes first */
    EXPECT_IDS(tok, "<|eot_id|>", SPECIAL, BPE_EOT);
    mr_tokenizer_destroy(tok);
    mr_err err;
    vocab.desc.pre = mr_str_from("deepseek-v3");
    expect_fails(mr_tokenizer_create(&vocab.desc, &tok, &err), MR_E_FORMAT, &err, "merges has 0 entries");
    vocab.desc.pre = mr_str_from("kimi-k2");
    vocab.desc.n_merges = -1;
    expect_fails(mr_tokenizer_create(&vocab.desc, &tok, &err), MR_E_FORMAT, &err, "merges has -1 entries");
}

static void test_bpe_of_bytes_that_are_no_utf8(void **state) {
    (void)state;
    mr_tokenizer *tok = bpe("gpt-2");
    /* Each malformed byte is a word of its own: "Ã ¶" does not merge over such a byte, and words do not join. */
    EXPECT_IDS(tok, "he\xFFll", 0, BPE_HE, 0xFF, BPE_LL);
    EXPECT_IDS(tok, "\xC3", 0, 0xC3);
    EXPECT_IDS(tok, "\xC3\xC3\xB6\xB6", 0, 0xC3, BPE_O_UMLAUT, 0xB6);
    EXPECT_IDS(tok, "\xED\xA0\x80", 0, 0xED, 0xA0, 0x80); /* a surrogate */
    EXPECT_TEXT(tok, "he\uFFFDll", 0, BPE_HE, 0xFF, BPE_LL);
    expect_ids(tok, (mr_str){"h\0h", 3}, 0, (const int32_t[]){'h', 0, 'h'}, 3);
    mr_tokenizer_destroy(tok);
}

static void test_bpe_without_byte_tokens(void **state) {
    (void)state;
    small_bpe(&vocab);
    vocab.tokens['x'] = mr_str_from("[x]");
    mr_tokenizer *tok = small_create(&vocab);
    EXPECT_IDS(tok, "hxxh", 0, 'h', 'h');
    expect_ids(tok, mr_str_from("x"), 0, NULL, 0);
    mr_tokenizer_destroy(tok);
    vocab.desc.unk_id = BPE_USER;
    tok = small_create(&vocab);
    EXPECT_IDS(tok, "hxh", 0, 'h', BPE_USER, 'h');
    mr_tokenizer_destroy(tok);
}

static void test_decoding(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    EXPECT_TEXT(tok, "ab ab", 0, SPM_SPACE_AB, SPM_SPACE_AB);
    EXPECT_TEXT(tok, " ab ab", MR_DECODE_CONTINUES, SPM_SPACE_AB, SPM_SPACE_AB);
    /* The space behind a leading control token is removed. Control tokens are shown on request. */
    EXPECT_TEXT(tok, "ab ab", 0, 1, SPM_SPACE_AB, SPM_IM_END, SPM_SPACE_AB, 2);
    EXPECT_TEXT(tok, "<s>ab<|im_end|> ab", MR_DECODE_SPECIAL, 1, SPM_SPACE_AB, SPM_IM_END, SPM_SPACE_AB);
    EXPECT_TEXT(tok, "[TOOL] ab", 0, SPM_TOOL, SPM_SPACE_AB);
    EXPECT_TEXT(tok, " ab", 0, SPM_SPACES, SPM_AB);
    EXPECT_TEXT(tok, "é", 0, SPM_BYTE_0 + 0xC3, SPM_BYTE_0 + 0xA9);
    mr_text_buf text = {0};
    mr_err err;
    assert_true(mr_text_buf_append(&text, "x", 1));
    const int32_t bad[] = {SPM_A, SPM_N};
    assert_int_equal(mr_tokenizer_decode(tok, bad, 2, 0, &text, &err), MR_E_INVALID);
    assert_string_equal(text.data, "x");
    assert_int_equal(mr_tokenizer_decode(tok, &(int32_t){-1}, 1, 0, &text, &err), MR_E_INVALID);
    assert_string_equal(err.text, "token id -1 is outside the vocabulary of 272 tokens");
    mr_text_buf_deinit(&text);
    mr_tokenizer_destroy(tok);
}

static void test_what_a_server_asks(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_str piece;
    assert_true(mr_tokenizer_piece(tok, SPM_SPACE_AB, &piece));
    assert_true(mr_str_is(piece, " ab"));
    assert_true(mr_str_is(mr_tokenizer_text(tok, SPM_SPACE_AB), "▁ab"));
    assert_true(mr_tokenizer_piece(tok, SPM_BYTE_0 + 0xE2, &piece));
    assert_true(mr_str_is(piece, "\xE2"));
    assert_false(mr_tokenizer_piece(tok, SPM_N, &piece));
    assert_int_equal(mr_tokenizer_text(tok, -1).len, 0);
    assert_int_equal(mr_tokenizer_find(tok, mr_str_from("<|im_start|>")), SPM_IM_START);
    assert_int_equal(mr_tokenizer_find(tok, mr_str_from("nothing")), -1);
    assert_int_equal(mr_tokenizer_find(tok, mr_str_from("")), -1);
    assert_true(mr_tokenizer_is_control(tok, 1) && !mr_tokenizer_is_control(tok, SPM_A));
    assert_false(mr_tokenizer_is_control(tok, -5));
    const int32_t *ends;
    int32_t n_ends;
    mr_tokenizer_ends(tok, &ends, &n_ends);
    assert_int_equal(n_ends, 2);
    assert_true(ends[0] == 2 && ends[1] == SPM_IM_END);
    assert_true(mr_tokenizer_is_end(tok, 2) && mr_tokenizer_is_end(tok, SPM_IM_END));
    assert_false(mr_tokenizer_is_end(tok, 1) || mr_tokenizer_is_end(tok, -1));
    assert_int_equal(mr_tokenizer_bos_id(tok), 1);
    assert_int_equal(mr_tokenizer_eos_id(tok), 2);
    assert_int_equal(mr_tokenizer_unk_id(tok), 0);
    assert_int_equal(mr_tokenizer_n_tokens(tok), SPM_N);
    assert_true(mr_tokenizer_adds_space_prefix(tok));
    mr_tokenizer_destroy(tok);
    small_bpe(&vocab);
    vocab.types[BPE_EOT] = MR_TOKEN_NORMAL; /* a normal token whose text looks like a control token */
    tok = small_create(&vocab);
    assert_false(mr_tokenizer_is_end(tok, BPE_EOT));
    mr_tokenizer_destroy(tok);
    vocab.desc.eot_id = BPE_EOT;
    tok = small_create(&vocab);
    assert_true(mr_tokenizer_is_end(tok, BPE_EOT));
    mr_tokenizer_destroy(tok);
}

/* What a user-defined token means follows from its name, unless the file names it as an end. */
static void test_user_defined_end_tokens(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool ends;
    } cases[] = {{"</s>", false},      {"<eos>", false},           {"<end_of_turn>", false}, {"[EOS]", false},
                 {"<|eot_id|>", true}, {"<|tool_response>", true}, {"<turn|>", true},        {"<|no_end|>", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        small_bpe(&vocab);
        vocab.tokens[BPE_EOT] = mr_str_from(cases[i].name);
        vocab.types[BPE_EOT] = MR_TOKEN_USER_DEFINED;
        mr_tokenizer *tok = small_create(&vocab);
        assert_int_equal(mr_tokenizer_is_end(tok, BPE_EOT), cases[i].ends);
        mr_tokenizer_destroy(tok);
        vocab.types[BPE_EOT] = MR_TOKEN_CONTROL;
        tok = small_create(&vocab);
        assert_int_equal(mr_tokenizer_is_end(tok, BPE_EOT), i < 7);
        mr_tokenizer_destroy(tok);
        vocab.types[BPE_EOT] = MR_TOKEN_USER_DEFINED;
        vocab.desc.eot_id = BPE_EOT;
        tok = small_create(&vocab);
        assert_true(mr_tokenizer_is_end(tok, BPE_EOT));
        mr_tokenizer_destroy(tok);
    }
}

static void test_end_tokens_of_harmony(void **state) {
    (void)state;
    small_bpe(&vocab);
    vocab.tokens[BPE_EOT] = mr_str_from("<|end|>");
    vocab.desc.eot_id = BPE_EOT;
    mr_tokenizer *tok = small_create(&vocab);
    assert_true(mr_tokenizer_is_end(tok, BPE_EOT));
    mr_tokenizer_destroy(tok);
    /* With an end token for calls, "<|end|>" only ends a part of an answer, unless it is the eos token. */
    vocab.tokens[BPE_BOS] = mr_str_from("<|call|>");
    tok = small_create(&vocab);
    assert_true(mr_tokenizer_is_end(tok, BPE_BOS) && !mr_tokenizer_is_end(tok, BPE_EOT));
    mr_tokenizer_destroy(tok);
    vocab.desc.eos_id = BPE_EOT;
    tok = small_create(&vocab);
    assert_true(mr_tokenizer_is_end(tok, BPE_BOS) && mr_tokenizer_is_end(tok, BPE_EOT));
    mr_tokenizer_destroy(tok);
}

static void test_appends_to_what_is_there(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_token_buf ids = {0};
    assert_true(mr_token_buf_push(&ids, 7));
    assert_int_equal(mr_tokenizer_encode(tok, mr_str_from("ab"), 0, &ids, NULL), MR_OK);
    assert_true(ids.n == 2 && ids.ids[0] == 7 && ids.ids[1] == SPM_SPACE_AB);
    char *large = mr_alloc(MR_ENCODE_MAX_BYTES + 1);
    mr_err err;
    assert_int_equal(mr_tokenizer_encode(tok, (mr_str){large, MR_ENCODE_MAX_BYTES + 1}, 0, &ids, &err), MR_E_TOO_LONG);
    assert_int_equal(ids.n, 2);
    mr_free(large);
    mr_token_buf_deinit(&ids);
    mr_tokenizer_destroy(tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spm_merges_by_score_from_the_left),
        cmocka_unit_test(test_spm_falls_back_to_bytes),
        cmocka_unit_test(test_spm_without_byte_tokens),
        cmocka_unit_test(test_spm_with_spaces_inside_tokens),
        cmocka_unit_test(test_special_tokens_only_on_request),
        cmocka_unit_test(test_user_defined_tokens_always),
        cmocka_unit_test(test_user_defined_spaces),
        cmocka_unit_test(test_repeated_special_tokens),
        cmocka_unit_test(test_phi3_tokens_take_the_space_behind_them),
        cmocka_unit_test(test_bos_and_eos),
        cmocka_unit_test(test_space_prefix_can_be_off),
        cmocka_unit_test(test_spm_by_merges),
        cmocka_unit_test(test_bpe_merges_by_rank),
        cmocka_unit_test(test_ignore_merges_takes_whole_words),
        cmocka_unit_test(test_bpe_without_merges),
        cmocka_unit_test(test_bpe_of_bytes_that_are_no_utf8),
        cmocka_unit_test(test_bpe_without_byte_tokens),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_what_a_server_asks),
        cmocka_unit_test(test_user_defined_end_tokens),
        cmocka_unit_test(test_end_tokens_of_harmony),
        cmocka_unit_test(test_appends_to_what_is_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
