/* engine/text/spm.h - SentencePiece's BPE. Neighbouring symbols whose texts together are a token merge, the highest
 * score first; or in the order of a list of merges, if the file has one. A character that is no token at the end
 * becomes its byte tokens.
 * Source:  Kudo and Richardson 2018 (SentencePiece); Sennrich et al. 2016 (BPE).
 * Owns:    the order of the tokens, or the merges. Borrows: the vocabulary, which outlives it.
 * Threads: does not change once created. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_SPM_H
#define MR_ENGINE_TEXT_SPM_H

#include "engine/text/merge_table.h"
#include "engine/text/vocab.h"

typedef struct spm {
    const vocab *v;
    uint32_t *orders; /* [n_tokens], lower for a higher score; NULL if there are merges */
    merge_table merges;
    /* Set if no token has a space behind another character. No merge then crosses the start of a run of spaces, so each
     * stretch from one such start to the next is merged alone. The tokens are the same and take far less memory. */
    bool splits_at_spaces;
} spm;

/* by_merges: symbols merge by the list of merges, not by scores. The caller passes a zeroed s, and calls deinit even
 * after an error. MR_E_FORMAT: scores are missing or are not numbers; or what merge_table_init says. */
MR_MUST_USE mr_status spm_init(spm *s, const vocab *v, bool by_merges, const mr_vocab_desc *desc, mr_err *err);
void spm_deinit(spm *s);

/* Appends the ids of text, which contains no special tokens. With add_space, the text is encoded as if a space stood in
 * front of it. After an error, the ids appended by this call are undefined. */
MR_MUST_USE mr_status spm_encode(const spm *s, merge_work *work, mr_str text, bool add_space, mr_token_buf *out_ids,
                                 mr_err *err);

#endif
