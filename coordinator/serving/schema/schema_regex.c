/* Reads the regular expressions of JSON schemas as sets of texts: the syntax that has the same meaning in ECMA-262 and
 * Python. Where the two do not agree which characters belong to \d, \w or \s, or to \D, \W or \S, only those count on
 * which both agree. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/schema_regex.h"

#include <string.h>
#include <utf8proc.h>

#include "engine/base/mem.h"
#include "engine/grammar/grow.h"
#include "engine/text/utf8.h"

enum { MAX_GROUPS = 100, LAST_CODE = 0x10FFFF };

typedef enum group_kind { GROUP_PLAIN, GROUP_AHEAD, GROUP_NOT_AHEAD } group_kind;

/* An open group. */
typedef struct level {
    group_kind kind;
    size_t first;    /* item of the alternative that is being read */
    text_set others; /* the alternatives that are complete */
} level;

typedef struct reader {
    text_sets *p;
    mr_str text;
    size_t at;
    bool whole; /* the expression matches the whole text */
    level levels[MAX_GROUPS];
    size_t n_levels;
    text_set *items;
    size_t n_items, cap_items;
    gbnf_range *ranges; /* of a class */
    size_t n_ranges, cap_ranges;
    const char *why;
} reader;

static bool fail(reader *r, const char *why) {
    r->why = why;
    return false;
}

static char peek(const reader *r, size_t ahead) {
    return r->at + ahead < r->text.len ? r->text.data[r->at + ahead] : 0;
}

static bool add_item(reader *r, text_set set) {
    if (!mr_grammar_grow(&r->items, &r->cap_items, r->n_items + 1, sizeof *r->items))
        return text_fail(r->p, TEXT_NO_MEMORY) != TEXT_NONE;
    r->items[r->n_items++] = set;
    return r->p->problem == TEXT_FINE;
}

/* --- Characters -------------------------------------------------------------------------------------------------- */

static bool add_range(reader *r, uint32_t low, uint32_t high) {
    /* mr_gbnf_normalise needs room for two more. */
    if (!mr_grammar_grow(&r->ranges, &r->cap_ranges, r->n_ranges + 3, sizeof *r->ranges))
        return text_fail(r->p, TEXT_NO_MEMORY) != TEXT_NONE;
    r->ranges[r->n_ranges++] = (gbnf_range){low, high};
    return true;
}

/* Adds the characters from `from` on that are in the Unicode categories of the mask, or those that are not. */
static bool add_category(reader *r, uint32_t mask, uint32_t from, bool opposite) {
    const text_class c = r->p->classes[text_category(r->p, mask)];
    uint32_t next = from;
    bool ok = r->p->problem == TEXT_FINE;
    for (uint32_t i = 0; ok && i < c.n; i++) {
        gbnf_range range = r->p->ranges[c.first + i];
        if (range.high < from)
            continue;
        range.low = range.low < from ? from : range.low;
        if (!opposite)
            ok = add_range(r, range.low, range.high);
        else if (range.low > next)
            ok = add_range(r, next, range.low - 1);
        next = range.high + 1;
    }
    return ok && (!opposite || next > LAST_CODE || add_range(r, next, LAST_CODE));
}

#define CATEGORY(name) (UINT32_C(1) << UTF8PROC_CATEGORY_##name)
#define LETTERS (CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT) | CATEGORY(LM) | CATEGORY(LO))
#define NUMBERS (CATEGORY(ND) | CATEGORY(NL) | CATEGORY(NO))
#define MARKS (CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME))
#define PUNCTUATION                                                                                                    \
    (CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) | CATEGORY(PO))
#define SYMBOLS (CATEGORY(SM) | CATEGORY(SC) | CATEGORY(SK) | CATEGORY(SO))
#define SEPARATORS (CATEGORY(ZS) | CATEGORY(ZL) | CATEGORY(ZP))
#define OTHERS (CATEGORY(CC) | CATEGORY(CF) | CATEGORY(CS) | CATEGORY(CO) | CATEGORY(CN))

/* Adds \d, \w, \s, \D, \W or \S. wide: also the characters that only one of the languages counts, which is right inside
 * a class that is negated. */
static bool add_shorthand(reader *r, char c, bool wide) {
    static const gbnf_range spaces[] = {
        {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
        {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}, {LAST_CODE + 1, LAST_CODE + 1}};
    uint32_t next = 0x80;
    bool ok = true;
    switch (c) {
    case 'd':
        return add_range(r, '0', '9') && (!wide || add_category(r, CATEGORY(ND), 0x80, false));
    case 'D':
        return add_range(r, 0, '0' - 1) && add_range(r, '9' + 1, 0x7F) &&
               (wide ? add_range(r, 0x80, LAST_CODE) : add_category(r, CATEGORY(ND), 0x80, true));
    case 'w':
        return add_range(r, '0', '9') && add_range(r, 'A', 'Z') && add_range(r, '_', '_') && add_range(r, 'a', 'z') &&
               (!wide || add_category(r, LETTERS | NUMBERS, 0x80, false));
    case 'W':
        return add_range(r, 0, '0' - 1) && add_range(r, '9' + 1, 'A' - 1) && add_range(r, 'Z' + 1, '_' - 1) &&
               add_range(r, '`', '`') && add_range(r, 'z' + 1, 0x7F) &&
               (wide ? add_range(r, 0x80, LAST_CODE) : add_category(r, LETTERS | NUMBERS, 0x80, true));
    case 's':
        ok = add_range(r, '\t', '\r') && add_range(r, ' ', ' ') && (!wide || add_range(r, 0x1C, 0x1F));
        for (size_t i = 0; ok && wide && spaces[i].low <= LAST_CODE; i++)
            ok = add_range(r, spaces[i].low, spaces[i].high);
        return ok;
    default:
        /* Python counts 1C to 1F as white space. */
        ok = add_range(r, 0, '\t' - 1) && add_range(r, '\r' + 1, wide ? 0x1F : 0x1B) && add_range(r, '!', 0x7F);
        for (size_t i = 0; ok && !wide && i < sizeof spaces / sizeof *spaces; next = spaces[i++].high + 1)
            ok = add_range(r, next, spaces[i].low - 1);
        return ok && (!wide || add_range(r, 0x80, LAST_CODE));
    }
}

static const struct {
    const char *name, *alias;
    uint32_t mask;
} properties[] = {
    {"L", "Letter", LETTERS},
    {"Lu", "Uppercase_Letter", CATEGORY(LU)},
    {"Ll", "Lowercase_Letter", CATEGORY(LL)},
    {"Lt", "Titlecase_Letter", CATEGORY(LT)},
    {"LC", "Cased_Letter", CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT)},
    {"Lm", "Modifier_Letter", CATEGORY(LM)},
    {"Lo", "Other_Letter", CATEGORY(LO)},
    {"M", "Mark", MARKS},
    {"Mn", "Nonspacing_Mark", CATEGORY(MN)},
    {"Mc", "Spacing_Mark", CATEGORY(MC)},
    {"Me", "Enclosing_Mark", CATEGORY(ME)},
    {"N", "Number", NUMBERS},
    {"Nd", "Decimal_Number", CATEGORY(ND)},
    {"Nl", "Letter_Number", CATEGORY(NL)},
    {"No", "Other_Number", CATEGORY(NO)},
    {"P", "Punctuation", PUNCTUATION},
    {"Pc", "Connector_Punctuation", CATEGORY(PC)},
    {"Pd", "Dash_Punctuation", CATEGORY(PD)},
    {"Ps", "Open_Punctuation", CATEGORY(PS)},
    {"Pe", "Close_Punctuation", CATEGORY(PE)},
    {"Pi", "Initial_Punctuation", CATEGORY(PI)},
    {"Pf", "Final_Punctuation", CATEGORY(PF)},
    {"Po", "Other_Punctuation", CATEGORY(PO)},
    {"S", "Symbol", SYMBOLS},
    {"Sm", "Math_Symbol", CATEGORY(SM)},
    {"Sc", "Currency_Symbol", CATEGORY(SC)},
    {"Sk", "Modifier_Symbol", CATEGORY(SK)},
    {"So", "Other_Symbol", CATEGORY(SO)},
    {"Z", "Separator", SEPARATORS},
    {"Zs", "Space_Separator", CATEGORY(ZS)},
    {"Zl", "Line_Separator", CATEGORY(ZL)},
    {"Zp", "Paragraph_Separator", CATEGORY(ZP)},
    {"C", "Other", OTHERS},
    {"Cc", "Control", CATEGORY(CC)},
    {"Cf", "Format", CATEGORY(CF)},
    {"Co", "Private_Use", CATEGORY(CO)},
    {"Cn", "Unassigned", CATEGORY(CN)},
    {"Any", "Any", LETTERS | NUMBERS | MARKS | PUNCTUATION | SYMBOLS | SEPARATORS | OTHERS},
};

/* Adds the characters of \p{...} or \P{...}, from behind the p on. */
static bool add_property(reader *r, bool opposite) {
    static const char *const prefixes[] = {"General_Category=", "gc="};
    mr_str name = {r->text.data + r->at, 1};
    if (peek(r, 0) == '{') {
        const char *begin = r->text.data + ++r->at, *end = memchr(begin, '}', r->text.len - r->at);
        name = (mr_str){begin, end ? (size_t)(end - begin) : 0};
        r->at += end != NULL;
    }
    r->at += name.len;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        size_t n = strlen(prefixes[i]);
        if (name.len > n && memcmp(name.data, prefixes[i], n) == 0)
            name = (mr_str){name.data + n, name.len - n};
    }
    for (size_t i = 0; i < sizeof properties / sizeof *properties; i++)
        if (mr_str_is(name, properties[i].name) || mr_str_is(name, properties[i].alias))
            return add_category(r, properties[i].mask, 0, opposite);
    return fail(r, "\\p{..} of another property than a general category");
}

static bool hex_digits(reader *r, size_t n, uint32_t *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++, r->at++) {
        char c = peek(r, 0);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0 || *out > LAST_CODE)
            return fail(r, "a malformed escape");
        *out = *out << 4 | (uint32_t)d;
    }
    return true;
}

/* Reads the digits behind \x or \u. Two escaped surrogates are one character. */
static bool read_code(reader *r, char kind, uint32_t *out) {
    uint32_t low;
    size_t n = kind == 'x' ? 2 : 4;
    bool braces = kind == 'u' && peek(r, 0) == '{';
    if (braces) {
        r->at++;
        for (n = 0; peek(r, n) && peek(r, n) != '}' && n < 8;)
            n++;
    }
    if (!hex_digits(r, n, out))
        return false;
    if (braces && (n == 0 || peek(r, 0) != '}' || *out > LAST_CODE))
        return fail(r, "a malformed escape");
    r->at += braces;
    if (*out >= 0xD800 && *out < 0xDC00 && peek(r, 0) == '\\' && peek(r, 1) == 'u') {
        r->at += 2;
        if (!hex_digits(r, 4, &low))
            return false;
        *out = low >= 0xDC00 && low <= 0xDFFF ? 0x10000 + ((*out & 0x3FF) << 10 | (low & 0x3FF)) : low;
    }
    return (*out < 0xD800 || *out > 0xDFFF) || fail(r, "an escaped surrogate");
}

/* Reads the escape behind a backslash. out: its character. A shorthand or property is added to the ranges instead, and
 * out_shorthand is true. */
static bool read_escape(reader *r, bool in_class, bool negated, uint32_t *out, bool *out_shorthand) {
    static const char letters[] = "ntrfv0", codes[] = "\n\t\r\f\v\0";
    char c = peek(r, 0);
    bool is_digit = c >= '0' && c <= '9';
    *out_shorthand = c && strchr("dDwWsSpP", c);
    r->at++;
    if (*out_shorthand)
        return c == 'p' || c == 'P' ? add_property(r, c == 'P') : add_shorthand(r, c, negated);
    if (c == 'x' || c == 'u')
        return read_code(r, c, out);
    const char *found = c ? strchr(letters, c) : NULL;
    if (found && !(c == '0' && peek(r, 0) >= '0' && peek(r, 0) <= '9')) {
        *out = (uint8_t)codes[found - letters];
        return true;
    }
    if (c == 'b' && in_class) {
        *out = '\b';
        return true;
    }
    if ((is_digit && c != '0') || c == 'k')
        return fail(r, "a back reference");
    if (!c || (uint8_t)c >= 0x80 || is_digit || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return fail(r, "an escape that is not supported");
    *out = (uint8_t)c;
    return true;
}

/* Reads a character that stands for itself. */
static bool read_plain(reader *r, uint32_t *out) {
    mr_str one = {r->text.data + r->at, mr_utf8_char_len(r->text.data + r->at, r->text.len - r->at)};
    if (one.len == 1)
        *out = (uint8_t)one.data[0];
    else if (one.len == 0 || !mr_gbnf_char(one, &(size_t){0}, out))
        return fail(r, "bytes that are no UTF-8");
    r->at += one.len;
    return true;
}

/* Adds one character of the ranges. */
static bool add_ranges(reader *r, bool negated) {
    if (!add_range(r, 0, 0)) /* makes room */
        return false;
    r->n_ranges = mr_gbnf_normalise(r->ranges, r->n_ranges - 1, negated);
    return add_item(r, text_chars(r->p, text_class_of(r->p, r->ranges, r->n_ranges)));
}

static bool read_class_char(reader *r, bool negated, uint32_t *out, bool *out_shorthand) {
    *out_shorthand = false;
    if (peek(r, 0) != '\\')
        return read_plain(r, out);
    r->at++;
    return read_escape(r, true, negated, out, out_shorthand);
}

static bool read_class(reader *r) {
    r->at++;
    r->n_ranges = 0;
    bool negated = peek(r, 0) == '^', first = true;
    r->at += negated;
    for (; peek(r, 0) != ']' || first; first = false) {
        uint32_t low = 0, high;
        bool shorthand = false, second = false;
        if (r->at >= r->text.len)
            return fail(r, "a class is not closed");
        if (peek(r, 0) == ']' || (peek(r, 0) == '[' && peek(r, 1) == ':'))
            return fail(r, "a class that readers do not agree on");
        if (!read_class_char(r, negated, &low, &shorthand))
            return false;
        high = low;
        if (!shorthand && peek(r, 0) == '-' && peek(r, 1) && peek(r, 1) != ']') {
            r->at++;
            if (!read_class_char(r, negated, &high, &second))
                return false;
            if (second && !(add_range(r, low, low) && add_range(r, '-', '-')))
                return false; /* a shorthand ends no range, so that - stands for itself */
            if (!second && high < low)
                return fail(r, "a bad range in a class");
        }
        if (!shorthand && !second && !add_range(r, low, high))
            return false;
    }
    r->at++;
    return add_ranges(r, negated);
}

static bool read_dot(reader *r) {
    r->at++;
    r->n_ranges = 0;
    return add_range(r, '\n', '\n') && add_range(r, '\r', '\r') && add_range(r, 0x2028, 0x2029) && add_ranges(r, true);
}

static bool read_backslash(reader *r) {
    static const char assertions[] = "bBAzZ";
    uint32_t c = 0;
    bool shorthand = false;
    char next = peek(r, 1);
    r->at++;
    r->n_ranges = 0;
    if (next && strchr(assertions, next)) {
        r->at++;
        static const text_set sets[] = {TEXT_EDGE, TEXT_NO_EDGE, TEXT_START, TEXT_END, TEXT_END};
        return add_item(r, sets[strchr(assertions, next) - assertions]);
    }
    return read_escape(r, false, false, &c, &shorthand) && (shorthand || add_range(r, c, c)) && add_ranges(r, false);
}

/* --- Groups and repeats ------------------------------------------------------------------------------------------ */

static bool read_number(reader *r, uint32_t *out) {
    uint32_t value = 0;
    if (peek(r, 0) < '0' || peek(r, 0) > '9')
        return false;
    for (; peek(r, 0) >= '0' && peek(r, 0) <= '9'; r->at++)
        value = value > 100000 ? value : value * 10 + (uint32_t)(peek(r, 0) - '0');
    *out = value;
    return true;
}

static bool read_braces(reader *r, uint32_t *min, uint32_t *max) {
    if (!read_number(r, min))
        return fail(r, "a { that is no repeat; hint: write \\{");
    *max = *min;
    if (peek(r, 0) == ',') {
        r->at++;
        *max = TEXT_UNLIMITED;
        if (peek(r, 0) != '}' && !read_number(r, max))
            return fail(r, "a malformed repeat");
    }
    if (peek(r, 0) != '}' || *max < *min)
        return fail(r, "a malformed repeat");
    r->at++;
    return *min <= 32768 && (*max == TEXT_UNLIMITED || *max <= 32768) ? true : fail(r, "a repeat of more than 32768");
}

/* Reads *, +, ? or {m,n} and applies the repeat to the last item. */
static bool read_repeat(reader *r) {
    char c = peek(r, 0);
    uint32_t min = c == '+', max = c == '?' ? 1 : TEXT_UNLIMITED;
    if (r->n_items == r->levels[r->n_levels - 1].first)
        return fail(r, "nothing stands before a repeat");
    r->at++;
    if (c == '{' && !read_braces(r, &min, &max))
        return false;
    if (peek(r, 0) == '?')
        r->at++; /* a lazy repeat matches the same texts as a greedy one */
    if (peek(r, 0) && strchr("*+?{", peek(r, 0)))
        return fail(r, "a repeat of a repeat");
    text_set *last = &r->items[r->n_items - 1];
    if (r->p->terms[*last].least == 0 && !r->p->terms[*last].is_plain && max > 1)
        return fail(r, "a repeat of an assertion");
    *last = text_repeat(r->p, *last, min, max);
    return r->p->problem == TEXT_FINE;
}

/* Ends an alternative. Unless the expression has to match the whole text, any characters may stand before and behind a
 * match, but where ^ or $ is. */
static void end_alternative(reader *r) {
    level *l = &r->levels[r->n_levels - 1];
    size_t first = l->first, end = r->n_items;
    text_set set = TEXT_EMPTY;
    if (r->n_levels == 1) {
        bool begins = first < end && r->items[first] == TEXT_START;
        first += begins;
        bool ends = first < end && r->items[end - 1] == TEXT_END;
        end -= ends;
        set = ends || r->whole ? TEXT_EMPTY : TEXT_ALL;
        while (end > first)
            set = text_sequence(r->p, r->items[--end], set);
        if (!begins && !r->whole)
            set = text_sequence(r->p, TEXT_ALL, set);
    }
    while (end > first)
        set = text_sequence(r->p, r->items[--end], set);
    l->others = text_choice(r->p, l->others, set);
    r->n_items = l->first;
}

static bool open_group(reader *r) {
    group_kind kind = GROUP_PLAIN;
    r->at++;
    if (peek(r, 0) == '?') {
        char c = peek(r, 1), next = peek(r, 2);
        bool named = (c == '<' && next != '=' && next != '!') || (c == 'P' && next == '<');
        if (c == '<' && !named)
            return fail(r, "a group that looks behind");
        if (named) {
            const char *end = memchr(r->text.data + r->at, '>', r->text.len - r->at);
            if (!end)
                return fail(r, "the name of a group is not closed");
            r->at = (size_t)(end - r->text.data) + 1;
        } else if (c == ':' || c == '=' || c == '!') {
            kind = c == '=' ? GROUP_AHEAD : c == '!' ? GROUP_NOT_AHEAD : GROUP_PLAIN;
            r->at += 2;
        } else {
            return fail(r, "a group that sets flags, or of another kind that is not supported");
        }
    }
    if (r->n_levels == MAX_GROUPS)
        return fail(r, "more than 100 groups inside each other");
    r->levels[r->n_levels++] = (level){.kind = kind, .first = r->n_items, .others = TEXT_NONE};
    return true;
}

static bool close_group(reader *r) {
    if (r->n_levels == 1)
        return fail(r, "a ) without a (");
    end_alternative(r);
    level l = r->levels[--r->n_levels];
    r->at++;
    if (l.kind == GROUP_PLAIN)
        return add_item(r, l.others);
    text_set ahead = text_sequence(r->p, l.others, TEXT_ALL);
    return add_item(r, text_ahead(r->p, l.kind == GROUP_AHEAD ? ahead : text_not(r->p, ahead)));
}

static bool read_part(reader *r) {
    uint32_t c = 0;
    switch (peek(r, 0)) {
    case '[':
        return read_class(r);
    case '(':
        return open_group(r);
    case ')':
        return close_group(r);
    case '*':
    case '+':
    case '?':
    case '{':
        return read_repeat(r);
    case '|':
        r->at++;
        end_alternative(r);
        return true;
    case '.':
        return read_dot(r);
    case '^':
    case '$':
        return add_item(r, r->text.data[r->at++] == '^' ? TEXT_START : TEXT_END);
    case '\\':
        return read_backslash(r);
    default:
        r->n_ranges = 0;
        return read_plain(r, &c) && add_range(r, c, c) && add_ranges(r, false);
    }
}

bool schema_read_regex(text_sets *p, mr_str pattern, bool whole, text_set *out, const char **out_why) {
    reader *r = mr_alloc(sizeof *r);
    bool ok = r || text_fail(p, TEXT_NO_MEMORY) != TEXT_NONE;
    if (!r)
        return false;
    *r = (reader){.p = p, .text = pattern, .whole = whole, .n_levels = 1};
    while (ok && r->at < pattern.len)
        ok = read_part(r) && text_spend(p, 1);
    if (ok && r->n_levels > 1)
        ok = fail(r, "a ( is not closed");
    if (ok)
        end_alternative(r);
    *out = r->levels[0].others;
    *out_why = r->why ? r->why : p->problem ? "it is too large" : "";
    mr_free(r->items);
    mr_free(r->ranges);
    mr_free(r);
    return ok && p->problem == TEXT_FINE;
}
