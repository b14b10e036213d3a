/* coordinator/serving/jinja/lex.c - splits a template into tokens: text, tags, names and operators. lex_literal.c reads
 * numbers and strings. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/lex.h"

#include <ctype.h>

#include "coordinator/serving/jinja/chars.h"
#include "engine/text/utf8.h"

static bool lex_fail(lexer *l, const char *what) {
    l->x->line = l->line;
    return jx_fail(l->x, MR_E_FORMAT, "%s", what);
}

/* Copies the source with every newline as \n, and without a newline at the end. */
bool lex_init(lexer *l, jx *x, mr_str source) {
    *l = (lexer){.x = x, .line = 1, .line_starting = true};
    char *copy = jx_alloc(x, source.len + 1, 1);
    if (!copy)
        return false;
    for (size_t i = 0; i < source.len;) {
        size_t n = mr_utf8_char_len(source.data + i, source.len - i);
        if (!n)
            return lex_fail(l, "the source is not UTF-8");
        memcpy(copy + l->n, source.data + i, n);
        if (copy[l->n] == '\r') {
            copy[l->n] = '\n';
            if (i + 1 < source.len && source.data[i + 1] == '\n')
                i++;
        }
        l->n += n;
        i += n;
    }
    if (l->n && copy[l->n - 1] == '\n')
        l->n--;
    copy[l->n] = 0;
    l->s = copy;
    return true;
}

/* Moves to pos and counts the lines on the way. */
static void advance(lexer *l, size_t pos) {
    for (size_t i = l->pos; i < pos; i++)
        l->line += l->s[i] == '\n';
    if (pos > l->pos)
        l->line_starting = l->s[pos - 1] == '\n';
    l->pos = pos;
}

static bool starts(const lexer *l, size_t pos, const char *with) {
    size_t n = strlen(with);
    return pos + n <= l->n && memcmp(l->s + pos, with, n) == 0;
}

static size_t skip_spaces(const lexer *l, size_t pos) {
    for (size_t n; pos < l->n && (n = char_space_len(l->s + pos, l->n - pos)) > 0;)
        pos += n;
    return pos;
}

/* If the end of a tag, `close` ("%}", "#}" or "}}"), stands at pos: the position behind the tag and behind the white
 * space that the tag removes. Otherwise 0. */
static size_t tag_end(const lexer *l, size_t pos, const char *close) {
    char sign[4] = {'-', close[0], close[1], 0};
    if (starts(l, pos, sign))
        return skip_spaces(l, pos + 3);
    sign[0] = '+';
    bool is_variable = close[0] == '}';
    if (!is_variable && starts(l, pos, sign))
        return pos + 3;
    if (!starts(l, pos, close))
        return 0;
    return pos + 2 + (!is_variable && pos + 2 < l->n && l->s[pos + 2] == '\n');
}

/* If the tag {% NAME %} stands at pos, with or without signs and spaces: the position behind the tag. Otherwise 0. */
static size_t named_tag_end(const lexer *l, size_t pos, const char *name) {
    pos += 2;
    if (pos < l->n && (l->s[pos] == '-' || l->s[pos] == '+'))
        pos++;
    pos = skip_spaces(l, pos);
    if (!starts(l, pos, name))
        return 0;
    pos = skip_spaces(l, pos + strlen(name));
    if (strcmp(name, "raw") == 0) /* unlike other tags, raw does not remove the newline behind it */
        return starts(l, pos, "-%}") ? skip_spaces(l, pos + 3) : starts(l, pos, "%}") ? pos + 2 : 0;
    return tag_end(l, pos, "%}");
}

/* Bytes of the text from l->pos to `tag` that remain when the tag at `tag` has removed the white space before it. */
static size_t text_before(const lexer *l, size_t tag) {
    char sign = tag + 2 < l->n ? l->s[tag + 2] : 0;
    size_t end = tag;
    if (sign == '-') {
        while (end > l->pos) {
            size_t start = end - 1;
            while (start > l->pos && ((unsigned char)l->s[start] & 0xC0) == 0x80)
                start--;
            if (char_space_len(l->s + start, end - start) != end - start)
                break;
            end = start;
        }
        return end - l->pos;
    }
    if (sign == '+' || l->s[tag + 1] == '{')
        return end - l->pos;
    size_t line = tag;
    while (line > l->pos && l->s[line - 1] != '\n')
        line--;
    if ((line > l->pos || l->line_starting) && skip_spaces(l, line) >= tag)
        end = line;
    return end - l->pos;
}

/* Reads a raw block. start: position of the text of the block. */
static bool lex_raw(lexer *l, size_t start, tok *out) {
    advance(l, start);
    for (size_t i = start; i + 1 < l->n; i++) {
        size_t end = starts(l, i, "{%") ? named_tag_end(l, i, "endraw") : 0;
        if (!end)
            continue;
        *out = (tok){.type = T_DATA, .line = l->line};
        if (!jv_str(l->x, l->s + start, text_before(l, i), &out->value))
            return false;
        advance(l, end);
        return true;
    }
    *out = (tok){.type = T_END, .line = l->line};
    return start == l->n || lex_fail(l, "missing end of raw block");
}

static bool skip_comment(lexer *l, size_t start) {
    for (size_t i = start; i < l->n; i++) {
        size_t end = tag_end(l, i, "#}");
        if (end) {
            advance(l, end);
            return true;
        }
    }
    return lex_fail(l, "missing end of comment tag");
}

/* Enters the tag at `tag`. Raw blocks and comments are read at once, and out_tag is then false. */
static bool enter_tag(lexer *l, size_t tag, bool *out_tag, tok *out) {
    size_t raw = l->s[tag + 1] == '%' ? named_tag_end(l, tag, "raw") : 0;
    *out_tag = false;
    if (raw) {
        return lex_raw(l, raw, out);
    }
    size_t body = tag + 2;
    if (body < l->n && (l->s[body] == '-' || l->s[body] == '+'))
        body++;
    if (l->s[tag + 1] == '#') {
        out->type = T_END;
        return skip_comment(l, body);
    }
    bool variable = l->s[tag + 1] == '{';
    advance(l, body);
    *out = (tok){.type = variable ? T_VARIABLE_BEGIN : T_BLOCK_BEGIN, .line = l->line};
    l->mode = variable ? LEX_VARIABLE : LEX_BLOCK;
    l->n_brackets = 0;
    *out_tag = true;
    return true;
}

/* Reads the text up to the next tag, and the tag itself into the queue. The T_DATA token may be empty. */
static bool lex_root(lexer *l, tok *out) {
    size_t tag = l->pos;
    while (tag + 1 < l->n && !(l->s[tag] == '{' && strchr("%{#", l->s[tag + 1])))
        tag++;
    bool found = tag + 1 < l->n;
    if (!found)
        tag = l->n;
    *out = (tok){.type = found || l->pos < l->n ? T_DATA : T_END, .line = l->line};
    size_t n = found ? text_before(l, tag) : tag - l->pos;
    if (out->type == T_DATA && !jv_str(l->x, l->s + l->pos, n, &out->value))
        return false;
    advance(l, tag);
    if (!found)
        return true;
    bool is_tag;
    if (!enter_tag(l, tag, &is_tag, &l->queued))
        return false;
    l->has_queued = is_tag || l->queued.type == T_DATA;
    return true;
}

static bool lex_bracket(lexer *l, char c) {
    static const char open[] = "([{", close[] = ")]}";
    const char *at = strchr(open, c);
    if (at) {
        if (l->n_brackets == LEX_MAX_BRACKETS)
            return lex_fail(l, "brackets are nested too deeply");
        l->brackets[l->n_brackets++] = close[at - open];
    } else if (strchr(close, c)) {
        if (!l->n_brackets || l->brackets[l->n_brackets - 1] != c)
            return lex_fail(l, "a bracket is closed that is not open");
        l->n_brackets--;
    }
    return true;
}

static bool lex_operator(lexer *l, tok *out) {
    static const struct {
        char text[3];
        char op;
    } two[] = {{"//", 'f'}, {"**", 'p'}, {"==", 'e'}, {"!=", '!'}, {">=", 'g'}, {"<=", 'l'}};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(l, l->pos, two[i].text)) {
            *out = (tok){.type = T_OP, .op = two[i].op, .line = l->line};
            advance(l, l->pos + 2);
            return true;
        }
    char c = l->s[l->pos];
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c)) {
        char what[64], shown[8];
        mr_utf8_printable((mr_str){&c, 1}, shown, sizeof shown);
        snprintf(what, sizeof what, "unexpected character '%s'", shown);
        return lex_fail(l, what);
    }
    *out = (tok){.type = T_OP, .op = c, .line = l->line};
    advance(l, l->pos + 1);
    return lex_bracket(l, c);
}

static bool is_name_byte(char c) {
    return isalnum((unsigned char)c) || c == '_' || (unsigned char)c >= 0x80;
}

bool lex_next(lexer *l, tok *out) {
    if (l->has_queued) {
        l->has_queued = false;
        *out = l->queued;
        return true;
    }
    if (l->mode == LEX_ROOT)
        return lex_root(l, out);
    bool block = l->mode == LEX_BLOCK;
    for (;;) {
        size_t end = l->n_brackets ? 0 : tag_end(l, l->pos, block ? "%}" : "}}");
        if (end) {
            *out = (tok){.type = block ? T_BLOCK_END : T_VARIABLE_END, .line = l->line};
            l->mode = LEX_ROOT;
            advance(l, end);
            return true;
        }
        size_t next = skip_spaces(l, l->pos);
        if (next == l->pos)
            break;
        advance(l, next);
    }
    *out = (tok){.type = T_END, .line = l->line};
    if (l->pos >= l->n)
        return true;
    char c = l->s[l->pos];
    if (isdigit((unsigned char)c))
        return lex_number(l, out);
    if (c == '\'' || c == '"')
        return lex_string(l, out);
    if (!is_name_byte(c))
        return lex_operator(l, out);
    size_t end = l->pos;
    while (end < l->n && is_name_byte(l->s[end]))
        end++;
    out->type = T_NAME;
    if (!jv_str(l->x, l->s + l->pos, end - l->pos, &out->value))
        return false;
    advance(l, end);
    return true;
}
