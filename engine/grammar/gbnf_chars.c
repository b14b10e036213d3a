/* engine/grammar/gbnf_chars.c - the characters of GBNF: escapes, the sorted ranges of a class, and the UTF-8 bytes of a
 * code point. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "engine/grammar/gbnf.h"
#include "engine/text/utf8.h"

enum { LAST_CODE = 0x10FFFF, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF };

static int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static bool hex_escape(mr_str text, size_t *at, size_t n_digits, uint32_t *out_code) {
    uint32_t code = 0;
    for (size_t i = 0; i < n_digits; i++, ++*at) {
        int digit = *at < text.len ? hex_value(text.data[*at]) : -1;
        if (digit < 0)
            return false;
        code = code << 4 | (uint32_t)digit;
    }
    *out_code = code;
    return code <= LAST_CODE && (code < FIRST_SURROGATE || code > LAST_SURROGATE);
}

static bool escape(mr_str text, size_t *at, uint32_t *out_code) {
    static const char letters[] = "nrt\\\"[]-^'/", codes[] = "\n\r\t\\\"[]-^'/";
    if (*at >= text.len)
        return false;
    char c = text.data[(*at)++];
    if (c == 'x' || c == 'u' || c == 'U')
        return hex_escape(text, at, c == 'x' ? 2 : c == 'u' ? 4 : 8, out_code);
    const char *found = c ? strchr(letters, c) : NULL;
    if (found)
        *out_code = (uint8_t)codes[found - letters];
    return found != NULL;
}

bool mr_gbnf_char(mr_str text, size_t *at, uint32_t *out_code) {
    size_t len = mr_utf8_char_len(text.data + *at, text.len - *at);
    const uint8_t *s = (const uint8_t *)text.data + *at;
    *at += len;
    switch (len) {
    case 1:
        *out_code = s[0];
        return s[0] != '\\' || escape(text, at, out_code);
    case 2:
        *out_code = (s[0] & 0x1Fu) << 6 | (s[1] & 0x3Fu);
        return true;
    case 3:
        *out_code = (s[0] & 0x0Fu) << 12 | (s[1] & 0x3Fu) << 6 | (s[2] & 0x3Fu);
        return true;
    case 4:
        *out_code = (s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu);
        return true;
    default:
        return false;
    }
}

static int compare_ranges(const void *a, const void *b) {
    uint32_t x = ((const gbnf_range *)a)->low, y = ((const gbnf_range *)b)->low;
    return (x > y) - (x < y);
}

static size_t join(gbnf_range *ranges, size_t n) {
    size_t kept = 0;
    if (n)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (kept && ranges[i].low <= ranges[kept - 1].high + 1) {
            if (ranges[i].high > ranges[kept - 1].high)
                ranges[kept - 1].high = ranges[i].high;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

/* Replaces joined ranges by the ranges between them. */
static size_t complement(gbnf_range *ranges, size_t n) {
    uint32_t next = 0;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        gbnf_range r = ranges[i];
        if (r.low > next)
            ranges[kept++] = (gbnf_range){next, r.low - 1};
        next = r.high + 1;
    }
    if (next <= LAST_CODE)
        ranges[kept++] = (gbnf_range){next, LAST_CODE};
    return kept;
}

size_t mr_gbnf_normalise(gbnf_range *ranges, size_t n, bool negated) {
    n = join(ranges, n);
    if (negated) {
        ranges[n++] = (gbnf_range){FIRST_SURROGATE, LAST_SURROGATE};
        return complement(ranges, join(ranges, n));
    }
    for (size_t i = 0; i < n; i++) {
        gbnf_range r = ranges[i];
        if (r.high < FIRST_SURROGATE || r.low > LAST_SURROGATE)
            continue;
        /* At most one range contains surrogates. Without them it may become two ranges. */
        size_t below = r.low<FIRST_SURROGATE, above = r.high> LAST_SURROGATE;
        memmove(ranges + i + below + above, ranges + i + 1, (n - i - 1) * sizeof *ranges);
        if (below)
            ranges[i] = (gbnf_range){r.low, FIRST_SURROGATE - 1};
        if (above)
            ranges[i + below] = (gbnf_range){LAST_SURROGATE + 1, r.high};
        return n - 1 + below + above;
    }
    return n;
}

size_t gbnf_utf8(uint32_t code, uint8_t out[4]) {
    if (code < 0x80) {
        out[0] = (uint8_t)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t lead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = n; i-- > 1; code >>= 6)
        out[i] = (uint8_t)(0x80 | (code & 0x3F));
    out[0] = (uint8_t)(lead[n] | code);
    return n;
}

size_t mr_gbnf_escape(char c, char out[8]) {
    if (c == '"' || c == '\\')
        return (size_t)snprintf(out, 8, "\\%c", c);
    if ((uint8_t)c < 0x20 || c == 0x7F)
        return (size_t)snprintf(out, 8, "\\x%02X", (unsigned)(uint8_t)c);
    out[0] = c;
    return 1;
}
