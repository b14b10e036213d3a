/* engine/text/detok.c - turns token ids into text as they come, and holds back the bytes of incomplete characters. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/detok.h"

void mr_detok_init(mr_detok *d, const mr_tokenizer *tok, unsigned flags) {
    *d = (mr_detok){
        .tok = tok,
        .flags = flags,
        .drop_space = mr_tokenizer_adds_space_prefix(tok) && !(flags & MR_DECODE_CONTINUES),
    };
}

mr_status mr_detok_push(mr_detok *d, int32_t id, mr_text_buf *out_text, mr_err *err) {
    mr_str piece;
    if (!mr_tokenizer_piece(d->tok, id, &piece))
        return mr_err_set(err, MR_E_INVALID, "token id %d is outside the vocabulary of %d tokens", id,
                          mr_tokenizer_n_tokens(d->tok));
    mr_token_type type = mr_tokenizer_type(d->tok, id);
    bool special = type == MR_TOKEN_CONTROL || type == MR_TOKEN_UNKNOWN;
    if (piece.len == 0 || (special && !(d->flags & MR_DECODE_SPECIAL)))
        return MR_OK;
    /* Each byte writes at most MR_UTF8_MAX_STEP_BYTES, so nothing fails from here on. */
    if (!mr_text_buf_reserve(out_text, piece.len * MR_UTF8_MAX_STEP_BYTES))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the text of token %d", id);
    /* Encoding adds no space to the spaces of a user-defined token. */
    bool may_start = !special && type != MR_TOKEN_USER_DEFINED;
    size_t i = d->drop_space && may_start && piece.data[0] == ' ' ? 1 : 0;
    /* The space belongs to the first text. A control token in front of that text does not change this. */
    d->drop_space = d->drop_space && special;
    for (; i < piece.len; i++)
        out_text->len += mr_utf8_decoder_push(&d->utf8, (uint8_t)piece.data[i], out_text->data + out_text->len);
    out_text->data[out_text->len] = 0;
    return MR_OK;
}

mr_status mr_detok_finish(mr_detok *d, mr_text_buf *out_text, mr_err *err) {
    if (d->utf8.n_pending == 0)
        return MR_OK;
    if (!mr_text_buf_reserve(out_text, MR_UTF8_MAX_STEP_BYTES))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the end of a text");
    out_text->len += mr_utf8_decoder_finish(&d->utf8, out_text->data + out_text->len);
    out_text->data[out_text->len] = 0;
    return MR_OK;
}
