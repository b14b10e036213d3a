/* engine/base/bytes_text.h - numbers of bytes as people read them.
 * Owns: nothing. Threads: pure functions. Errors: none. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_BYTES_TEXT_H
#define MR_ENGINE_BASE_BYTES_TEXT_H

#include <stdint.h>

enum { MR_BYTES_TEXT = 32 };

/* Writes "600 B", "5.0 MiB", "1.5 GiB": in the largest unit that is not above the number. Returns out. */
const char *mr_bytes_text(uint64_t bytes, char out[MR_BYTES_TEXT]);

/* Two numbers of bytes that a text compares. */
typedef struct mr_bytes_pair {
    char a[MR_BYTES_TEXT], b[MR_BYTES_TEXT];
} mr_bytes_pair;

/* As mr_bytes_text, with so many digits that different numbers have different texts. */
mr_bytes_pair mr_bytes_apart(uint64_t a, uint64_t b);

#endif
