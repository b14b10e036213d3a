/* engine/text/utf8.c - lengths of UTF-8 characters, and a decoder that replaces invalid bytes. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/utf8.h"

#include <string.h>
#include <utf8proc.h>

size_t mr_utf8_char_len(const char *s, size_t n) {
    if (n == 0)
        return 0;
    if ((uint8_t)s[0] < 0x80)
        return 1;
    utf8proc_int32_t code;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s, n > 4 ? 4 : (utf8proc_ssize_t)n, &code);
    return len > 0 ? (size_t)len : 0;
}

/* The property White_Space is the separators (general category Z) and these control characters. */
static bool is_space(utf8proc_int32_t code) {
    if ((code >= '\t' && code <= '\r') || code == 0x85)
        return true;
    utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

size_t mr_utf8_space_len(const char *s, size_t n) {
    utf8proc_int32_t code;
    utf8proc_ssize_t len = utf8proc_iterate((const utf8proc_uint8_t *)s, n > 4 ? 4 : (utf8proc_ssize_t)n, &code);
    return len > 0 && is_space(code) ? (size_t)len : 0;
}

void mr_utf8_printable(mr_str name, char *out, size_t size) {
    size_t n = 0;
    for (; n < name.len && n + 1 < size; n++)
        out[n] = name.data[n] >= 0x20 && name.data[n] < 0x7F ? name.data[n] : '?';
    out[n] = 0;
}

static size_t put_replacement(char *out) {
    memcpy(out, MR_UTF8_REPLACEMENT, MR_UTF8_REPLACEMENT_BYTES);
    return MR_UTF8_REPLACEMENT_BYTES;
}

/* Takes a byte where a character may start. */
static size_t start(mr_utf8_decoder *d, uint8_t byte, char *out) {
    if (byte < 0x80) {
        out[0] = (char)byte;
        return 1;
    }
    if (byte < 0xC2 || byte > 0xF4)
        return put_replacement(out);
    d->n_wanted = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
    /* Table 3-7: these ranges exclude overlong forms, surrogates and codes above U+10FFFF. */
    d->lowest = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
    d->highest = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
    d->pending[0] = byte;
    d->n_pending = 1;
    return 0;
}

size_t mr_utf8_decoder_push(mr_utf8_decoder *d, uint8_t byte, char out[MR_UTF8_MAX_STEP_BYTES]) {
    if (d->n_pending == 0)
        return start(d, byte, out);
    if (byte < d->lowest || byte > d->highest) {
        d->n_pending = 0;
        size_t n = put_replacement(out);
        return n + start(d, byte, out + n);
    }
    d->pending[d->n_pending++] = byte;
    d->lowest = 0x80;
    d->highest = 0xBF;
    if (--d->n_wanted)
        return 0;
    size_t n = d->n_pending;
    memcpy(out, d->pending, n);
    d->n_pending = 0;
    return n;
}

size_t mr_utf8_decoder_finish(mr_utf8_decoder *d, char out[MR_UTF8_MAX_STEP_BYTES]) {
    if (d->n_pending == 0)
        return 0;
    d->n_pending = 0;
    return put_replacement(out);
}
