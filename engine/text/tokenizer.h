/* engine/text/tokenizer.h - text to token ids and back, for the vocabularies that GGUF files carry:
 *   model "llama"  SentencePiece's BPE: pairs merge by score, characters outside the vocabulary become byte tokens;
 *   model "gpt2"   byte-level BPE: words are cut by the regular expressions that `pre` names, pairs merge by rank.
 * No text is refused for what it says. Bytes that are no UTF-8 are tokenised one by one. A byte that the vocabulary
 * has no token for becomes the unknown token; where the vocabulary has none, it is left out.
 * Plain text never becomes a control token, unless MR_ENCODE_PARSE_SPECIAL asks for it.
 * Texts are taken as they are: no Unicode normalisation.
 * Owns:    copies of everything in the description.
 * Threads: a tokenizer does not change, so all functions but destroy may be called from any thread.
 * Errors:  any mr_status function may return MR_E_NO_MEMORY; others are named at the function.
 * Cost:    encoding n bytes takes O(n log n) time (times the length of the longest token, in the worst vocabulary), and
 *          up to some 60 n bytes of memory for a text without spaces. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_TOKENIZER_H
#define MR_ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"
#include "engine/text/buffers.h"

enum {
    MR_VOCAB_MAX_TOKENS = 1 << 22,
    MR_VOCAB_MAX_MERGES = 1 << 22,
    MR_VOCAB_MAX_TOKEN_BYTES = 16384,
    MR_VOCAB_MAX_BYTES = 1 << 30,  /* of all tokens together */
    MR_SPECIAL_MAX_BYTES = 256,    /* control and user-defined tokens longer than this are not looked for in texts */
    MR_ENCODE_MAX_BYTES = 1 << 24, /* of one text */
};

/* Types of tokens, with the numbers of the file format. 0 and 5 are treated as normal. */
typedef enum mr_token_type {
    MR_TOKEN_UNDEFINED = 0,
    MR_TOKEN_NORMAL = 1,
    MR_TOKEN_UNKNOWN = 2,
    MR_TOKEN_CONTROL = 3,
    MR_TOKEN_USER_DEFINED = 4,
    MR_TOKEN_UNUSED = 5,
    MR_TOKEN_BYTE = 6,
} mr_token_type;

/* For a boolean that a file may leave out. */
typedef enum mr_setting {
    MR_SETTING_DEFAULT = 0, /* what models of this kind do */
    MR_SETTING_ON,
    MR_SETTING_OFF,
} mr_setting;

/* What a model file says about its vocabulary; tokenizer.ggml.* where nothing else is named. Nothing in it is
 * trusted. */
typedef struct mr_vocab_desc {
    mr_str architecture; /* general.architecture; "phi3" changes how text after special tokens is read */
    mr_str model;
    mr_str pre; /* may be empty */
    int32_t n_tokens;
    const mr_str *tokens; /* [n_tokens] */
    int32_t n_scores;
    const float *scores; /* [n_scores]; needed by "llama" */
    int32_t n_types;
    const int32_t *types; /* token_type, [n_types]; n_types 0: all normal */
    int32_t n_merges;
    const mr_str *merges; /* [n_merges], "left right"; needed by "gpt2" */
    /* Ids; -1 for none. */
    int32_t bos_id, eos_id, unk_id;
    int32_t eot_id, eom_id; /* end of turn, end of message */
    mr_setting add_bos, add_eos;
    mr_setting add_space_prefix;
} mr_vocab_desc;

/* A description that says nothing: no tokens, all ids -1. */
mr_vocab_desc mr_vocab_desc_empty(void);

typedef struct mr_tokenizer mr_tokenizer;

/* MR_E_UNSUPPORTED: another model or pre; the text names it and those that are supported. MR_E_FORMAT: the description
 * contradicts itself or a limit above. Merges whose tokens are not in the vocabulary are left out and counted; of equal
 * tokens and equal merges the first counts; empty tokens are never found in a text. */
MR_MUST_USE mr_status mr_tokenizer_create(const mr_vocab_desc *desc, mr_tokenizer **out_tok, mr_err *err);
void mr_tokenizer_destroy(mr_tokenizer *tok);

enum {
    /* Control tokens that the text spells out become those tokens (for chat templates; never for what users wrote).
     * Without it only user-defined tokens are recognised. */
    MR_ENCODE_PARSE_SPECIAL = 1 << 0,
    /* The text starts a sequence: the bos token comes first where the model wants one (and the text does not already
     * begin with it, spelt out and parsed). */
    MR_ENCODE_BOS = 1 << 1,
    /* The text ends a sequence: likewise the eos token. Most models want none. */
    MR_ENCODE_EOS = 1 << 2,
    /* The text goes on where another one stopped: no space is put in front of it. */
    MR_ENCODE_CONTINUES = 1 << 3,
};

/* Appends the ids of text to out_ids; on failure out_ids is as it was. MR_E_TOO_LONG: the text is longer than
 * MR_ENCODE_MAX_BYTES, or took more matching steps than its length allows. */
MR_MUST_USE mr_status mr_tokenizer_encode(const mr_tokenizer *tok, mr_str text, unsigned flags, mr_token_buf *out_ids,
                                          mr_err *err);

enum {
    /* Control and unknown tokens come out as they are written in the vocabulary; without it they are left out. */
    MR_DECODE_SPECIAL = 1 << 0,
    /* The ids go on where another text stopped (as what a model generates does): a space in front stays. Without it
     * the space that encoding put in front of the text is taken away. */
    MR_DECODE_CONTINUES = 1 << 1,
};

/* Appends the text of n ids as valid UTF-8 (see detok.h) to out_text; on failure out_text is as it was. MR_E_INVALID:
 * an id outside the vocabulary. */
MR_MUST_USE mr_status mr_tokenizer_decode(const mr_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags,
                                          mr_text_buf *out_text, mr_err *err);

/* The bytes that one token stands for, perhaps a part of a character only; control and unknown tokens give their name.
 * false: no such id. The bytes live as long as the tokenizer. */
bool mr_tokenizer_piece(const mr_tokenizer *tok, int32_t id, mr_str *out_bytes);
/* The token as the vocabulary writes it; empty where there is no such id. */
mr_str mr_tokenizer_text(const mr_tokenizer *tok, int32_t id);
/* The lowest id that the vocabulary writes like this, or -1. */
int32_t mr_tokenizer_find(const mr_tokenizer *tok, mr_str text);
/* MR_TOKEN_UNDEFINED where there is no such id. */
mr_token_type mr_tokenizer_type(const mr_tokenizer *tok, int32_t id);
bool mr_tokenizer_is_control(const mr_tokenizer *tok, int32_t id);
/* Generation stops at this token: eos, end of turn, end of message, and well-known control tokens of that meaning. */
bool mr_tokenizer_is_end(const mr_tokenizer *tok, int32_t id);
/* All of them, ascending. */
void mr_tokenizer_ends(const mr_tokenizer *tok, const int32_t **out_ids, int32_t *out_n);

int32_t mr_tokenizer_n_tokens(const mr_tokenizer *tok);
/* -1 where the vocabulary has none. */
int32_t mr_tokenizer_bos_id(const mr_tokenizer *tok);
int32_t mr_tokenizer_eos_id(const mr_tokenizer *tok);
int32_t mr_tokenizer_unk_id(const mr_tokenizer *tok);
/* What MR_ENCODE_BOS, MR_ENCODE_EOS and a leading text would do. */
bool mr_tokenizer_adds_bos(const mr_tokenizer *tok);
bool mr_tokenizer_adds_eos(const mr_tokenizer *tok);
bool mr_tokenizer_adds_space_prefix(const mr_tokenizer *tok);
/* Merges that were left out because a token they name is not in the vocabulary. */
int32_t mr_tokenizer_n_skipped_merges(const mr_tokenizer *tok);

#endif
