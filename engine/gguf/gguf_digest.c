/* Digests by XXH3-64. The tensors of a model stand in the order of its parts, so one pass over them is enough. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/gguf/gguf_digest.h"

#include <xxhash.h>

enum { SAMPLE_BYTES = 64 }; /* from the middle of each tensor */

void mr_gguf_part_digests(const mr_gguf *g, uint64_t *out) {
    int32_t next = 0;
    for (int32_t i = 0; i < mr_gguf_n_parts(g); i++) {
        const mr_gguf_part *p = mr_gguf_part_at(g, i);
        out[i] = XXH3_64bits(mr_gguf_file_data(g) + p->at, p->header_bytes);
        for (; next < mr_gguf_n_tensors(g) && mr_gguf_tensor_at(g, next)->offset < p->at + p->bytes; next++) {
            const mr_gguf_tensor *t = mr_gguf_tensor_at(g, next);
            size_t n = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
            out[i] = XXH3_64bits_withSeed(t->data + (t->bytes - n) / 2, n, out[i]);
        }
    }
}

uint64_t mr_gguf_join_digests(const uint64_t *digests, int32_t n) {
    return n == 1 ? digests[0] : XXH3_64bits(digests, (size_t)n * sizeof *digests);
}

uint64_t mr_gguf_digest(const mr_gguf *g) {
    uint64_t digests[MR_GGUF_MAX_PARTS];
    mr_gguf_part_digests(g, digests);
    return mr_gguf_join_digests(digests, mr_gguf_n_parts(g));
}
