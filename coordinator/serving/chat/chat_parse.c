/* coordinator/serving/chat/chat_parse.c - what the unread text of the output begins with: white space, names, literals,
 * whole characters. The parsers of content, of tool calls and of JSON share these functions. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

bool chat_is_space(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool chat_is_word_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
}

bool chat_is_name_byte(char c) {
    return chat_is_word_byte(c) || c == '/' || c == ':';
}

bool mr_chat_is_tool_name(mr_str name) {
    size_t n = 0;
    while (n < name.len && n < CHAT_MAX_NAME_BYTES && chat_is_name_byte(name.data[n]))
        n++;
    return n > 0 && n == name.len;
}

void chat_skip_space(mr_chat_output *o) {
    while (o->pos < o->end && chat_is_space(o->in.data[o->pos]))
        o->pos++;
}

chat_step chat_match(const mr_chat_output *o, size_t pos, const char *literal, size_t n) {
    size_t have = o->end - pos;
    if (have && memcmp(o->in.data + pos, literal, have < n ? have : n) != 0)
        return STEP_NO;
    return have < n ? STEP_MORE : STEP_ON;
}

size_t chat_whole_characters(const char *s, size_t n) {
    while (n && ((unsigned char)s[n] & 0xc0) == 0x80)
        n--;
    return n;
}
