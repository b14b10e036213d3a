/* tests/unit/test_chat_tools.c - tools on their way to the model. */
// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/chat/chat_tools.h"

static const char *content_of(const json_t *messages, size_t i) {
    return json_string_value(json_object_get(json_array_get(messages, i), "content"));
}

static void test_instruct(void **state) {
    (void)state;
    mr_err err;
    json_t *tools = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", 0, NULL);
    json_t *given = json_loads("[{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"Be\"}, "
                               "{\"type\": \"text\", \"text\": \" kind.\"}]},"
                               "{\"role\": \"user\", \"content\": \"Go\"},"
                               "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", "
                               "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}},"
                               "{\"function\": {\"name\": \"g\", \"arguments\": {\"b\": 2}}}]},"
                               "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"done\"}]",
                               0, NULL);
    json_t *before = json_deep_copy(given), *messages = json_copy(given);
    assert_int_equal(chat_tools_instruct(messages, tools, &err), MR_OK);
    assert_int_equal(json_array_size(messages), 4);
    assert_memory_equal(content_of(messages, 0), "Be kind.\n\n", 10);
    assert_non_null(strstr(content_of(messages, 0),
                           "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>"));
    assert_ptr_equal(json_array_get(messages, 1), json_array_get(given, 1));
    assert_string_equal(content_of(messages, 2),
                        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
                        "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": 2}}\n</tool_call>");
    assert_string_equal(content_of(messages, 3), "<tool_response>\ndone\n</tool_response>");
    assert_true(json_equal(given, before));
    json_decref(messages);
    messages = json_loads("[{\"role\": \"user\", \"content\": \"Go\"}]", 0, NULL);
    assert_int_equal(chat_tools_instruct(messages, tools, &err), MR_OK);
    assert_int_equal(json_array_size(messages), 2);
    assert_int_equal(strncmp(content_of(messages, 0), "You can call", 12), 0);
    json_decref(messages);
    json_decref(given);
    json_decref(before);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_instruct)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
