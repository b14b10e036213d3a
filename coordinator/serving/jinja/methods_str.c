/* coordinator/serving/jinja/methods_str.c - the methods of Python's str. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

enum { REQUIRED = 4 }; /* a flag beside J_LEFT or J_RIGHT (index, rindex): it is an error if the text is not found */

BUILTIN(m_case) {
    return jstr_case(x, self, (jcase)how, out);
}

BUILTIN(m_strip) {
    return jstr_strip(x, self, a[0], how, out);
}

/* ---- split ---- */

static bool push_part(jx *x, jlist *list, jv s, const char *start, const char *end) {
    jv part;
    if (!jv_str(x, start, (size_t)(end - start), &part))
        return false;
    part.markup = s.markup;
    return jlist_push(x, list, part);
}

/* The last place of sep, NULL if there is none. Each comparison counts as work, because a text that almost matches
 * everywhere takes quadratic time. */
static bool last_place(jx *x, const char *start, const char *end, const jstr *sep, const char **out) {
    size_t n = sep->len;
    *out = NULL;
    if (n > (size_t)(end - start))
        return true;
    for (const char *at = end - n; at >= start; at--) {
        if (n && (at[0] != sep->data[0] || at[n - 1] != sep->data[n - 1]))
            continue;
        if (!jx_work(x, n))
            return false;
        if (memcmp(at, sep->data, n) == 0) {
            *out = at;
            break;
        }
    }
    return true;
}

static bool first_place(jx *x, const char *start, const char *end, const jstr *sep, const char **out) {
    *out = sep->len ? memmem(start, (size_t)(end - start), sep->data, sep->len) : start;
    return jx_work(x, 0);
}

typedef bool place_fn(jx *x, const char *start, const char *end, const jstr *sep, const char **out);

static bool split_by(jx *x, jv s, const jstr *sep, int64_t most, bool from_right, jlist *list) {
    const char *start = s.s->data, *end = start + s.s->len;
    place_fn *place = from_right ? last_place : first_place;
    for (const char *at; most != 0; most--) {
        if (!place(x, start, end, sep, &at))
            return false;
        if (!at)
            break;
        if (!(from_right ? push_part(x, list, s, at + sep->len, end) : push_part(x, list, s, start, at)))
            return false;
        if (from_right)
            end = at;
        else
            start = at + sep->len;
    }
    return push_part(x, list, s, start, end);
}

/* The end of the run at p of characters that are white space (space) or are not (!space). from_right: the run ends at p
 * and its start is returned. */
static const char *run_end(const char *p, const char *limit, bool space, bool from_right) {
    while (p != limit) {
        const char *c = from_right ? p - 1 : p;
        size_t n;
        while (from_right && c > limit && ((unsigned char)*c & 0xC0) == 0x80)
            c--;
        n = from_right ? (size_t)(p - c) : 0;
        if (!from_right)
            char_decode(p, (size_t)(limit - p), &n);
        if ((char_space_len(c, n) == n) != space)
            break;
        p = from_right ? c : p + n;
    }
    return p;
}

static bool split_spaces(jx *x, jv s, int64_t most, bool from_right, jlist *list) {
    const char *start = s.s->data, *end = start + s.s->len;
    for (;; most--) {
        if (from_right)
            end = run_end(end, start, true, true);
        else
            start = run_end(start, end, true, false);
        if (start == end)
            return true;
        if (most == 0) /* the rest in one part, with the white space at its far end */
            return push_part(x, list, s, start, end);
        const char *word = from_right ? run_end(end, start, false, true) : run_end(start, end, false, false);
        if (!(from_right ? push_part(x, list, s, word, end) : push_part(x, list, s, start, word)))
            return false;
        if (from_right)
            end = word;
        else
            start = word;
    }
}

BUILTIN(m_split) {
    bool from_right = how == J_RIGHT;
    int64_t most = -1;
    jstr *sep = NULL;
    jlist *list = jlist_new(x, 0);
    if (!list || (a[1].kind != J_MISSING && !jv_as_int(x, a[1], "maxsplit", &most)))
        return false;
    if (a[0].kind != J_MISSING && a[0].kind != J_NONE && !jv_as_str(x, a[0], "the separator", &sep))
        return false;
    if (sep && !sep->len)
        return jx_fail(x, MR_E_INVALID, "empty separator");
    most = most < 0 ? -1 : most;
    if (!jx_work(x, self.s->len) ||
        !(sep ? split_by(x, self, sep, most, from_right, list) : split_spaces(x, self, most, from_right, list)))
        return false;
    if (from_right)
        jlist_reverse(list);
    return jv_give(out, jv_list(J_LIST, list));
}

BUILTIN(m_splitlines) {
    jlist *list = jlist_new(x, 0);
    *out = jv_list(J_LIST, list);
    return list && jstr_split_lines(x, self.s, jv_truth(a[0]), list);
}

BUILTIN(m_partition) {
    bool from_right = how == J_RIGHT;
    jstr *sep;
    jlist *list = jlist_new(x, 3);
    if (!list || !jv_as_str(x, a[0], "the separator", &sep) || !jx_work(x, self.s->len))
        return false;
    if (!sep->len)
        return jx_fail(x, MR_E_INVALID, "empty separator");
    const char *start = self.s->data, *end = start + self.s->len;
    const char *at;
    if (!(from_right ? last_place : first_place)(x, start, end, sep, &at))
        return false;
    const char *from = at ? at : from_right ? start : end, *to = at ? at + sep->len : from;
    *out = jv_list(J_TUPLE, list);
    return push_part(x, list, self, start, from) && push_part(x, list, self, from, to) &&
           push_part(x, list, self, to, end);
}

/* ---- search ---- */

/* The part self[start:end], in characters; start and end may be missing. out_ok is false if start is behind the end. */
static bool part_of(jx *x, jv self, jv start, jv end, mr_str *out, bool *out_ok) {
    int64_t n = jstr_chars(self.s), from = 0, to = n;
    if ((start.kind > J_NONE && !jv_as_int(x, start, "start", &from)) ||
        (end.kind > J_NONE && !jv_as_int(x, end, "end", &to)))
        return false;
    from = from < -n ? 0 : from < 0 ? from + n : from;
    to = to < -n ? 0 : to < 0 ? to + n : to > n ? n : to;
    *out_ok = from <= to;
    size_t begin = jstr_offset(self.s, from);
    *out = (mr_str){self.s->data + begin, *out_ok ? jstr_offset(self.s, to) - begin : 0};
    return jx_work(x, self.s->len);
}

static bool has_affix(mr_str part, const jstr *affix, bool at_end) {
    return affix->len <= part.len &&
           memcmp(part.data + (at_end ? part.len - affix->len : 0), affix->data, affix->len) == 0;
}

/* startswith, endswith. */
BUILTIN(m_has_affix) {
    mr_str part;
    bool ok, found = false;
    jstr *text;
    if (!part_of(x, self, a[1], a[2], &part, &ok))
        return false;
    size_t n = a[0].kind == J_TUPLE ? a[0].list->n : 1;
    for (size_t i = 0; i < n; i++) {
        if (!jv_as_str(x, a[0].kind == J_TUPLE ? a[0].list->items[i] : a[0], "the beginning or end", &text) ||
            !jx_work(x, text->len))
            return false;
        found |= ok && has_affix(part, text, how == J_RIGHT);
    }
    return jv_give(out, jv_bool(found));
}

BUILTIN(m_remove_affix) {
    bool at_end = how == J_RIGHT;
    jstr *s;
    if (!jv_as_str(x, a[0], "the beginning or end", &s) || !jx_work(x, s->len))
        return false;
    *out = self;
    if (!has_affix((mr_str){self.s->data, self.s->len}, s, at_end))
        return true;
    return jv_mark(out, self.markup, jv_str(x, self.s->data + (at_end ? 0 : s->len), self.s->len - s->len, out));
}

/* out: the index in characters, -1 if the text is not found. */
BUILTIN(m_find) {
    jstr *text;
    mr_str part;
    bool ok;
    if (!jv_as_str(x, a[0], "what is looked for", &text) || !part_of(x, self, a[1], a[2], &part, &ok))
        return false;
    const char *at = NULL;
    if (ok && !((how & J_RIGHT) ? last_place : first_place)(x, part.data, part.data + part.len, text, &at))
        return false;
    jstr before = {self.s->data, at ? (size_t)(at - self.s->data) : 0, -1};
    *out = jv_int(at ? jstr_chars(&before) : -1);
    return at || !(how & REQUIRED) || jx_fail(x, MR_E_INVALID, "substring not found");
}

BUILTIN(m_count) {
    jstr *text;
    mr_str part;
    bool ok;
    int64_t n = 0;
    if (!jv_as_str(x, a[0], "what is counted", &text) || !part_of(x, self, a[1], a[2], &part, &ok))
        return false;
    if (!text->len) {
        jstr all = {part.data, part.len, -1};
        return jv_give(out, jv_int(ok ? jstr_chars(&all) + 1 : 0));
    }
    for (const char *at; ok && (at = memmem(part.data, part.len, text->data, text->len)) != NULL; n++) {
        part.len -= (size_t)(at - part.data) + text->len;
        part.data = at + text->len;
    }
    return jv_give(out, jv_int(n));
}

/* ---- the others ---- */

BUILTIN(m_replace) {
    jv old = a[0], new = a[1];
    jstr *ignored;
    int64_t count = -1;
    if (!jv_as_str(x, old, "what is replaced", &ignored) || !jv_as_str(x, new, "the replacement", &ignored) ||
        (a[2].kind != J_MISSING && !jv_as_int(x, a[2], "count", &count)) ||
        (self.markup && (!jv_escape(x, old, &old) || !jv_escape(x, new, &new))))
        return false;
    return jv_mark(out, self.markup, jstr_replace(x, self.s, old.s, new.s, count, out));
}

BUILTIN(m_join) {
    jlist *items;
    return jv_items(x, a[0], &items) && jstr_join(x, self, items, true, out);
}

BUILTIN(m_format) {
    return jv_format(x, self.s, args, out);
}

BUILTIN(m_pad) {
    int64_t width;
    jstr *fill = NULL;
    size_t n;
    if (!jv_as_int(x, a[0], "width", &width) || (a[1].kind != J_MISSING && !jv_as_str(x, a[1], "fillchar", &fill)))
        return false;
    if (fill && jstr_chars(fill) != 1)
        return jx_fail(x, MR_E_INVALID, "the fill character must be exactly one character long");
    return jstr_pad(x, self, width, fill ? char_decode(fill->data, fill->len, &n) : ' ', (char)how, out);
}

BUILTIN(m_zfill) {
    int64_t width;
    jv digits = self, sign = self;
    bool has_sign = self.s->len && (*self.s->data == '-' || *self.s->data == '+');
    if (!jv_as_int(x, a[0], "width", &width))
        return false;
    return jv_str(x, self.s->data + has_sign, self.s->len - has_sign, &digits) &&
           jstr_pad(x, digits, width - has_sign, '0', '>', &digits) && jv_str(x, self.s->data, has_sign, &sign) &&
           jv_concat(x, sign.s, digits.s, out);
}

typedef enum char_class { IS_ALNUM, IS_ALPHA, IS_ASCII, IS_DECIMAL, IS_SPACE } char_class;

static bool has_class(char_class class, uint32_t c) {
    switch (class) {
    case IS_ALNUM:
        return char_is_alpha(c) || char_is_decimal(c);
    case IS_ALPHA:
        return char_is_alpha(c);
    case IS_ASCII:
        return c < 0x80;
    case IS_DECIMAL:
        return char_is_decimal(c);
    default:
        return char_is_space(c);
    }
}

/* isalpha, isdigit and their like: at least one character, and all characters have the property. An empty string counts
 * as ASCII (isascii). */
BUILTIN(m_is) {
    bool yes = self.s->len > 0 || how == IS_ASCII;
    for (size_t i = 0, n; yes && i < self.s->len; i += n)
        yes = has_class((char_class)how, char_decode(self.s->data + i, self.s->len - i, &n));
    *out = jv_bool(yes);
    return jx_work(x, 4 * self.s->len); /* each character is looked up in a table */
}

/* isupper and islower: at least one letter has the case, and no letter has another case. */
BUILTIN(m_has_case) {
    bool some = false, other = false, upper = how == CASE_UPPER;
    for (size_t i = 0, n; i < self.s->len; i += n) {
        uint32_t c = char_decode(self.s->data + i, self.s->len - i, &n);
        some |= upper ? char_is_upper(c) : char_is_lower(c);
        other |= char_is_title(c) || (upper ? char_is_lower(c) : char_is_upper(c));
    }
    *out = jv_bool(some && !other);
    return jx_work(x, 8 * self.s->len); /* each character is looked up in three tables */
}

const jbuiltin *jmethod_str_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"strip", "chars", 0, m_strip, J_LEFT | J_RIGHT},
                                     {"lstrip", "chars", 0, m_strip, J_LEFT},
                                     {"rstrip", "chars", 0, m_strip, J_RIGHT},
                                     {"split", "sep maxsplit", 0, m_split, J_LEFT},
                                     {"rsplit", "sep maxsplit", 0, m_split, J_RIGHT},
                                     {"startswith", "prefix start end", 1, m_has_affix, J_LEFT},
                                     {"endswith", "suffix start end", 1, m_has_affix, J_RIGHT},
                                     {"replace", "old new count", 2, m_replace, 0},
                                     {"join", "iterable", 1, m_join, 0},
                                     {"format", NULL, 0, m_format, 0},
                                     {"upper", "", 0, m_case, CASE_UPPER},
                                     {"lower", "", 0, m_case, CASE_LOWER},
                                     {"title", "", 0, m_case, CASE_TITLE},
                                     {"capitalize", "", 0, m_case, CASE_CAPITALIZE},
                                     {"swapcase", "", 0, m_case, CASE_SWAP},
                                     {"casefold", "", 0, m_case, CASE_LOWER},
                                     {"splitlines", "keepends", 0, m_splitlines, 0},
                                     {"partition", "sep", 1, m_partition, J_LEFT},
                                     {"rpartition", "sep", 1, m_partition, J_RIGHT},
                                     {"removeprefix", "prefix", 1, m_remove_affix, J_LEFT},
                                     {"removesuffix", "suffix", 1, m_remove_affix, J_RIGHT},
                                     {"find", "sub start end", 1, m_find, J_LEFT},
                                     {"rfind", "sub start end", 1, m_find, J_RIGHT},
                                     {"index", "sub start end", 1, m_find, J_LEFT | REQUIRED},
                                     {"rindex", "sub start end", 1, m_find, J_RIGHT | REQUIRED},
                                     {"count", "sub start end", 1, m_count, 0},
                                     {"ljust", "width fillchar", 1, m_pad, '<'},
                                     {"rjust", "width fillchar", 1, m_pad, '>'},
                                     {"center", "width fillchar", 1, m_pad, '^'},
                                     {"zfill", "width", 1, m_zfill, 0},
                                     {"isdigit", "", 0, m_is, IS_DECIMAL},
                                     {"isdecimal", "", 0, m_is, IS_DECIMAL},
                                     {"isnumeric", "", 0, m_is, IS_DECIMAL},
                                     {"isalpha", "", 0, m_is, IS_ALPHA},
                                     {"isalnum", "", 0, m_is, IS_ALNUM},
                                     {"isspace", "", 0, m_is, IS_SPACE},
                                     {"isascii", "", 0, m_is, IS_ASCII},
                                     {"isupper", "", 0, m_has_case, CASE_UPPER},
                                     {"islower", "", 0, m_has_case, CASE_LOWER}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
