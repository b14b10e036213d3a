/* coordinator/serving/chat/chat_emit.c - emits the deltas of the output: content, reasoning, and names, ids and
 * arguments of tool calls. Arguments that a model writes as plain text are turned into JSON here. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_parse.h"

#include <string.h>

#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/json/json.h"

static chat_step failed(mr_chat_output *o, mr_status status) {
    o->status = status;
    return STEP_ERROR;
}

static chat_step no_memory(mr_chat_output *o) {
    return failed(o, mr_err_set(o->err, MR_E_NO_MEMORY, "no memory to take an answer apart"));
}

chat_step chat_emit(mr_chat_output *o, chat_delta_kind kind, mr_str text) {
    bool in_tool_call = kind >= CHAT_TOOL_BEGIN;
    if (!text.len && kind != CHAT_TOOL_BEGIN && kind != CHAT_TOOL_END)
        return STEP_ON;
    mr_chat_delta d = {.kind = kind, .tool_call = in_tool_call ? o->n_tool_calls - 1 : -1, .text = text};
    if (kind == CHAT_TOOL_BEGIN)
        d.id = mr_str_from(o->run.id);
    mr_status status = o->desc.on_delta(o->desc.ctx, &d, o->err);
    return status == MR_OK ? STEP_ON : failed(o, status);
}

/* Makes an id that looks random and is always the same for the same request and tool call. */
static void make_id(mr_chat_output *o) {
    static const char DIGITS[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    bool nine = o->desc.format.calls->ids == CHAT_ID_NINE;
    size_t n = nine ? 9 : 24, at = 0;
    uint64_t mix = 0xcbf29ce484222325u ^ (uint64_t)o->n_tool_calls;
    for (const char *c = o->request_id; *c; c++)
        mix = (mix ^ (uint8_t)*c) * 0x100000001b3u; /* FNV-1a */
    if (!nine)
        at = (size_t)(stpcpy(o->run.id, "call_") - o->run.id);
    for (size_t i = 0; i < n; i++) {
        mix += 0x9e3779b97f4a7c15u; /* splitmix64 */
        uint64_t x = (mix ^ mix >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        o->run.id[at++] = DIGITS[(x ^ x >> 31) % 62];
    }
    o->run.id[at] = 0;
}

static const json_t *tool_named(const mr_chat_output *o, const char *name) {
    size_t i;
    json_t *tool;
    json_array_foreach(o->tools, i, tool) {
        const json_t *function = chat_tool_function(tool);
        const char *its = json_string_value(json_object_get(function, "name"));
        if (its && strcmp(its, name) == 0)
            return function;
    }
    return NULL;
}

chat_step chat_emit_begin(mr_chat_output *o) {
    if (o->n_tool_calls == CHAT_MAX_TOOL_CALLS || (o->run.bare && !tool_named(o, o->run.name)))
        return STEP_NO;
    if (!o->run.id[0])
        make_id(o);
    o->n_tool_calls++;
    o->run.open = true;
    o->any = true;
    return chat_emit(o, CHAT_TOOL_BEGIN, mr_str_from(o->run.name));
}

chat_step chat_emit_end(mr_chat_output *o) {
    o->run.open = false;
    o->run.done = true;
    o->run.id[0] = 0;
    o->start = o->pos;
    return chat_emit(o, CHAT_TOOL_END, (mr_str){0});
}

chat_step chat_emit_arguments(mr_chat_output *o, const char *bytes, size_t n) {
    return chat_emit(o, CHAT_TOOL_ARGUMENTS, (mr_str){bytes, n});
}

static const json_t *schema_of_arg(const mr_chat_output *o) {
    const json_t *tool = tool_named(o, o->run.name);
    const json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
    return json_object_get(properties, o->run.arg);
}

static unsigned types_of_arg(const mr_chat_output *o) {
    const json_t *schema = schema_of_arg(o);
    return schema ? chat_schema_types(schema) : CHAT_TYPE_ANY;
}

bool chat_escape(mr_text_buf *out, const char *bytes, size_t n) {
    static const char HEX[] = "0123456789abcdef";
    bool ok = true;
    for (size_t i = 0, from = 0; ok && i <= n; i++) {
        unsigned char c = i < n ? (unsigned char)bytes[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\')
            continue;
        ok = mr_text_buf_append(out, bytes + from, i - from);
        from = i + 1;
        if (i == n)
            break;
        char text[6] = {'\\', (char)c, '0', '0', 0, 0};
        size_t len = 2;
        if (c == '\n')
            text[1] = 'n';
        else if (c == '\t')
            text[1] = 't';
        else if (c == '\r')
            text[1] = 'r';
        else if (c < 0x20) {
            text[1] = 'u';
            text[2] = text[3] = '0';
            text[4] = HEX[c >> 4];
            text[5] = HEX[c & 15];
            len = 6;
        }
        ok = ok && mr_text_buf_append(out, text, len);
    }
    return ok;
}

chat_step chat_emit_scratch(mr_chat_output *o, bool made) {
    return made ? chat_emit_arguments(o, o->scratch.data, o->scratch.len) : no_memory(o);
}

chat_step chat_emit_arg_begin(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    unsigned types = types_of_arg(o);
    r->escapes = r->is_text || (!r->is_json && types == CHAT_TYPE_STRING);
    r->value_begun = true;
    mr_text_buf_clear(&r->value);
    mr_text_buf_clear(&o->scratch);
    const char *before = r->n_args++ ? ", \"" : "{\"";
    return chat_emit_scratch(o,
                             mr_text_buf_append(&o->scratch, before, strlen(before)) &&
                                 chat_escape(&o->scratch, r->arg, strlen(r->arg)) &&
                                 mr_text_buf_append(&o->scratch, r->escapes ? "\": \"" : "\": ", r->escapes ? 4 : 3));
}

chat_step chat_emit_arg_bytes(mr_chat_output *o, const char *bytes, size_t n) {
    if (!o->run.escapes)
        return mr_text_buf_append(&o->run.value, bytes, n) ? STEP_ON : no_memory(o);
    mr_text_buf_clear(&o->scratch);
    return chat_emit_scratch(o, chat_escape(&o->scratch, bytes, n));
}

/* Python's True, False and None count as JSON's words, because models mix them up, and so does Python's notation of
 * lists and dicts. */
bool chat_value_to_json(mr_str text, unsigned types, bool is_json, mr_text_buf *to) {
    static const char *const WORDS[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    for (int i = 0; i < 3; i++)
        if (mr_str_is(text, WORDS[i][0]) && (is_json || !(types & CHAT_TYPE_STRING)))
            text = mr_str_from(WORDS[i][1]);
    json_t *value = mr_json_read(text, MR_JSON_ROUNDED, NULL);
    bool as_is = value && (is_json || (chat_value_type(value) & types));
    json_decref(value);
    if (as_is)
        return mr_text_buf_append(to, text.data, text.len);
    size_t before = to->len;
    if (types == CHAT_TYPE_ARRAY || types == CHAT_TYPE_OBJECT) {
        if (chat_loose_to_json(text, to))
            return true;
        to->len = before;
    }
    return mr_text_buf_append(to, "\"", 1) && chat_escape(to, text.data, text.len) && mr_text_buf_append(to, "\"", 1);
}

/* Ends a value that may be JSON, or elements. */
chat_step chat_emit_arg_end(mr_chat_output *o) {
    tool_call_run *r = &o->run;
    r->value_begun = false;
    if (r->escapes)
        return chat_emit_arguments(o, "\"", 1);
    mr_str text = {r->value.data ? r->value.data : "", r->value.len};
    mr_text_buf_clear(&o->scratch);
    if (r->is_tree) {
        const char *mark = r->loop + 1;
        if (chat_tree_to_json(text, mark, pat_literal_bytes(mark), schema_of_arg(o), &o->scratch))
            return chat_emit_scratch(o, true);
        mr_text_buf_clear(&o->scratch);
    }
    return chat_emit_scratch(o, chat_value_to_json(text, types_of_arg(o), r->is_json, &o->scratch));
}
