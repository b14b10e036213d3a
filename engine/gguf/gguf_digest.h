/* engine/gguf/gguf_digest.h - digests that tell model files apart without reading them whole.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_GGUF_GGUF_DIGEST_H
#define MR_ENGINE_GGUF_GGUF_DIGEST_H

#include "engine/gguf/gguf.h"

/* The digest of each part, [n_parts]: of its header, and of 64 bytes of each of its tensors. Different parts have
 * different digests, unless a file is made to deceive. */
void mr_gguf_part_digests(const mr_gguf *g, uint64_t *out);
/* The digest of a model from those of its parts. */
uint64_t mr_gguf_join_digests(const uint64_t *digests, int32_t n);
/* Both of them. */
uint64_t mr_gguf_digest(const mr_gguf *g);

#endif
