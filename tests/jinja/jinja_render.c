/* Renders templates for test_jinja_vectors.py: reads lines of JSON {"source", "variables", "now"}, and answers each
 * with a line {"text"} or {"error"}. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/jinja/jinja.h"
#include "coordinator/serving/json/json.h"

static json_t *answer(const json_t *request) {
    const json_t *source = json_object_get(request, "source");
    mr_jinja *template = NULL;
    mr_text_buf text = {0};
    mr_err err = {0};
    mr_status status = mr_jinja_parse((mr_str){json_string_value(source), json_string_length(source)}, &template, &err);
    if (status == MR_OK)
        status = mr_jinja_render(template, json_object_get(request, "variables"), NULL,
                                 json_integer_value(json_object_get(request, "now")), &text, &err);
    json_t *result = status == MR_OK ? json_pack("{s:s%}", "text", text.data ? text.data : "", text.len)
                                     : json_pack("{s:s}", "error", err.text);
    mr_text_buf_deinit(&text);
    mr_jinja_destroy(template);
    return result;
}

int main(void) {
    char *line = NULL;
    size_t cap = 0;
    for (ssize_t n; (n = getline(&line, &cap, stdin)) > 0;) {
        mr_err err = {0};
        json_t *request = mr_json_read((mr_str){line, (size_t)n}, 0, &err);
        json_t *result = request ? answer(request) : json_pack("{s:s}", "error", err.text);
        if (!result || json_dumpf(result, stdout, JSON_ENCODE_ANY) != 0)
            return 1;
        putchar('\n');
        fflush(stdout);
        json_decref(request);
        json_decref(result);
    }
    free(line);
    return 0;
}
