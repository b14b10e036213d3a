/* engine/text/byte_alphabet.c - converts tokens written in GPT-2's byte alphabet to the bytes that they stand for. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/text/byte_alphabet.h"

#include <stdint.h>

/* Returns the byte that the character with this code stands for, or -1. */
static int byte_of_code(uint32_t code) {
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    uint32_t k = code - 0x100;
    if (k <= 0x20)
        return (int)k; /* 0x00..0x20 */
    if (k <= 0x42)
        return (int)(0x7F + k - 0x21); /* 0x7F..0xA0 */
    return k == 0x43 ? 0xAD : -1;
}

size_t byte_alphabet_decode(mr_str text, char *out, bool *out_all) {
    size_t n = 0;
    *out_all = true;
    for (size_t i = 0; i < text.len;) {
        uint8_t lead = (uint8_t)text.data[i], next = i + 1 < text.len ? (uint8_t)text.data[i + 1] : 0;
        int byte = -1;
        size_t len = 1;
        if (lead < 0x80) {
            byte = byte_of_code(lead);
        } else if (lead >= 0xC2 && lead <= 0xDF && (next & 0xC0) == 0x80) {
            byte = byte_of_code((lead & 0x1Fu) << 6 | (next & 0x3Fu));
            len = 2;
        }
        if (byte >= 0) {
            out[n++] = (char)byte;
        } else {
            *out_all = false;
            for (size_t k = 0; k < len; k++)
                out[n++] = text.data[i + k];
        }
        i += len;
    }
    return n;
}
