/* Tools in requests. Every text that the grammar of a forced call accepts is a call for the parser, with arguments
 * that fit the schema. The tests also cover how the prompt describes tools. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <string.h>

#include "coordinator/serving/chat/chat_messages.h"
#include "coordinator/serving/chat/chat_tools.h"
#include "coordinator/serving/schema/schema.h"
#include "engine/base/mem.h"
#include "engine/grammar/grammar.h"
#include "tests/support/rng.h"
#include "tests/support/share.h"
#include "tests/support/test.h"

static const char *content_of(const json_t *messages, size_t i) {
    return json_string_value(json_object_get(json_array_get(messages, i), "content"));
}

static void test_instruct(void **state) {
    (void)state;
    mr_err err;
    json_t *list = json_loads("[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", 0, NULL);
    json_t *given = json_loads("[{\"role\": \"system\", \"content\": [{\"type\": \"text\", \"text\": \"Be\"}, "
                               "{\"type\": \"text\", \"text\": \"kind.\"}]},"
                               "{\"role\": \"user\", \"content\": \"Go\"},"
                               "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"1\", "
                               "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}},"
                               "{\"function\": {\"name\": \"g\", \"arguments\": {\"b\": 2}}}]},"
                               "{\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"done\"},"
                               "{\"role\": \"tool\", \"content\": \"a\\u0000b\"}]",
                               JSON_ALLOW_NUL, NULL);
    json_t *messages = NULL;
    expect_ok(chat_messages_read(given, &messages, &err), &err);
    json_decref(given);
    assert_true(chat_tools_instruct(messages, list));
    assert_int_equal(json_array_size(messages), 4);
    assert_memory_equal(content_of(messages, 0), "Be\nkind.\n\n", 10);
    expect_says(content_of(messages, 0),
                "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\"}}\n</tools>");
    assert_string_equal(content_of(messages, 2),
                        "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
                        "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": 2}}\n</tool_call>");
    static const char RESULTS[] = "<tool_response>\ndone\n</tool_response>\n<tool_response>\na\0b\n</tool_response>";
    assert_memory_equal(content_of(messages, 3), RESULTS, sizeof RESULTS);
    json_decref(messages);
    messages = json_loads("[{\"role\": \"user\", \"content\": \"Go\"}]", 0, NULL);
    assert_true(chat_tools_instruct(messages, list));
    assert_int_equal(json_array_size(messages), 2);
    assert_int_equal(strncmp(content_of(messages, 0), "You can call", 12), 0);
    json_decref(messages);
    json_decref(list);
}

static void test_calls_without_a_name(void **state) {
    (void)state;
    static const char *const CALLS[] = {"[5]", "[{\"id\": \"1\"}]", "[{\"function\": {\"name\": 5}}]"};
    for (size_t i = 0; i < sizeof CALLS / sizeof CALLS[0]; i++) {
        mr_err err;
        json_t *messages = json_pack("[{s:s, s:s}, {s:s, s:o}]", "role", "user", "content", "Go", "role", "assistant",
                                     "tool_calls", json_loads(CALLS[i], 0, NULL));
        json_t *read = NULL;
        assert_int_equal(chat_messages_read(messages, &read, &err), MR_E_INVALID);
        assert_string_equal(err.text, "messages[1].tool_calls[0].function.name: must be a string");
        json_decref(messages);
    }
}

/* --- Grammars ---------------------------------------------------------------------------------------------------- */

enum { N_BYTES = 256, N_TEXTS = 24, MAX_TEXT_BYTES = 4000 };

/* Words of templates that tell their forms, and what the prompts end in. */
static const struct {
    const char *source, *prompt;
} FORMS[] = {
    {"<tool_call> json object", ""},
    {"<tool_call> json object", "<think>\n"},
    {"<|channel|>analysis<|message|> <|end|>", "<|start|>assistant"},
    {"{\"name\": function name, \"parameters\"", ""},
    {"<tool_call> <function=", "<think>"},
    {"<tool_call> <arg_key>", ""},
    {"<seed:tool_call> <seed:think> </seed:think>", ""},
    {"[TOOL_CALLS] [THINK] [/THINK]", "[THINK]"},
    {"[TOOL_CALLS] [ARGS] [CALL_ID]", ""},
    {"[TOOL_CALLS] [ARGS]", ""},
    {"<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>", ""},
    {"<｜tool▁call▁begin｜> ```json", ""},
    {"<｜tool▁call▁begin｜>", ""},
    {"｜DSML｜ tool_calls>", ""},
    {"<|tool_call_begin|>", ""},
    {"<|tool_call:begin|> <|think|> <|end|>", "<|begin|>assistant"},
    {">>>all", ">>>"},
    {">>>all", ""},
    {"<function= <|start_header_id|>", ""},
    {"<|tool_call|>", ""},
    {"<tool_calls>", ""},
    {"<TOOLCALL>", ""},
    {"functools[", ""},
    {"<tool_call{}> :opensource", ""},
    {"minimax:tool_call> <invoke name=", ""},
    {"<|open|> <|sep|> <|close|>", "<|open|>think<|sep|>"},
    {"<|open|> <|sep|> <|close|>", "<|open|>response<|sep|>"},
    {"]<]minimax[>[ <invoke name= <mm:think> </mm:think>", ""},
    {"]<]minimax[>[ <invoke name= <mm:think> </mm:think>", "</mm:think>"},
    {"｜DSML｜  calls>  invoke name=", "<think>"},
    {"<|tool_call>call:", ""},
    {"List of tools: <|im_start|>", ""},
    {"<|tools_prefix|>", ""},
    {"function call <|role_sep|> <|message_sep|>", ""},
    {"<atem:function_calls>", "<|start|>assistant"},
    {"<function name= <param name=", ""},
};
enum { N_FORMS = sizeof FORMS / sizeof FORMS[0] };

#define LETTERS_50 "abcdefghijklmnopqrstuvwxyabcdefghijklmnopqrstuvwxy"
/* As long as names may be, and with all that may stand in one. */
#define LONG_NAME "mcp__" LETTERS_50 LETTERS_50 "/get-time.v1:/urn:22222"

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"required\":[\"s\","
    "\"n\",\"d\"],"
    "\"properties\":{\"s\":{\"type\":\"string\",\"description\":\"x\"},\"n\":{\"type\":\"integer\",\"minimum\":-5},"
    "\"e\":{\"type\":\"string\",\"enum\":[\"red\",\"dark \\\"red\\\"\"]},\"b\":{\"type\":\"boolean\"},"
    "\"x\":{\"type\":[\"integer\",\"null\"]},\"d\":{\"$ref\":\"#/$defs/D\"}},"
    "\"$defs\":{\"D\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"maxItems\":2}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"" LONG_NAME "\"}}]";

static json_t *tools;
static mr_tokenizer *bytes;
static mr_grammar_vocab *vocab;

static int setup(void **state) {
    static char names[N_BYTES][8];
    static mr_str tokens[N_BYTES];
    static int32_t types[N_BYTES];
    static float scores[N_BYTES];
    (void)state;
    for (int b = 0; b < N_BYTES; b++) {
        snprintf(names[b], sizeof names[b], "<0x%02X>", (unsigned)b);
        tokens[b] = mr_str_from(names[b]);
        types[b] = MR_TOKEN_BYTE;
    }
    mr_vocab_desc d = mr_vocab_desc_empty();
    mr_err err = {0};
    d.model = mr_str_from("llama");
    d.n_tokens = d.n_scores = d.n_types = N_BYTES;
    d.tokens = tokens;
    d.types = types;
    d.scores = scores;
    tools = json_loads(TOOLS, 0, NULL);
    assert_int_equal(strlen(LONG_NAME), CHAT_MAX_NAME_BYTES);
    if (tools && mr_tokenizer_create(&d, &bytes, &err) == MR_OK &&
        mr_grammar_vocab_create(bytes, N_BYTES, &vocab, &err) == MR_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int teardown(void **state) {
    (void)state;
    mr_grammar_vocab_destroy(vocab);
    mr_tokenizer_destroy(bytes);
    json_decref(tools);
    return 0;
}

/* Tries a text that brings things to an end; a grammar that does not allow it here stays where it is. */
static bool try_ending(mr_grammar_state *g, rng *r, mr_text_buf *out) {
    static const char *const ENDS[] = {"\"",
                                       "}",
                                       "]",
                                       "\n</parameter>",
                                       "</parameter>",
                                       "</arg_value>",
                                       "</arg_value:opensource>",
                                       "</｜DSML｜parameter>",
                                       "<|close|>argument<|sep|>",
                                       "]<]minimax[>[</",
                                       "</｜DSML｜ parameter>",
                                       "<|\"|>",
                                       "</atem:parameter>",
                                       "</param>",
                                       "<|close|>think<|sep|>",
                                       "</think>",
                                       "[/THINK]",
                                       "1"};
    mr_str text = mr_str_from(ENDS[rng_below(r, sizeof ENDS / sizeof ENDS[0])]);
    if (mr_grammar_state_accept_bytes(g, text, NULL) != MR_OK)
        return false;
    assert_true(mr_text_buf_append(out, text.data, text.len));
    return true;
}

/* A text of the grammar, drawn by lot; false: it became too long. */
static bool random_text(const mr_grammar *grammar, uint64_t seed, mr_text_buf *out) {
    rng r = {.state = seed};
    mr_grammar_state *g = NULL;
    mr_err err = {0};
    expect_ok(mr_grammar_state_create(grammar, vocab, &g, &err), &err);
    while (out->len < MAX_TEXT_BYTES &&
           !(mr_grammar_state_is_complete(g) && (mr_grammar_state_is_finished(g) || rng_below(&r, 4) == 0))) {
        uint64_t mask[N_BYTES / 64];
        if (rng_below(&r, 2) && try_ending(g, &r, out))
            continue;
        expect_ok(mr_grammar_state_mask(g, mask, &err), &err);
        int32_t b = rng_below(&r, N_BYTES);
        for (int i = 0; i < N_BYTES && !(mask[b / 64] >> b % 64 & 1); i++)
            b = (b + 1) % N_BYTES;
        assert_true(mask[b / 64] >> b % 64 & 1);
        expect_ok(mr_grammar_state_accept(g, b, &err), &err);
        char c = (char)b;
        assert_true(mr_text_buf_append(out, &c, 1));
    }
    bool complete = mr_grammar_state_is_complete(g);
    mr_grammar_state_destroy(g);
    return complete;
}

/* The parts that the parser finds in a text. */
typedef struct parsed {
    int n_tool_calls;
    bool has_content, is_cut;
    char name[CHAT_MAX_NAME_BYTES + 1];
    mr_text_buf arguments;
} parsed;

static void check_arguments(const parsed *p) {
    json_error_t why;
    json_t *a = json_loadb(p->arguments.data, p->arguments.len, JSON_ALLOW_NUL, &why);
    if (!json_is_object(a))
        fail_msg("%s: %s", why.text, p->arguments.data);
    if (strcmp(p->name, "f") != 0) {
        assert_string_equal(p->name, LONG_NAME);
        assert_int_equal(json_object_size(a), 0);
    } else {
        const json_t *e = json_object_get(a, "e"), *b = json_object_get(a, "b"), *x = json_object_get(a, "x"),
                     *d = json_object_get(a, "d");
        if (!json_is_string(json_object_get(a, "s")) || !json_is_integer(json_object_get(a, "n")) || !json_is_array(d))
            fail_msg("%s", p->arguments.data);
        assert_true(json_integer_value(json_object_get(a, "n")) >= -5 && json_array_size(d) <= 2);
        assert_true(!e || strcmp(json_string_value(e), "red") == 0 ||
                    strcmp(json_string_value(e), "dark \"red\"") == 0);
        assert_true((!b || json_is_boolean(b)) && (!x || json_is_integer(x) || json_is_null(x)));
        assert_int_equal(json_object_size(a), 3 + (e != NULL) + (b != NULL) + (x != NULL));
    }
    json_decref(a);
}

static mr_status take(void *ctx, const mr_chat_delta *d, mr_err *err) {
    parsed *p = ctx;
    (void)err;
    p->has_content = p->has_content || d->kind == CHAT_CONTENT;
    if (d->kind == CHAT_TOOL_BEGIN) {
        p->n_tool_calls++;
        snprintf(p->name, sizeof p->name, "%.*s", (int)d->text.len, d->text.data);
        mr_text_buf_clear(&p->arguments);
    } else if (d->kind == CHAT_TOOL_ARGUMENTS) {
        assert_true(mr_text_buf_append(&p->arguments, d->text.data, d->text.len));
    } else if (d->kind == CHAT_TOOL_END && !p->is_cut) {
        check_arguments(p);
    }
    return MR_OK;
}

/* is_cut: the text is the beginning of one that the grammar allows. */
static parsed parse(mr_chat_format format, const char *prompt, mr_str text, bool is_cut) {
    parsed p = {.is_cut = is_cut};
    mr_chat_output *o = NULL;
    mr_err err;
    const mr_chat_output_desc desc = {.format = format,
                                      .prompt = mr_str_from(prompt),
                                      .tools = tools,
                                      .on_delta = take,
                                      .ctx = &p,
                                      .only_calls = is_cut};
    expect_ok(mr_chat_output_create(&desc, &o, &err), &err);
    expect_ok(mr_chat_output_push(o, text, &err), &err);
    expect_ok(mr_chat_output_end(o, &err), &err);
    mr_chat_output_destroy(o);
    mr_text_buf_deinit(&p.arguments);
    return p;
}

static mr_grammar *make_grammar(int form, const char *name, bool parallel, mr_text_buf *gbnf) {
    mr_grammar *g = NULL;
    mr_err err = {0};
    const mr_chat_tools_desc desc = {.format = mr_chat_format_of(mr_str_from(FORMS[form].source)),
                                     .tools = tools,
                                     .name = name,
                                     .parallel = parallel,
                                     .prompt = mr_str_from(FORMS[form].prompt)};
    if (mr_chat_tools_grammar(&desc, gbnf, &err) != MR_OK ||
        mr_grammar_parse((mr_str){gbnf->data, gbnf->len}, &g, &err) != MR_OK)
        fail_msg("%s: %s\n%s", FORMS[form].source, err.text, gbnf->data ? gbnf->data : "");
    return g;
}

/* max_tokens ends the text anywhere: nothing of it is content. */
static void check_cuts(int form, mr_str text, size_t step) {
    for (size_t n = 0; n < text.len; n += step) {
        parsed p =
            parse(mr_chat_format_of(mr_str_from(FORMS[form].source)), FORMS[form].prompt, (mr_str){text.data, n}, true);
        if (p.has_content)
            fail_msg("%s: content in\n%.*s", FORMS[form].source, (int)n, text.data);
    }
}

static void check_form(int form, const char *name, bool parallel) {
    mr_text_buf gbnf = {0}, text = {0};
    mr_grammar *g = make_grammar(form, name, parallel, &gbnf);
    int n_texts = 0, most = 0;
    for (uint64_t seed = 0; seed < (uint64_t)(N_TEXTS / share_get() + 2); seed++) {
        mr_text_buf_clear(&text);
        if (!random_text(g, seed, &text))
            continue;
        parsed p = parse(mr_chat_format_of(mr_str_from(FORMS[form].source)), FORMS[form].prompt,
                         (mr_str){text.data, text.len}, false);
        if (p.n_tool_calls < 1 || p.has_content || (!parallel && p.n_tool_calls > 1) ||
            (name && strcmp(name, p.name) != 0))
            fail_msg("%s: %d calls%s in\n%s\nby\n%s", FORMS[form].source, p.n_tool_calls,
                     p.has_content ? " and content" : "", text.data, gbnf.data);
        check_cuts(form, (mr_str){text.data, text.len}, n_texts == 0 ? 1 : text.len / 4 + 1);
        n_texts++;
        most = p.n_tool_calls > most ? p.n_tool_calls : most;
    }
    assert_true(n_texts > 0);
    mr_grammar_destroy(g);
    mr_text_buf_deinit(&gbnf);
    mr_text_buf_deinit(&text);
}

static void test_forced_calls(void **state) {
    (void)state;
    for (int form = 0; form < N_FORMS; form++) {
        check_form(form, NULL, true);
        check_form(form, "f", false);
        check_form(form, LONG_NAME, false);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *source, *tools, *name, *words;
        mr_status status;
    } CASES[] = {
        {"", TOOLS, "g", "no tool is called \"g\"", MR_E_NOT_FOUND},
        {"", "[{\"function\": {\"name\": \"a b\"}}]", NULL, "name of tool 0", MR_E_INVALID},
        {"",
         "[{\"function\": {\"name\": \"a\", \"strict\": true, \"parameters\": {\"type\": \"object\", \"if\": {}}}}]",
         NULL, "if", MR_E_UNSUPPORTED},
        {"<tool_call> <function=",
         "[{\"function\": {\"name\": \"a\", \"strict\": true, \"parameters\": {\"anyOf\": [{\"properties\": {\"p\": "
         "{}}}]}}}]",
         NULL, "anyOf", MR_E_UNSUPPORTED},
        {"<tool_call> <function=",
         "[{\"function\": {\"name\": \"a\", \"strict\": true, \"parameters\": {\"minProperties\": 1}}}]", NULL,
         "minProperties", MR_E_UNSUPPORTED},
        {"<tool_call> <function=",
         "[{\"function\": {\"name\": \"a\", \"strict\": true, \"parameters\": {\"properties\": {\"p\": {\"type\": "
         "\"string\", \"pattern\": \"(?<=x)\"}}}}}]",
         NULL, "pattern", MR_E_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        mr_text_buf gbnf = {0};
        mr_err err = {0};
        json_t *list = json_loads(CASES[i].tools, 0, NULL);
        const mr_chat_tools_desc desc = {
            .format = mr_chat_format_of(mr_str_from(CASES[i].source)), .tools = list, .name = CASES[i].name};
        assert_int_equal(mr_chat_tools_grammar(&desc, &gbnf, &err), CASES[i].status);
        expect_says(err.text, CASES[i].words);
        assert_int_equal(gbnf.len, 0);
        mr_text_buf_deinit(&gbnf);
        json_decref(list);
    }
}

/* Whether a text is a call by the grammar of one tool "f" with these parameters. */
static bool takes(const char *source, const char *parameters, const char *text) {
    json_t *list = json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters",
                             json_loads(parameters, JSON_DECODE_ANY, NULL));
    const mr_chat_tools_desc desc = {.format = mr_chat_format_of(mr_str_from(source)), .tools = list};
    mr_text_buf gbnf = {0};
    mr_grammar *g = NULL;
    mr_grammar_state *s = NULL;
    mr_err err = {0};
    if (mr_chat_tools_grammar(&desc, &gbnf, &err) != MR_OK ||
        mr_grammar_parse((mr_str){gbnf.data, gbnf.len}, &g, &err) != MR_OK)
        fail_msg("%s: %s\n%s", parameters, err.text, gbnf.data ? gbnf.data : "");
    expect_ok(mr_grammar_state_create(g, vocab, &s, &err), &err);
    bool taken = mr_grammar_state_accept_bytes(s, mr_str_from(text), NULL) == MR_OK && mr_grammar_state_is_complete(s);
    mr_grammar_state_destroy(s);
    mr_grammar_destroy(g);
    mr_text_buf_deinit(&gbnf);
    json_decref(list);
    return taken;
}

/* Keywords of a string that stands between tags, without quotes. */
static void test_text_keywords(void **state) {
    (void)state;
    static const struct {
        const char *property, *right, *wrong;
    } CASES[] = {
        {"{\"type\": \"string\", \"maxLength\": 3}", "a<b", "abcd"},
        {"{\"type\": \"string\", \"minLength\": 2}", "\xC3\xA9\n", "a"},
        {"{\"type\": \"string\", \"pattern\": \"^[a-z]+$\", \"maxLength\": 3}", "abc", "abcd"},
        {"{\"type\": \"string\", \"pattern\": \"\\\"\"}", "a\"b", "ab"},
        {"{\"type\": \"string\", \"format\": \"date\"}", "2024-02-29", "2023-02-29"},
        {"{\"type\": \"string\", \"enum\": [\"a b\", \"c\"], \"minLength\": 2}", "a b", "c"},
        {"{\"type\": \"string\", \"not\": {\"const\": \"x\"}}", "xx", "x"},
        {"{\"type\": \"string\", \"maxLength\": 40}", "</parameter", "a\n</parameter>\n<parameter"},
        {"{\"type\": \"string\", \"example\": 1, \"discriminator\": {}, \"contentEncoding\": \"base64\", "
         "\"contentMediaType\": \"\", \"$anchor\": \"a\", \"x-ui\": 1, \"made up\": 1, \"nullable\": false, "
         "\"format\": \"none\", \"minLength\": null, \"maxLength\": 1}",
         "a", "ab"},
        {"{\"type\": \"string\", \"nullable\": true}", "null", "1"},
        {"{\"type\": \"integer\", \"multipleOf\": 5}", "15", "16"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        for (int wrong = 0; wrong < 2; wrong++) {
            char text[200], parameters[400];
            snprintf(parameters, sizeof parameters, "{\"properties\": {\"p\": %s}, \"required\": [\"p\"]}",
                     CASES[i].property);
            snprintf(text, sizeof text,
                     "<tool_call>\n<function=f>\n<parameter=p>\n%s\n</parameter>\n</function>\n</tool_call>",
                     wrong ? CASES[i].wrong : CASES[i].right);
            if (takes("<tool_call> <function=", parameters, text) == (wrong != 0))
                fail_msg("%s: %s", parameters, text);
        }
    }
}

/* Properties that only alternatives describe, in calls that write one argument after the other. */
static void test_alternatives(void **state) {
    (void)state;
    static const struct {
        const char *parameters, *arguments;
        bool right;
    } CASES[] = {
        {"{\"anyOf\": [{\"properties\": {\"a\": {\"type\": \"string\"}}}, {\"properties\": {\"b\": {\"type\": "
         "\"integer\"}}}]}",
         "<parameter=a>\nx y\n</parameter>\n<parameter=b>\n5\n</parameter>\n", true},
        {"{\"anyOf\": [{\"properties\": {\"b\": {\"type\": \"integer\"}}}, {\"type\": \"null\"}]}",
         "<parameter=b>\nx\n</parameter>\n", false},
        {"{\"oneOf\": [{\"properties\": {\"k\": {\"const\": \"a\"}}}, {\"properties\": {\"k\": {\"const\": \"b\"}}}]}",
         "<parameter=k>\nb\n</parameter>\n", true},
        {"{\"oneOf\": [{\"properties\": {\"k\": {\"const\": \"a\"}}}, {\"properties\": {\"k\": {\"const\": \"b\"}}}]}",
         "<parameter=k>\nc\n</parameter>\n", false},
        {"{\"properties\": {\"k\": {\"type\": \"integer\"}}, \"anyOf\": [{\"properties\": {\"k\": {\"type\": "
         "\"string\"}}}]}",
         "<parameter=k>\nx\n</parameter>\n", false},
        {"{\"$ref\": \"#/$defs/t\", \"$defs\": {\"t\": {\"anyOf\": [{\"$ref\": \"#/$defs/t\"}, {\"properties\": "
         "{\"q\": "
         "{\"type\": \"string\"}}}]}}}",
         "<parameter=q>\nx\n</parameter>\n", true},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        char text[200];
        snprintf(text, sizeof text, "<tool_call>\n<function=f>\n%s</function>\n</tool_call>", CASES[i].arguments);
        if (takes("<tool_call> <function=", CASES[i].parameters, text) != CASES[i].right)
            fail_msg("%s: %s", CASES[i].parameters, text);
    }
}

/* Each allocation of the rules of a schema fails once. */
static void test_no_memory(void **state) {
    (void)state;
    static const char SCHEMA[] =
        "{\"properties\": {\"a\": {\"type\": \"string\", \"pattern\": \"(?!x)\\\\p{Lu}\", \"format\": \"date\", "
        "\"maxLength\": 20}, \"b\": {\"type\": \"integer\", \"multipleOf\": 3}}, "
        "\"patternProperties\": {\"^c\": {\"enum\": [\"d\"], \"minLength\": 1}}}";
    mr_status status = MR_E_NO_MEMORY;
    int n = 0;
    for (; status == MR_E_NO_MEMORY && n < 2000; n++) {
        mr_text_buf gbnf = {0};
        mr_err err = {0};
        mr_mem_fail_at(n);
        status = mr_grammar_schema_to_gbnf(mr_str_from(SCHEMA), false, "root", &gbnf, &err);
        mr_mem_fail_at(-1);
        assert_int_equal(gbnf.len > 0, status == MR_OK);
        mr_text_buf_deinit(&gbnf);
    }
    assert_int_equal(status, MR_OK);
    assert_true(n > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_instruct),      cmocka_unit_test(test_calls_without_a_name),
        cmocka_unit_test(test_forced_calls),  cmocka_unit_test(test_refused),
        cmocka_unit_test(test_text_keywords), cmocka_unit_test(test_alternatives),
        cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
