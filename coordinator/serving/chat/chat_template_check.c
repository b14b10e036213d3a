/* coordinator/serving/chat/chat_template_check.c - looks for the text of each message in the prompt, so that no
 * template loses a message unseen. Templates write texts as they are or with escapes (JSON, Python, HTML), and strip
 * them. A text is looked for behind the one before it, where it nearly always is: then its bytes are only compared. */
// SPDX-License-Identifier: Apache-2.0
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/chat/chat_formats.h"
#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/jinja/chars.h"
#include "coordinator/serving/json/json.h"

enum {
    HEAD_BYTES = 32,    /* of a text, which are looked for first */
    MAX_HEADS = 16,     /* that are compared further, before the whole text is looked for */
    ANCHOR_BYTES = 12,  /* letters and digits, which no escape changes */
    MAX_WORK_BYTES = 8, /* compared for each byte of prompt and text, before a text counts as found */
};

typedef struct checker {
    const chat_abilities *can;
    mr_str prompt;
    size_t start, next; /* where the present message begins, and where the last text that was found ends */
    size_t at;          /* the index of the message */
    mr_err *err;
} checker;

/* ---- texts as they are ---- */

static mr_str trim(mr_str s) {
    for (size_t n; s.len && (n = char_space_len(s.data, s.len)) > 0;)
        s = (mr_str){s.data + n, s.len - n};
    for (size_t n = 1; s.len; n = 1) {
        while (n < s.len && n < 4 && ((unsigned char)s.data[s.len - n] & 0xC0) == 0x80)
            n++;
        if (char_space_len(s.data + s.len - n, n) != n)
            break;
        s.len -= n;
    }
    return s;
}

static const char *find_bytes(mr_str in, size_t from, mr_str text) {
    return memmem(in.data + from, in.len - from, text.data, text.len);
}

/* Finds the text as it is; sets next behind it. */
static bool find_plain(checker *c, size_t from, mr_str text) {
    mr_str head = {text.data, text.len < HEAD_BYTES ? text.len : HEAD_BYTES};
    const char *at = NULL, *end = c->prompt.data + c->prompt.len;
    for (int i = 0; i < MAX_HEADS && from <= c->prompt.len && (at = find_bytes(c->prompt, from, head)) != NULL; i++) {
        if ((size_t)(end - at) >= text.len && memcmp(at, text.data, text.len) == 0)
            break;
        from = (size_t)(at - c->prompt.data) + 1;
        at = i + 1 < MAX_HEADS || from > c->prompt.len ? NULL : find_bytes(c->prompt, from, text);
    }
    if (at)
        c->next = (size_t)(at - c->prompt.data) + text.len;
    return at != NULL;
}

/* ---- texts with escapes ---- */

/* Skips what stands for the character c of a text at p, as an escape of JSON or Python; NULL: it does not. The
 * backslashes in front of p are skipped already. */
static const char *skip_escape(const char *p, const char *end, uint32_t c) {
    static const char from[] = "\n\t\r\b\f\"'/", to[] = "ntrbf\"'/";
    const char *known = c && c < 0x80 ? strchr(from, (char)c) : NULL;
    unsigned unit = 0, low = 0;
    char hex[5] = {0}, hex_low[5] = {0};
    if (known && p < end && *p == to[known - from])
        return p + 1;
    if (end - p < 5 || *p != 'u')
        return NULL;
    memcpy(hex, p + 1, 4);
    unit = (unsigned)strtoul(hex, NULL, 16);
    if (unit == c)
        return p + 5;
    for (p += 5; p < end && *p == '\\';)
        p++;
    if (c < 0x10000 || end - p < 5 || *p != 'u')
        return NULL;
    memcpy(hex_low, p + 1, 4);
    low = (unsigned)strtoul(hex_low, NULL, 16);
    return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00) == c ? p + 5 : NULL;
}

static bool starts_with(mr_str s, const char *with) {
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.data, with, n) == 0;
}

static const char *skip_entity(const char *p, const char *end, char c) {
    static const char *const ENTITIES[] = {"&&amp;", "<&lt;", ">&gt;", "'&#39;", "'&#x27;", "\"&#34;", "\"&quot;"};
    for (size_t i = 0; i < sizeof ENTITIES / sizeof ENTITIES[0]; i++)
        if (ENTITIES[i][0] == c && starts_with((mr_str){p, (size_t)(end - p)}, ENTITIES[i] + 1))
            return p + strlen(ENTITIES[i] + 1);
    return NULL;
}

static bool is_blank(char c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Skips blanks on both sides, however many there are; but a line break of the text may stand in the prompt escaped. */
static void skip_blanks(const char **p, const char *end, mr_str text, size_t *i) {
    for (bool in_prompt = true, in_text = true; in_prompt || in_text;) {
        *p += in_prompt;
        *i += in_text;
        in_prompt = *p < end && is_blank(**p);
        in_text = *i < text.len && is_blank(text.data[*i]) && (in_prompt || (*p < end && **p != '\\'));
    }
}

/* Whether the & of a text stands at p as &amp;. A text may have &amp; itself. */
static bool is_escaped_and(const char *p, const char *end, mr_str text, size_t i) {
    mr_str at = {p, (size_t)(end - p)}, rest = {text.data + i, text.len - i};
    return starts_with(at, "&amp;") && (!starts_with(rest, "&amp;") || starts_with(at, "&amp;amp;"));
}

/* Whether the text stands at p, with escapes; returns the end, or NULL. work counts bytes. */
static const char *match_escaped(const char *p, const char *begin, const char *end, mr_str text, size_t *work) {
    for (size_t i = 0, n; i < text.len; ++*work) {
        if (p < end && *p == text.data[i] && *p != '\\' && !is_escaped_and(p, end, text, i)) {
            if (is_blank(*p))
                skip_blanks(&p, end, text, &i);
            else
                p++, i++;
            continue;
        }
        const char *slash = p;
        while (slash < end && *slash == '\\')
            slash++;
        if (text.data[i] == '\\') {
            if (slash == p)
                return NULL;
            while (i < text.len && text.data[i] == '\\')
                i++;
            p = slash;
            continue;
        }
        uint32_t code = char_decode(text.data + i, text.len - i, &n);
        const char *behind = slash > begin && slash[-1] == '\\' ? skip_escape(slash, end, code) : NULL;
        if (!behind && slash > p && slash < end && n == 1 && *slash == text.data[i])
            behind = slash + 1;
        if (!behind)
            behind = skip_entity(p, end, text.data[i]);
        if (!behind)
            return NULL;
        p = behind;
        i += n;
    }
    return p;
}

/* Finds the text with escapes: first some letters and digits of it, then what stands behind them. */
static bool find_escaped(checker *c, mr_str text) {
    size_t first = 0, n = 0, work = 0, max_work = MAX_WORK_BYTES * (c->prompt.len + text.len);
    for (size_t i = 0; i < text.len && n < ANCHOR_BYTES; i++)
        if (isalnum((unsigned char)text.data[i]))
            n++;
        else if (n == 0)
            first = i + 1;
        else
            break;
    mr_str anchor = {text.data + first, n}, rest = {anchor.data, text.len - first};
    if (!n) /* there are no letters and digits: look everywhere */
        rest = text;
    const char *end = c->prompt.data + c->prompt.len, *behind = NULL;
    for (size_t from = 0; from <= c->prompt.len && !behind && work <= max_work; from++) {
        const char *at = n ? find_bytes(c->prompt, from, anchor) : c->prompt.data + from;
        if (!at)
            return false;
        from = (size_t)(at - c->prompt.data);
        behind = match_escaped(at, c->prompt.data, end, rest, &work);
    }
    if (behind)
        c->next = (size_t)(behind - c->prompt.data);
    return behind || work > max_work;
}

/* ---- messages ---- */

static bool is_there(checker *c, mr_str text) {
    text = trim(text);
    return !text.len || find_plain(c, c->next, text) || find_plain(c, c->start, text) || find_plain(c, 0, text) ||
           find_escaped(c, text);
}

static bool has_string(checker *c, const json_t *string) {
    return is_there(c, (mr_str){json_string_value(string), json_string_length(string)});
}

/* The content of an answer may hold reasoning between marks, which templates cut out: only what is behind them counts.
 */
static mr_str behind_reasoning(const checker *c, mr_str text) {
    const char *const MARKS[] = {"</think>", c->can->format.reasoning->close};
    for (int i = 0; i < 2; i++) {
        mr_str mark = mr_str_from(MARKS[i]);
        for (const char *at; text.len && (at = find_bytes(text, 0, mark)) != NULL;) {
            at += mark.len;
            text = (mr_str){at, text.len - (size_t)(at - text.data)};
        }
    }
    return text;
}

static bool has_content(checker *c, const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    size_t n = json_is_string(content) ? 1 : json_array_size(content);
    bool is_answer = chat_is_role(message, "assistant");
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_string(content) ? content : json_object_get(json_array_get(content, i), "text");
        mr_str text = {json_string_value(s), json_string_length(s)};
        if (!is_there(c, is_answer ? behind_reasoning(c, text) : text))
            return false;
    }
    return true;
}

/* Whether the names and values of arguments are there; but real numbers, true, false and null have many forms. */
static bool has_values(checker *c, const json_t *value) {
    char number[32];
    const char *key = mr_json_digits(value);
    json_t *item;
    size_t i;
    bool ok = true;
    if (key)
        return is_there(c, mr_str_from(key));
    if (json_is_string(value))
        return has_string(c, value);
    if (json_is_integer(value)) {
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
        return is_there(c, mr_str_from(number));
    }
    json_array_foreach(value, i, item) ok = ok && has_values(c, item);
    json_object_foreach((json_t *)(uintptr_t)value, key, item) ok =
        ok && is_there(c, mr_str_from(key)) && has_values(c, item);
    return ok;
}

static bool has_arguments(checker *c, const json_t *function) {
    const json_t *text = json_object_get(function, "text");
    if (text && find_plain(c, c->next, (mr_str){json_string_value(text), json_string_length(text)}))
        return true;
    return has_values(c, json_object_get(function, "arguments"));
}

static mr_status missing(const checker *c, const char *what) {
    return mr_err_set(c->err, MR_E_INVALID, "messages[%zu]%s: the chat template of the model leaves it out", c->at,
                      what);
}

static mr_status check_calls(checker *c, const json_t *message) {
    const json_t *calls = json_object_get(message, "tool_calls");
    char what[64];
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *function = json_object_get(json_array_get(calls, i), "function");
        snprintf(what, sizeof what, ".tool_calls[%zu]", i);
        if (!has_string(c, json_object_get(function, "name")) || !has_arguments(c, function))
            return missing(c, what);
    }
    return MR_OK;
}

mr_status chat_prompt_check(const chat_abilities *can, const json_t *said, bool with_reasoning, mr_str prompt,
                            mr_err *err) {
    checker c = {.can = can, .prompt = prompt, .err = err};
    size_t n_turns = json_array_size(said); /* messages up to the last one of the user */
    while (n_turns && !chat_is_role(json_array_get(said, n_turns - 1), "user"))
        n_turns--;
    for (; c.at < json_array_size(said); c.at++) {
        const json_t *message = json_array_get(said, c.at), *reasoning = json_object_get(message, "reasoning");
        c.start = c.next;
        if (reasoning && with_reasoning && can->keeps_reasoning && c.at >= n_turns &&
            json_object_get(message, "tool_calls") && !has_string(&c, reasoning))
            return missing(&c, ".reasoning");
        if (!has_content(&c, message))
            return missing(&c, ".content");
        mr_status status = check_calls(&c, message);
        if (status != MR_OK)
            return status;
    }
    return MR_OK;
}
