/* coordinator/serving/jinja/chars.h - properties of characters, as Python's str has them.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_CHARS_H
#define MR_COORDINATOR_SERVING_JINJA_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the first character of s if that character is white space (str.isspace), otherwise 0. */
size_t char_space_len(const char *s, size_t n);
bool char_is_space(uint32_t c);
bool char_is_printable(uint32_t c);
bool char_is_alpha(uint32_t c);
bool char_is_decimal(uint32_t c);
bool char_is_upper(uint32_t c);
bool char_is_lower(uint32_t c);
bool char_is_title(uint32_t c);
/* Write one to three characters into out and return their number. */
int char_upper(uint32_t c, uint32_t out[3]);
int char_title(uint32_t c, uint32_t out[3]);
uint32_t char_lower(uint32_t c);
/* Writes c as UTF-8 and returns the number of bytes. */
size_t char_encode(uint32_t c, char out[4]);
/* Returns the first character of s, which is UTF-8 of n > 0 bytes. out_len: the bytes of that character. */
uint32_t char_decode(const char *s, size_t n, size_t *out_len);

#endif
