/* engine/grammar/plain.c - counts the plain characters of a token, and those that a state of an automaton takes in a
 * row. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar/plain.h"

#include "engine/text/utf8.h"

static bool is_plain_ascii(unsigned c) {
    return c >= 0x20 && c < 0x7F && c != '"' && c != '\\';
}

size_t plain_chars(mr_str token) {
    size_t n = 0;
    for (size_t at = 0; at < token.len; n++) {
        size_t len = mr_utf8_char_len(token.data + at, token.len - at);
        if (len == 0 || n == PLAIN_MAX_CHARS || (len == 1 && !is_plain_ascii((uint8_t)token.data[at])))
            return 0;
        at += len;
    }
    return n;
}

/* The characters beyond ASCII by table 3-7 of the Unicode Standard: first and last lead byte, lowest and highest second
 * byte, number of bytes after these. */
typedef struct form {
    uint8_t first, last, low, high, n_more;
} form;
static const form forms[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1}, {0xED, 0xED, 0x80, 0x9F, 1},
    {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2}, {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* Whether all bytes from low to high, followed by n_more continuation bytes of any value, lead to the state `to`. */
static bool all_lead_to(const dfa *d, uint32_t state, uint8_t low, uint8_t high, unsigned n_more, uint32_t to) {
    for (unsigned depth = 0; depth <= n_more; depth++) {
        uint32_t next = dfa_next(d, state, low);
        for (unsigned c = low; c <= high; c++)
            if (dfa_next(d, state, (uint8_t)c) != next)
                return false;
        state = next;
        low = 0x80;
        high = 0xBF;
    }
    return state == to;
}

/* Returns the one state to which all plain characters lead; DFA_DEAD if there is no such state. */
static uint32_t plain_next(const dfa *d, uint32_t state) {
    uint32_t to = dfa_next(d, state, ' ');
    for (unsigned c = 0x20; c < 0x7F; c++)
        if (is_plain_ascii(c) && dfa_next(d, state, (uint8_t)c) != to)
            return DFA_DEAD;
    for (size_t i = 0; to != DFA_DEAD && i < N_FORMS; i++) {
        uint32_t lead = DFA_DEAD;
        for (unsigned c = forms[i].first; c <= forms[i].last; c++) {
            uint32_t next = dfa_next(d, state, (uint8_t)c);
            if (next == DFA_DEAD ||
                (next != lead && !all_lead_to(d, next, forms[i].low, forms[i].high, forms[i].n_more, to)))
                return DFA_DEAD;
            lead = next;
        }
    }
    return to;
}

static bool takes_none(const dfa *d, uint32_t state) {
    for (unsigned c = 0x20; c < 0x100; c++)
        if ((c >= 0x80 || is_plain_ascii(c)) && dfa_next(d, state, (uint8_t)c) != DFA_DEAD)
            return false;
    return true;
}

size_t plain_run(const dfa *d, uint32_t state, bool *out_none_more) {
    size_t n = 0;
    bool inside = true; /* the rule neither ends nor calls a rule on the way */
    for (uint32_t next; n < PLAIN_MAX_CHARS && (next = plain_next(d, state)) != DFA_DEAD; n++) {
        inside = inside && d->flags[next] == DFA_BYTES;
        if (next == state)
            n = PLAIN_MAX_CHARS - 1;
        state = next;
    }
    *out_none_more = n < PLAIN_MAX_CHARS && inside && takes_none(d, state);
    return n;
}
