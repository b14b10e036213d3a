/* Translates regular expressions of JSON schemas to GBNF: the syntax that has the same meaning in ECMA-262 and Python.
 * Negated shorthands (\D \W \S) and negated classes with shorthands match ASCII characters only, because both languages
 * agree only there. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/schema/schema_internal.h"
#include "engine/grammar/gbnf.h"
#include "engine/text/utf8.h"

enum {
    MAX_GROUPS = 100,
    MAX_RANGES = 512, /* of one class */
};

/* Lengths of the texts of an open group. others: the alternatives that are complete. sequence: the alternative that is
 * being read, without its last part. last: that last part, to which a repeat may still apply. */
typedef struct level {
    schema_lengths others, sequence, last;
    bool has_others, has_last;
} level;

typedef struct translator {
    mr_str text;
    size_t at;
    const char *any;
    mr_text_buf *out;
    level levels[MAX_GROUPS];
    size_t n_levels;
    gbnf_range ranges[MAX_RANGES + 3];
    size_t n_ranges;
    const char *why;
} translator;

static bool fail(translator *t, const char *why) {
    t->why = why;
    return false;
}

static bool put(translator *t, const char *text) {
    return mr_text_buf_append(t->out, text, strlen(text)) || fail(t, "no memory");
}

static uint32_t add(uint32_t a, uint32_t b) {
    return a > UINT32_MAX - b ? UINT32_MAX : a + b;
}

static uint32_t times(uint32_t a, uint32_t n) {
    return a && n > UINT32_MAX / a ? UINT32_MAX : a * n;
}

static char peek(const translator *t, size_t ahead) {
    return t->at + ahead < t->text.len ? t->text.data[t->at + ahead] : 0;
}

/* Adds the last part to the sequence and starts a new part with the given lengths. */
static void next_part(translator *t, schema_lengths lengths) {
    level *l = &t->levels[t->n_levels - 1];
    if (l->has_last)
        l->sequence = (schema_lengths){add(l->sequence.min, l->last.min), add(l->sequence.max, l->last.max)};
    l->last = lengths;
    l->has_last = true;
}

static void end_sequence(level *l) {
    schema_lengths s = l->sequence;
    if (l->has_last)
        s = (schema_lengths){add(s.min, l->last.min), add(s.max, l->last.max)};
    if (l->has_others) {
        s.min = s.min < l->others.min ? s.min : l->others.min;
        s.max = s.max > l->others.max ? s.max : l->others.max;
    }
    *l = (level){.others = s, .has_others = true};
}

static bool add_range(translator *t, uint32_t low, uint32_t high) {
    if (t->n_ranges == MAX_RANGES)
        return fail(t, "a class has too many ranges");
    t->ranges[t->n_ranges++] = (gbnf_range){low, high};
    return true;
}

/* Adds the ranges of \d, \w or \s, or of \D, \W or \S within ASCII. */
static bool add_shorthand(translator *t, char c) {
    static const gbnf_range digits[] = {{'0', '9'}}, words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                            spaces[] = {{'\t', '\r'}, {' ', ' '}};
    bool opposite = c >= 'A' && c <= 'Z';
    char which = opposite ? (char)(c + ('a' - 'A')) : c;
    const gbnf_range *r = which == 'd' ? digits : which == 'w' ? words : spaces;
    size_t n = which == 'd' ? 1 : which == 'w' ? 4 : 2;
    uint32_t next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!opposite && !add_range(t, r[i].low, r[i].high))
            return false;
        /* \S leaves out 1C to 1F, because Python counts these characters as white space. */
        uint32_t low = opposite && which == 's' && next == '\r' + 1 ? 0x20 : next;
        if (opposite && which == 's' && r[i].low == ' ' && !add_range(t, '\r' + 1, 0x1B))
            return false;
        if (opposite && r[i].low > low && !add_range(t, low, r[i].low - 1))
            return false;
        next = r[i].high + 1;
    }
    return !opposite || add_range(t, next, 0x7F);
}

static bool hex_digits(translator *t, size_t n, uint32_t *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++, t->at++) {
        char c = peek(t, 0);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            return fail(t, "a malformed escape");
        *out = *out << 4 | (uint32_t)d;
    }
    return (*out < 0xD800 || *out > 0xDFFF) || fail(t, "an escaped surrogate");
}

/* Reads the escape behind a backslash. out: its character. A shorthand is added to the ranges instead, and
 * out_shorthand is true. */
static bool read_escape(translator *t, bool in_class, uint32_t *out, bool *out_shorthand) {
    static const char letters[] = "ntrfv", codes[] = "\n\t\r\f\v";
    char c = peek(t, 0);
    *out_shorthand = c && strchr("dDwWsS", c);
    t->at++;
    if (*out_shorthand)
        return add_shorthand(t, c);
    if (c == 'x' || c == 'u')
        return hex_digits(t, c == 'x' ? 2 : 4, out);
    const char *found = c ? strchr(letters, c) : NULL;
    if (found) {
        *out = (uint8_t)codes[found - letters];
        return true;
    }
    if (c == '0' && !(peek(t, 0) >= '0' && peek(t, 0) <= '9')) {
        *out = 0;
        return true;
    }
    if (c == 'b' && in_class) {
        *out = '\b';
        return true;
    }
    if (!c || (uint8_t)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return fail(t, "an escape that is not supported");
    *out = (uint8_t)c;
    return true;
}

/* Reads a character that stands for itself. */
static bool read_plain(translator *t, uint32_t *out) {
    mr_str one = {t->text.data + t->at, mr_utf8_char_len(t->text.data + t->at, t->text.len - t->at)};
    size_t at = 0;
    if (one.len == 1)
        *out = (uint8_t)one.data[0];
    else if (one.len == 0 || !mr_gbnf_char(one, &at, out))
        return fail(t, "bytes that are no UTF-8");
    t->at += one.len;
    return true;
}

/* Appends to a class the intersection of the range with low..high. */
static bool put_common(translator *t, gbnf_range range, uint32_t low, uint32_t high) {
    char text[64];
    low = range.low > low ? range.low : low;
    high = range.high < high ? range.high : high;
    if (low > high)
        return true;
    if (high < 0x80)
        snprintf(text, sizeof text, "\\x%02X-\\x%02X", low, high);
    else
        snprintf(text, sizeof text, "\\U%08X-\\U%08X", low, high);
    return put(t, text);
}

/* Appends the ranges as a class of characters that are not escaped. */
static bool put_plain_ranges(translator *t) {
    bool ok = put(t, "[");
    for (size_t i = 0; ok && i < t->n_ranges; i++)
        ok = put_common(t, t->ranges[i], 0, 0x10FFFF);
    next_part(t, (schema_lengths){1, 1});
    return ok && put(t, "] ");
}

/* Appends the ranges as a class of characters of a JSON string, and the escapes of the characters that JSON escapes. */
static bool put_ranges(translator *t) {
    if (!t->any)
        return put_plain_ranges(t);
    static const char *const short_escapes[128] = {
        ['\b'] = "b", ['\t'] = "t", ['\n'] = "n", ['\f'] = "f", ['\r'] = "r", ['"'] = "\\\"", ['\\'] = "\\\\"};
    char text[64];
    bool ok = put(t, "([");
    for (size_t i = 0; ok && i < t->n_ranges; i++) {
        /* All characters except 00-1F, 22 (quote) and 5C (backslash). */
        static const gbnf_range raw[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
        for (size_t k = 0; ok && k < 3; k++)
            ok = put_common(t, t->ranges[i], raw[k].low, raw[k].high);
    }
    ok = ok && put(t, "]");
    for (size_t i = 0; ok && i < t->n_ranges; i++) {
        for (uint32_t c = t->ranges[i].low; ok && c <= t->ranges[i].high && c <= '\\'; c++) {
            if (c >= 0x20 && c != '"' && c != '\\')
                continue;
            if (short_escapes[c])
                snprintf(text, sizeof text, " | \"\\\\%s\"", short_escapes[c]);
            else
                snprintf(text, sizeof text, " | \"\\\\u00\" [%X] [%X%s]", c >> 4, c & 15,
                         c % 16 > 9 ? (char[]){(char)('a' + c % 16 - 10), 0} : "");
            ok = put(t, text);
        }
    }
    next_part(t, (schema_lengths){1, 1});
    return ok && put(t, ") ");
}

static bool put_char(translator *t, uint32_t c) {
    t->ranges[0] = (gbnf_range){c, c};
    t->n_ranges = 1;
    return put_ranges(t);
}

static bool read_class(translator *t) {
    t->at++;
    t->n_ranges = 0;
    bool negated = peek(t, 0) == '^', shorthands = false, first = true;
    t->at += negated;
    for (; peek(t, 0) != ']' || first; first = false) {
        uint32_t low = 0, high;
        bool shorthand = false, ok;
        if (t->at >= t->text.len)
            return fail(t, "a class is not closed");
        if (peek(t, 0) == ']' || (peek(t, 0) == '[' && peek(t, 1) == ':'))
            return fail(t, "a class that readers do not agree on");
        if (peek(t, 0) == '\\') {
            t->at++;
            ok = read_escape(t, true, &low, &shorthand);
        } else {
            ok = read_plain(t, &low);
        }
        shorthands = shorthands || shorthand;
        high = low;
        if (ok && peek(t, 0) == '-' && peek(t, 1) && peek(t, 1) != ']') {
            bool second = false;
            t->at++;
            if (peek(t, 0) == '\\') {
                t->at++;
                ok = read_escape(t, true, &high, &second);
            } else {
                ok = read_plain(t, &high);
            }
            if (ok && (shorthand || second || high < low))
                return fail(t, "a bad range in a class");
        }
        if (!ok || (!shorthand && !add_range(t, low, high)))
            return false;
    }
    t->at++;
    if (negated && shorthands && (!add_range(t, 0x1C, 0x1F) || !add_range(t, 0x80, 0x10FFFF)))
        return false;
    t->n_ranges = mr_gbnf_normalise(t->ranges, t->n_ranges, negated);
    return put_ranges(t);
}

static bool read_number(translator *t, uint32_t *out) {
    uint32_t value = 0;
    if (peek(t, 0) < '0' || peek(t, 0) > '9')
        return false;
    for (; peek(t, 0) >= '0' && peek(t, 0) <= '9'; t->at++)
        value = value > 100000 ? value : value * 10 + (uint32_t)(peek(t, 0) - '0');
    *out = value;
    return true;
}

/* Reads *, +, ? or {m,n} and applies the repeat to the last part. */
static bool read_repeat(translator *t) {
    level *l = &t->levels[t->n_levels - 1];
    char c = peek(t, 0), text[48];
    uint32_t min = c == '+', max = c == '?' ? 1 : UINT32_MAX;
    if (!l->has_last)
        return fail(t, "nothing stands before a repeat");
    t->at++;
    if (c == '{') {
        if (!read_number(t, &min))
            return fail(t, "a { that is no repeat; hint: write \\{");
        max = min;
        if (peek(t, 0) == ',') {
            t->at++;
            max = UINT32_MAX;
            if (peek(t, 0) != '}' && !read_number(t, &max))
                return fail(t, "a malformed repeat");
        }
        if (peek(t, 0) != '}' || max < min)
            return fail(t, "a malformed repeat");
        t->at++;
        if (min > 32768 || (max != UINT32_MAX && max > 32768))
            return fail(t, "a repeat of more than 32768");
    }
    if (peek(t, 0) == '?')
        t->at++; /* a lazy repeat matches the same texts as a greedy one */
    if (strchr("*+?{", peek(t, 0)) && peek(t, 0))
        return fail(t, "a repeat of a repeat");
    l->last = (schema_lengths){times(l->last.min, min), times(l->last.max, max)};
    if (max == UINT32_MAX)
        snprintf(text, sizeof text, "{%u,} ", min);
    else
        snprintf(text, sizeof text, "{%u,%u} ", min, max);
    return put(t, text);
}

static bool put_any(translator *t) {
    next_part(t, (schema_lengths){0, UINT32_MAX});
    return put(t, t->any) && put(t, "* ");
}

/* Starts an alternative at the top level. Without ^, any characters of the JSON string may stand before a match. */
static bool start_alternative(translator *t) {
    if (peek(t, 0) != '^')
        return !t->any || put_any(t);
    t->at++;
    return true;
}

/* Ends an alternative at the top level. Without $, any characters of the JSON string may stand behind a match. */
static bool end_alternative(translator *t, bool anchored) {
    bool ok = anchored || !t->any || put_any(t);
    end_sequence(&t->levels[0]);
    return ok;
}

static bool open_group(translator *t) {
    t->at++;
    if (peek(t, 0) == '?') {
        if (peek(t, 1) != ':')
            return fail(t, "a group that looks around, is named or sets flags");
        t->at += 2;
    }
    if (t->n_levels == MAX_GROUPS)
        return fail(t, "more than 100 groups inside each other");
    t->levels[t->n_levels++] = (level){0};
    return put(t, "(");
}

static bool close_group(translator *t) {
    if (t->n_levels == 1)
        return fail(t, "a ) without a (");
    level *l = &t->levels[--t->n_levels];
    end_sequence(l);
    next_part(t, l->others);
    t->at++;
    return put(t, ") ");
}

static bool read_part(translator *t) {
    uint32_t c = 0;
    bool shorthand = false;
    switch (peek(t, 0)) {
    case '[':
        return read_class(t);
    case '(':
        return open_group(t);
    case ')':
        return close_group(t);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_repeat(t);
    case '|':
        t->at++;
        end_sequence(&t->levels[t->n_levels - 1]);
        return put(t, " | ");
    case '.':
        t->at++;
        t->ranges[0] = t->ranges[1] = (gbnf_range){'\n', '\n'};
        t->ranges[1] = (gbnf_range){'\r', '\r'};
        t->ranges[2] = (gbnf_range){0x2028, 0x2029};
        t->n_ranges = mr_gbnf_normalise(t->ranges, 3, true);
        return put_ranges(t);
    case '^':
    case '$':
        return fail(t, "^ or $ inside the expression");
    case '\\':
        t->at++;
        t->n_ranges = 0;
        if (!read_escape(t, false, &c, &shorthand))
            return false;
        if (!shorthand)
            return put_char(t, c);
        t->n_ranges = mr_gbnf_normalise(t->ranges, t->n_ranges, false);
        return put_ranges(t);
    default:
        return read_plain(t, &c) && put_char(t, c);
    }
}

bool schema_write_regex(mr_str pattern, const char *any, mr_text_buf *out, schema_lengths *out_lengths,
                        const char **out_why) {
    translator t = {.text = pattern, .any = any, .out = out, .n_levels = 1};
    bool ok = put(&t, "(") && start_alternative(&t);
    while (ok && t.at < pattern.len) {
        bool top = t.n_levels == 1, anchored = peek(&t, 0) == '$';
        if (top && (peek(&t, anchored) == '|' || t.at + anchored == pattern.len) && (anchored || peek(&t, 0) == '|')) {
            ok = end_alternative(&t, anchored);
            t.at += anchored;
            if (t.at == pattern.len) {
                *out_lengths = t.levels[0].others;
                return ok && put(&t, ")");
            }
            t.at++;
            ok = ok && put(&t, " | ") && start_alternative(&t);
        } else {
            ok = read_part(&t);
        }
    }
    if (ok && t.n_levels > 1)
        ok = fail(&t, "a ( is not closed");
    ok = ok && end_alternative(&t, false) && put(&t, ")");
    *out_lengths = t.levels[0].others;
    *out_why = t.why ? t.why : "";
    return ok;
}
