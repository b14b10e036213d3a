/* engine/text/bpe.h - byte-level BPE: a text is cut into words, and the bytes of each word are merged by the ranks of
 * merges. In a file without merges, the ids of tokens may be their ranks.
 * Source:  Sennrich et al. 2016 (BPE), Radford et al. 2019 (on bytes).
 * Owns:    the merges, the pre-tokenizer. Borrows: the vocabulary, which outlives it.
 * Threads: does not change once created. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_BPE_H
#define MR_ENGINE_TEXT_BPE_H

#include "engine/text/merge_table.h"
#include "engine/text/pretokenize.h"
#include "engine/text/vocab.h"

typedef struct bpe {
    const vocab *v;
    merge_table merges; /* none: the ids of tokens are the ranks of merges */
    pretokenizer *pre;
} bpe;

/* The caller passes a zeroed b, and calls deinit even after an error. MR_E_FORMAT: no merges where the
 * pre-tokenizer needs them, or a merge that is not two texts. MR_E_UNSUPPORTED: an unknown pre. */
MR_MUST_USE mr_status bpe_init(bpe *b, const vocab *v, const mr_vocab_desc *desc, mr_err *err);
void bpe_deinit(bpe *b);

/* Appends the ids of text, which contains no special tokens. Each byte that is not valid UTF-8 is a word of its own.
 * After an error, the ids appended by this call are undefined. MR_E_TOO_LONG: matching the regular expressions takes
 * too many steps. */
MR_MUST_USE mr_status bpe_encode(const bpe *b, merge_work *work, pretok_work *pieces, mr_str text,
                                 mr_token_buf *out_ids, mr_err *err);

#endif
