/* engine/vocab/vocab.h - the tokenizer of a model file: reads its tokenizer.ggml.* keys. engine/text takes arrays, not
 * files, so this stands between the two.
 * Owns:    nothing; the tokenizer is the caller's and does not need the file any more.
 * Threads: pure functions.
 * Errors:  MR_E_NOT_FOUND: the file has no tokenizer. MR_E_FORMAT, MR_E_UNSUPPORTED: texts name the key. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_VOCAB_VOCAB_H
#define MR_ENGINE_VOCAB_VOCAB_H

#include "engine/gguf/gguf.h"
#include "engine/text/tokenizer.h"

MR_MUST_USE mr_status mr_vocab_load(const mr_gguf *g, mr_tokenizer **out, mr_err *err);

#endif
