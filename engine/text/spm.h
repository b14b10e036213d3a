/* engine/text/spm.h - SentencePiece's BPE: characters merge into the token of the highest score, whatever they were
 * before; characters that end as no token become their byte tokens.
 * Source:  Kudo and Richardson 2018 (SentencePiece); Sennrich et al. 2016 (BPE).
 * Owns:    the order of the tokens. Borrows: the vocabulary, which outlives it.
 * Threads: does not change once created. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_SPM_H
#define MR_ENGINE_TEXT_SPM_H

#include "engine/text/merge.h"
#include "engine/text/vocab.h"

typedef struct spm {
    const vocab *v;
    uint32_t *orders; /* [n_tokens] lower for a higher score */
    /* No token has a space behind another character. Then no merge ever crosses the start of a run of spaces, and each
     * stretch from one such start to the next can be merged alone: the same tokens with far less memory. */
    bool splits_at_spaces;
} spm;

/* s is zeroed, and may be handed to deinit whatever comes back. MR_E_FORMAT: scores are missing, or no numbers. */
MR_MUST_USE mr_status spm_init(spm *s, const vocab *v, const mr_vocab_desc *desc, mr_err *err);
void spm_deinit(spm *s);

/* Appends the ids of text, which holds no special tokens. add_space: as if a space stood in front of it. Of out_ids
 * only the part before the call is defined after a failure. */
MR_MUST_USE mr_status spm_encode(const spm *s, merge_work *work, mr_str text, bool add_space, mr_token_buf *out_ids,
                                 mr_err *err);

#endif
