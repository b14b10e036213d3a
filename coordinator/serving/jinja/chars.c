/* coordinator/serving/jinja/chars.c - looks up properties of characters in the tables of utf8proc, and adds what Python
 * defines differently. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/chars.h"

#include <utf8proc.h>

#include "engine/text/utf8.h"

uint32_t char_decode(const char *s, size_t n, size_t *out_len) {
    utf8proc_int32_t c;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &c);
    if (len < 1) { /* malformed UTF-8, which callers never pass */
        *out_len = 1;
        return 0xFFFD;
    }
    *out_len = (size_t)len;
    return (uint32_t)c;
}

size_t char_encode(uint32_t c, char out[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)out);
}

/* Python's str.isspace is also true for the separators 1C to 1F. Unicode gives them a bidirectional class of white
 * space, but not the property White_Space. */
bool char_is_space(uint32_t c) {
    if (c >= 0x1C && c <= 0x1F)
        return true;
    char text[4];
    size_t n = char_encode(c, text);
    return n && mr_utf8_space_len(text, n) > 0;
}

size_t char_space_len(const char *s, size_t n) {
    if ((unsigned char)*s < 0x80)
        return char_is_space((unsigned char)*s);
    return mr_utf8_space_len(s, n);
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool char_is_printable(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return c == ' ';
    default:
        return true;
    }
}

bool char_is_alpha(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool char_is_decimal(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool char_is_upper(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LU;
}

bool char_is_lower(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LL;
}

bool char_is_title(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LT;
}

int char_upper(uint32_t c, uint32_t out[3]) {
    if (c == 0xDF) { /* sharp s: the only frequent character whose upper case is two characters */
        out[0] = out[1] = 'S';
        return 2;
    }
    out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)c);
    return 1;
}

int char_title(uint32_t c, uint32_t out[3]) {
    if (c == 0xDF) {
        out[0] = 'S';
        out[1] = 's';
        return 2;
    }
    out[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)c);
    return 1;
}

uint32_t char_lower(uint32_t c) {
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
}
