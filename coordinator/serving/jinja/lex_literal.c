/* coordinator/serving/jinja/lex_literal.c - reads the number and string literals of a template: Python's bases and
 * underscores, and the escapes in strings. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/lex.h"

static bool literal_fail(lexer *l, const char *what) {
    l->x->line = l->line;
    return jx_fail(l->x, MR_E_FORMAT, "%s", what);
}

static bool is_digit(char c, int base) {
    int d = isdigit((unsigned char)c) ? c - '0' : isalpha((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : 99;
    return d < base;
}

/* The end of the digits at pos, with single underscores between them. Returns pos if there are no digits. */
static size_t digits_end(const lexer *l, size_t pos, int base) {
    size_t end = pos;
    for (size_t i = pos; is_digit(l->s[i], base);) {
        end = ++i;
        if (l->s[i] == '_')
            i++;
    }
    return end;
}

/* The end of the float at l->pos. 0: no float stands there. */
static size_t float_end(const lexer *l) {
    if (l->pos && l->s[l->pos - 1] == '.')
        return 0;
    size_t pos = digits_end(l, l->pos, 10), end = 0;
    if (l->s[pos] == '.' && digits_end(l, pos + 1, 10) > pos + 1)
        pos = end = digits_end(l, pos + 1, 10);
    if (tolower((unsigned char)l->s[pos]) == 'e') {
        size_t digits = pos + 1 + (l->s[pos + 1] == '+' || l->s[pos + 1] == '-');
        if (digits_end(l, digits, 10) > digits)
            end = digits_end(l, digits, 10);
    }
    return end;
}

bool lex_number(lexer *l, tok *out) {
    char text[128];
    int base = 10;
    size_t start = l->pos, n = 0, end = float_end(l);
    bool is_float = end > 0;
    if (!is_float && l->s[start] == '0') {
        char c = (char)tolower((unsigned char)l->s[start + 1]);
        base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 10;
        size_t digits = start + 2 + (l->s[start + 2] == '_');
        if (base != 10 && digits_end(l, digits, base) > digits) {
            end = digits_end(l, digits, base);
            start = digits;
        } else { /* zeros only */
            base = 10;
            for (end = start + 1; l->s[end] == '0' || (l->s[end] == '_' && l->s[end + 1] == '0');)
                end++;
        }
    } else if (!is_float) {
        end = digits_end(l, start, 10);
    }
    for (size_t i = start; i < end; i++)
        if (l->s[i] != '_') {
            if (n + 1 == sizeof text)
                return literal_fail(l, "a number has too many digits");
            text[n++] = l->s[i];
        }
    text[n] = 0;
    errno = 0;
    out->type = T_NUMBER;
    out->value = is_float ? jv_float(strtod(text, NULL)) : jv_int(strtoll(text, NULL, base));
    if (!is_float && errno)
        return literal_fail(l, "an integer has more than 64 bits");
    l->pos = end;
    l->line_starting = false;
    return true;
}

static char simple_escape(char c) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *at = c ? strchr(from, c) : NULL;
    return at ? to[at - from] : 0;
}

/* Reads an octal or hexadecimal escape. s: the text behind the backslash. Returns the bytes read, 0 for other
 * escapes. */
static size_t code_escape(const char *s, size_t n, uint32_t *out) {
    size_t digits = 0, at = 1, want = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    int base = 16;
    if (!want) {
        want = 3;
        at = 0;
        base = 8;
    }
    *out = 0;
    while (digits < want && at + digits < n && is_digit(s[at + digits], base)) {
        char c = s[at + digits++];
        *out = *out * (uint32_t)base + (uint32_t)(isdigit((unsigned char)c) ? c - '0' : (c | 32) - 'a' + 10);
    }
    return base == 16 && digits < want ? 0 : at + digits;
}

static bool unescape(lexer *l, const char *s, size_t n, jtext *text) {
    for (size_t i = 0; i < n;) {
        const char *stop = memchr(s + i, '\\', n - i);
        size_t plain = stop ? (size_t)(stop - (s + i)) : n - i;
        if (!jtext_add(l->x, text, s + i, plain))
            return false;
        i += plain + 1;
        if (!stop || i >= n)
            break;
        uint32_t code;
        char c = simple_escape(s[i]);
        size_t used = 1;
        bool ok = true;
        if (s[i] == '\n') {
        } else if (c) {
            ok = jtext_add(l->x, text, &c, 1);
        } else if (strchr("xuU01234567", s[i])) {
            used = code_escape(s + i, n - i, &code);
            if (!used || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
                return literal_fail(l, "a string has an escape that is no character");
            ok = jtext_char(l->x, text, code);
        } else if (s[i] == 'N') {
            return literal_fail(l, "a string has a character by its name, which is not supported");
        } else {
            ok = jtext_add(l->x, text, "\\", 1) && jtext_add(l->x, text, s + i, 1);
        }
        if (!ok)
            return false;
        i += used;
    }
    return true;
}

bool lex_string(lexer *l, tok *out) {
    char quote = l->s[l->pos];
    size_t end = l->pos + 1;
    int32_t n_lines = 0;
    while (end < l->n && l->s[end] != quote) {
        end += l->s[end] == '\\' && end + 1 < l->n;
        n_lines += l->s[end] == '\n';
        end++;
    }
    if (end >= l->n)
        return literal_fail(l, "a string does not end");
    jtext text = {0};
    out->type = T_STRING;
    if (!unescape(l, l->s + l->pos + 1, end - l->pos - 1, &text) || !jv_text(l->x, &text, &out->value))
        return false;
    l->pos = end + 1;
    l->line += n_lines;
    l->line_starting = false;
    return true;
}
