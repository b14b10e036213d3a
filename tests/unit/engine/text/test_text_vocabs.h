/* tests/unit/engine/text/test_text_vocabs.h - two small vocabularies, of the SentencePiece and of the byte-level
 * kind, for the tests of engine/text. Their descriptions may be changed before a tokenizer is made from them. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_ENGINE_TEXT_TEST_TEXT_VOCABS_H
#define MR_TESTS_UNIT_ENGINE_TEXT_TEST_TEXT_VOCABS_H

#include "engine/text/tokenizer.h"

enum { SMALL_MAX_TOKENS = 320, SMALL_MAX_MERGES = 16 };

typedef struct small_vocab {
    mr_vocab_desc desc;
    mr_str tokens[SMALL_MAX_TOKENS];
    float scores[SMALL_MAX_TOKENS];
    int32_t types[SMALL_MAX_TOKENS];
    mr_str merges[SMALL_MAX_MERGES];
    char bytes[256][8]; /* texts of the byte tokens */
} small_vocab;

/* Ids 0 <unk>, 1 <s>, 2 </s>, then the 256 byte tokens, then those below. */
enum {
    SPM_BYTE_0 = 3,
    SPM_SPACE = SPM_BYTE_0 + 256, /* "▁" */
    SPM_A,
    SPM_B,
    SPM_AB,
    SPM_ABAB,
    SPM_SPACE_AB, /* "▁ab" */
    SPM_SPACES,   /* "▁▁" */
    SPM_LLAMA,    /* U+1F999 */
    SPM_IM_START, /* "<|im_start|>", control */
    SPM_IM_END,   /* "<|im_end|>", control */
    SPM_TOOL,     /* "[TOOL]", user-defined */
    SPM_TOOLS,    /* "[TOOL]S", control */
    SPM_UNUSED,   /* "ba", unused */
    SPM_N,
};
void small_spm(small_vocab *v);

/* Ids 0 to 255 are the bytes, then those below. */
enum {
    BPE_HE = 256, /* "he" */
    BPE_LL,       /* "ll" */
    BPE_HELL,     /* "hell" */
    BPE_SPACE_H,  /* " h" */
    BPE_O_UMLAUT, /* U+00F6 */
    BPE_WORD,     /* " hello", not made by any merge */
    BPE_SPACES,   /* two spaces */
    BPE_EOT,      /* "<|eot_id|>", control */
    BPE_BOS,      /* "<|begin_of_text|>", control */
    BPE_USER,     /* "<u>", user-defined */
    BPE_N,
};
void small_bpe(small_vocab *v);

/* Makes a tokenizer, and fails the test where that fails. */
mr_tokenizer *small_create(const small_vocab *v);
/* Encodes text and compares with n ids; fails the test where they differ. */
void expect_ids(const mr_tokenizer *tok, mr_str text, unsigned flags, const int32_t *want, size_t n);
#define EXPECT_IDS(tok, text, flags, ...)                                                                              \
    expect_ids(tok, mr_str_from(text), flags, (const int32_t[]){__VA_ARGS__},                                          \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))
/* Decodes n ids and compares with want. */
void expect_text(const mr_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags, const char *want);
#define EXPECT_TEXT(tok, want, flags, ...)                                                                             \
    expect_text(tok, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), flags,  \
                want)

#endif
