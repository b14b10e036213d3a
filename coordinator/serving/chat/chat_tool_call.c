/* coordinator/serving/chat/chat_tool_call.c - runs the pattern of a tool call over the text of an answer, instruction
 * by instruction. The run can stop after any byte and go on when more text has come. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <stdio.h>
#include <string.h>

enum { MAX_SKIP_BYTES = 128 };

void chat_tool_call_begin(mr_chat_output *o, int program, size_t start) {
    mr_text_buf value = o->run.value;
    mr_text_buf_clear(&value);
    o->run = (tool_call_run){.at = o->programs[program], .bare = o->desc.format.calls->known_names, .value = value};
    o->in_tool_call = true;
    o->program = program;
    o->before = o->pos;
    o->start = o->pos = start;
}

chat_step chat_name_bytes(const mr_chat_output *o, size_t *out_n) {
    size_t n = 0, have = o->end - o->pos;
    const char *s = o->in.data + o->pos;
    while (n < have && n <= MAX_ID_BYTES && chat_is_name_byte(s[n]))
        n++;
    *out_n = n;
    return n > MAX_ID_BYTES ? STEP_NO : n == have ? STEP_MORE : n ? STEP_ON : STEP_NO;
}

static chat_step take_word(mr_chat_output *o, char to[MAX_ID_BYTES + 1]) {
    size_t n;
    chat_step s = chat_name_bytes(o, &n);
    if (s != STEP_ON)
        return s;
    memcpy(to, o->in.data + o->pos, n);
    to[n] = 0;
    o->pos += n;
    o->run.at++;
    return STEP_ON;
}

/* Reads functions.NAME:NUMBER, or a NAME alone. */
static chat_step take_full_name(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    chat_step s = take_word(o, r->id);
    if (s != STEP_ON)
        return s;
    const char *name = strncmp(r->id, "functions.", 10) == 0 ? r->id + 10 : r->id, *colon = strrchr(name, ':');
    bool has_number = colon && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")];
    size_t n = has_number ? (size_t)(colon - name) : strlen(name);
    memcpy(r->name, name, n);
    r->name[n] = 0;
    if (!has_number)
        r->id[0] = 0; /* chat_emit.c makes an id */
    return n ? STEP_ON : STEP_NO;
}

/* Counts the bytes in front of the next literal of the pattern, on the same line and at most `most`. */
static chat_step bytes_before(const mr_chat_output *o, const char *literal, size_t most, size_t *out_n) {
    size_t len = pat_literal_bytes(literal), have = o->end - o->pos;
    for (size_t n = 0; n <= have && n <= most; n++) {
        chat_step s = chat_match(o, o->pos + n, literal, len);
        *out_n = n;
        if (s == STEP_ON || (s == STEP_MORE && n == have))
            return s;
        if (s == STEP_MORE)
            continue; /* the text ends with the beginning of the literal */
        if (o->in.data[o->pos + n] == '\n')
            return STEP_NO;
    }
    return have > most + len ? STEP_NO : STEP_MORE;
}

static chat_step skip_field(mr_chat_output *o) {
    size_t n;
    chat_step s = bytes_before(o, o->run.at + 1, MAX_SKIP_BYTES, &n);
    if (s == STEP_ON) {
        o->pos += n;
        o->run.at++;
    }
    return s;
}

static chat_step key_field(mr_chat_output *o) {
    size_t n;
    chat_step s = bytes_before(o, o->run.at + 1, MAX_KEY_BYTES, &n);
    if (s != STEP_ON)
        return s;
    memcpy(o->run.arg, o->in.data + o->pos, n);
    o->run.arg[n] = 0;
    o->pos += n;
    o->run.at++;
    o->run.is_text = o->run.is_json = false;
    return n && !memchr(o->run.arg, 0, n) ? STEP_ON : STEP_NO;
}

static chat_step is_text_field(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    for (int yes = 0; yes < 2; yes++) {
        const char *word = yes ? "true" : "false";
        chat_step s = chat_match(o, o->pos, word, strlen(word));
        if (s == STEP_NO)
            continue;
        if (s == STEP_ON) {
            o->pos += strlen(word);
            r->is_text = yes;
            r->is_json = !yes;
            r->at++;
        }
        return s;
    }
    return STEP_NO;
}

/* Reads a JSON type, up to the quote behind it. */
static chat_step type_field(mr_chat_output *o) {
    char word[MAX_ID_BYTES + 1];
    chat_step s = take_word(o, word);
    o->run.is_text = s == STEP_ON && strcmp(word, "string") == 0;
    o->run.is_json = !o->run.is_text;
    return s;
}

static chat_step number_field(mr_chat_output *o) {
    while (o->pos < o->end && o->in.data[o->pos] >= '0' && o->in.data[o->pos] <= '9')
        o->pos++;
    if (o->pos == o->end)
        return STEP_MORE;
    o->run.at++;
    return STEP_ON;
}

/* Reads the key that was read in front of the value. */
static chat_step key_end_field(mr_chat_output *o) {
    size_t n = strlen(o->run.arg);
    chat_step s = chat_match(o, o->pos, o->run.arg, n);
    if (s == STEP_ON) {
        o->pos += n;
        o->run.at++;
    }
    return s;
}

static chat_step arguments_field(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool done = false;
    chat_step s;
    if (!r->open) {
        chat_skip_space(o);
        if (o->pos == o->end)
            return STEP_MORE;
        char c = o->in.data[o->pos];
        if (c != '{' && c != '"')
            return STEP_NO;
        r->scan = (json_scan){0};
        r->state = c == '{' ? OBJ_ARGS : OBJ_ARGS_TEXT;
        o->pos += c == '"';
        return chat_emit_begin(o);
    }
    s = r->state == OBJ_ARGS ? chat_json_object_step(o, &done) : chat_json_text_step(o, &done);
    if (s != STEP_ON || !done)
        return s;
    r->at++;
    return chat_emit_end(o);
}

/* Begins another argument, or ends the arguments. */
static chat_step loop_field(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    const char *behind = strchr(r->at, PAT_LOOP_END[0]) + 1;
    chat_skip_space(o);
    chat_step s = chat_match(o, o->pos, r->at + 1, pat_literal_bytes(r->at + 1));
    chat_step ends = s == STEP_NO ? STEP_NO : chat_match(o, o->pos, behind, pat_literal_bytes(behind));
    if ((s == STEP_MORE || ends == STEP_MORE) && !o->ending)
        return STEP_MORE;
    if (s == STEP_ON && ends == STEP_NO) {
        r->loop = r->at++;
        return r->open ? STEP_ON : chat_emit_begin(o);
    }
    r->at = behind;
    if (!r->open)
        return STEP_ON; /* no arguments: end_of_pattern emits the tool call */
    s = chat_emit_arguments(o, "}", 1);
    return s == STEP_ON ? chat_emit_end(o) : s;
}

/* Begins a value, behind the newline or the mark that belongs to its form. */
static chat_step begin_value(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    static const char CDATA[] = "<![CDATA[";
    bool lines = *r->at == PAT_LINES[0];
    if (lines && o->pos == o->end)
        return STEP_MORE;
    chat_step s = o->desc.format.calls->cdata ? chat_match(o, o->pos, CDATA, sizeof CDATA - 1) : STEP_NO;
    if (s == STEP_MORE && !o->ending)
        return STEP_MORE;
    r->is_cdata = s == STEP_ON;
    r->is_tree = *r->at == PAT_TREE[0];
    r->tree_depth = 0;
    o->pos += lines && o->in.data[o->pos] == '\n';
    o->pos += r->is_cdata ? sizeof CDATA - 1 : 0;
    return chat_emit_arg_begin(o);
}

/* Counts the bytes at pos that belong to the value: up to the literal `close`, or as far as is known. */
static size_t value_bytes(const mr_chat_output *o, const char *close, size_t len, bool *out_found) {
    const char *s = o->in.data + o->pos;
    size_t have = o->end - o->pos;
    const char *found = have ? memmem(s, have, close, len) : NULL;
    *out_found = found != NULL;
    return found ? (size_t)(found - s) : have > len ? chat_whole_characters(s, have - len) : 0;
}

/* The same for elements: up to the first mark that closes none of them. */
static size_t tree_bytes(mr_chat_output *o, bool *out_found) {
    const char *s = o->in.data + o->pos, *mark = o->run.loop + 1;
    size_t have = o->end - o->pos, n_mark = pat_literal_bytes(mark), at = 0;
    *out_found = false;
    while (at < have) {
        const char *found = memmem(s + at, have - at, mark, n_mark);
        size_t n = found ? (size_t)(found - s) : have > n_mark ? have - n_mark : 0;
        if (!found || n + n_mark == have)
            return n > at ? n : at;
        bool ends = s[n + n_mark] == '/';
        *out_found = ends && o->run.tree_depth == 0;
        if (*out_found)
            return n;
        o->run.tree_depth += ends ? -1 : 1;
        at = n + n_mark;
    }
    return at;
}

static chat_step value_field(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    char close[PAT_MAX_BYTES];
    size_t len = pat_literal_bytes(r->at + 1);
    bool found, lines = *r->at == PAT_LINES[0];
    if (!r->value_begun)
        return begin_value(o);
    snprintf(close, sizeof close, "%s%.*s", r->is_cdata ? "]]>" : "", (int)len, r->at + 1);
    size_t n = r->is_tree && !r->escapes ? tree_bytes(o, &found) : value_bytes(o, close, strlen(close), &found);
    const char *s = o->in.data + o->pos;
    chat_step st = chat_emit_arg_bytes(o, s, n - (found && lines && n && s[n - 1] == '\n'));
    o->pos += n + (found && r->is_cdata ? 3 : 0);
    if (st != STEP_ON || !found)
        return st == STEP_ON ? STEP_MORE : st;
    r->at++;
    return chat_emit_arg_end(o);
}

static chat_step literal_item(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    size_t n = pat_literal_bytes(r->at);
    chat_step s = chat_match(o, o->pos, r->at, n);
    if (s == STEP_ON) {
        o->pos += n;
        r->at += n;
    }
    return s;
}

/* A pattern that ends without arguments is a tool call without arguments. */
static chat_step end_of_pattern(mr_chat_output *o) {
    if (o->run.done)
        return STEP_ON;
    chat_step s = chat_emit_begin(o);
    if (s == STEP_ON)
        s = chat_emit_arguments(o, "{}", 2);
    return s == STEP_ON ? chat_emit_end(o) : s;
}

chat_step chat_tool_call_step(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    switch (*r->at) {
    case 0:
        return end_of_pattern(o);
    case ' ':
    case '\n':
        chat_skip_space(o);
        if (o->pos == o->end && !o->ending)
            return STEP_MORE;
        r->at++;
        return STEP_ON;
    case PART_NAME:
        return take_word(o, r->name);
    case PART_ID:
        return take_word(o, r->id);
    case PART_SKIP:
        return skip_field(o);
    case PART_ARGS:
        return arguments_field(o);
    case PART_CALL:
    case PART_CALLS:
        return chat_tool_call_json_step(o);
    case PART_NAMED:
        r->named = true;
        return chat_tool_call_json_step(o);
    case PART_PYTHON:
        return chat_tool_call_python_step(o);
    case PART_OBJECT:
        return chat_tool_call_object_step(o);
    case PART_TYPE:
        return type_field(o);
    case PART_NUMBER:
        return number_field(o);
    case PART_KEY_END:
        return key_end_field(o);
    case PART_LOOP:
        return loop_field(o);
    case PART_LOOP_END:
        r->at = r->loop;
        return STEP_ON;
    case PART_KEY:
        return key_field(o);
    case PART_VALUE:
    case PART_LINES:
    case PART_TREE:
        return value_field(o);
    case PART_IS_TEXT:
        return is_text_field(o);
    case PART_FULL_NAME:
        return take_full_name(o);
    default:
        return literal_item(o);
    }
}
