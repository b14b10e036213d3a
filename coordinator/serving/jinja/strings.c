/* coordinator/serving/jinja/strings.c - the operations on strings that methods and filters share. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/jinja/value.h"

/* ---- case ---- */

static int change_char(jcase how, bool at_word, uint32_t c, uint32_t out[3]) {
    bool upper = how == CASE_UPPER || (how == CASE_SWAP && !char_is_upper(c));
    bool title = (how == CASE_CAPITALIZE || how == CASE_TITLE) && at_word;
    if (upper)
        return char_upper(c, out);
    if (title)
        return char_title(c, out);
    *out = char_lower(c);
    return 1;
}

/* CASE_TITLE starts a word behind every character without a case. CASE_CAPITALIZE has one word, the whole string. */
bool jstr_case(jx *x, jv s, jcase how, jv *out) {
    jtext text = {0};
    bool at_word = true;
    for (size_t i = 0, n; i < s.s->len; i += n) {
        uint32_t c = char_decode(s.s->data + i, s.s->len - i, &n), changed[3];
        int n_changed = change_char(how, at_word, c, changed);
        for (int k = 0; k < n_changed; k++)
            if (!jtext_char(x, &text, changed[k]))
                return false;
        at_word = how == CASE_TITLE && !(char_is_upper(c) || char_is_lower(c) || char_is_title(c));
    }
    return jv_mark(out, s.markup, jv_text(x, &text, out));
}

/* ---- strip, replace, split ---- */

static bool is_stripped(const char *c, size_t n, const jstr *chars) {
    if (!chars)
        return char_space_len(c, n) == n;
    for (size_t i = 0, len; i < chars->len; i += len) {
        char_decode(chars->data + i, chars->len - i, &len);
        if (len == n && memcmp(chars->data + i, c, n) == 0)
            return true;
    }
    return false;
}

bool jstr_strip(jx *x, jv s, jv chars, int sides, jv *out) {
    jstr *set = NULL;
    if (chars.kind != J_MISSING && chars.kind != J_NONE && !jv_as_str(x, chars, "what is stripped", &set))
        return false;
    const char *start = s.s->data, *end = start + s.s->len;
    for (size_t n; (sides & J_LEFT) && start < end; start += n) {
        char_decode(start, (size_t)(end - start), &n);
        if (!is_stripped(start, n, set))
            break;
        if (!jx_work(x, set ? set->len : 0))
            return false;
    }
    while ((sides & J_RIGHT) && start < end) {
        const char *last = end - 1;
        while (last > start && ((unsigned char)*last & 0xC0) == 0x80)
            last--;
        if (!is_stripped(last, (size_t)(end - last), set))
            break;
        if (!jx_work(x, set ? set->len : 0))
            return false;
        end = last;
    }
    return jv_mark(out, s.markup, jv_str(x, start, (size_t)(end - start), out));
}

/* The next place of old, NULL if there is none. An empty old is found before every character and at the end. */
static const char *next_place(const char *at, const char *end, const jstr *old, bool first) {
    if (old->len)
        return memmem(at, (size_t)(end - at), old->data, old->len);
    if (first)
        return at;
    if (at >= end)
        return NULL;
    size_t n;
    char_decode(at, (size_t)(end - at), &n);
    return at + n;
}

bool jstr_replace(jx *x, const jstr *s, const jstr *old, const jstr *new, int64_t count, jv *out) {
    jtext text = {0};
    const char *at = s->data, *end = s->data + s->len;
    for (bool first = true; count != 0; count--, first = false) {
        const char *place = next_place(at, end, old, first);
        if (!place)
            break;
        if (!jtext_add(x, &text, at, (size_t)(place - at)) || !jtext_add(x, &text, new->data, new->len))
            return false;
        at = place + old->len;
    }
    return jtext_add(x, &text, at, (size_t)(end - at)) && jv_text(x, &text, out);
}

static bool is_line_end(uint32_t c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool jstr_split_lines(jx *x, const jstr *s, bool keep_ends, jlist *out) {
    for (size_t start = 0, i = 0, n; start < s->len; start = i) {
        size_t end = s->len;
        for (i = start; i < s->len; i += n) {
            uint32_t c = char_decode(s->data + i, s->len - i, &n);
            if (!is_line_end(c))
                continue;
            end = i;
            i += n;
            i += c == '\r' && i < s->len && s->data[i] == '\n';
            break;
        }
        jv line;
        if (!jv_str(x, s->data + start, (keep_ends ? i : end) - start, &line) || !jlist_push(x, out, line) ||
            !jx_work(x, i - start))
            return false;
    }
    return true;
}

/* ---- join, pad ---- */

bool jstr_join(jx *x, jv separator, const jlist *items, bool strict, jv *out) {
    jtext text = {0};
    for (size_t i = 0; i < items->n; i++) {
        jv item = items->items[i];
        if (strict && item.kind != J_STR)
            return jx_fail(x, MR_E_INVALID, "sequence item %zu: expected str instance, %s found", i, jv_type(item));
        if ((separator.markup && !jv_escape(x, item, &item)) || (i && !jv_write(x, separator, &text)) ||
            !jv_write(x, item, &text))
            return false;
    }
    return jv_mark(out, separator.markup, jv_text(x, &text, out));
}

bool jstr_pad(jx *x, jv s, int64_t width, uint32_t fill, char align, jv *out) {
    int64_t n = jstr_chars(s.s), missing = width > n ? width - n : 0;
    /* An odd padding character goes to the left if the width is odd, as in Python. */
    int64_t before = align == '>' ? missing : align == '^' ? missing / 2 + (missing & width & 1) : 0;
    jtext text = {0};
    for (int64_t i = 0; i < before; i++)
        if (!jtext_char(x, &text, fill))
            return false;
    if (!jv_write(x, s, &text))
        return false;
    for (int64_t i = before; i < missing; i++)
        if (!jtext_char(x, &text, fill))
            return false;
    return jv_mark(out, s.markup, jv_text(x, &text, out));
}
