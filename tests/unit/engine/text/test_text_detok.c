/* Characters that arrive in several pieces, and bytes that form no character. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "engine/text/detok.h"
#include "tests/support/test.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

static small_vocab vocab;

static mr_tokenizer *spm(void) {
    small_spm(&vocab);
    return small_create(&vocab);
}

static void push(mr_detok *d, int32_t id, mr_text_buf *out) {
    mr_err err;
    expect_ok(mr_detok_push(d, id, out, &err), &err);
}

static void test_an_emoji_over_four_byte_tokens(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_detok d;
    mr_text_buf out = {0};
    mr_detok_init(&d, tok, MR_DECODE_CONTINUES);
    push(&d, SPM_SPACE_AB, &out);
    assert_string_equal(out.data, " ab");
    const char emoji[] = "😶";
    for (int i = 0; i < 3; i++) {
        push(&d, SPM_BYTE_0 + (uint8_t)emoji[i], &out);
        assert_string_equal(out.data, " ab");
    }
    push(&d, SPM_BYTE_0 + (uint8_t)emoji[3], &out);
    assert_string_equal(out.data, " ab😶");
    push(&d, SPM_A, &out);
    assert_string_equal(out.data, " ab😶a");
    assert_int_equal(mr_detok_finish(&d, &out, NULL), MR_OK);
    assert_string_equal(out.data, " ab😶a");
    mr_text_buf_deinit(&out);
    mr_tokenizer_destroy(tok);
}

static void test_a_character_that_is_cut_short(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_detok d;
    mr_text_buf out = {0};
    mr_detok_init(&d, tok, MR_DECODE_CONTINUES);
    push(&d, SPM_BYTE_0 + 0xF0, &out);
    push(&d, SPM_BYTE_0 + 0x9F, &out);
    push(&d, 2, &out); /* a control token writes nothing and does not end a character */
    assert_int_equal(out.len, 0);
    push(&d, SPM_A, &out); /* the letter shows that the character is truncated */
    assert_string_equal(out.data, "\uFFFDa");
    push(&d, SPM_BYTE_0 + 0xF0, &out);
    assert_string_equal(out.data, "\uFFFDa");
    assert_int_equal(mr_detok_finish(&d, &out, NULL), MR_OK);
    assert_string_equal(out.data, "\uFFFDa\uFFFD");
    assert_int_equal(mr_detok_finish(&d, &out, NULL), MR_OK);
    assert_string_equal(out.data, "\uFFFDa\uFFFD");
    mr_text_buf_deinit(&out);
    mr_tokenizer_destroy(tok);
}

static void test_an_unknown_id_changes_nothing(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_detok d;
    mr_text_buf out = {0};
    mr_err err;
    mr_detok_init(&d, tok, 0);
    push(&d, SPM_BYTE_0 + 0xC3, &out);
    assert_int_equal(mr_detok_push(&d, SPM_N, &out, &err), MR_E_INVALID);
    push(&d, SPM_BYTE_0 + 0xA9, &out);
    assert_string_equal(out.data, "é");
    mr_text_buf_deinit(&out);
    mr_tokenizer_destroy(tok);
}

static void test_only_the_first_space_is_dropped(void **state) {
    (void)state;
    mr_tokenizer *tok = spm();
    mr_detok d;
    mr_text_buf out = {0};
    mr_detok_init(&d, tok, 0);
    push(&d, 1, &out);
    push(&d, SPM_SPACE, &out);
    assert_int_equal(out.len, 0);
    push(&d, SPM_SPACE_AB, &out);
    push(&d, SPM_SPACE_AB, &out);
    assert_string_equal(out.data, " ab ab");
    mr_text_buf_deinit(&out);
    mr_tokenizer_destroy(tok);
}

/* Decodes bytes one at a time into out. */
static size_t decode(const char *bytes, size_t n, char *out) {
    mr_utf8_decoder d = {0};
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += mr_utf8_decoder_push(&d, (uint8_t)bytes[i], out + len);
    return len + mr_utf8_decoder_finish(&d, out + len);
}

static void expect_decoded(const char *bytes, const char *want) {
    char out[256];
    size_t n = decode(bytes, strlen(bytes), out);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(out, want, n);
}

#define R "\uFFFD"

static void test_maximal_subparts(void **state) {
    (void)state;
    expect_decoded("a\u00E9\u20AC\U0001F999z", "a\u00E9\u20AC\U0001F999z");
    /* From the Unicode Standard, tables 3-8 to 3-11. */
    expect_decoded("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", R R R R R R R R "A");
    expect_decoded("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", R R R R R R R R "A");
    expect_decoded("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", R R R R R "A" R R "B");
    expect_decoded("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A");
    expect_decoded("\xF4\x8F\xBF\xBF\xF5\x80", "\U0010FFFF" R R);
    expect_decoded("\xE2\x82", R);
}

/* Every sequence of three bytes at the borders of table 3-7. The output is always UTF-8, and valid UTF-8 is
 * unchanged. */
static void test_the_output_is_always_utf8(void **state) {
    (void)state;
    static const uint8_t edges[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF,
                                    0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
    enum { N = sizeof edges };
    for (int i = 0; i < N * N * N * N; i++) {
        char bytes[4], out[32];
        for (int k = 0, rest = i; k < 4; k++, rest /= N)
            bytes[k] = (char)edges[rest % N];
        size_t n = decode(bytes, 4, out), at = 0, len, valid = 0;
        while (at < n && (len = mr_utf8_char_len(out + at, n - at)) > 0)
            at += len;
        assert_int_equal(at, n);
        while (valid < 4 && (len = mr_utf8_char_len(bytes + valid, 4 - valid)) > 0)
            valid += len;
        assert_true(valid <= n && memcmp(bytes, out, valid) == 0);
        assert_true(valid == 4 ? n == 4 : n >= valid + 3);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_emoji_over_four_byte_tokens),
        cmocka_unit_test(test_a_character_that_is_cut_short),
        cmocka_unit_test(test_an_unknown_id_changes_nothing),
        cmocka_unit_test(test_only_the_first_space_is_dropped),
        cmocka_unit_test(test_maximal_subparts),
        cmocka_unit_test(test_the_output_is_always_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
