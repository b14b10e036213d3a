/* engine/text/tokenizer.h - text to token ids and back, for the vocabularies that GGUF files carry:
 *   model "llama"  SentencePiece's BPE: pairs merge by score, characters outside the vocabulary become byte tokens;
 *   model "gemma4" the same, but pairs merge by the ranks of merges, and no space is added in front of a text;
 *   model "gpt2"   byte-level BPE: words are cut by the regular expressions that `pre` names, pairs merge by rank.
 * No text is refused because of its contents. Bytes that are not valid UTF-8 are tokenised one by one. A byte without
 * a token becomes the unknown token; if the vocabulary has no unknown token, the byte is left out.
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

/* A boolean that a file may leave out. */
typedef enum mr_setting {
    MR_SETTING_DEFAULT = 0, /* the default of models of this kind */
    MR_SETTING_ON,
    MR_SETTING_OFF,
} mr_setting;

/* What a model file says about its vocabulary: the key tokenizer.ggml.<member> where no other key is named. Every value
 * is checked. */
typedef struct mr_vocab_desc {
    mr_str architecture; /* general.architecture; "phi3" drops white space after special tokens */
    mr_str model;
    mr_str pre; /* may be empty */
    int32_t n_tokens;
    const mr_str *tokens; /* [n_tokens] */
    int32_t n_scores;
    const float *scores; /* [n_scores]; needed by "llama" */
    int32_t n_types;
    const int32_t *types; /* token_type, [n_types]; if n_types is 0, all tokens are normal */
    int32_t n_merges;
    const mr_str *merges; /* [n_merges], "left right"; needed by "gpt2" (but not if pre is "kimi-k2"), "gemma4" */
    /* Ids; -1 for none. */
    int32_t bos_id, eos_id, unk_id;
    int32_t eot_id, eom_id; /* end of turn, end of message */
    mr_setting add_bos, add_eos;
    mr_setting add_space_prefix;
} mr_vocab_desc;

/* A description without tokens, with all ids -1. */
mr_vocab_desc mr_vocab_desc_empty(void);

typedef struct mr_tokenizer mr_tokenizer;

/* MR_E_UNSUPPORTED: an unknown model or pre; the error text names it and lists the supported ones. MR_E_FORMAT: the
 * description contradicts itself or a limit above. Merges whose tokens are not in the vocabulary are left out and
 * counted. Of equal tokens and of equal merges the first one counts. Empty tokens are never found in a text. */
MR_MUST_USE mr_status mr_tokenizer_create(const mr_vocab_desc *desc, mr_tokenizer **out_tok, mr_err *err);
void mr_tokenizer_destroy(mr_tokenizer *tok);

enum {
    /* Control tokens that stand in the text become those tokens. This is for chat templates, never for text of users.
     * Without the flag only user-defined tokens are recognised. */
    MR_ENCODE_PARSE_SPECIAL = 1 << 0,
    /* The text starts a sequence: the bos token comes first if the model wants one. It is not added twice when the text
     * begins with it and MR_ENCODE_PARSE_SPECIAL is set. */
    MR_ENCODE_BOS = 1 << 1,
    /* The text ends a sequence: the eos token comes last if the model wants one. Most models do not. */
    MR_ENCODE_EOS = 1 << 2,
    /* The text continues another text: no space is added in front. */
    MR_ENCODE_CONTINUES = 1 << 3,
};

/* Appends the ids of text to out_ids. On failure out_ids is as it was. MR_E_TOO_LONG: the text is longer than
 * MR_ENCODE_MAX_BYTES, or took more matching steps than its length allows. */
MR_MUST_USE mr_status mr_tokenizer_encode(const mr_tokenizer *tok, mr_str text, unsigned flags, mr_token_buf *out_ids,
                                          mr_err *err);

enum {
    /* Control and unknown tokens come out as the vocabulary writes them. Without the flag they are left out. */
    MR_DECODE_SPECIAL = 1 << 0,
    /* The ids continue another text, as generated ids do: a space in front stays. Without the flag, the space that
     * encoding added in front of the text is dropped. */
    MR_DECODE_CONTINUES = 1 << 1,
};

/* Appends the text of n ids to out_text, as valid UTF-8 (see detok.h). On failure out_text is as it was. MR_E_INVALID:
 * an id outside the vocabulary. */
MR_MUST_USE mr_status mr_tokenizer_decode(const mr_tokenizer *tok, const int32_t *ids, size_t n, unsigned flags,
                                          mr_text_buf *out_text, mr_err *err);

/* Writes the bytes that a token stands for, which may be a part of a character. For control and unknown tokens this is
 * their name. Returns false for an id outside the vocabulary. The bytes are valid as long as the tokenizer. */
bool mr_tokenizer_piece(const mr_tokenizer *tok, int32_t id, mr_str *out_bytes);
/* Returns the token as the vocabulary writes it; empty for an id outside the vocabulary. */
mr_str mr_tokenizer_text(const mr_tokenizer *tok, int32_t id);
/* Returns the lowest id that the vocabulary writes like this, or -1. */
int32_t mr_tokenizer_find(const mr_tokenizer *tok, mr_str text);
/* Returns MR_TOKEN_UNDEFINED for an id outside the vocabulary. */
mr_token_type mr_tokenizer_type(const mr_tokenizer *tok, int32_t id);
bool mr_tokenizer_is_control(const mr_tokenizer *tok, int32_t id);
/* Whether generation stops at this token: eos, end of turn, end of message, and well-known control tokens with this
 * meaning. */
bool mr_tokenizer_is_end(const mr_tokenizer *tok, int32_t id);
/* Returns all end tokens, ascending. */
void mr_tokenizer_ends(const mr_tokenizer *tok, const int32_t **out_ids, int32_t *out_n);

int32_t mr_tokenizer_n_tokens(const mr_tokenizer *tok);
/* -1 if the vocabulary has none. */
int32_t mr_tokenizer_bos_id(const mr_tokenizer *tok);
int32_t mr_tokenizer_eos_id(const mr_tokenizer *tok);
int32_t mr_tokenizer_unk_id(const mr_tokenizer *tok);
/* Whether encoding adds a bos token (MR_ENCODE_BOS), an eos token (MR_ENCODE_EOS), or a space in front of a text. */
bool mr_tokenizer_adds_bos(const mr_tokenizer *tok);
bool mr_tokenizer_adds_eos(const mr_tokenizer *tok);
bool mr_tokenizer_adds_space_prefix(const mr_tokenizer *tok);
/* The number of merges that were left out because a token that they name is not in the vocabulary. */
int32_t mr_tokenizer_n_skipped_merges(const mr_tokenizer *tok);

#endif
