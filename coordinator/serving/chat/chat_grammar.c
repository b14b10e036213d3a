/* coordinator/serving/chat/chat_grammar.c - appends literals, formatted text, and rules for any text up to a mark to a
 * grammar. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_grammar.h"

#include <stdarg.h>
#include <stdio.h>

enum { MAX_MARK = 64 };

static void put_bytes(gbnf_text *g, const char *bytes, size_t n) {
    g->failed = g->failed || !mr_text_buf_append(g->buf, bytes, n);
}

void gbnf_put(gbnf_text *g, const char *gbnf) {
    put_bytes(g, gbnf, strlen(gbnf));
}

void gbnf_putf(gbnf_text *g, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    gbnf_put(g, text);
}

/* Appends a byte for the inside of a literal or of a character class. */
static void put_escaped(gbnf_text *g, char c) {
    static const char HEX[] = "0123456789ABCDEF";
    if ((unsigned char)c < 0x20 || c == 0x7f) {
        const char text[4] = {'\\', 'x', HEX[(unsigned char)c >> 4], HEX[c & 15]};
        put_bytes(g, text, 4);
        return;
    }
    if (strchr("\"\\[]^-", c) && c)
        put_bytes(g, "\\", 1);
    put_bytes(g, &c, 1);
}

void gbnf_literal(gbnf_text *g, mr_str text) {
    if (!text.len)
        return;
    gbnf_put(g, "\"");
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '"' || c == '\\' || (unsigned char)c < 0x20)
            put_escaped(g, c);
        else
            put_bytes(g, &c, 1);
    }
    gbnf_put(g, "\" ");
}

/* Divides the mark into characters: character i is the bytes [begin[i], begin[i + 1]). Returns their number. */
static int characters(const char *mark, int begin[MAX_MARK + 1]) {
    int n = 0;
    for (int i = 0; mark[i] && n < MAX_MARK; i++)
        if (((unsigned char)mark[i] & 0xc0) != 0x80)
            begin[n++] = i;
    begin[n] = (int)strlen(mark);
    return n;
}

static bool same(const char *mark, const int *begin, int a, int b) {
    int n = begin[a + 1] - begin[a];
    return n == begin[b + 1] - begin[b] && memcmp(mark + begin[a], mark + begin[b], (size_t)n) == 0;
}

/* One step of Knuth, Morris and Pratt: a text ends with the first `have` characters of the mark, and then comes
 * character c. Returns how many characters of the mark the text ends with now. */
static int matched(const char *mark, const int *begin, int have, int c) {
    for (int n = have + 1; n > 0; n--) {
        bool fits = same(mark, begin, n - 1, c);
        for (int i = 0; fits && i < n - 1; i++)
            fits = same(mark, begin, i, have - n + 1 + i);
        if (fits)
            return n;
    }
    return 0;
}

static bool is_first_of_its_kind(const char *mark, const int *begin, int c) {
    for (int i = 0; i < c; i++)
        if (same(mark, begin, i, c))
            return false;
    return true;
}

void gbnf_text_until(gbnf_text *g, const char *name, const char *mark) {
    int begin[MAX_MARK + 1], n = characters(mark, begin);
    for (int have = 0; have < n; have++) {
        gbnf_putf(g, "%s-%d ::= [^", name, have);
        for (int c = 0; c < n; c++)
            for (int i = begin[c]; is_first_of_its_kind(mark, begin, c) && i < begin[c + 1]; i++)
                put_escaped(g, mark[i]);
        gbnf_putf(g, "] %s-0", name);
        for (int c = 0; c < n; c++) {
            if (!is_first_of_its_kind(mark, begin, c))
                continue;
            int next = matched(mark, begin, have, c);
            gbnf_put(g, " | ");
            gbnf_literal(g, (mr_str){mark + begin[c], (size_t)(begin[c + 1] - begin[c])});
            if (next < n)
                gbnf_putf(g, "%s-%d", name, next);
        }
        gbnf_put(g, "\n");
    }
}
