/* The parser of model output. The samples of each format are parsed in one piece, cut at every byte, byte by byte,
 * and ended at every byte. Some samples look like a tool call and are none. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/chat/chat_output.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

/* Of templates, the words that tell their forms. */
#define HERMES "<tool_call> json object"
#define HARMONY "<|channel|>analysis<|message|> <|end|>"
#define LLAMA "{\"name\": function name, \"parameters\": ... <|python_tag|>"
#define CODER "<tool_call> <function="
#define GLM "<tool_call> <arg_key> <think> </think>"
#define SEED "<seed:tool_call> <seed:think> </seed:think>"
#define MISTRAL "[TOOL_CALLS] [THINK] [/THINK]"
#define COMMAND "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>"
#define R1 "<｜tool▁call▁begin｜> ```json"
#define V31 "<｜tool▁call▁begin｜>"
#define V4 "｜DSML｜ tool_calls>"
#define KIMI "<|tool_call_begin|>"
#define KIMI3 "<|open|> <|sep|> <|close|>"
#define M3 "]<]minimax[>[ <invoke name= <mm:think> </mm:think>"
#define NS "]<]minimax[>["
#define GEMMA "<|tool_call>call: <|channel>thought <channel|>"
#define LFM "List of tools: <|im_start|> <think> </think>"
#define APERTUS "<|tools_prefix|> <|inner_prefix|> <|inner_suffix|>"
#define MUSE "<atem:function_calls> <|start|>assistant to=self<|message|> <|eom|>"
#define SOLAR "<|tool_call:begin|> <|think|> <|end|>"

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},"
    "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"item\":{\"type\":\"string\"},"
    "\"k\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}}},"
    "\"x\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\",\"parameters\":{}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"either\",\"parameters\":{\"anyOf\":[{\"properties\":{\"a\":"
    "{\"type\":\"string\"}}},{\"properties\":{\"b\":{\"type\":\"integer\"}}}]}}}]";

/* Deltas in sum: content as it is, R(reasoning), CALL(name id arguments); an id that was made is written as *. */
typedef struct sums {
    mr_text_buf text;
    chat_delta_kind last;
    int32_t n_begun, n_ended;
    char ids[2][40]; /* ids of the last two tool calls */
} sums;

static void add(sums *s, const char *text, size_t n) {
    assert_true(mr_text_buf_append(&s->text, text, n));
}

static mr_status take(void *ctx, const mr_chat_delta *d, mr_err *err) {
    sums *s = ctx;
    (void)err;
    if (s->last == CHAT_REASONING && d->kind != CHAT_REASONING)
        add(s, ")", 1);
    if (d->kind == CHAT_REASONING && s->last != CHAT_REASONING)
        add(s, "R(", 2);
    if (d->kind == CHAT_TOOL_BEGIN) {
        bool made = (d->id.len == 29 && memcmp(d->id.data, "call_", 5) == 0) || d->id.len == 9;
        assert_int_equal(s->n_begun, s->n_ended);
        assert_int_equal(d->tool_call, s->n_begun);
        snprintf(s->ids[s->n_begun++ % 2], sizeof s->ids[0], "%.*s", (int)d->id.len, d->id.data);
        add(s, "CALL(", 5);
        add(s, d->text.data, d->text.len);
        add(s, " ", 1);
        add(s, made ? "*" : d->id.data, made ? 1 : d->id.len);
        add(s, " ", 1);
    } else if (d->kind == CHAT_TOOL_END) {
        assert_int_equal(++s->n_ended, s->n_begun);
        add(s, ")", 1);
    } else {
        assert_true(d->text.len > 0);
        assert_int_equal(d->tool_call, d->kind == CHAT_TOOL_ARGUMENTS ? s->n_begun - 1 : -1);
        assert_int_equal(s->n_begun - s->n_ended, d->kind == CHAT_TOOL_ARGUMENTS);
        add(s, d->text.data, d->text.len);
    }
    s->last = d->kind;
    return MR_OK;
}

typedef struct sample {
    const char *template_source, *prompt, *text, *want;
} sample;

static json_t *tools;

static int setup(void **state) {
    (void)state;
    tools = json_loads(TOOLS, 0, NULL);
    return tools ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    return 0;
}

static mr_chat_output *make(const sample *c, bool with_tools, sums *s) {
    mr_chat_output *o = NULL;
    mr_err err;
    mr_chat_output_desc desc = {.format = mr_chat_format_of(mr_str_from(c->template_source)),
                                .prompt = mr_str_from(c->prompt ? c->prompt : ""),
                                .tools = with_tools ? tools : NULL,
                                .request_id = mr_str_from("chatcmpl-1"),
                                .on_delta = take,
                                .ctx = s};
    *s = (sums){.last = CHAT_CONTENT};
    expect_ok(mr_chat_output_create(&desc, &o, &err), &err);
    return o;
}

static void push(mr_chat_output *o, const char *text, size_t n) {
    mr_err err;
    expect_ok(mr_chat_output_push(o, (mr_str){text, n}, &err), &err);
}

static void finish(mr_chat_output *o, sums *s) {
    mr_err err;
    expect_ok(mr_chat_output_end(o, &err), &err);
    assert_int_equal(chat_output_n_tool_calls(o), s->n_begun);
    assert_int_equal(s->n_begun, s->n_ended);
    if (s->last == CHAT_REASONING)
        add(s, ")", 1);
    mr_chat_output_destroy(o);
}

static void expect(const sample *c, sums *s, const char *how, size_t at) {
    const char *got = s->text.data ? s->text.data : "";
    if (strcmp(got, c->want) != 0)
        fail_msg("%s at %zu:\n%s\ngives\n%s\nnot\n%s", how, at, c->text, got, c->want);
    mr_text_buf_deinit(&s->text);
}

/* The text up to n, in one piece and byte by byte: the same. */
static void check_ended(const sample *c, size_t n) {
    sums a, b;
    mr_chat_output *o = make(c, true, &a);
    push(o, c->text, n);
    finish(o, &a);
    o = make(c, true, &b);
    for (size_t i = 0; i < n; i++)
        push(o, c->text + i, 1);
    finish(o, &b);
    sample half = {.text = c->text, .want = a.text.data ? a.text.data : ""};
    expect(&half, &b, "ended, byte by byte", n);
    mr_text_buf_deinit(&a.text);
}

static void check(const sample *c) {
    size_t n = strlen(c->text);
    sums s;
    mr_chat_output *o = make(c, true, &s);
    push(o, c->text, n);
    finish(o, &s);
    expect(c, &s, "in one piece", n);
    for (size_t cut = 0; cut <= n; cut++) {
        o = make(c, true, &s);
        push(o, c->text, cut);
        push(o, c->text + cut, n - cut);
        finish(o, &s);
        expect(c, &s, "cut", cut);
        check_ended(c, cut);
    }
}

static void check_all(const sample *samples, size_t n) {
    for (size_t i = 0; i < n; i++)
        check(&samples[i]);
}
#define CHECK(...)                                                                                                     \
    do {                                                                                                               \
        const sample samples[] = {__VA_ARGS__};                                                                        \
        check_all(samples, sizeof samples / sizeof samples[0]);                                                        \
    } while (0)

static void test_content(void **state) {
    (void)state;
    CHECK({"", "", "", ""}, {"", "", " Hello <b>world</b>\n", " Hello <b>world</b>\n"}, {"", "", " \n", " \n"},
          {HERMES, "", "a < b, <tool_ca", "a < b, <tool_ca"}, {LLAMA, "", "{\"answer\": 42}", "{\"answer\": 42}"},
          {LLAMA, "", "{\"name\": \"Bob\", \"age\": 3}", "{\"name\": \"Bob\", \"age\": 3}"},
          {LLAMA, "", "{\"name\": \"Bob\", \"parameters\": {}}", "{\"name\": \"Bob\", \"parameters\": {}}"});
}

static void test_reasoning(void **state) {
    (void)state;
    CHECK({"", "", "<think>\nLet me see. \n\n</think>\n\nHi <think>", "R(Let me see.)Hi <think>"},
          {"", "", "\n<think></think>\nHi", "Hi"},
          {"", "...<think>\n", "\nso\n\nit is</think>\n\nHi\n", "R(so\n\nit is)Hi\n"},
          {"", "<think>\n\n</think>\n\n", "\nHi", "Hi"}, {"", "", "<think>never </thin", "R(never </thin)"},
          {"", "", "a <think>b</think>", "a <think>b</think>"}, {MISTRAL, "", "[THINK]ü[/THINK]x", "R(ü)x"},
          {COMMAND, "<|START_THINKING|>", "plan<|END_THINKING|><|START_RESPONSE|>Hi<|END_RESPONSE|>", "R(plan)Hi"},
          {SEED, "", "<seed:think>a</seed:think>b", "R(a)b"});
}

static void test_hermes(void **state) {
    (void)state;
    CHECK(
        {HERMES, "", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"a}\\\"<\"}}\n</tool_call>",
         "CALL(f * {\"s\": \"a}\\\"<\"})"},
        {HERMES, "",
         "Both:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": [1, {}]}}\n</tool_call>\n<tool_call>\n"
         "{\"arguments\": {\"q\": 1}, \"name\": \"g\", \"extra\": [1, \"]\"]}\n</tool_call>\n",
         "Both:\nCALL(f * {\"n\": [1, {}]})CALL(g * {\"q\": 1})"},
        {HERMES, "", "<think>a</think><tool_call>{\"name\":\"f\"}</tool_call> so", "R(a)CALL(f * {})so"},
        {HERMES, "", "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", "CALL(f * {})"},
        {HERMES, "",
         "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"s\\\": \\\"\\u00fc\\ud83d\\ude00\\\"}\"}</tool_call>",
         "CALL(f * {\"s\": \"ü😀\"})"},
        {HERMES, "", "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":1}</tool_call>.", "CALL(f * {\"s\":1})."},
        {HERMES, "", "<tool_call> is a mark <tool_call>{\"a\":1}</tool_call> <tool_call>{\"name\":\"f\"}</tool_call>",
         "<tool_call> is a mark <tool_call>{\"a\":1}</tool_call> CALL(f * {})"},
        {HERMES, "", "<tool_call>{\"name\":5}", "<tool_call>{\"name\":5}"},
        {HERMES, "", "<tool_call>{\"name\":\"f\",\"arguments\":[1]}", "<tool_call>{\"name\":\"f\",\"arguments\":[1]}"});
}

static void test_llama(void **state) {
    (void)state;
    CHECK({LLAMA, "", "{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", "CALL(f * {\"s\": \"x\"})"},
          {LLAMA, "", "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "CALL(f * {})"},
          {LLAMA, "",
           "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"get_time\", \"parameters\": {}}",
           "CALL(f * {})CALL(get_time * {})"},
          {LLAMA, "", "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
          {LLAMA, "", "See {\"name\": \"f\", \"parameters\": {}}", "See {\"name\": \"f\", \"parameters\": {}}"},
          {"<function= <|start_header_id|>", "", "a<function=f>{\"n\": 1}</function><function=g>{}</function>",
           "aCALL(f * {\"n\": 1})CALL(g * {})"},
          {">>>all", "...>>>", "all\nHello\n>>>f\n{\"s\": \"\"}", "Hello\nCALL(f * {\"s\": \"\"})"},
          {">>>all", "...>>>", "f\n{\"s\": \"\"}>>>get_time\n{}", "CALL(f * {\"s\": \"\"})CALL(get_time * {})"},
          {">>>all", "...>>>", "h\n{} >>> a", "h\n{} >>> a"});
}

static void test_tags(void **state) {
    (void)state;
    CHECK({CODER, "",
           "Now:\n<tool_call>\n<function=f>\n<parameter=s>\n  "
           "two\n\"lines\"\n\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
           "<parameter=b>\nTrue\n</parameter>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n"
           "<function=get_time>\n</function>\n</tool_call>",
           "Now:\nCALL(f * {\"s\": \"  two\\n\\\"lines\\\"\\n\", \"n\": 12, \"b\": true, \"x\": \"5\"})CALL(get_time * "
           "{})"},
          {CODER, "", "<function=f><parameter=o>{\"a\": [1]}</parameter><parameter=n>many</parameter></function>",
           "CALL(f * {\"o\": {\"a\": [1]}, \"n\": \"many\"})"},
          {CODER, "", "<function=either><parameter=a>5</parameter><parameter=b>5</parameter></function>",
           "CALL(either * {\"a\": \"5\", \"b\": 5})"},
          {CODER, "", "<tool_call> <function=f> is how\n<function=f>\n<para",
           "<tool_call> <function=f> is how\n<function=f>\n<para"},
          {CODER, "", "<function=f>\n<parameter=s>\nab</parameter>\nodd</function>",
           "CALL(f * {\"s\": \"ab\"})odd</function>"},
          {SEED, "", "\n<seed:tool_call>\n<function=f>\n<parameter=s>\na</parameter>\n</function>\n</seed:tool_call>",
           "CALL(f * {\"s\": \"\\na\"})"},
          {GLM, "",
           "\n<think>t</think>\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a<b</arg_value>\n<arg_key>n</arg_key>"
           "<arg_value>[1]</arg_value></tool_call>\n<tool_call>get_time\n</tool_call>",
           "R(t)CALL(f * {\"s\": \"a<b\", \"n\": \"[1]\"})CALL(get_time * {})"},
          {V4, "",
           "x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n<｜DSML｜parameter name=\"a\" "
           "string=\"true\">5</｜DSML｜parameter>\n"
           "<｜DSML｜parameter name=\"b\" string=\"false\">[5]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
           "<｜DSML｜invoke name=\"f\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
           "x\n\nCALL(g * {\"a\": \"5\", \"b\": [5]})CALL(f * {})"});
}

static void test_names_before_arguments(void **state) {
    (void)state;
    CHECK({MISTRAL " [ARGS]", "", "[TOOL_CALLS]f[ARGS]{\"n\": 1}[TOOL_CALLS]get_time[ARGS]{}",
           "CALL(f * {\"n\": 1})CALL(get_time * {})"},
          {MISTRAL " [ARGS] [CALL_ID]", "", "[TOOL_CALLS]f[CALL_ID]0123456789[ARGS]{}", "CALL(f 0123456789 {})"},
          {V31, "</think>",
           "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g"
           "<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           "aCALL(f * {})CALL(g * {\"a\":1})"},
          {R1, "<think>\n",
           "m</think><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\": 2}\n```"
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
           "R(m)CALL(f * {\"n\": 2})"},
          {KIMI, "",
           "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"n\": "
           "2}<|tool_call_end|>"
           "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
           "CALL(f functions.f:0 {\"n\": 2})CALL(g functions.g:1 {})"},
          {SOLAR, "<|begin|>assistant",
           "<|think|>t<|end|><|begin|>assistant<|content|>c<|end|><|begin|>assistant<|tool_calls|>"
           "<|tool_call:begin|>id7<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>",
           "R(t)cCALL(f id7 {})"});
}

static void test_lists(void **state) {
    (void)state;
    CHECK({MISTRAL, "",
           "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"123456789\"}, {\"name\": \"g\", "
           "\"arguments\": {}}]",
           "CALL(f * {\"n\": 1})CALL(g * {})"},
          {MISTRAL, "", "[TOOL_CALLS] are made", "[TOOL_CALLS] are made"},
          {COMMAND, "",
           "<|START_THINKING|>p<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
           "\"parameters\": {}},"
           "\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
           "R(p)CALL(f 0 {})CALL(g 1 {})"},
          {"<|tool_call|>", "", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, 5]", "CALL(f * {}), 5]"},
          {"<TOOLCALL>", "", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}]</TOOLCALL>", "CALL(f * {})"},
          {"functools[", "",
           "I call functools[\"f\"]: functools[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"get_time\", "
           "\"arguments\": {\"z\": 1}}]",
           "I call functools[\"f\"]: CALL(f * {})CALL(get_time * {\"z\": 1})"},
          {"<tool_calls>", "",
           "<tool_calls>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}\n</tool_calls>x",
           "CALL(f * {})CALL(g * {})x"});
}

static void test_harmony(void **state) {
    (void)state;
    CHECK({HARMONY, "<|start|>assistant",
           "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi", "R(Hm.)Hi"},
          {HARMONY, "<|start|>assistant",
           "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Calling.<|end|>"
           "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"n\": 1}<|call|>",
           "R(Hm.)Calling.CALL(f * {\"n\": 1})"},
          {HARMONY, "<|start|>assistant", " to=functions.f<|channel|>commentary json<|message|>{}", "CALL(f * {})"},
          {HARMONY, "<|start|>assistant", "<|channel|>final <|constrain|>json<|message|>{\"n\": 1}<|return|>",
           "{\"n\": 1}"},
          {HARMONY, "<|start|>assistant", "plain", "plain"});
}

static void test_kimi_k3(void **state) {
    (void)state;
#define RESPONSE(text) "<|open|>response<|sep|>" text "<|close|>response<|sep|>"
#define ARGUMENT(key, type, value)                                                                                     \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" value "<|close|>argument<|sep|>"
#define CALL(name, index, arguments)                                                                                   \
    "<|open|>call tool=\"" name "\" index=\"" index "\"<|sep|>" arguments "<|close|>call<|sep|>"
    CHECK({KIMI3, "<|open|>think<|sep|>", "Hm.<|close|>think<|sep|>" RESPONSE("Hi") "<|close|>message<|sep|>",
           "R(Hm.)Hi"},
          {KIMI3, "<|open|>think<|sep|>",
           "t<|close|>think<|sep|>" RESPONSE("I look.") "<|open|>tools<|sep|>" CALL(
               "f", "1",
               ARGUMENT("s", "string", "a<b \"c\"\n") ARGUMENT("n", "number", "12") ARGUMENT("x", "string", "5")
                   ARGUMENT("o", "object", "{\"a\": [1]}")) CALL("get_time", "2", "") "<|close|>tools<|sep|>",
           "R(t)I look.CALL(f * {\"s\": \"a<b \\\"c\\\"\\n\", \"n\": 12, \"x\": \"5\", \"o\": {\"a\": [1]}})"
           "CALL(get_time * {})"},
          {KIMI3, "<|open|>response<|sep|>",
           "<|close|>response<|sep|><|open|>tools<|sep|>" CALL(
               "f", "1", "<|open|>json type=\"object\"<|sep|>{\"n\": 1}<|close|>json<|sep|>") "<|close|>tools<|sep|>",
           "CALL(f * {\"n\": 1})"},
          {KIMI3, "", "<|open|>call tool=\"f\" index=\"x\"<|sep|> <|open|>b",
           "<|open|>call tool=\"f\" index=\"x\"<|sep|> <|open|>b"});
}

static void test_minimax_m3(void **state) {
    (void)state;
    CHECK({M3, "", "</mm:think>Hi", "Hi"}, {M3, "", "<mm:think>t</mm:think>Hi", "R(t)Hi"},
          {M3, "",
           "I look." NS "<tool_call>\n" NS "<invoke name=\"f\">" NS "<s><b>5</b>" NS "</s>" NS "<n>2" NS "</n>" NS
           "<l>" NS "<item>" NS "<item>a" NS "</item>" NS "<k>" NS "<item>1" NS "</item>" NS "<item>-2" NS "</item>" NS
           "</k>" NS "</item>" NS "<item>" NS "<k>" NS "</k>" NS "</item>" NS "</l>" NS "</invoke>\n" NS
           "<invoke name=\"get_time\">" NS "</invoke>\n" NS "</tool_call>",
           "I look.CALL(f * {\"s\": \"<b>5</b>\", \"n\": 2, \"l\": [{\"item\": \"a\", \"k\": [1, -2]}, {\"k\": []}]})"
           "CALL(get_time * {})"},
          {M3, "",
           NS "<invoke name=\"f\">" NS "<o>" NS "<o>" NS "<a>1" NS "</a>" NS "</o>" NS "<b>x" NS "</b>" NS "</o>" NS
              "</invoke>",
           "CALL(f * {\"o\": {\"o\": {\"a\": 1}, \"b\": \"x\"}})"},
          {M3, "", NS "<invoke name=\"f\">" NS "<l>[{\"k\": [1]}]" NS "</l>" NS "</invoke>",
           "CALL(f * {\"l\": [{\"k\": [1]}]})"},
          {M3, "", NS "<invoke name=\"f\">" NS "<n>1" NS "</m>x", "CALL(f * {\"n\": 1})m>x"},
          {M3, "", NS "<tool_call> is a mark", NS "<tool_call> is a mark"});
}

static void test_gemma_4(void **state) {
    (void)state;
    CHECK({GEMMA, "", "<|channel>thought\nHm.\n<channel|>Hi", "R(Hm.)Hi"},
          {GEMMA, "",
           "<|tool_call>call:f{b:true,l:[{k:[1,2]},{}],n:-2.5e3,o:{a b:None},s:<|\"|>it's \"5\", }\n<|\"|>}<tool_call|>"
           "<|tool_call>call:get_time{}<tool_call|>",
           "CALL(f * {\"b\": true, \"l\": [{\"k\": [1, 2]}, {}], \"n\": -2.5e3, \"o\": {\"a b\": null}, "
           "\"s\": \"it's \\\"5\\\", }\\n\"})CALL(get_time * {})"},
          {GEMMA, "", "<|tool_call>call:f{\"s\": \"a\\n\", s: two words}<tool_call|>.",
           "CALL(f * {\"s\": \"a\\n\", \"s\": \"two words\"})."},
          {GEMMA, "", "<|tool_call>call:f(", "<|tool_call>call:f("},
          {GEMMA, "", "<|tool_call>call:f{n:1}}", "CALL(f * {\"n\": 1})}"},
          {GEMMA, "", "<|tool_call>call:f{n 1, s]", "CALL(f * {\"n 1\"), s]"});
}

static void test_lfm_2(void **state) {
    (void)state;
    CHECK({LFM, "", "<think>t</think><|tool_call_start|>[get_time()]<|tool_call_end|>Now.",
           "R(t)CALL(get_time * {})Now."},
          {LFM, "",
           "<|tool_call_start|>[f(s='it's \"a\"', n=2, b=True, l=[{'k': [1]}, ()], x=None), f(s=\"\\u00fc, \\'\\d\", "
           "o={})]"
           "<|tool_call_end|>",
           "CALL(f * {\"s\": \"it's \\\"a\\\"\", \"n\": 2, \"b\": true, \"l\": [{\"k\": [1]}, []], \"x\": null})"
           "CALL(f * {\"s\": \"ü, '\\\\d\", \"o\": {}})"},
          {LFM, "", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"n\": 1}}]<|tool_call_end|>",
           "CALL(f * {\"n\": 1})"},
          {LFM, "", "<|tool_call_start|>[f(n=1), 5]<|tool_call_end|>", "CALL(f * {\"n\": 1}), 5]<|tool_call_end|>"},
          {LFM, "", "<|tool_call_start|>[1 + 1]", "<|tool_call_start|>[1 + 1]"},
          {CODER, "", "<function=f><parameter=l>[{'k': [1, 2]}]</parameter></function>",
           "CALL(f * {\"l\": [{\"k\": [1, 2]}]})"},
          {CODER, "", "<function=f><parameter=l>[{'k': [1, 2]}</parameter></function>",
           "CALL(f * {\"l\": \"[{'k': [1, 2]}\"})"});
}

static void test_names_as_keys(void **state) {
    (void)state;
    CHECK({APERTUS, "", "<|inner_prefix|>t<|inner_suffix|>Hi", "R(t)Hi"},
          {APERTUS, "",
           "<|inner_prefix|>I call.<|tools_prefix|>[{\"f\": {\"n\": 1}}, {\"get_time\": {}}]<|tools_suffix|>",
           "R(I call.)CALL(f * {\"n\": 1})CALL(get_time * {})"},
          {APERTUS, "", "<|tools_prefix|>[{\"f\": 5}]<|tools_suffix|>", "<|tools_prefix|>[{\"f\": 5}]<|tools_suffix|>"},
          {APERTUS, "", "<|tools_prefix|>[{\"f\": \"{}\"}]", "<|tools_prefix|>[{\"f\": \"{}\"}]"});
}

static void test_other_tags(void **state) {
    (void)state;
    CHECK(
        {MUSE, "<|start|>assistant",
         " to=self<|message|>t<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant "
         "to=f<|message|>"
         "<atem:function_calls>\n<atem:invoke name=\"f\">\n<atem:parameter name=\"s\"> 5</atem:parameter>\n"
         "<atem:parameter name=\"n\">5</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eot|>",
         "R(t)I look.CALL(f * {\"s\": \" 5\", \"n\": 5})"},
        {"<function name= <param name=", "",
         "<function name=\"f\"><param name=\"s\"><![CDATA[a</param>\n]]]]></param><param "
         "name=\"n\">5</param></function>\n"
         "<function name=\"get_time\"></function>",
         "CALL(f * {\"s\": \"a</param>\\n]]\", \"n\": 5})CALL(get_time * {})"},
        {"function call <|role_sep|> <|message_sep|>", "",
         "Hi<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}", "HiCALL(f * {})"},
        {"｜DSML｜  calls>  invoke name=", "</think>",
         "a\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"s\" string=\"true\">5"
         "</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"n\" string=\"false\">5</｜DSML｜ parameter>\n"
         "</｜DSML｜ invoke>\n</｜DSML｜ calls>",
         "a\n\nCALL(f * {\"s\": \"5\", \"n\": 5})"},
        {KIMI " <think> </think>", "<think>",
         "t<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
         "R(t)CALL(f functions.f:0 {})"},
        {"Here are my reasoning steps: [BEGIN FINAL RESPONSE] <tool_calls>", "Here are my reasoning steps:\n",
         "t\n[BEGIN FINAL RESPONSE]\nHi", "R(t)Hi"},
        {"", "", "</think>Hi</think>", "Hi</think>"});
}

static void test_without_tools(void **state) {
    (void)state;
    sample c = {HERMES, "", "<think>a</think>\n<tool_call>\n{\"name\": \"f\"}</tool_call>",
                "R(a)<tool_call>\n{\"name\": \"f\"}</tool_call>"};
    sums s;
    mr_chat_output *o = make(&c, false, &s);
    push(o, c.text, strlen(c.text));
    finish(o, &s);
    expect(&c, &s, "without tools", 0);
}

/* A tool call whose name never comes is returned as content, and the text behind it is parsed as usual. */
static void test_long_texts(void **state) {
    (void)state;
    enum { N = 100000 };
    char *text = mr_alloc(N + 200), *want = mr_alloc(N + 200);
    assert_non_null(text);
    assert_non_null(want);
    char *end = stpcpy(text, "<tool_call>{\"a\":\"");
    memset(end, 'x', N);
    stpcpy(stpcpy(want, text), "CALL(f * {})");
    strcat(text, "<tool_call>{\"name\":\"f\"}</tool_call>");
    sample c = {HERMES, "", text, want};
    check_ended(&c, strlen(text));
    sums s;
    mr_chat_output *o = make(&c, true, &s);
    push(o, text, strlen(text));
    finish(o, &s);
    expect(&c, &s, "long", 0);
    memset(text, ' ', N);
    stpcpy(text + N, "x");
    check_ended(&c, N + 1);
    mr_free(text);
    mr_free(want);
}

static void test_ids(void **state) {
    (void)state;
    sample c = {HERMES, "", "<tool_call>{\"name\":\"f\"}{\"name\":\"f\"}</tool_call>", ""};
    sums s[2];
    for (int round = 0; round < 2; round++) {
        mr_chat_output *o = make(&c, true, &s[round]);
        push(o, c.text, strlen(c.text));
        finish(o, &s[round]);
        assert_int_equal(s[round].n_begun, 2);
        assert_string_not_equal(s[round].ids[0], s[round].ids[1]);
        mr_text_buf_deinit(&s[round].text);
    }
    assert_memory_equal(s[0].ids, s[1].ids, sizeof s[0].ids);
}

/* Fails the i-th allocation, for each i. */
static void check_no_memory(const sample *c) {
    enum { MOST = 60 };
    for (int64_t i = 0; i < MOST; i++) {
        mr_err err;
        sums s = {.last = CHAT_CONTENT};
        mr_chat_output *o = NULL;
        mr_chat_output_desc desc = {
            .format = mr_chat_format_of(mr_str_from(c->template_source)), .tools = tools, .on_delta = take, .ctx = &s};
        assert_true(mr_text_buf_reserve(&s.text, 1000));
        mr_mem_fail_at(i);
        mr_status status = mr_chat_output_create(&desc, &o, &err);
        if (status == MR_OK)
            status = mr_chat_output_push(o, mr_str_from(c->text), &err);
        mr_mem_fail_at(-1);
        assert_true(status == MR_OK || (status == MR_E_NO_MEMORY && err.text[0]));
        assert_true(i > 0 || status == MR_E_NO_MEMORY);
        assert_true(i < MOST - 1 || (status == MR_OK && strcmp(s.text.data, c->want) == 0));
        mr_chat_output_destroy(o);
        mr_text_buf_deinit(&s.text);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    static const sample SAMPLES[] = {
        {CODER, "", "<function=f>\n<parameter=n>\n12\n</parameter>\n</function>", "CALL(f * {\"n\": 12})"},
        {M3, "", NS "<invoke name=\"f\">" NS "<l>" NS "<item>5" NS "</item>" NS "</l>" NS "</invoke>",
         "CALL(f * {\"l\": [\"5\"]})"},
        {GEMMA, "", "<|tool_call>call:f{n:1,s:<|\"|>a<|\"|>}<tool_call|>", "CALL(f * {\"n\": 1, \"s\": \"a\"})"},
        {LFM, "", "<|tool_call_start|>[f(n=1, s='a')]<|tool_call_end|>", "CALL(f * {\"n\": 1, \"s\": \"a\"})"},
    };
    for (size_t i = 0; i < sizeof SAMPLES / sizeof SAMPLES[0]; i++)
        check_no_memory(&SAMPLES[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),       cmocka_unit_test(test_reasoning),
        cmocka_unit_test(test_hermes),        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_tags),          cmocka_unit_test(test_names_before_arguments),
        cmocka_unit_test(test_lists),         cmocka_unit_test(test_harmony),
        cmocka_unit_test(test_ids),           cmocka_unit_test(test_without_tools),
        cmocka_unit_test(test_long_texts),    cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_kimi_k3),       cmocka_unit_test(test_minimax_m3),
        cmocka_unit_test(test_gemma_4),       cmocka_unit_test(test_lfm_2),
        cmocka_unit_test(test_names_as_keys), cmocka_unit_test(test_other_tags),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
