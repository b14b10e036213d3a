/* engine/text/vocab.h - the tokens of a vocabulary: their texts as the file writes them, and their pieces, which are
 * the bytes that they stand for.
 * Owns:    copies of all tokens, both indices.
 * Threads: does not change once created. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_VOCAB_H
#define MR_ENGINE_TEXT_VOCAB_H

#include "engine/text/token_index.h"
#include "engine/text/tokenizer.h"

typedef enum vocab_kind {
    VOCAB_SPM, /* SentencePiece: U+2581 stands for a space */
    VOCAB_BPE, /* byte-level: one character of byte_alphabet.h for each byte */
} vocab_kind;

typedef struct vocab {
    vocab_kind kind;
    int32_t n_tokens;
    uint8_t *types;         /* [n_tokens] mr_token_type */
    char *texts;            /* the texts, as the file writes them */
    uint32_t *text_starts;  /* [n_tokens + 1] */
    char *pieces;           /* the pieces, which come out when tokens are decoded */
    uint32_t *piece_starts; /* [n_tokens + 1] */
    size_t max_piece_bytes; /* the longest piece in by_piece */
    token_index by_text;    /* index of all tokens */
    token_index by_piece;   /* index of the tokens that plain text may become */
    int32_t byte_ids[256];  /* the token of a single byte, or -1 */
    int32_t unk_id;
} vocab;

/* Checks and copies the tokens and types of desc. The caller passes a zeroed v, and calls deinit even after an
 * error. */
MR_MUST_USE mr_status vocab_init(vocab *v, vocab_kind kind, const mr_vocab_desc *desc, mr_err *err);
void vocab_deinit(vocab *v);

static inline mr_str vocab_text(const vocab *v, int32_t id) {
    return (mr_str){v->texts + v->text_starts[id], v->text_starts[id + 1] - v->text_starts[id]};
}
static inline mr_str vocab_piece(const vocab *v, int32_t id) {
    return (mr_str){v->pieces + v->piece_starts[id], v->piece_starts[id + 1] - v->piece_starts[id]};
}
/* Returns the token that plain text with these bytes becomes, or -1. */
static inline int32_t vocab_find_piece(const vocab *v, const char *bytes, size_t len) {
    return len == 0 || len > v->max_piece_bytes ? -1 : token_index_find(&v->by_piece, bytes, len);
}
/* Whether the token is a control or unknown token. These are recognised in a text on request only, and not shown. */
static inline bool vocab_is_special(const vocab *v, int32_t id) {
    return v->types[id] == MR_TOKEN_CONTROL || v->types[id] == MR_TOKEN_UNKNOWN;
}

/* U+2581 in UTF-8, SentencePiece's sign for a space. */
#define VOCAB_SPACE_SIGN "\xE2\x96\x81"
enum { VOCAB_SPACE_SIGN_BYTES = 3 };
/* Copies text to out, which has room for text.len bytes, with a space for each U+2581. Returns the number of bytes. */
size_t vocab_spaces_decode(mr_str text, char *out);

#endif
