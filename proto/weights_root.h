/* proto/weights_root.h - one hash that stands for all bytes of a model: SHA-256 of the roots of its parts, in order.
 * The root of a part is that of worker/files/file_root.h.
 * Threads: a pure function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_WEIGHTS_ROOT_H
#define MR_PROTO_WEIGHTS_ROOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

typedef struct mr_weights_root {
    uint8_t bytes[MR_FILE_HASH_BYTES]; /* all zero: nobody has verified the weights */
} mr_weights_root;

/* part_roots: [n_parts * MR_FILE_HASH_BYTES]. */
void mr_weights_root_join(const uint8_t *part_roots, size_t n_parts, mr_weights_root *out);
bool mr_weights_root_is_known(const mr_weights_root *root);

#endif
