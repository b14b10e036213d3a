// SPDX-License-Identifier: Apache-2.0
#include "proto/weights_root.h"

#include <nettle/sha2.h>
#include <string.h>

void mr_weights_root_join(const uint8_t *part_roots, size_t n_parts, mr_weights_root *out) {
    struct sha256_ctx ctx;
    sha256_init(&ctx);
    sha256_update(&ctx, n_parts * MR_FILE_HASH_BYTES, part_roots);
    sha256_digest(&ctx, sizeof out->bytes, out->bytes);
}

bool mr_weights_root_is_known(const mr_weights_root *root) {
    static const mr_weights_root none;
    return memcmp(root, &none, sizeof none) != 0;
}
