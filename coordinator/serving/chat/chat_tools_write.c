/* coordinator/serving/chat/chat_tools_write.c - writes earlier tool calls as the model wrote them, for templates that
 * leave them out. Only forms with a list of calls are written: templates of other forms write their calls. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "coordinator/serving/chat/chat_formats.h"
#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/json/json.h"

static bool put(mr_text_buf *b, const char *text) {
    return text && mr_text_buf_append(b, text, strlen(text));
}

static bool put_json(mr_text_buf *b, const json_t *value) {
    char *text = mr_json_dump(value, 0);
    bool ok = put(b, text);
    free(text);
    return ok;
}

/* name(key=value, ...) */
static bool put_python(mr_text_buf *b, const char *name, json_t *arguments) {
    const char *key, *before = "(";
    json_t *value;
    bool ok = put(b, name);
    json_object_foreach(arguments, key, value) {
        const char *word = json_is_true(value) ? "True" : json_is_false(value) ? "False" : "None";
        bool is_word = json_is_boolean(value) || json_is_null(value);
        ok = ok && put(b, before) && put(b, key) && put(b, "=") && (is_word ? put(b, word) : put_json(b, value));
        before = ", ";
    }
    return ok && put(b, *before == '(' ? "()" : ")");
}

/* {"name": ..., "arguments": ...} */
static bool put_object(mr_text_buf *b, const chat_tool_calls *c, const json_t *name, json_t *arguments) {
    return put(b, "{\"") && put(b, c->name_key ? c->name_key : "name") && put(b, "\": ") && put_json(b, name) &&
           put(b, ", \"") && put(b, c->args_key ? c->args_key : "arguments") && put(b, "\": ") &&
           put_json(b, arguments) && put(b, "}");
}

bool chat_tools_can_write(mr_chat_format format) {
    return format.native_tool_calls && strpbrk(format.calls->calls[0], PAT_CALLS PAT_PYTHON);
}

mr_status chat_tools_write(mr_chat_format format, const json_t *calls, mr_text_buf *out, mr_err *err) {
    const char *pattern = format.calls->calls[0], *list = strpbrk(pattern, PAT_CALLS PAT_PYTHON);
    const json_t *call;
    size_t i;
    bool ok = mr_text_buf_append(out, pattern, (size_t)(list - pattern)) && put(out, "[");
    json_array_foreach(calls, i, call) {
        const json_t *function = chat_tool_function(call), *name = json_object_get(function, "name");
        json_t *arguments = json_object_get(function, "arguments");
        ok = ok && put(out, i ? ", " : "") &&
             (*list == PAT_PYTHON[0] ? put_python(out, json_string_value(name), arguments)
                                     : put_object(out, format.calls, name, arguments));
    }
    ok = ok && put(out, "]") && put(out, list + 1);
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for earlier tool calls");
}
