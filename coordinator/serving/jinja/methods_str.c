/* Methods of str. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

#define METHOD(name) static bool name(jx *x, jv self, const jv *a, const jargs *args, jv *out)
#define UNUSED() ((void)a, (void)args)

METHOD(m_upper) {
    UNUSED();
    return jstr_case(x, self, CASE_UPPER, out);
}
METHOD(m_lower) {
    UNUSED();
    return jstr_case(x, self, CASE_LOWER, out);
}
METHOD(m_title) {
    UNUSED();
    return jstr_case(x, self, CASE_TITLE, out);
}
METHOD(m_capitalize) {
    UNUSED();
    return jstr_case(x, self, CASE_CAPITALIZE, out);
}
METHOD(m_swapcase) {
    UNUSED();
    return jstr_case(x, self, CASE_SWAP, out);
}
METHOD(m_strip) {
    UNUSED();
    return jstr_strip(x, self, a[0], 3, out);
}
METHOD(m_lstrip) {
    UNUSED();
    return jstr_strip(x, self, a[0], 1, out);
}
METHOD(m_rstrip) {
    UNUSED();
    return jstr_strip(x, self, a[0], 2, out);
}

/* ---- split ---- */

static bool push_part(jx *x, jlist *list, jv s, const char *start, const char *end) {
    jv part;
    if (!jv_str(x, start, (size_t)(end - start), &part))
        return false;
    part.markup = s.markup;
    return jlist_push(x, list, part);
}

static void reverse(jlist *list) {
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        jv swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
}

/* The last place of sep, NULL where there is none. What it compares is counted: a text may be almost everywhere
 * alike. */
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

/* The end of what is at p going on while `space` holds; backwards where from_right. */
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
        if (most == 0) /* the rest, with the spaces on its other side */
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

static bool split(jx *x, jv self, const jv *a, bool from_right, jv *out) {
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
        reverse(list);
    *out = jv_list(J_LIST, list);
    return true;
}

METHOD(m_split) {
    UNUSED();
    return split(x, self, a, false, out);
}
METHOD(m_rsplit) {
    UNUSED();
    return split(x, self, a, true, out);
}
METHOD(m_splitlines) {
    UNUSED();
    jlist *list = jlist_new(x, 0);
    *out = jv_list(J_LIST, list);
    return list && jstr_split_lines(x, self.s, jv_truth(a[0]), list);
}

static bool partition(jx *x, jv self, const jv *a, bool from_right, jv *out) {
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

METHOD(m_partition) {
    UNUSED();
    return partition(x, self, a, false, out);
}
METHOD(m_rpartition) {
    UNUSED();
    return partition(x, self, a, true, out);
}

/* ---- search ---- */

/* The part of self that start and end (characters, may be missing) name; out_ok false where start is behind its end. */
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

static bool affix(jx *x, jv self, const jv *a, bool at_end, jv *out) {
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
        found |= ok && has_affix(part, text, at_end);
    }
    *out = jv_bool(found);
    return true;
}

METHOD(m_startswith) {
    UNUSED();
    return affix(x, self, a, false, out);
}
METHOD(m_endswith) {
    UNUSED();
    return affix(x, self, a, true, out);
}

static bool remove_affix(jx *x, jv self, jv text, bool at_end, jv *out) {
    jstr *s;
    if (!jv_as_str(x, text, "the beginning or end", &s) || !jx_work(x, s->len))
        return false;
    *out = self;
    if (!has_affix((mr_str){self.s->data, self.s->len}, s, at_end))
        return true;
    bool ok = jv_str(x, self.s->data + (at_end ? 0 : s->len), self.s->len - s->len, out);
    out->markup = self.markup;
    return ok;
}

METHOD(m_removeprefix) {
    UNUSED();
    return remove_affix(x, self, a[0], false, out);
}
METHOD(m_removesuffix) {
    UNUSED();
    return remove_affix(x, self, a[0], true, out);
}

/* The place in characters, -1 for none. */
static bool find(jx *x, jv self, const jv *a, bool last, int64_t *out) {
    jstr *text;
    mr_str part;
    bool ok;
    if (!jv_as_str(x, a[0], "what is looked for", &text) || !part_of(x, self, a[1], a[2], &part, &ok))
        return false;
    const char *at = NULL;
    if (ok && !(last ? last_place : first_place)(x, part.data, part.data + part.len, text, &at))
        return false;
    *out = -1;
    if (at) {
        jstr before = {self.s->data, (size_t)(at - self.s->data), -1};
        *out = jstr_chars(&before);
    }
    return true;
}

static bool found(jx *x, jv self, const jv *a, bool last, bool required, jv *out) {
    int64_t at;
    if (!find(x, self, a, last, &at))
        return false;
    *out = jv_int(at);
    return at >= 0 || !required || jx_fail(x, MR_E_INVALID, "substring not found");
}

METHOD(m_find) {
    UNUSED();
    return found(x, self, a, false, false, out);
}
METHOD(m_rfind) {
    UNUSED();
    return found(x, self, a, true, false, out);
}
METHOD(m_index) {
    UNUSED();
    return found(x, self, a, false, true, out);
}
METHOD(m_rindex) {
    UNUSED();
    return found(x, self, a, true, true, out);
}

METHOD(m_count) {
    UNUSED();
    jstr *text;
    mr_str part;
    bool ok;
    int64_t n = 0;
    if (!jv_as_str(x, a[0], "what is counted", &text) || !part_of(x, self, a[1], a[2], &part, &ok))
        return false;
    if (!text->len) {
        jstr all = {part.data, part.len, -1};
        *out = jv_int(ok ? jstr_chars(&all) + 1 : 0);
        return true;
    }
    for (const char *at; ok && (at = memmem(part.data, part.len, text->data, text->len)) != NULL; n++) {
        part.len -= (size_t)(at - part.data) + text->len;
        part.data = at + text->len;
    }
    *out = jv_int(n);
    return true;
}

/* ---- the others ---- */

METHOD(m_replace) {
    UNUSED();
    jv old = a[0], new = a[1];
    jstr *ignored;
    int64_t count = -1;
    if (!jv_as_str(x, old, "what is replaced", &ignored) || !jv_as_str(x, new, "the replacement", &ignored) ||
        (a[2].kind != J_MISSING && !jv_as_int(x, a[2], "count", &count)) ||
        (self.markup && (!jv_escape(x, old, &old) || !jv_escape(x, new, &new))))
        return false;
    bool ok = jstr_replace(x, self.s, old.s, new.s, count, out);
    out->markup = self.markup;
    return ok;
}

METHOD(m_join) {
    UNUSED();
    jlist *items;
    return jv_items(x, a[0], &items) && jstr_join(x, self, items, true, out);
}

METHOD(m_format) {
    (void)a;
    return jv_format(x, self.s, args, out);
}

static bool pad(jx *x, jv self, const jv *a, char align, jv *out) {
    int64_t width;
    jstr *fill = NULL;
    size_t n;
    if (!jv_as_int(x, a[0], "width", &width) || (a[1].kind != J_MISSING && !jv_as_str(x, a[1], "fillchar", &fill)))
        return false;
    if (fill && jstr_chars(fill) != 1)
        return jx_fail(x, MR_E_INVALID, "the fill character must be exactly one character long");
    return jstr_pad(x, self, width, fill ? char_decode(fill->data, fill->len, &n) : ' ', align, out);
}

METHOD(m_ljust) {
    UNUSED();
    return pad(x, self, a, '<', out);
}
METHOD(m_rjust) {
    UNUSED();
    return pad(x, self, a, '>', out);
}
METHOD(m_center) {
    UNUSED();
    return pad(x, self, a, '^', out);
}
METHOD(m_zfill) {
    UNUSED();
    int64_t width;
    jv digits = self, sign = self;
    bool has_sign = self.s->len && (*self.s->data == '-' || *self.s->data == '+');
    if (!jv_as_int(x, a[0], "width", &width))
        return false;
    return jv_str(x, self.s->data + has_sign, self.s->len - has_sign, &digits) &&
           jstr_pad(x, digits, width - has_sign, '0', '>', &digits) && jv_str(x, self.s->data, has_sign, &sign) &&
           jv_concat(x, sign.s, digits.s, out);
}

/* All characters are so, and there is one. */
static bool all(jx *x, const jstr *s, bool (*is)(uint32_t), jv *out) {
    bool yes = s->len > 0;
    for (size_t i = 0, n; yes && i < s->len; i += n)
        yes = is(char_decode(s->data + i, s->len - i, &n));
    *out = jv_bool(yes);
    return jx_work(x, 4 * s->len); /* each character is looked up in a table */
}

static bool is_alnum(uint32_t c) {
    return char_is_alpha(c) || char_is_decimal(c);
}
static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

METHOD(m_isdigit) {
    UNUSED();
    return all(x, self.s, char_is_decimal, out);
}
METHOD(m_isalpha) {
    UNUSED();
    return all(x, self.s, char_is_alpha, out);
}
METHOD(m_isalnum) {
    UNUSED();
    return all(x, self.s, is_alnum, out);
}
METHOD(m_isspace) {
    UNUSED();
    return all(x, self.s, char_is_space, out);
}
METHOD(m_isascii) {
    UNUSED();
    return self.s->len ? all(x, self.s, is_ascii, out) : (*out = jv_bool(true), true);
}

/* One letter of that case, and none of the other. */
static bool has_case(jx *x, const jstr *s, bool upper, jv *out) {
    bool some = false, other = false;
    for (size_t i = 0, n; i < s->len; i += n) {
        uint32_t c = char_decode(s->data + i, s->len - i, &n);
        some |= upper ? char_is_upper(c) : char_is_lower(c);
        other |= char_is_title(c) || (upper ? char_is_lower(c) : char_is_upper(c));
    }
    *out = jv_bool(some && !other);
    return jx_work(x, 8 * s->len); /* each character is looked up in three tables */
}

METHOD(m_isupper) {
    UNUSED();
    return has_case(x, self.s, true, out);
}
METHOD(m_islower) {
    UNUSED();
    return has_case(x, self.s, false, out);
}

const jbuiltin *jmethod_str_find(const char *name, size_t n) {
    static const jbuiltin table[] = {{"strip", "chars", 0, m_strip},
                                     {"lstrip", "chars", 0, m_lstrip},
                                     {"rstrip", "chars", 0, m_rstrip},
                                     {"split", "sep maxsplit", 0, m_split},
                                     {"rsplit", "sep maxsplit", 0, m_rsplit},
                                     {"startswith", "prefix start end", 1, m_startswith},
                                     {"endswith", "suffix start end", 1, m_endswith},
                                     {"replace", "old new count", 2, m_replace},
                                     {"join", "iterable", 1, m_join},
                                     {"format", NULL, 0, m_format},
                                     {"upper", "", 0, m_upper},
                                     {"lower", "", 0, m_lower},
                                     {"title", "", 0, m_title},
                                     {"capitalize", "", 0, m_capitalize},
                                     {"swapcase", "", 0, m_swapcase},
                                     {"casefold", "", 0, m_lower},
                                     {"splitlines", "keepends", 0, m_splitlines},
                                     {"partition", "sep", 1, m_partition},
                                     {"rpartition", "sep", 1, m_rpartition},
                                     {"removeprefix", "prefix", 1, m_removeprefix},
                                     {"removesuffix", "suffix", 1, m_removesuffix},
                                     {"find", "sub start end", 1, m_find},
                                     {"rfind", "sub start end", 1, m_rfind},
                                     {"index", "sub start end", 1, m_index},
                                     {"rindex", "sub start end", 1, m_rindex},
                                     {"count", "sub start end", 1, m_count},
                                     {"ljust", "width fillchar", 1, m_ljust},
                                     {"rjust", "width fillchar", 1, m_rjust},
                                     {"center", "width fillchar", 1, m_center},
                                     {"zfill", "width", 1, m_zfill},
                                     {"isdigit", "", 0, m_isdigit},
                                     {"isdecimal", "", 0, m_isdigit},
                                     {"isnumeric", "", 0, m_isdigit},
                                     {"isalpha", "", 0, m_isalpha},
                                     {"isalnum", "", 0, m_isalnum},
                                     {"isspace", "", 0, m_isspace},
                                     {"isascii", "", 0, m_isascii},
                                     {"isupper", "", 0, m_isupper},
                                     {"islower", "", 0, m_islower}};
    return jbuiltin_in(table, sizeof table / sizeof *table, name, n);
}
