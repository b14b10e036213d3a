/* engine/text/utf8.h - characters of UTF-8, and a decoder that takes bytes one at a time.
 * Source:  The Unicode Standard, table 3-7 (well-formed byte sequences) and section 3.9 (maximal subparts).
 * Threads: pure functions; a decoder belongs to one caller. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_TEXT_UTF8_H
#define MR_ENGINE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/str.h"

/* U+FFFD, which replaces bytes that are not a character. */
#define MR_UTF8_REPLACEMENT "\xEF\xBF\xBD"
enum {
    MR_UTF8_REPLACEMENT_BYTES = 3,
    MR_UTF8_MAX_STEP_BYTES = 6, /* the most that one byte writes: a replacement, and another one or the byte itself */
};

/* Returns the bytes of the character that starts at s, 1 to 4, or 0 if no well-formed character starts there. */
size_t mr_utf8_char_len(const char *s, size_t n);
/* The same for white space (the Unicode property White_Space); 0 for other characters. */
size_t mr_utf8_space_len(const char *s, size_t n);

/* Makes a name from a file fit for an error text: cut to size - 1 bytes, with '?' for all but printable ASCII. */
void mr_utf8_printable(mr_str name, char *out, size_t size);

/* {0} is a decoder at the start of a text. */
typedef struct mr_utf8_decoder {
    uint8_t pending[4]; /* the bytes of an incomplete character */
    uint8_t n_pending;
    uint8_t n_wanted;        /* how many bytes are still missing */
    uint8_t lowest, highest; /* range of the next byte */
} mr_utf8_decoder;

/* Takes one byte and writes the characters that it completes to out. U+FFFD stands for each maximal part of a character
 * that was cut short, and for each byte that cannot start a character. Returns the number of bytes written. */
size_t mr_utf8_decoder_push(mr_utf8_decoder *d, uint8_t byte, char out[MR_UTF8_MAX_STEP_BYTES]);
/* Ends the text: an incomplete character becomes one U+FFFD. The decoder is then ready for the next text. */
size_t mr_utf8_decoder_finish(mr_utf8_decoder *d, char out[MR_UTF8_MAX_STEP_BYTES]);

#endif
