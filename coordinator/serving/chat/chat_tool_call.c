/* coordinator/serving/chat/chat_tool_call.c - runs the pattern of a tool call over the text of an answer, instruction
 * by instruction. The run can stop after any byte and go on when more text has come. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

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

/* Counts the bytes of a name at pos; STEP_MORE: the name may go on. */
static chat_step name_bytes(const mr_chat_output *o, const char *others, size_t *out_n) {
    size_t n = 0, have = o->end - o->pos;
    const char *s = o->in.data + o->pos;
    while (n < have && n <= CHAT_MAX_NAME_BYTES && (chat_is_name_byte(s[n]) || (s[n] && strchr(others, s[n]))))
        n++;
    *out_n = n;
    return n > CHAT_MAX_NAME_BYTES ? STEP_NO : n == have ? STEP_MORE : n ? STEP_ON : STEP_NO;
}

static chat_step take_word(mr_chat_output *o, char *to, const char *others) {
    size_t n;
    chat_step s = name_bytes(o, others, &n);
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
    chat_step s = take_word(o, r->id, ":");
    if (s != STEP_ON)
        return s;
    const char *name = strncmp(r->id, "functions.", 10) == 0 ? r->id + 10 : r->id;
    size_t n = strcspn(name, ":");
    memcpy(r->name, name, n);
    r->name[n] = 0;
    if (!name[n])
        r->id[0] = 0; /* without a number, chat_emit.c makes an id */
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
    chat_skip_space(o);
    chat_step s = chat_match(o, o->pos, r->at + 1, pat_literal_bytes(r->at + 1));
    if (s == STEP_MORE && !o->ending)
        return s;
    if (s == STEP_ON) {
        r->loop = r->at++;
        return r->open ? STEP_ON : chat_emit_begin(o);
    }
    r->at = strchr(r->at, PAT_LOOP_END[0]) + 1;
    if (!r->open)
        return STEP_ON; /* no arguments: end_of_pattern emits the tool call */
    s = chat_emit_arguments(o, "}", 1);
    return s == STEP_ON ? chat_emit_end(o) : s;
}

static chat_step value_field(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    bool lines = *r->at == PAT_LINES[0];
    const char *close = r->at + 1;
    size_t len = pat_literal_bytes(close);
    if (!r->value_begun) {
        if (lines && o->pos == o->end)
            return STEP_MORE;
        o->pos += lines && o->in.data[o->pos] == '\n';
        return chat_emit_arg_begin(o);
    }
    const char *s = o->in.data + o->pos;
    size_t have = o->end - o->pos;
    const char *found = have ? memmem(s, have, close, len) : NULL;
    size_t n = found ? (size_t)(found - s) : have > len ? chat_whole_characters(s, have - len) : 0;
    size_t given = n - (found && lines && n && s[n - 1] == '\n');
    chat_step st = chat_emit_arg_bytes(o, s, given);
    o->pos += n;
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
        return take_word(o, r->name, "");
    case PART_ID:
        return take_word(o, r->id, ":");
    case PART_SKIP:
        return skip_field(o);
    case PART_ARGS:
        return arguments_field(o);
    case PART_CALL:
    case PART_CALLS:
        return chat_tool_call_json_step(o);
    case PART_LOOP:
        return loop_field(o);
    case PART_LOOP_END:
        r->at = r->loop;
        return STEP_ON;
    case PART_KEY:
        return key_field(o);
    case PART_VALUE:
    case PART_LINES:
        return value_field(o);
    case PART_IS_TEXT:
        return is_text_field(o);
    case PART_FULL_NAME:
        return take_full_name(o);
    default:
        return literal_item(o);
    }
}
