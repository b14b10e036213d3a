// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/engine/text/test_text_vocabs.h"
#include "tests/support/test.h"

#include <stdio.h>

static void add(small_vocab *v, int32_t id, const char *text, int32_t type, float score) {
    v->tokens[id] = mr_str_from(text);
    v->types[id] = type;
    v->scores[id] = score;
}

static void describe(small_vocab *v, const char *model, int32_t n) {
    v->desc = mr_vocab_desc_empty();
    v->desc.model = mr_str_from(model);
    v->desc.n_tokens = v->desc.n_types = n;
    v->desc.tokens = v->tokens;
    v->desc.types = v->types;
    v->desc.scores = v->scores;
    v->desc.merges = v->merges;
}

void small_spm(small_vocab *v) {
    describe(v, "llama", SPM_N);
    v->desc.n_scores = SPM_N;
    v->desc.unk_id = 0;
    v->desc.bos_id = 1;
    v->desc.eos_id = 2;
    add(v, 0, "<unk>", MR_TOKEN_UNKNOWN, 0);
    add(v, 1, "<s>", MR_TOKEN_CONTROL, 0);
    add(v, 2, "</s>", MR_TOKEN_CONTROL, 0);
    for (int b = 0; b < 256; b++) {
        snprintf(v->bytes[b], sizeof v->bytes[b], "<0x%02X>", (unsigned)b);
        add(v, SPM_BYTE_0 + b, v->bytes[b], MR_TOKEN_BYTE, 0);
    }
    add(v, SPM_SPACE, "▁", MR_TOKEN_NORMAL, -10);
    add(v, SPM_A, "a", MR_TOKEN_NORMAL, -11);
    add(v, SPM_B, "b", MR_TOKEN_NORMAL, -12);
    add(v, SPM_AB, "ab", MR_TOKEN_NORMAL, -1);
    add(v, SPM_ABAB, "abab", MR_TOKEN_NORMAL, -3);
    add(v, SPM_SPACE_AB, "▁ab", MR_TOKEN_NORMAL, -2);
    add(v, SPM_SPACES, "▁▁", MR_TOKEN_NORMAL, -4);
    add(v, SPM_LLAMA, "🦙", MR_TOKEN_NORMAL, -13);
    add(v, SPM_IM_START, "<|im_start|>", MR_TOKEN_CONTROL, 0);
    add(v, SPM_IM_END, "<|im_end|>", MR_TOKEN_CONTROL, 0);
    add(v, SPM_TOOL, "[TOOL]", MR_TOKEN_USER_DEFINED, 0);
    add(v, SPM_TOOLS, "[TOOL]S", MR_TOKEN_CONTROL, 0);
    add(v, SPM_UNUSED, "ba", MR_TOKEN_UNUSED, -20);
}

/* The character that stands for byte b, in UTF-8. */
static void byte_text(int b, char out[8]) {
    int code = b;
    if (b <= 0x20)
        code = 0x100 + b;
    else if (b >= 0x7F && b <= 0xA0)
        code = 0x121 + b - 0x7F;
    else if (b == 0xAD)
        code = 0x143;
    if (code < 0x80)
        snprintf(out, 8, "%c", code);
    else
        snprintf(out, 8, "%c%c", 0xC0 | code >> 6, 0x80 | (code & 0x3F));
}

void small_bpe(small_vocab *v) {
    describe(v, "gpt2", BPE_N);
    v->desc.bos_id = BPE_BOS;
    for (int b = 0; b < 256; b++) {
        byte_text(b, v->bytes[b]);
        add(v, b, v->bytes[b], MR_TOKEN_NORMAL, 0);
    }
    add(v, BPE_HE, "he", MR_TOKEN_NORMAL, 0);
    add(v, BPE_LL, "ll", MR_TOKEN_NORMAL, 0);
    add(v, BPE_HELL, "hell", MR_TOKEN_NORMAL, 0);
    add(v, BPE_SPACE_H, "Ġh", MR_TOKEN_NORMAL, 0);
    add(v, BPE_O_UMLAUT, "Ã¶", MR_TOKEN_NORMAL, 0);
    add(v, BPE_WORD, "Ġhello", MR_TOKEN_NORMAL, 0);
    add(v, BPE_SPACES, "ĠĠ", MR_TOKEN_NORMAL, 0);
    add(v, BPE_EOT, "<|eot_id|>", MR_TOKEN_CONTROL, 0);
    add(v, BPE_BOS, "<|begin_of_text|>", MR_TOKEN_CONTROL, 0);
    add(v, BPE_USER, "<u>", MR_TOKEN_USER_DEFINED, 0);
    static const char *const merges[] = {"h e", "l l", "he ll", "Ġ h", "Ã ¶", "Ġ Ġ"};
    v->desc.n_merges = sizeof merges / sizeof *merges;
    for (int i = 0; i < v->desc.n_merges; i++)
        v->merges[i] = mr_str_from(merges[i]);
}

mr_tokenizer *small_create(const small_vocab *v) {
    mr_err err;
    mr_tokenizer *tok = NULL;
    expect_ok(mr_tokenizer_create(&v->desc, &tok, &err), &err);
    return tok;
}

void expect_ids(const mr_tokenizer *tok, mr_str text, unsigned flags, const int32_t *want, size_t n) {
    mr_err err;
    mr_token_buf got = {0};
    expect_ok(mr_tokenizer_encode(tok, text, flags, &got, &err), &err);
    bool same = got.n == n;
    for (size_t i = 0; i < n && same; i++)
        same = got.ids[i] == want[i];
    if (!same) {
        for (size_t i = 0; i < got.n; i++)
            print_error("%d ", got.ids[i]);
        fail_msg("are the ids of '%.*s'", (int)text.len, text.data);
    }
    mr_token_buf_deinit(&got);
}

void expect_text(const mr_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags, const char *want) {
    mr_err err;
    mr_text_buf got = {0};
    expect_ok(mr_tokenizer_decode(tok, ids, n, flags, &got, &err), &err);
    assert_string_equal(got.data ? got.data : "", want);
    mr_text_buf_deinit(&got);
}
