/* engine/text/pretokenize.h - cuts a text into the words that byte-level BPE merges inside, by the regular expressions
 * that `tokenizer.ggml.pre` names.
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
    PRETOK_JIT_NEVER, /* tests: the interpreter must cut the same */
} pretok_jit;

/* An empty pre means "gpt-2". MR_E_UNSUPPORTED: an unknown one; the text lists those that are known. */
MR_MUST_USE mr_status pretokenizer_create(mr_str pre, pretok_jit jit, pretokenizer **out_pre, mr_err *err);
void pretokenizer_destroy(pretokenizer *p);
/* A word that is a token as a whole is taken as that token, whatever the merges would make of it. */
bool pretokenizer_ignores_merges(const pretokenizer *p);
/* Whether models of this kind begin with a bos token where their file does not say. */
bool pretokenizer_adds_bos(const pretokenizer *p);

/* {0} is ready for use. */
typedef struct pretok_work {
    uint32_t *ends; /* of the words, ascending; the last one is the length of the text */
    size_t n, cap;
    uint32_t *spare; /* the result of the step before */
    size_t spare_cap;
} pretok_work;

void pretok_work_deinit(pretok_work *w);
/* Cuts text, which is valid UTF-8, into w->ends. Every byte belongs to one word. MR_E_TOO_LONG: matching took more
 * steps than a text of this length should. */
MR_MUST_USE mr_status pretokenizer_split(const pretokenizer *p, pretok_work *w, mr_str text, mr_err *err);

#endif
