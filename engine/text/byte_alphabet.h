/* engine/text/byte_alphabet.h - the printable characters that byte-level vocabularies write for the 256 bytes.
 * A byte that is a printable character of Latin-1 (0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF) stands for itself; the other 68
 * stand, in their order, for U+0100, U+0101 … So a space is written as U+0120.
 * Source:  GPT-2's encoder (Radford et al. 2019), whose files every such vocabulary follows.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_BYTE_ALPHABET_H
#define MR_ENGINE_TEXT_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/str.h"

/* Writes the bytes that text stands for into out (at most text.len of them). Bytes of text that are none of the
 * alphabet's characters are copied as they are. Returns the number of bytes; *out_all says that none was copied. */
size_t byte_alphabet_decode(mr_str text, char *out, bool *out_all);

#endif
