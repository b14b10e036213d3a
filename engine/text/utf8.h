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

/* U+FFFD, which stands for bytes that are no character. */
#define MR_UTF8_REPLACEMENT "\xEF\xBF\xBD"
enum {
    MR_UTF8_REPLACEMENT_BYTES = 3,
    MR_UTF8_MAX_STEP_BYTES = 6, /* the most that one byte brings out: a replacement and, after it, one more or itself */
};

/* Bytes of the character that starts at s, 1 to 4; 0 where no well-formed one does. */
size_t mr_utf8_char_len(const char *s, size_t n);
/* The same, and the character is white space (the Unicode property White_Space). */
size_t mr_utf8_space_len(const char *s, size_t n);

/* A name that came from a file, fit for an error text: cut to size - 1 bytes, all but printable ASCII as '?'. */
void mr_utf8_printable(mr_str name, char *out, size_t size);

/* {0} is a decoder at the start of a text. */
typedef struct mr_utf8_decoder {
    uint8_t pending[4]; /* the bytes of a character that is not complete */
    uint8_t n_pending;
    uint8_t n_wanted;        /* bytes that are still missing */
    uint8_t lowest, highest; /* what the next one may be */
} mr_utf8_decoder;

/* Takes one byte and writes what is complete with it into out: whole characters, and U+FFFD for each maximal part of
 * one that was cut short and each byte that can start none. Returns the number of bytes written. */
size_t mr_utf8_decoder_push(mr_utf8_decoder *d, uint8_t byte, char out[MR_UTF8_MAX_STEP_BYTES]);
/* The text ends: an unfinished character becomes one U+FFFD. The decoder is then at a start again. */
size_t mr_utf8_decoder_finish(mr_utf8_decoder *d, char out[MR_UTF8_MAX_STEP_BYTES]);

#endif
