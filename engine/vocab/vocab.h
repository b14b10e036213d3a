/* engine/vocab/vocab.h - the tokenizer of a model file, from its tokenizer.ggml.* keys. engine/text takes arrays and
 * knows no files; this room reads the file for it.
 * Owns:    nothing; the caller owns the tokenizer, which does not need the file any more.
 * Threads: pure functions.
 * Errors:  MR_E_NOT_FOUND: the file has no tokenizer. MR_E_FORMAT, MR_E_UNSUPPORTED: error texts name the key. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_VOCAB_VOCAB_H
#define MR_ENGINE_VOCAB_VOCAB_H

#include "engine/gguf/gguf.h"
#include "engine/text/tokenizer.h"

MR_MUST_USE mr_status mr_vocab_load(const mr_gguf *g, mr_tokenizer **out, mr_err *err);

#endif
