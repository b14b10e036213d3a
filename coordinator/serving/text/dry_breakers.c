/* coordinator/serving/text/dry_breakers.c - finds the token ids of DRY's sequence breakers by a scan of the vocabulary.
 * The sampler needs ids; users give texts. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/text/dry_breakers.h"

#include <string.h>

#include "engine/sample/sampler.h"

const char *const mr_dry_default_breakers[MR_DRY_N_DEFAULT_BREAKERS] = {"\n", ":", "\"", "*"};

static bool has_one(mr_str piece, const char *const *texts, int32_t n_texts) {
    for (int32_t i = 0; i < n_texts; i++) {
        size_t len = strlen(texts[i]);
        if (len > 0 && memmem(piece.data, piece.len, texts[i], len))
            return true;
    }
    return false;
}

mr_status mr_dry_breakers_find(const mr_tokenizer *tok, const char *const *texts, int32_t n_texts, mr_token_buf *out,
                               mr_err *err) {
    size_t n_before = out->n;
    for (int32_t id = 0; id < mr_tokenizer_n_tokens(tok); id++) {
        mr_str piece;
        if (!mr_tokenizer_piece(tok, id, &piece) || !has_one(piece, texts, n_texts))
            continue;
        if (out->n - n_before == MR_SAMPLER_MAX_BREAKERS)
            return mr_err_set(err, MR_E_TOO_LONG, "the sequence breakers of DRY are in more than %d tokens",
                              MR_SAMPLER_MAX_BREAKERS);
        if (!mr_token_buf_push(out, id))
            return mr_err_set(err, MR_E_NO_MEMORY, "no memory for the sequence breakers of DRY");
    }
    return MR_OK;
}
