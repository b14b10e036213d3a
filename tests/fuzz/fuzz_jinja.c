/* tests/fuzz/fuzz_jinja.c - fuzzes chat templates. Renders each with a fixed conversation within small limits. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/jinja/jinja.h"
#include "tests/fuzz/fuzz.h"

static const char variables_text[] = "{\"s\": \"\\u00e4b\\n\", \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": [true, null, "
                                     "2.5]}, \"n\": 7, \"add_generation_prompt\": true,"
                                     " \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"tool\", "
                                     "\"content\": [{\"type\": \"text\", \"text\": \"b\"}]}]}";

int mr_fuzz_jinja(const uint8_t *data, size_t size) {
    static const mr_jinja_limits limits = {
        .max_steps = 20000, .max_output_bytes = 1 << 16, .max_memory_bytes = 4 << 20};
    json_error_t error;
    json_t *variables = json_loads(variables_text, 0, &error);
    mr_jinja *template = NULL;
    mr_text_buf out = {0};
    mr_err err = {0};
    MR_ASSERT(variables);
    mr_status status = mr_jinja_parse((mr_str){(const char *)data, size}, &template, &err);
    MR_ASSERT((status == MR_OK) == (template != NULL));
    if (status == MR_OK) {
        status = mr_jinja_render(template, variables, &limits, 86400, &out, &err);
        MR_ASSERT(status == MR_OK ? out.len <= limits.max_output_bytes : out.len == 0);
    }
    MR_ASSERT(status == MR_OK || (err.status == status && err.text[0]));
    mr_text_buf_deinit(&out);
    mr_jinja_destroy(template);
    json_decref(variables);
    return 0;
}
