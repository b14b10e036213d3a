/* engine/text/vocab.c - checks and copies the tokens of a vocabulary, and makes the indices that find them by text or
 * bytes. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/vocab.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/text/byte_alphabet.h"

size_t vocab_spaces_decode(mr_str text, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        if (text.len - i >= VOCAB_SPACE_SIGN_BYTES &&
            memcmp(text.data + i, VOCAB_SPACE_SIGN, VOCAB_SPACE_SIGN_BYTES) == 0) {
            out[n++] = ' ';
            i += VOCAB_SPACE_SIGN_BYTES;
        } else {
            out[n++] = text.data[i++];
        }
    }
    return n;
}

/* Returns the value of a byte token's text, for example "<0x41>", or -1. */
static int byte_token_value(mr_str text) {
    if (text.len != 6 || memcmp(text.data, "<0x", 3) != 0 || text.data[5] != '>')
        return -1;
    int value = 0;
    for (int i = 3; i < 5; i++) {
        char c = text.data[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                           : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static mr_status check_types(const mr_vocab_desc *desc, mr_err *err) {
    if (desc->n_types != 0 && (desc->n_types != desc->n_tokens || !desc->types))
        return mr_err_set(err, MR_E_FORMAT, "tokenizer.ggml.token_type has %d entries for %d tokens", desc->n_types,
                          desc->n_tokens);
    for (int32_t i = 0; i < desc->n_types; i++)
        if (desc->types[i] < MR_TOKEN_UNDEFINED || desc->types[i] > MR_TOKEN_BYTE)
            return mr_err_set(err, MR_E_FORMAT, "token %d has type %d, which is none of 0 to 6", i, desc->types[i]);
    return MR_OK;
}

static mr_status check_tokens(const mr_vocab_desc *desc, size_t *out_bytes, mr_err *err) {
    if (desc->n_tokens < 1 || desc->n_tokens > MR_VOCAB_MAX_TOKENS || !desc->tokens)
        return mr_err_set(err, MR_E_FORMAT, "the vocabulary has %d tokens; 1 to %d are allowed", desc->n_tokens,
                          MR_VOCAB_MAX_TOKENS);
    size_t bytes = 0;
    for (int32_t i = 0; i < desc->n_tokens; i++) {
        mr_str t = desc->tokens[i];
        if (t.len > MR_VOCAB_MAX_TOKEN_BYTES || (t.len && !t.data))
            return mr_err_set(err, MR_E_FORMAT, "token %d is %zu bytes long; at most %d are allowed", i, t.len,
                              MR_VOCAB_MAX_TOKEN_BYTES);
        bytes += t.len;
        if (bytes > MR_VOCAB_MAX_BYTES)
            return mr_err_set(err, MR_E_FORMAT, "the tokens are longer than %d bytes together", MR_VOCAB_MAX_BYTES);
    }
    *out_bytes = bytes;
    return check_types(desc, err);
}

static bool allocate(vocab *v, size_t bytes) {
    size_t n = (size_t)v->n_tokens;
    v->types = mr_alloc(n);
    v->texts = mr_alloc(bytes);
    v->pieces = mr_alloc(bytes);
    v->text_starts = mr_alloc_array(n + 1, sizeof *v->text_starts);
    v->piece_starts = mr_alloc_array(n + 1, sizeof *v->piece_starts);
    return v->types && v->texts && v->pieces && v->text_starts && v->piece_starts &&
           token_index_init(&v->by_text, v->n_tokens, v->texts, v->text_starts) &&
           token_index_init(&v->by_piece, v->n_tokens, v->pieces, v->piece_starts);
}

/* Writes the piece of a token to out; a piece is never longer than the token's text. *out_plain: plain text may become
 * this token. */
static size_t make_piece(vocab_kind kind, mr_token_type type, mr_str text, char *out, bool *out_plain) {
    *out_plain = false;
    int byte = type == MR_TOKEN_BYTE ? byte_token_value(text) : -1;
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    bool is_user_defined = type == MR_TOKEN_USER_DEFINED;
    if (type == MR_TOKEN_CONTROL || type == MR_TOKEN_UNKNOWN || (is_user_defined && kind == VOCAB_BPE)) {
        /* A user-defined token may be an intermediate result of a byte-level merge. */
        *out_plain = is_user_defined;
        if (text.len)
            memcpy(out, text.data, text.len);
        return text.len;
    }
    if (kind == VOCAB_BPE)
        return byte_alphabet_decode(text, out, out_plain);
    /* In SentencePiece every space of a text is U+2581, so no text becomes a token with a plain space. */
    *out_plain = !is_user_defined && (!text.len || !memchr(text.data, ' ', text.len));
    return vocab_spaces_decode(text, out);
}

static void add_plain(vocab *v, int32_t id) {
    size_t len = vocab_piece(v, id).len;
    if (len == 0)
        return;
    token_index_add(&v->by_piece, id);
    v->max_piece_bytes = len > v->max_piece_bytes ? len : v->max_piece_bytes;
}

/* plain: work memory with one flag for each token. */
static void copy_tokens(vocab *v, const mr_vocab_desc *desc, bool *plain) {
    uint32_t text_at = 0, piece_at = 0;
    for (int32_t i = 0; i < v->n_tokens; i++) {
        mr_str t = desc->tokens[i];
        v->types[i] = desc->n_types ? (uint8_t)desc->types[i] : MR_TOKEN_NORMAL;
        if (!desc->n_types && v->kind == VOCAB_SPM && byte_token_value(t) >= 0)
            v->types[i] = MR_TOKEN_BYTE;
        if (t.len)
            memcpy(v->texts + text_at, t.data, t.len);
        v->text_starts[i] = text_at;
        v->piece_starts[i] = piece_at;
        text_at += (uint32_t)t.len;
        piece_at += (uint32_t)make_piece(v->kind, v->types[i], t, v->pieces + piece_at, &plain[i]);
        v->text_starts[i + 1] = text_at;
        v->piece_starts[i + 1] = piece_at;
        if (t.len)
            token_index_add(&v->by_text, i);
    }
    /* Normal tokens are added first, so that a user-defined token of the same bytes does not replace them. */
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < v->n_tokens; i++)
            if (plain[i] && (v->types[i] == MR_TOKEN_USER_DEFINED) == (pass == 1))
                add_plain(v, i);
}

static void find_byte_tokens(vocab *v) {
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->byte_ids[b] = v->kind == VOCAB_BPE ? vocab_find_piece(v, &c, 1) : -1;
    }
    for (int32_t i = 0; i < v->n_tokens; i++) {
        int b = v->types[i] == MR_TOKEN_BYTE ? byte_token_value(vocab_text(v, i)) : -1;
        if (b >= 0 && v->byte_ids[b] < 0)
            v->byte_ids[b] = i;
    }
}

mr_status vocab_init(vocab *v, vocab_kind kind, const mr_vocab_desc *desc, mr_err *err) {
    size_t bytes = 0;
    mr_status s = check_tokens(desc, &bytes, err);
    if (s)
        return s;
    v->kind = kind;
    v->n_tokens = desc->n_tokens;
    v->unk_id = desc->unk_id;
    bool *plain = mr_alloc_array((size_t)v->n_tokens, sizeof *plain);
    if (!plain || !allocate(v, bytes)) {
        s = mr_err_set(err, MR_E_NO_MEMORY, "no memory for a vocabulary of %d tokens", v->n_tokens);
        goto out;
    }
    copy_tokens(v, desc, plain);
    find_byte_tokens(v);
out:
    mr_free(plain);
    return s;
}

void vocab_deinit(vocab *v) {
    token_index_deinit(&v->by_text);
    token_index_deinit(&v->by_piece);
    mr_free(v->types);
    mr_free(v->texts);
    mr_free(v->pieces);
    mr_free(v->text_starts);
    mr_free(v->piece_starts);
    *v = (vocab){0};
}
