/* coordinator/serving/chat/chat_template.c: where templates come from, what is found out about them, and messages made
 * fit for them. With the vectors, every template there takes a conversation as OpenAI's clients send it. */
// SPDX-License-Identifier: Apache-2.0
// clang-format off
// clang-format on
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/chat/chat_template_internal.h"
#include "engine/base/mem.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/test.h"
#include "tests/unit/engine/text/test_text_vocabs.h"

static mr_tokenizer *marked, *unmarked; /* with <|im_start|>, and without */

static int setup(void **state) {
    small_vocab v;
    (void)state;
    small_spm(&v);
    marked = small_create(&v);
    small_bpe(&v);
    unmarked = small_create(&v);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    mr_tokenizer_destroy(marked);
    mr_tokenizer_destroy(unmarked);
    return 0;
}

static mr_chat_template *load(const char *source) {
    mr_chat_template *t = NULL;
    mr_err err = {0};
    mr_status status = mr_chat_template_load(NULL, marked, source, &t, &err);
    if (status != MR_OK)
        print_error("%s\n", err.text);
    assert_int_equal(status, MR_OK);
    return t;
}

static mr_status render(const mr_chat_template *t, const char *messages_text, const char *tools_text,
                        const char *more_text, mr_text_buf *out, mr_err *err) {
    json_error_t error;
    json_t *messages = json_loads(messages_text, 0, &error),
           *tools = tools_text ? json_loads(tools_text, 0, &error) : NULL;
    json_t *more = more_text ? json_loads(more_text, 0, &error) : NULL;
    assert_non_null(messages);
    json_t *before = json_deep_copy(messages);
    mr_status status = mr_chat_template_render(t, messages, tools, more, true, out, err);
    assert_true(json_equal(messages, before)); /* they are the caller's */
    json_decref(before);
    json_decref(messages);
    json_decref(tools);
    json_decref(more);
    return status;
}

static void check(const mr_chat_template *t, const char *messages, const char *tools, const char *want) {
    mr_text_buf out = {0};
    mr_err err = {0};
    if (render(t, messages, tools, NULL, &out, &err) != MR_OK)
        fail_msg("%s: %s", messages, err.text);
    assert_string_equal(out.data, want);
    mr_text_buf_deinit(&out);
}

static void check_fails(const mr_chat_template *t, const char *messages, mr_status want, const char *part) {
    mr_text_buf out = {0};
    mr_err err = {0};
    assert_int_equal(render(t, messages, NULL, NULL, &out, &err), want);
    expect_says(err.text, part);
    mr_text_buf_deinit(&out);
}

#define USER "{\"role\": \"user\", \"content\": \"Hi\"}"
#define SYSTEM "{\"role\": \"system\", \"content\": \"Be kind\"}"
static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"now\", \"description\": \"the time\", \"parameters\":"
    " {\"type\": \"object\", \"properties\": {\"zone\": {\"type\": \"string\", \"description\": \"d\"}}, \"required\": "
    "[]}}}]";
#define CALLED(content, arguments)                                                                                     \
    "{\"role\": \"assistant\", \"content\": " content                                                                  \
    ", \"tool_calls\": [{\"id\": \"call00001\", \"type\": \"function\","                                               \
    " \"function\": {\"name\": \"now\", \"arguments\": " arguments "}}]}"
#define RESULT "{\"role\": \"tool\", \"tool_call_id\": \"call00001\", \"name\": \"now\", \"content\": \"12:00\"}"

static void test_without_a_template(void **state) {
    (void)state;
    mr_chat_template *t = NULL;
    mr_err err;
    expect_ok(mr_chat_template_load(NULL, marked, NULL, &t, &err), &err);
    assert_int_equal(mr_chat_template_get_origin(t), CHAT_TEMPLATE_CHATML);
    check(t, "[" SYSTEM ", " USER "]", NULL,
          "<|im_start|>system\nBe kind<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    mr_chat_template_destroy(t);
    expect_ok(mr_chat_template_load(NULL, unmarked, NULL, &t, &err), &err);
    assert_int_equal(mr_chat_template_get_origin(t), CHAT_TEMPLATE_PLAIN);
    check(t, "[" SYSTEM ", {\"role\": \"user\", \"content\": \"Once upon\"}]", NULL, "Be kind\n\nOnce upon");
    mr_chat_template_destroy(t);
}

static void test_of_a_file(void **state) {
    (void)state;
    gguf_writer *w = gguf_writer_create();
    mr_chat_template *t = NULL;
    mr_gguf *g = NULL;
    mr_err err;
    size_t n;
    gguf_writer_str(w, "tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    gguf_writer_str(w, "tokenizer.chat_template.tool_use",
                    "{# <tool_call> json object #}{{ tools[0].function.name }}{{ messages[0].content }}");
    const void *data = gguf_writer_bytes(w, &n);
    expect_ok(mr_gguf_open_memory(data, n, &g, &err), &err);
    expect_ok(mr_chat_template_load(g, marked, NULL, &t, &err), &err);
    mr_gguf_close(g);
    gguf_writer_destroy(w);
    assert_int_equal(mr_chat_template_get_origin(t), CHAT_TEMPLATE_FILE);
    check(t, "[" USER "]", NULL, "<s>Hi</s>");
    check(t, "[" USER "]", tools_text, "nowHi");
    expect_says(mr_chat_template_source(t), "bos_token");
    expect_says(mr_chat_template_source_with_tools(t), "tools[0]");
    mr_chat_template_destroy(t);
    expect_fails(mr_chat_template_load(NULL, marked, "\n{% if %}", &t, &err), MR_E_FORMAT, &err,
                 "chat template: template line 2");
}

static const char show[] = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
static const char show_parts[] =
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }},{% endfor %};{% endfor %}";
static const char no_system[] = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
                                "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";

static void test_contents(void **state) {
    (void)state;
    mr_chat_template *strings = load(show), *parts = load(show_parts), *merged = load(no_system);
    const char *both = "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
                       "\"text\", \"text\": \"b\"}]},"
                       " {\"role\": \"assistant\", \"content\": \"c\"}]";
    check(strings, both, NULL, "user:a\nb;assistant:c;");
    check(parts, both, NULL, "user:a,b,;assistant:c,;");
    check(strings, "[{\"role\": \"assistant\", \"content\": null}, {\"role\": \"assistant\"}]", NULL,
          "assistant:;assistant:;");
    check(strings, "[{\"role\": \"developer\", \"content\": \"x\"}]", NULL, "system:x;");
    check(merged, "[" SYSTEM ", " USER "]", NULL, "user:Be kind\n\nHi;");
    check(merged, "[" SYSTEM "]", NULL, "user:Be kind;");
    check_fails(strings, "[{\"content\": \"x\"}]", MR_E_INVALID, "messages[0].role");
    check_fails(strings, "[" USER ", {\"role\": \"user\"}]", MR_E_INVALID, "messages[1].content: missing");
    check_fails(strings, "[{\"role\": \"user\", \"content\": 5}]", MR_E_INVALID, "messages[0].content: must be");
    check_fails(strings, "[5]", MR_E_INVALID, "messages[0]: must be an object");
    check_fails(strings, "{}", MR_E_INVALID, "messages: must be an array");
    check_fails(parts, "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]", MR_E_UNSUPPORTED,
                "'image_url'");
    check_fails(strings, "[{\"role\": \"user\", \"content\": [5]}]", MR_E_INVALID, "messages[0].content[0]");
    mr_chat_template_destroy(strings);
    mr_chat_template_destroy(parts);
    mr_chat_template_destroy(merged);
}

#define NATIVE "{# <tool_call> json object #}" /* the template shows how the model calls tools */
#define CALLS                                                                                                          \
    NATIVE "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ "                                      \
           "c.function.name }}"

static void test_calls(void **state) {
    (void)state;
    mr_chat_template *objects = load(CALLS "{{ c.function.arguments|tojson }}{% endfor %};{% endfor %}");
    mr_chat_template *strings = load(CALLS "{{ '' + c.function.arguments }}{% endfor %};{% endfor %}");
    mr_chat_template *items = load(
        CALLS "{% for k, v in c.function.arguments|items %}<{{ k }}={{ v }}>{% endfor %}{% endfor %};{% endfor %}");
    mr_chat_template *nulls =
        load(NATIVE "{% for m in messages %}{% if m.content is none %}"
                    "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments|tojson }}"
                    "{% else %}{{ m.content }}{% endif %};{% endfor %}");
    const char *text = "[" USER ", " CALLED("null", "\"{\\\"a\\\": 1}\"") ", " RESULT "]";
    const char *object = "[" USER ", " CALLED("\"\"", "{\"a\": 1}") ", " RESULT "]";
    assert_true(objects->plain.can.object_tool_calls && items->plain.can.object_tool_calls &&
                !strings->plain.can.object_tool_calls);
    check(objects, text, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(objects, object, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(strings, text, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(strings, object, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(items, text, tools_text, "Hi;now<a=1>;12:00;");
    check(nulls, text, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(nulls, object, tools_text, "Hi;now{\"a\": 1};12:00;");
    check(objects, "[" CALLED("\"\"", "\"no json\"") "]", tools_text, "now{\"arguments\": \"no json\"};");
    check_fails(objects, "[{\"role\": \"assistant\", \"tool_calls\": 3}]", MR_E_INVALID, "messages[0].tool_calls");
    check_fails(objects, "[{\"role\": \"assistant\", \"tool_calls\": [{}]}]", MR_E_INVALID,
                "tool_calls[0].function.name");
    mr_chat_template_destroy(objects);
    mr_chat_template_destroy(strings);
    mr_chat_template_destroy(items);
    mr_chat_template_destroy(nulls);
}

static void test_calls_that_are_left_out(void **state) {
    (void)state;
    static const char HISTORY[] =
        "[{\"role\": \"assistant\", \"content\": \"I look.\", \"tool_calls\": [{\"function\": {\"name\": \"f\", "
        "\"arguments\": \"{\\\"s\\\": \\\"it's\\\", \\\"b\\\": false, \\\"l\\\": [1]}\"}}, "
        "{\"function\": {\"name\": \"g\", \"arguments\": \"[5]\"}}]}]";
    static const struct {
        const char *source, *want;
    } CASES[] = {
        {"{# List of tools: <|im_start|> #}{% for m in messages %}{{ m.content }}{% endfor %}",
         "I look.<|tool_call_start|>[f(s=\"it's\", b=False, l=[1]), g(arguments=[5])]<|tool_call_end|>"},
        {"{# <|tool_call|> #}{% for m in messages %}{{ m.content }}{% endfor %}",
         "I look.<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"s\": \"it's\", \"b\": false, \"l\": [1]}}, "
         "{\"name\": \"g\", \"arguments\": {\"arguments\": [5]}}]"},
        {"{# <tool_call> json object #}{% for m in messages %}{{ m.content }}{% endfor %}",
         "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"it's\", \"b\": false, \"l\": [1]}}\n"
         "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"arguments\": [5]}}\n</tool_call>"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        mr_chat_template *t = load(CASES[i].source);
        check(t, HISTORY, NULL, CASES[i].want);
        mr_chat_template_destroy(t);
    }
}

static void test_variables(void **state) {
    (void)state;
    mr_chat_template *t =
        load("{{ messages[0].content }}{{ x }}{{ tools is defined }}{{ add_generation_prompt }}{{ messages|length }}");
    mr_text_buf out = {0};
    mr_err err;
    expect_ok(render(t, "[" USER "]", NULL, "{\"x\": \"y\", \"messages\": 5}", &out, &err), &err);
    assert_string_equal(out.data, "HiyFalseTrue1");
    mr_text_buf_deinit(&out);
    mr_chat_template_destroy(t);
}

static void check_with(const mr_chat_template *t, const char *tools, const char *more, const char *want) {
    mr_text_buf out = {0};
    mr_err err = {0};
    expect_ok(render(t, "[" USER "]", tools, more, &out, &err), &err);
    assert_string_equal(out.data, want);
    mr_text_buf_deinit(&out);
}

/* A template that decides by itself is left alone; one that takes "not said" for no is told yes. */
static void test_thinking(void **state) {
    (void)state;
    mr_chat_template *open = load("{{ messages[0].content }}{% if not enable_thinking %}</think>{% endif %}");
    mr_chat_template *asks =
        load("{{ messages[0].content }}{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}");
    mr_chat_template *own = load("{{ messages[0].content }}{% set enable_thinking = enable_thinking | default(false) %}"
                                 "{% if not enable_thinking %}</think>{% endif %}");
    mr_chat_template *opt_in = load("{{ messages[0].content }}{% if enable_thinking %}<think>{% endif %}");
    check_with(open, NULL, NULL, "Hi");
    check_with(open, NULL, "{\"enable_thinking\": false}", "Hi</think>");
    check_with(asks, NULL, NULL, "Hi");
    check_with(own, NULL, NULL, "Hi</think>");
    check_with(opt_in, NULL, NULL, "Hi");
    check_with(opt_in, NULL, "{\"enable_thinking\": true}", "Hi<think>");
    mr_chat_template_destroy(open);
    mr_chat_template_destroy(asks);
    mr_chat_template_destroy(own);
    mr_chat_template_destroy(opt_in);
}

/* The date of today, and on request another one. */
static void test_date(void **state) {
    (void)state;
    mr_chat_template *t = load("{{ messages[0].content }}{{ date_string == strftime_now('%d %b %Y') }}");
    mr_chat_template *shown = load("{{ messages[0].content }}{{ date_string }}");
    mr_text_buf out = {0};
    mr_err err;
    check_with(t, NULL, NULL, "HiTrue"); /* one clock for both */
    check_with(shown, NULL, "{\"date_string\": \"26 Jul 2024\"}", "Hi26 Jul 2024");
    expect_ok(render(shown, "[" USER "]", NULL, NULL, &out, &err), &err);
    assert_int_equal(out.len, 13);
    mr_text_buf_deinit(&out);
    mr_chat_template_destroy(t);
    mr_chat_template_destroy(shown);
}

/* Of FireFunction's kind: it adds texts that nobody else gives. */
static void test_functions_as_text(void **state) {
    (void)state;
    mr_chat_template *t =
        load(NATIVE "{{ messages[0].content + functions }}{% if datetime|length == 19 %};{% endif %}");
    mr_chat_template *other = load(NATIVE "{{ messages[0].content }}{{ functions is defined or datetime is defined }}");
    assert_true(t->plain.can.functions && !other->plain.can.functions);
    check_with(t, NULL, NULL, "Hi[];");
    check_with(t, "[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]", NULL,
               "Hi[\n    {\n        \"name\": \"now\"\n    }\n];");
    check_with(t, NULL, "{\"functions\": \"none\"}", "Hinone;");
    check_with(other, tools_text, NULL, "HiFalse");
    mr_chat_template_destroy(t);
    mr_chat_template_destroy(other);
}

/* Each allocation fails once: an error and no leak. */
static void test_no_memory(void **state) {
    (void)state;
    mr_status status = MR_E_NO_MEMORY;
    for (int64_t n = 0; status != MR_OK; n++) {
        mr_chat_template *t = NULL;
        mr_text_buf out = {0};
        mr_err err = {0};
        assert_true(n < 1000);
        mr_mem_fail_at(n);
        status = mr_chat_template_load(NULL, marked, show, &t, &err);
        if (status == MR_OK)
            status = render(t, "[" USER "]", NULL, NULL, &out, &err);
        mr_mem_fail_at(-1);
        mr_text_buf_deinit(&out);
        mr_chat_template_destroy(t);
    }
}

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    char *text = calloc(1, 1 << 17);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 17) - 1, f) > 0);
    fclose(f);
    return text;
}

/* What a client of OpenAI's sends reaches the prompt whole. */
static void check_vector(const char *path) {
    static const char *const conversations[] = {
        "[" SYSTEM ", " USER "]",
        "[" USER ", {\"role\": \"assistant\", \"content\": \"Hello\"}, {\"role\": \"user\", \"content\": "
        "[{\"type\": \"text\", \"text\": \"One\"}, {\"type\": \"text\", \"text\": \"Two\"}]}]",
        "[" USER ", " CALLED("null", "\"{\\\"zone\\\": \\\"CET\\\"}\"") ", " RESULT "]"};
    static const char *const wanted[][4] = {{"Be kind", "Hi"}, {"Hi", "Hello", "One", "Two"}, {"Hi", "CET", "12:00"}};
    /* These leave calls out, or cannot read them. */
    static const char *const no_calls[] = {"google-gemma-2-2b-it", "llama-cpp-deepseek-r1", "LFM2-8B-A1B",
                                           "ibm-granite-granite-3.3", "MiMo-VL"};
    bool refused = false;
    for (size_t i = 0; i < sizeof no_calls / sizeof *no_calls; i++)
        refused |= strstr(path, no_calls[i]) != NULL;
    char *source = read_file(path);
    mr_chat_template *t = load(source);
    for (size_t i = 0; i < (refused ? 2 : 3); i++) {
        mr_text_buf out = {0};
        mr_err err = {0};
        if (render(t, conversations[i], i == 2 ? tools_text : NULL, NULL, &out, &err) != MR_OK)
            fail_msg("%s: %s", path, err.text);
        for (size_t k = 0; k < 4 && wanted[i][k]; k++)
            if (!strstr(out.data, wanted[i][k]))
                fail_msg("%s: no '%s' in %s", path, wanted[i][k], out.data);
        mr_text_buf_deinit(&out);
    }
    assert_int_equal(t->plain.can.system, !strstr(path, "gemma-2"));
    assert_int_equal(t->plain.can.object_tool_calls, !strstr(path, "functionary-medium-v3.2"));
    assert_true(t->plain.can.strings);
    mr_chat_template_destroy(t);
    free(source);
}

static void test_vectors(void **state) {
    (void)state;
    char pattern[512];
    glob_t found;
    const char *folder = getenv("MILLRACE_TEST_VECTORS");
    snprintf(pattern, sizeof pattern, "%s/templates/*.jinja", folder ? folder : "");
    if (glob(pattern, 0, NULL, &found) != 0)
        skip();
    for (size_t i = 0; i < found.gl_pathc; i++)
        check_vector(found.gl_pathv[i]);
    globfree(&found);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_a_template),
                                       cmocka_unit_test(test_of_a_file),
                                       cmocka_unit_test(test_contents),
                                       cmocka_unit_test(test_calls),
                                       cmocka_unit_test(test_calls_that_are_left_out),
                                       cmocka_unit_test(test_variables),
                                       cmocka_unit_test(test_thinking),
                                       cmocka_unit_test(test_date),
                                       cmocka_unit_test(test_functions_as_text),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
