/* engine/text/byte_alphabet.h - the 256 printable characters by which byte-level vocabularies write bytes.
 * A byte that is a printable character of Latin-1 (0x21..0x7E, 0xA1..0xAC, 0xAE..0xFF) stands for itself. The other 68
 * bytes are written, in their order, as U+0100, U+0101 … So a space is written as U+0120.
 * Source:  GPT-2's encoder (Radford et al. 2019), whose files every such vocabulary follows.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_BYTE_ALPHABET_H
#define MR_ENGINE_TEXT_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/str.h"

/* Writes the bytes that text stands for to out, at most text.len bytes. Bytes of text outside the alphabet are copied
 * as they are; *out_all says that there were none. Returns the number of bytes. */
size_t byte_alphabet_decode(mr_str text, char *out, bool *out_all);

#endif
