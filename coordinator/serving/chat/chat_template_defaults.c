/* coordinator/serving/chat/chat_template_defaults.c - the variables of templates that the client did not set: the date,
 * enable_thinking, and time and tools as text. Only the date is set for all templates, because most templates have
 * defaults of their own for the others. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <time.h>

#include "coordinator/serving/chat/chat_schema.h"
#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/json/json.h"

static bool put(json_t *variables, const char *name, json_t *value) {
    return json_object_set_new(variables, name, value) == 0;
}

static bool put_time(json_t *variables, const char *name, const char *format, int64_t now_unix_s) {
    char text[64];
    struct tm tm;
    time_t now = (time_t)now_unix_s;
    return localtime_r(&now, &tm) && strftime(text, sizeof text, format, &tm) > 0 &&
           put(variables, name, json_string(text));
}

/* Sets `functions`: all tools as one text, in the form of FireFunction's model card. */
static bool put_functions(json_t *variables, const json_t *tools) {
    json_t *list = json_array();
    const json_t *tool;
    size_t i;
    bool ok = list != NULL;
    json_array_foreach(tools, i, tool) ok = ok && json_array_append(list, (json_t *)chat_tool_function(tool)) == 0;
    char *text = ok ? mr_json_dump(list, JSON_INDENT(4)) : NULL;
    ok = text && put(variables, "functions", json_string(text));
    free(text);
    json_decref(list);
    return ok;
}

bool chat_source_leaves_thinking_open(const char *source) {
    static const char *const decides[] = {"enable_thinking is", "enable_thinking|", "enable_thinking |",
                                          "set enable_thinking"};
    for (size_t i = 0; i < sizeof decides / sizeof decides[0]; i++)
        if (strstr(source, decides[i]))
            return false;
    return strstr(source, "not enable_thinking") != NULL;
}

bool chat_source_put_defaults(const chat_source *s, const json_t *tools, int64_t now_unix_s, json_t *variables) {
    bool ok = put_time(variables, "date_string", "%d %b %Y", now_unix_s); /* as Llama 3's templates write it */
    if (ok && s->can.think)
        ok = put(variables, "enable_thinking", json_true());
    if (ok && s->can.functions)
        ok = put_functions(variables, tools) && put_time(variables, "datetime", "%Y-%m-%d %H:%M:%S", now_unix_s);
    return ok;
}
