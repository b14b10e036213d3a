/* coordinator/serving/chat/chat_tool_call_json.c - reads the field of a tool call's pattern that is a JSON object with
 * a name and arguments. The arguments are passed on while they arrive, before the object is complete. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

enum { MAX_SHORT_BYTES = 256, MAX_ESCAPE_BYTES = 12 };

static bool may_stand_outside_texts(char c) {
    return chat_is_word_byte(c) || chat_is_space(c) || strchr("{}[]:,+", c) != NULL;
}

size_t chat_json_scan_run(json_scan *s, const char *data, size_t n, bool *out_done, bool *out_bad) {
    *out_done = *out_bad = false;
    for (size_t i = 0; i < n; i++) {
        char c = data[i];
        if (s->in_text) {
            s->in_text = s->escaped || c != '"';
            s->escaped = !s->escaped && c == '\\';
            *out_done = !s->in_text && s->depth == 0;
        } else if (s->begun && s->depth == 0 && !chat_is_word_byte(c) && c != '+') {
            *out_done = true; /* a number or word ends in front of this byte */
            return i;
        } else if (!c || !(c == '"' || may_stand_outside_texts(c))) {
            *out_bad = true;
            return i;
        } else {
            s->in_text = c == '"';
            s->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
            *out_done = s->depth == 0 && (c == '}' || c == ']');
        }
        s->begun = true;
        if (*out_done)
            return i + 1;
    }
    return n;
}

/* The inside of a JSON string without escapes at pos. Does not move pos. */
static chat_step short_text(const mr_chat_output *o, mr_str *out) {
    const char *s = o->in.data + o->pos;
    size_t n = o->end - o->pos;
    for (size_t i = 1; i < n && i <= MAX_SHORT_BYTES + 1; i++) {
        if (s[i] == '\\')
            return STEP_NO;
        if (s[i] == '"') {
            *out = (mr_str){s + 1, i - 1};
            return STEP_ON;
        }
    }
    return n > MAX_SHORT_BYTES + 1 ? STEP_NO : STEP_MORE;
}

static bool keep_name(char *to, mr_str text) {
    if (!text.len || text.len > MAX_ID_BYTES)
        return false;
    for (size_t i = 0; i < text.len; i++)
        if (!chat_is_name_byte(text.data[i]))
            return false;
    memcpy(to, text.data, text.len);
    to[text.len] = 0;
    return true;
}

static void begin_object(tool_call_run *r) {
    r->state = OBJ_KEY;
    r->name[0] = r->id[0] = 0;
    r->n_kept = 0;
}

static chat_step at_begin(mr_chat_output *o, char c) {
    tool_call_run *r = &o->run;
    if (c == '[' && !r->in_list && !r->bare)
        r->in_list = true;
    else if (c == '{')
        begin_object(r);
    else
        return STEP_NO;
    o->pos++;
    return STEP_ON;
}

static chat_step end_object(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    chat_step s = STEP_ON;
    if (!r->open) {
        if (!r->name[0] || r->bare)
            return STEP_NO;
        s = chat_emit_begin(o);
        if (s == STEP_ON)
            s = chat_emit_arguments(o, "{}", 2);
    }
    if (s == STEP_ON)
        s = chat_emit_end(o);
    r->state = OBJ_END;
    return s;
}

static chat_step at_key(mr_chat_output *o, char c) {
    static const struct {
        const char *name;
        object_key key;
    } KEYS[] = {{"name", KEY_NAME},       {"tool_name", KEY_NAME}, {"function", KEY_NAME},  {"arguments", KEY_ARGS},
                {"parameters", KEY_ARGS}, {"id", KEY_ID},          {"tool_call_id", KEY_ID}};
    tool_call_run *r = &o->run;
    mr_str text;
    if (c == '}') {
        o->pos++;
        return end_object(o);
    }
    if (c != '"')
        return STEP_NO;
    chat_step s = short_text(o, &text);
    if (s != STEP_ON)
        return s;
    if (r->named && !r->name[0]) {
        if (!keep_name(r->name, text))
            return STEP_NO;
        r->key = KEY_ARGS;
        o->pos += text.len + 2;
        r->state = OBJ_COLON;
        return STEP_ON;
    }
    r->key = KEY_OTHER;
    for (size_t i = 0; i < sizeof KEYS / sizeof KEYS[0]; i++)
        if (mr_str_is(text, KEYS[i].name))
            r->key = KEYS[i].key;
    o->pos += text.len + 2;
    r->state = OBJ_COLON;
    return STEP_ON;
}

static chat_step skip_value(tool_call_run *r) {
    r->scan = (json_scan){0};
    r->skips_args = false;
    r->state = OBJ_SKIP;
    return STEP_ON;
}

static chat_step take_name(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    mr_str text;
    chat_step s = short_text(o, &text);
    if (s != STEP_ON)
        return s;
    if (!keep_name(r->name, text))
        return STEP_NO;
    o->pos += text.len + 2;
    r->state = OBJ_NEXT;
    if (!r->n_kept)
        return STEP_ON;
    s = chat_emit_begin(o);
    return s == STEP_ON ? chat_emit_arguments(o, o->in.data + r->kept, r->n_kept) : s;
}

static chat_step take_id(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    mr_str text;
    chat_step s = short_text(o, &text);
    if (s == STEP_MORE)
        return s;
    if (s == STEP_ON && !r->open)
        (void)keep_name(r->id, text);
    return skip_value(r);
}

static chat_step take_arguments(mr_chat_output *o, char c) {
    tool_call_run *r = &o->run;
    if (r->open || c == 'n')
        return skip_value(r);
    if (c != '{' && (c != '"' || r->named))
        return STEP_NO;
    if (!r->name[0] && c == '{') {
        skip_value(r);
        r->skips_args = true;
        r->kept = o->pos;
        return STEP_ON;
    }
    chat_step s = r->name[0] ? chat_emit_begin(o) : STEP_NO;
    r->scan = (json_scan){0};
    r->state = c == '{' ? OBJ_ARGS : OBJ_ARGS_TEXT;
    o->pos += c == '"' && s == STEP_ON;
    return s;
}

static chat_step at_value(mr_chat_output *o, char c) {
    tool_call_run *r = &o->run;
    if (r->key == KEY_NAME && c == '"' && !r->name[0])
        return take_name(o);
    if (r->key == KEY_ID && c == '"')
        return take_id(o);
    if (r->key == KEY_ARGS)
        return take_arguments(o, c);
    return skip_value(r);
}

chat_step chat_json_object_step(mr_chat_output *o, bool *out_done) {
    bool bad;
    const char *from = o->in.data + o->pos;
    size_t n = chat_json_scan_run(&o->run.scan, from, o->end - o->pos, out_done, &bad);
    o->pos += n;
    chat_step s = chat_emit_arguments(o, from, n);
    return s != STEP_ON ? s : bad ? STEP_NO : *out_done ? STEP_ON : STEP_MORE;
}

static int hex4(const char *s) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        int d = s[i] >= '0' && s[i] <= '9'                 ? s[i] - '0'
                : (s[i] | 32) >= 'a' && (s[i] | 32) <= 'f' ? (s[i] | 32) - 'a' + 10
                                                           : -1;
        if (d < 0)
            return -1;
        value = 16 * value + d;
    }
    return value;
}

static size_t utf8(uint32_t code, char out[4]) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)((0xf00 >> n & 0xff) | code);
    return n;
}

int chat_unescape(const char *s, size_t n, char out[4], size_t *out_n) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    if (n < 2)
        return 0;
    const char *simple = s[1] ? strchr(FROM, s[1]) : NULL;
    if (simple) {
        out[0] = TO[simple - FROM];
        *out_n = 1;
        return 2;
    }
    if (s[1] != 'u')
        return -1;
    if (n < 6)
        return 0;
    int high = hex4(s + 2), low = -1;
    if (high < 0)
        return -1;
    if (high >= 0xd800 && high < 0xdc00) {
        if (n < MAX_ESCAPE_BYTES && (n < 7 || s[6] == '\\') && (n < 8 || s[7] == 'u'))
            return 0;
        low = n >= MAX_ESCAPE_BYTES && s[6] == '\\' && s[7] == 'u' ? hex4(s + 8) : -1;
        if (low >= 0xdc00 && low < 0xe000) {
            *out_n = utf8(0x10000u + ((uint32_t)high - 0xd800u) * 1024u + ((uint32_t)low - 0xdc00u), out);
            return MAX_ESCAPE_BYTES;
        }
    }
    *out_n = utf8(high >= 0xd800 && high < 0xe000 ? 0xfffd : (uint32_t)high, out);
    return 6;
}

chat_step chat_json_text_step(mr_chat_output *o, bool *out_done) {
    const char *s = o->in.data + o->pos;
    size_t n = o->end - o->pos, plain = 0;
    *out_done = false;
    while (plain < n && s[plain] != '"' && s[plain] != '\\')
        plain++;
    chat_step st = chat_emit_arguments(o, s, plain);
    o->pos += plain;
    if (st != STEP_ON || plain == n)
        return st == STEP_ON ? STEP_MORE : st;
    s += plain;
    if (*s == '"') {
        o->pos++;
        *out_done = true;
        return STEP_ON;
    }
    char text[4];
    size_t n_text = 0;
    int used = chat_unescape(s, n - plain, text, &n_text);
    if (used <= 0)
        return used ? STEP_NO : STEP_MORE;
    o->pos += (size_t)used;
    return chat_emit_arguments(o, text, n_text);
}

static chat_step at_skip(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool done, bad;
    o->pos += chat_json_scan_run(&r->scan, o->in.data + o->pos, o->end - o->pos, &done, &bad);
    if (bad || (done && !r->scan.begun))
        return STEP_NO;
    if (!done)
        return STEP_MORE;
    if (r->skips_args)
        r->n_kept = o->pos - r->kept;
    r->state = OBJ_NEXT;
    return STEP_ON;
}

static chat_step at_end(mr_chat_output *o, char c) {
    tool_call_run *r = &o->run;
    if (c == ';' || (c == ',' && r->in_list)) {
        o->pos++;
    } else if (c == '{') {
        o->start = o->pos++;
        begin_object(r);
    } else {
        if (r->in_list && c == ']')
            o->start = o->pos + 1;
        o->pos = o->start;
        chat_skip_space(o);
        r->at++; /* behind the field */
    }
    return STEP_ON;
}

chat_step chat_tool_call_json_step(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool done = false;
    chat_step s = STEP_ON;
    if (r->state == OBJ_ARGS || r->state == OBJ_ARGS_TEXT) {
        s = r->state == OBJ_ARGS ? chat_json_object_step(o, &done) : chat_json_text_step(o, &done);
        if (s == STEP_ON && done)
            r->state = OBJ_NEXT;
        return s;
    }
    if (r->state == OBJ_SKIP)
        return at_skip(o);
    chat_skip_space(o);
    if (o->pos == o->end) {
        if (r->state != OBJ_END || !o->ending)
            return STEP_MORE;
        r->at++;
        return STEP_ON;
    }
    char c = o->in.data[o->pos];
    switch (r->state) {
    case OBJ_BEGIN:
        return at_begin(o, c);
    case OBJ_KEY:
        return at_key(o, c);
    case OBJ_COLON:
        o->pos++;
        r->state = OBJ_VALUE;
        return c == ':' ? STEP_ON : STEP_NO;
    case OBJ_VALUE:
        return at_value(o, c);
    case OBJ_NEXT:
        o->pos++;
        if (c == ',') {
            r->state = OBJ_KEY;
            return STEP_ON;
        }
        if (c == '}')
            return end_object(o);
        o->pos--;
        if (!r->open)
            return STEP_NO;
        r->at++; /* the object lacks its end; the pattern goes on with what follows the object */
        return chat_emit_end(o);
    default:
        return at_end(o, c);
    }
}
