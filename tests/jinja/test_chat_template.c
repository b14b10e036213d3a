/* coordinator/serving/chat/chat_template.c: where templates come from, what is found out about them, and messages made
 * fit for them. With the vectors, every template there takes a conversation as OpenAI's clients send it. */
// SPDX-License-Identifier: Apache-2.0
// clang-format off
// clang-format on
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/chat/chat_template_internal.h"
#include "coordinator/serving/json/json.h"
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
    json_t *messages = mr_json_read(mr_str_from(messages_text), 0, NULL),
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

/* One conversation in a template; want NULL: it is refused, and the error says `says`. */
typedef struct conversation {
    const char *source, *messages, *want, *says;
} conversation;

static void check_conversations(const conversation *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        mr_chat_template *t = load(cases[i].source);
        mr_text_buf out = {0};
        mr_err err = {0};
        mr_status status = render(t, cases[i].messages, tools_text, NULL, &out, &err);
        if (cases[i].want && status != MR_OK)
            fail_msg("%s: %s", cases[i].messages, err.text);
        if (cases[i].want)
            assert_string_equal(out.data, cases[i].want);
        else
            assert_int_equal(status, MR_E_INVALID);
        if (cases[i].says)
            expect_says(err.text, cases[i].says);
        mr_text_buf_deinit(&out);
        mr_chat_template_destroy(t);
    }
}
#define CHECK_CONVERSATIONS(cases) check_conversations(cases, sizeof(cases) / sizeof *(cases))

/* A text of JSON that stands in JSON. */
#define ARGS(text) "[" CALLED("\"\"", text) "]"

static void test_arguments(void **state) {
    (void)state;
    static const char objects[] = CALLS "{{ c.function.arguments|tojson }}{% endfor %};{% endfor %}";
    static const char strings[] = CALLS "{{ '' + c.function.arguments }}{% endfor %};{% endfor %}";
    static const conversation CASES[] = {
        {objects, ARGS("\"\""), "now{};", NULL},
        {objects, ARGS("\" \\n\""), "now{};", NULL},
        {objects, ARGS("null"), "now{};", NULL},
        {objects, ARGS("\"null\""), "now{};", NULL},
        {objects, ARGS("[]"), "now{};", NULL},
        {objects, ARGS("\"{\""), "now{};", NULL},
        {objects, "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"now\"}}]}]", "now{};", NULL},
        {objects, ARGS("\"{\\\"a\\\": \\\"Os\""), "now{\"a\": \"Os\"};", NULL},
        {objects, ARGS("\"{\\\"a\\\": [1, {\\\"b\\\": \\\"x\\\\\""), "now{\"a\": [1, {\"b\": \"x\"}]};", NULL},
        {objects, ARGS("\"{\\\"a\\\": 1, \\\"b\\\": tr\""), "now{\"a\": 1};", NULL},
        {objects, ARGS("\"{\\\"a\\\": 1, \\\"b\""), "now{\"a\": 1};", NULL},
        {objects, ARGS("\"{'a': 1}\""), "now{\"arguments\": \"{'a': 1}\"};", NULL},
        {objects, ARGS("\"{\\\"a\\\": 1}}\""), "now{\"arguments\": \"{\\\"a\\\": 1}}\"};", NULL},
        {objects, ARGS("\"\\\"{\\\\\\\"a\\\\\\\": 1}\\\"\""), "now{\"a\": 1};", NULL},
        {objects, ARGS("7"), "now{\"arguments\": 7};", NULL},
        {objects, ARGS("\"18446744073709551615\""), "now{\"arguments\": 18446744073709551615};", NULL},
        {objects, ARGS("\"{\\\"a\\\": -18446744073709551615}\""), "now{\"a\": -18446744073709551615};", NULL},
        {strings, ARGS("\"{\\\"a\\\":  18446744073709551615}\""), "now{\"a\":  18446744073709551615};", NULL},
        {strings, ARGS("\"{\\\"a\\\": \\\"Os\""), "now{\"a\": \"Os\"};", NULL},
        {strings, ARGS("null"), "now{};", NULL},
    };
    CHECK_CONVERSATIONS(CASES);
}

#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define TWO_CALLS                                                                                                      \
    "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": ["                                                   \
    "{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}},"                 \
    "{\"id\": \"b\", \"type\": \"function\", \"function\": {\"name\": \"g\", \"arguments\": \"{}\"}}]}"
#define TWO_RESULTS                                                                                                    \
    "{\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"2\"}, "                                              \
    "{\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"1\"}"

/* Messages that templates lose or refuse where they stand. */
static void test_places(void **state) {
    (void)state;
    static const char all[] = NATIVE "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}";
    static const char says_developer[] = /* and writes nothing for it, without tools or with */
        NATIVE "{% for m in messages %}{% if m.role != 'developer' or not tools %}{{ m.role }}:{{ m.content }};"
               "{% endif %}{% endfor %}";
    static const char first_only[] =
        NATIVE "{% for m in messages %}{% if m.role != 'system' or loop.first %}{{ m.role }}:{{ m.content }};"
               "{% endif %}{% endfor %}";
    static const char strict[] =
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('not in turn') }}{% endif %}"
        "{{ m.role }}:{{ m.content }};{% endfor %}";
    static const char one_call[] =
        NATIVE "{% for m in messages %}{{ m.role }}:{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}"
               "{{ m.tool_calls[0].function.arguments|tojson }}{% else %}{{ m.content }}{% endif %};{% endfor %}";
    static const conversation CASES[] = {
        {all, "[" MESSAGE("developer", "D") "," USER "]", "system:D;user:Hi;", NULL},
        {says_developer, "[" MESSAGE("developer", "D") "," USER "]", "system:D;user:Hi;", NULL},
        {first_only, "[" SYSTEM "," MESSAGE("developer", "D") "," USER "]", "system:Be kind\n\nD;user:Hi;", NULL},
        {first_only, "[" USER "," MESSAGE("assistant", "x") "," SYSTEM "," MESSAGE("system", "S") "," USER "]",
         "user:Hi;assistant:x;user:Be kind\n\nS\n\nHi;", NULL},
        {first_only, "[" USER "," SYSTEM "]", "user:Hi\n\nBe kind;", NULL},
        {first_only, "[" USER "," MESSAGE("assistant", "x") "," SYSTEM "]", "user:Hi;assistant:x;user:Be kind;", NULL},
        {one_call, "[" USER "," TWO_CALLS "," TWO_RESULTS "]", "user:Hi;assistant:f{};tool:1;assistant:g{};tool:2;",
         NULL},
        {one_call, "[" USER "," CALLED("\"I look\"", "\"{}\"") "," RESULT "]",
         "user:Hi;assistant:I look;assistant:now{};tool:12:00;", NULL},
        {strict, "[" USER "," USER "," MESSAGE("assistant", "x") "," MESSAGE("assistant", "y") "]", NULL,
         "messages[3]"},
    };
    CHECK_CONVERSATIONS(CASES);
    mr_chat_template *t = load(strict);
    check(t, "[" SYSTEM "," USER "," TWO_CALLS "," TWO_RESULTS "," USER "]", NULL,
          "user:Be kind\n\nHi;assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
          "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>;"
          "user:<tool_response>\n2\n</tool_response>\n<tool_response>\n1\n</tool_response>\n\nHi;");
    mr_chat_template_destroy(t);
}

static void test_reasoning(void **state) {
    (void)state;
#define THOUGHT(member)                                                                                                \
    "[" USER ", {\"role\": \"assistant\", " member ", \"tool_calls\": [{\"function\": {\"name\": \"f\"}}]}]"
#define READS(name)                                                                                                    \
    NATIVE "{% for m in messages %}{{ m." name " }}{{ m.content }}{% if m.tool_calls %}f{{ "                           \
           "m.tool_calls[0].function.arguments|tojson }}{% endif %};{% endfor %}"
    static const char parts[] =
        NATIVE "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
               "{{ p.thinking }}{{ p.text }}{% endfor %}{% endif %}{% if m.tool_calls %}f"
               "{{ m.tool_calls[0].function.arguments|tojson }}{% endif %};{% endfor %}";
    static const char marks[] =
        NATIVE "{# <think> </think> #}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}f"
               "{{ m.tool_calls[0].function.arguments|tojson }}{% endif %};{% endfor %}";
    static const conversation CASES[] = {
        {READS("thinking"), THOUGHT("\"reasoning\": \"hm\""), "Hi;hmf{};", NULL},
        {READS("thinking"), THOUGHT("\"reasoning_content\": \"hm\", \"reasoning\": \"hm\""), "Hi;hmf{};", NULL},
        {READS("reasoning"), THOUGHT("\"reasoning_content\": \"hm\""), "Hi;hmf{};", NULL},
        {READS("reasoning_content"), THOUGHT("\"reasoning\": \"hm\", \"reasoning_content\": \"\""), "Hi;hmf{};", NULL},
        {READS("reasoning_content"),
         THOUGHT("\"content\": [{\"type\": \"thinking\", \"thinking\": [{\"type\": \"text\", \"text\": \"hm\"}]},"
                 "{\"type\": \"text\", \"text\": \"So.\"}]"),
         "Hi;hmSo.f{};", NULL},
        {READS("reasoning_content"),
         THOUGHT("\"reasoning_details\": [{\"type\": \"reasoning.text\", \"text\": \"hm\"}]"), "Hi;hmf{};", NULL},
        {parts, THOUGHT("\"reasoning\": \"hm\", \"content\": \"So.\""), "Hi;hmSo.f{};", NULL},
        {marks, THOUGHT("\"reasoning\": \"hm\""), "Hi;<think>\nhm\n</think>\n\nf{};", NULL},
    };
    CHECK_CONVERSATIONS(CASES);
}

/* Texts that a template changes on purpose count as there; those that it leaves out do not. */
static void test_nothing_is_lost(void **state) {
    (void)state;
#define EACH(text) NATIVE "{% for m in messages %}{% if m.content != 'lose me' %}" text "{% endif %};{% endfor %}"
#define SIGNS "a\\\\ \\\"b\\\" 'c'\\n <d> & \xC3\xA9 \xF0\x9F\x98\x80 e"
    static const conversation CASES[] = {
        {EACH("{{ m.content }}"), "[" USER "," MESSAGE("assistant", "lose me") "]", NULL, "messages[1].content"},
        {EACH("{{ m.content }}"), "[" USER "," MESSAGE("user", "x") "," MESSAGE("user", "lose me") "]", NULL,
         "messages[2].content"},
        {EACH("{{ m.content }}"), "[" MESSAGE("user", "\\u00a0 x \\n") "]", "\xC2\xA0 x \n;", NULL},
        {EACH("{{ m.content|trim }}"), "[" MESSAGE("user", "\\u00a0 x \\n") "]", "x;", NULL},
        {EACH("{{ m.content|trim|upper }}"), "[" MESSAGE("user", "x") "]", NULL, "messages[0].content"},
        {EACH("{{ m.content|tojson }}"), "[" MESSAGE("user", SIGNS) "]",
         "\"a\\\\ \\\"b\\\" 'c'\\n <d> & \xC3\xA9 \xF0\x9F\x98\x80 e\";", NULL},
        {EACH("{{ m.content|tojson(ensure_ascii=true) }}"), "[" MESSAGE("user", SIGNS) "]",
         "\"a\\\\ \\\"b\\\" 'c'\\n <d> & \\u00e9 \\ud83d\\ude00 e\";", NULL},
        {EACH("{{ m.content|tojson|tojson }}"), "[" MESSAGE("user", "a\\n\\\"b") "]", "\"\\\"a\\\\n\\\\\\\"b\\\"\";",
         NULL},
        {EACH("{{ [m.content] }}"), "[" MESSAGE("user", "it's\\n\\\"x") "]", "['it\\'s\\n\"x'];", NULL},
        {EACH("{{ m.content|e }}"), "[" MESSAGE("user", SIGNS) "]",
         "a\\ &#34;b&#34; &#39;c&#39;\n &lt;d&gt; &amp; \xC3\xA9 \xF0\x9F\x98\x80 e;", NULL},
        {EACH("{{ m.content.split('</think>')|last }}"), "[" MESSAGE("assistant", "<think>a</think>b") "]", "b;", NULL},
        {EACH("{{ m.content.split('</think>')|last }}"), "[" MESSAGE("user", "<think>a</think>b") "]", NULL,
         "messages[0].content"},
        {EACH("{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% for k, v in "
              "c.function.arguments|items %}"
              "{% if k != 'zone' %}{{ k }}{{ v }}{% endif %}{% endfor %}{% endfor %}"),
         "[" USER "," CALLED("\"\"", "\"{\\\"zone\\\": \\\"lost\\\"}\"") "]", NULL, "messages[1].tool_calls[0]"},
        {NATIVE "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('a bad one') }}{% endif %}{{ "
                "m.content }}"
                "{% endfor %}",
         "[" USER "," USER "," MESSAGE("user", "bad") "," USER "," USER "]", NULL, "messages[2]: chat template: "},
    };
    CHECK_CONVERSATIONS(CASES);
}

/* Members that are null count as left out. */
static void test_nulls(void **state) {
    (void)state;
    static const char TOOLS[] =
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": "
        "{\"required\": "
        "null, \"properties\": {\"a\": {\"enum\": [null], \"default\": null, \"title\": null}}}}}]";
    mr_chat_template *t = load(NATIVE "{{ tools[0]|tojson }}{% for m in messages %}{% for k in m %}{{ k }},{% endfor %}"
                                      "{{ m.content }};{% endfor %}");
    check(t,
          "[" USER ", {\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": null, \"function_call\": null, "
          "\"refusal\": null}, {\"role\": \"assistant\", \"content\": \"y\", \"tool_calls\": []}]",
          TOOLS,
          "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": "
          "{\"enum\": [null], "
          "\"default\": null}}}}}role,content,Hi;role,content,x;role,content,y;");
    mr_chat_template_destroy(t);
    t = load(NATIVE "{{ tools[0].function.description|length }}{{ (messages|last).content }}");
    check(t, "[" USER "]", TOOLS, "0Hi");
    mr_chat_template_destroy(t);
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
                                       cmocka_unit_test(test_arguments),
                                       cmocka_unit_test(test_places),
                                       cmocka_unit_test(test_reasoning),
                                       cmocka_unit_test(test_nothing_is_lost),
                                       cmocka_unit_test(test_nulls),
                                       cmocka_unit_test(test_variables),
                                       cmocka_unit_test(test_thinking),
                                       cmocka_unit_test(test_date),
                                       cmocka_unit_test(test_functions_as_text),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_vectors)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
