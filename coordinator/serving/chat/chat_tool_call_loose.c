/* coordinator/serving/chat/chat_tool_call_loose.c - turns values as Python and Gemma write them into JSON, while they
 * arrive. Both notations are read alike: keys may be bare, ':' and '=' stand behind keys, texts stand between quotes or
 * between <|"|>, and brackets may be round. JSON is a part of it.
 * Some templates write a text between quotes without escapes. So a quote ends a text only in front of a comma, a colon,
 * a closing bracket or the end. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

#include "coordinator/serving/chat/chat_schema.h"

enum { MAX_WORD_BYTES = 256, MAX_SPACES = 64 };

/* What is read, and where the JSON goes. */
typedef struct loose_text {
    const char *data;
    size_t at, end;
    bool ending; /* nothing comes behind end */
    loose_scan *scan;
    mr_text_buf *to;
    bool no_memory;
} loose_text;

static chat_step put(loose_text *t, const char *bytes, size_t n) {
    t->no_memory = t->no_memory || !mr_text_buf_append(t->to, bytes, n);
    return STEP_ON;
}

static chat_step put_escaped(loose_text *t, const char *bytes, size_t n) {
    t->no_memory = t->no_memory || !chat_escape(t->to, bytes, n);
    return STEP_ON;
}

static chat_step match(const loose_text *t, const char *literal) {
    size_t n = strlen(literal), have = t->end - t->at;
    if (memcmp(t->data + t->at, literal, have < n ? have : n) != 0)
        return STEP_NO;
    return have < n ? STEP_MORE : STEP_ON;
}

/* Whether the text at hand ends at `at`. STEP_NO: the byte belongs to the text. */
static chat_step quote_step(const loose_text *t) {
    if (t->scan->quote[1])
        return match(t, t->scan->quote);
    if (t->data[t->at] != *t->scan->quote)
        return STEP_NO;
    size_t next = t->at + 1;
    while (next < t->end && next - t->at < MAX_SPACES && chat_is_space(t->data[next]))
        next++;
    if (next == t->end)
        return t->ending ? STEP_ON : STEP_MORE;
    char c = t->data[next];
    return c && !strchr(",:)]}", c) && !chat_is_space(c) ? STEP_NO : STEP_ON;
}

/* Takes the escape at `at`. */
static chat_step take_escape(loose_text *t) {
    char text[4];
    size_t n = 0;
    int used = chat_unescape(t->data + t->at, t->end - t->at, text, &n);
    if (used == 0 && !t->ending)
        return STEP_MORE;
    if (used > 0) {
        t->at += (size_t)used;
        return put_escaped(t, text, n);
    }
    bool is_quote = t->end - t->at > 1 && t->data[t->at + 1] == '\'';
    put_escaped(t, is_quote ? "'" : "\\", 1); /* what is no escape stays as it is */
    t->at += is_quote ? 2 : 1;
    return STEP_ON;
}

static chat_step take_text(loose_text *t) {
    loose_scan *l = t->scan;
    while (t->at < t->end) {
        size_t from = t->at;
        while (t->at < t->end && t->data[t->at] != '\\' && t->data[t->at] != *l->quote)
            t->at++;
        put_escaped(t, t->data + from, t->at - from);
        if (t->at == t->end)
            break;
        bool escapes = t->data[t->at] == '\\' && !l->quote[1];
        chat_step s = escapes ? take_escape(t) : quote_step(t);
        if (s == STEP_MORE && !t->ending)
            return s;
        if (s == STEP_ON && !escapes) {
            t->at += strlen(l->quote);
            l->quote = NULL;
            l->next = l->in_key ? LOOSE_COLON : LOOSE_COMMA;
            return put(t, "\"", 1);
        }
        if (s != STEP_ON)
            put_escaped(t, t->data + t->at++, 1);
    }
    return STEP_MORE;
}

/* Appends a value without quotes: a number or a word of JSON as it stands, Python's words as JSON's, anything else as a
 * string. */
static chat_step put_word(loose_text *t, const char *word, size_t n) {
    return chat_value_to_json((mr_str){word, n}, CHAT_TYPE_NUMBER | CHAT_TYPE_BOOL | CHAT_TYPE_NULL, false, t->to)
               ? STEP_ON
               : (t->no_memory = true, STEP_ON);
}

/* Takes a bare key or value. */
static chat_step take_word(loose_text *t) {
    loose_scan *l = t->scan;
    size_t n = 0, have = t->end - t->at;
    const char *s = t->data + t->at, *ends = l->in_key ? ":=,{}[]()\"\n" : ",{}[]()\"\n";
    while (n < have && n <= MAX_WORD_BYTES && s[n] && !strchr(ends, s[n]))
        n++;
    if (n == have && !t->ending && n <= MAX_WORD_BYTES)
        return STEP_MORE;
    if (!n || n > MAX_WORD_BYTES)
        return STEP_NO;
    t->at += n;
    while (n && chat_is_space(s[n - 1]))
        n--;
    l->next = l->in_key ? LOOSE_COLON : LOOSE_COMMA;
    if (!l->in_key)
        return put_word(t, s, n);
    put(t, "\"", 1);
    put_escaped(t, s, n);
    return put(t, "\"", 1);
}

static chat_step open_bracket(loose_text *t, char c) {
    loose_scan *l = t->scan;
    if (l->depth == MAX_LOOSE_DEPTH)
        return STEP_NO;
    bool is_object = c == '{' || (c == '(' && l->depth == 0); /* arguments stand in round brackets */
    l->closes[l->depth] = c == '{' ? '}' : c == '[' ? ']' : ')';
    l->is_object[l->depth++] = is_object;
    l->next = LOOSE_FIRST;
    t->at++;
    return put(t, is_object ? "{" : "[", 1);
}

static chat_step close_bracket(loose_text *t) {
    loose_scan *l = t->scan;
    t->at++;
    l->next = LOOSE_COMMA;
    return put(t, l->is_object[--l->depth] ? "}" : "]", 1);
}

/* Takes the beginning of a key or value. */
static chat_step take_element(loose_text *t, char c) {
    loose_scan *l = t->scan;
    chat_step gemma = c == '<' ? match(t, GEMMA_QUOTE) : STEP_NO;
    if (gemma == STEP_MORE && !t->ending)
        return STEP_MORE;
    l->in_key = l->depth && l->is_object[l->depth - 1] && l->next != LOOSE_VALUE;
    bool quoted = c == '"' || c == '\'' || gemma == STEP_ON, opens = !l->in_key && (c == '{' || c == '[' || c == '(');
    if (l->next == LOOSE_ELEMENT) {
        put(t, ", ", 2);
        l->next = LOOSE_FIRST;
    }
    if (opens)
        return open_bracket(t, c);
    if (!quoted)
        return take_word(t);
    l->quote = gemma == STEP_ON ? GEMMA_QUOTE : c == '"' ? "\"" : "'";
    t->at += strlen(l->quote);
    return put(t, "\"", 1);
}

/* STEP_ON with depth 0 and no text at hand: the value is complete. */
static chat_step loose_step(loose_text *t) {
    loose_scan *l = t->scan;
    if (l->quote)
        return take_text(t);
    while (t->at < t->end && chat_is_space(t->data[t->at]))
        t->at++;
    if (t->at == t->end)
        return STEP_MORE;
    char c = t->data[t->at];
    if (l->depth && c == l->closes[l->depth - 1] && l->next != LOOSE_COLON && l->next != LOOSE_VALUE)
        return close_bracket(t);
    switch (l->next) {
    case LOOSE_COLON:
        if (c != ':' && c != '=')
            return STEP_NO;
        t->at++;
        l->next = LOOSE_VALUE;
        return put(t, ": ", 2);
    case LOOSE_COMMA:
        if (c != ',')
            return STEP_NO;
        t->at++;
        l->next = LOOSE_ELEMENT;
        return STEP_ON;
    default:
        return take_element(t, c);
    }
}

bool chat_loose_to_json(mr_str text, mr_text_buf *to) {
    loose_scan scan = {.next = LOOSE_VALUE};
    loose_text t = {.data = text.data, .end = text.len, .ending = true, .scan = &scan, .to = to};
    chat_step s = STEP_ON;
    if (!text.len || (*text.data != '[' && *text.data != '{'))
        return false;
    do
        s = loose_step(&t);
    while (s == STEP_ON && scan.depth);
    return s == STEP_ON && !t.no_memory && t.at == t.end;
}

/* Emits the object at hand while it arrives. */
static chat_step emit_object(mr_chat_output *o, bool *out_done) {
    loose_scan *l = &o->run.loose;
    loose_text t = {o->in.data, o->pos, o->end, o->ending, l, &o->scratch, false};
    chat_step s = STEP_ON;
    mr_text_buf_clear(&o->scratch);
    do
        s = loose_step(&t);
    while (s == STEP_ON && l->depth);
    o->pos = t.at;
    *out_done = s == STEP_ON;
    chat_step emitted = chat_emit_scratch(o, !t.no_memory);
    return emitted == STEP_ON ? s : emitted;
}

/* Begins the tool call whose name is known, at its opening bracket. */
static chat_step begin_object(mr_chat_output *o) {
    o->run.loose = (loose_scan){.next = LOOSE_VALUE};
    o->run.state = OBJ_ARGS;
    return chat_emit_begin(o);
}

chat_step chat_tool_call_object_step(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool done = false;
    if (!r->open) {
        if (o->pos == o->end)
            return STEP_MORE;
        return o->in.data[o->pos] == '{' ? begin_object(o) : STEP_NO;
    }
    chat_step s = emit_object(o, &done);
    if (!done)
        return s;
    r->at++;
    return chat_emit_end(o);
}

static chat_step take_name(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    size_t n;
    chat_step s = chat_name_bytes(o, &n);
    if (s != STEP_ON)
        return s;
    memcpy(r->name, o->in.data + o->pos, n);
    r->name[n] = 0;
    o->pos += n;
    r->state = OBJ_VALUE;
    return STEP_ON;
}

/* Behind a call: another one, or the end of the list. */
static chat_step behind_call(mr_chat_output *o, char c) {
    tool_call_run *r = &o->run;
    if (c == ',') {
        o->pos++;
        r->state = OBJ_KEY;
        return STEP_ON;
    }
    if (c == ']')
        o->start = ++o->pos;
    r->at++;
    return STEP_ON;
}

chat_step chat_tool_call_python_step(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool done = false;
    if (r->state == OBJ_ARGS) {
        chat_step s = emit_object(o, &done);
        if (!done)
            return s;
        r->state = OBJ_END;
        return chat_emit_end(o);
    }
    chat_skip_space(o);
    if (o->pos == o->end)
        return STEP_MORE;
    char c = o->in.data[o->pos];
    switch (r->state) {
    case OBJ_BEGIN:
        o->pos++;
        r->state = OBJ_KEY;
        return c == '[' ? STEP_ON : STEP_NO;
    case OBJ_KEY:
        return take_name(o);
    case OBJ_VALUE:
        return c == '(' ? begin_object(o) : STEP_NO;
    default:
        return behind_call(o, c);
    }
}
