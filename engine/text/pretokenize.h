/* engine/text/pretokenize.h - cuts a text into words, by the regular expressions that `tokenizer.ggml.pre` names.
 * Byte-level BPE merges only inside words.
 * Threads: a pretokenizer does not change once created; each caller has its own pretok_work. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_PRETOKENIZE_H
#define MR_ENGINE_TEXT_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/str.h"

typedef struct pretokenizer pretokenizer;

typedef enum pretok_jit {
    PRETOK_JIT_IF_POSSIBLE,
    PRETOK_JIT_NEVER, /* for tests: the interpreter must give the same words */
} pretok_jit;

/* An empty pre means "gpt-2". MR_E_UNSUPPORTED: an unknown pre; the error text lists known ones. */
MR_MUST_USE mr_status pretokenizer_create(mr_str pre, pretok_jit jit, pretokenizer **out_pre, mr_err *err);
void pretokenizer_destroy(pretokenizer *p);
/* Whether a word that is a token as a whole becomes that token even if the merges give another result. */
bool pretokenizer_ignores_merges(const pretokenizer *p);
/* Whether models of this kind begin with a bos token when the file does not say. */
bool pretokenizer_adds_bos(const pretokenizer *p);
/* Whether a file of this kind may lack merges. Then any two neighbours whose bytes together are a token may merge, and
 * the lowest id merges first. */
bool pretokenizer_ids_are_ranks(const pretokenizer *p);

/* {0} is ready for use. */
typedef struct pretok_work {
    uint32_t *ends; /* ends of the words, ascending; the last one is the length of the text */
    size_t n, cap;
    uint32_t *spare; /* the words of the step before */
    size_t spare_cap;
} pretok_work;

void pretok_work_deinit(pretok_work *w);
/* Cuts text, which must be valid UTF-8, and writes the ends of the words to w->ends. Every byte belongs to one word.
 * MR_E_TOO_LONG: matching took more steps than a text of this length should need. */
MR_MUST_USE mr_status pretokenizer_split(const pretokenizer *p, pretok_work *w, mr_str text, mr_err *err);

#endif
