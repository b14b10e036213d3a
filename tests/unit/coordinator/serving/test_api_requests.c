/* Request bodies that the API accepts and refuses, and request bodies that would cost too much. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "coordinator/serving/api/api_fields.h"
#include "coordinator/serving/api/api_request.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/coordinator/serving/test_api_support.h"

typedef struct bad_body {
    mr_api_endpoint endpoint;
    const char *body;
    const char *param; /* NULL: null in the answer */
    const char *code;  /* NULL: null in the answer */
} bad_body;

#define TEN_TIMES(text) text text text text text text text text text text
#define COMPLETION(fields) "{\"prompt\": \"ab\", " fields "}"
#define USER "\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]"
#define CHAT(fields) "{" USER ", " fields "}"
#define TOOL                                                                                                           \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]"

#define TOOL_NAMED(name) "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" name "\"}}]"
#define CALLED(name)                                                                                                   \
    "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"type\": "         \
    "\"function\", \"function\": {\"name\": \"" name "\", \"arguments\": \"{}\"}}]}]}"
#define LETTERS_64 "abcdefghijklmnopabcdefghijklmnopabcdefghijklmnopabcdefghijklmnop"

static const bad_body bad[] = {
    {API_COMPLETIONS, "", NULL, NULL},
    {API_COMPLETIONS, "[1]", NULL, NULL},
    {API_COMPLETIONS, "{\"prompt\": \"ab\"", NULL, NULL},
    {API_COMPLETIONS, "{\"prompt\": NaN}", NULL, NULL},
    {API_COMPLETIONS, "\xFF\xFE{\0}\0", NULL, NULL},
    {API_COMPLETIONS, "\xEF\xBB\xBF{\"prompt\": 5}", "prompt", "invalid_type"},
    {API_COMPLETIONS, "\xEF\xBB\xBF", NULL, NULL},
    {API_COMPLETIONS, "{\"prompt\": 18446744073709551615}", "prompt", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"seed\": 1e400"), "seed", "invalid_value"},
    {API_COMPLETIONS, "{\"prompt\": \"\xff\"}", NULL, NULL},
    {API_COMPLETIONS, "{}", "prompt", "missing_required_parameter"},
    {API_COMPLETIONS, "{\"prompt\": null}", "prompt", "missing_required_parameter"},
    {API_COMPLETIONS, "{\"prompt\": []}", "prompt", "invalid_value"},
    {API_COMPLETIONS, "{\"prompt\": [\"ab\", 5]}", "prompt[1]", "invalid_type"},
    {API_COMPLETIONS, "{\"prompt\": [1, \"ab\"]}", "prompt", "invalid_type"},
    {API_COMPLETIONS, "{\"prompt\": [1, 2.5]}", "prompt", "invalid_type"},
    {API_COMPLETIONS, "{\"prompt\": [1, 100000]}", "prompt", "invalid_value"},
    {API_COMPLETIONS, "{\"prompt\": [[1], [-1]]}", "prompt[1]", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"temperature\": \"hot\""), "temperature", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"temperature\": -1"), "temperature", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"temperature\": true"), "temperature", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"top_p\": 1.5"), "top_p", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"top_k\": 1.5"), "top_k", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"n\": 0"), "n", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"n\": 129"), "n", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"max_tokens\": \"5\""), "max_tokens", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"max_tokens\": 99999999999999999999999"), "max_tokens", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"stream\": 1"), "stream", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"stream_options\": {\"include_usage\": true}"), "stream_options", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"stream\": true, \"stream_options\": {\"include_usage\": 1}"),
     "stream_options.include_usage", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"stop\": 5"), "stop", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"stop\": [\"a\", null]"), "stop", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"stop\": \"a\\u0000b\""), "stop", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"stop\": \"" TEN_TIMES(TEN_TIMES("abc")) "\""), "stop", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": 5"), "logit_bias", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": {\"100000\": 1}"), "logit_bias", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": {\"99999999999999999999\": 1}"), "logit_bias", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": {\"5\": \"x\"}"), "logit_bias", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": {\"5\": 101}"), "logit_bias", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": [[5]]"), "logit_bias", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"logprobs\": 21"), "logprobs", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"best_of\": 2"), "best_of", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"suffix\": \"x\""), "suffix", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"grammar\": \"root ::= (\""), "grammar", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"repeat_penalty\": 0"), "repeat_penalty", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"dry_multiplier\": 1, \"dry_base\": 0.5"), "dry_base", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"mirostat\": 2, \"mirostat_tau\": 0"), "mirostat_tau", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"json_schema\": 5"), "json_schema", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"json_schema\": {\"type\": \"objekt\"}"), "json_schema", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"json_schema\": {}, \"grammar\": \"root ::= \\\"a\\\"\""), "grammar",
     "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"guided_json\": {}, \"guided_regex\": \"a\""), "guided_json", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"guided_json\": 5"), "guided_json", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"guided_json\": \"{\""), "guided_json", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"guided_regex\": \"(?=a)\""), "guided_regex", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"guided_choice\": []"), "guided_choice", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"guided_choice\": [\"a\", 5]"), "guided_choice", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"guided_grammar\": \"root ::= (\""), "guided_grammar", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {}"), "structured_outputs", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"regex\": \"a\", \"choice\": [\"a\"]}"),
     "structured_outputs.regex", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"structural_tag\": \"a\"}"),
     "structured_outputs.structural_tag", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"regex\": \"a\"}, \"guided_choice\": [\"a\"]"),
     "structured_outputs", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"regex\": \"a\"}, \"grammar\": \"root ::= \\\"a\\\"\""),
     "grammar", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"stop_token_ids\": [100000]"), "stop_token_ids", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"stop_token_ids\": [\"a\"]"), "stop_token_ids", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"min_tokens\": -1"), "min_tokens", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"min_tokens\": 5, \"max_tokens\": 4"), "min_tokens", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"bad_words\": \"a\""), "bad_words", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"bad_words\": [5]"), "bad_words", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"bad_words\": [\"a\", \" \"]"), "bad_words", "invalid_type"},
    {API_COMPLETIONS, COMPLETION("\"truncate_prompt_tokens\": 0"), "truncate_prompt_tokens", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"truncate_prompt_tokens\": -2"), "truncate_prompt_tokens", "invalid_value"},
    {API_COMPLETIONS, COMPLETION("\"prompt_logprobs\": 0"), "prompt_logprobs", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"use_beam_search\": true"), "use_beam_search", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"skip_special_tokens\": false"), "skip_special_tokens", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"lora\": [{\"id\": 0, \"scale\": 1}]"), "lora", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"dynatemp_range\": 0.5"), "dynatemp_range", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"t_max_predict_ms\": 500"), "t_max_predict_ms", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"min_keep\": 2"), "min_keep", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"samplers\": [\"top_p\", \"top_k\"]"), "samplers", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"samplers\": [\"top_p\", \"infill\"]"), "samplers", "unsupported_parameter"},
    {API_COMPLETIONS, COMPLETION("\"samplers\": \"kp\""), "samplers", "invalid_type"},
    {API_CHAT_COMPLETIONS, CHAT("\"reasoning_budget\": 0"), "reasoning_budget", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, CHAT("\"modalities\": [\"text\", \"audio\"]"), "modalities", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, CHAT("\"chat_template\": \"{{ x }}\""), "chat_template", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, CHAT("\"continue_final_message\": true"), "continue_final_message", "invalid_value"},
    {API_CHAT_COMPLETIONS,
     "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"continue_final_message\": true, "
     "\"add_generation_prompt\": true}",
     "continue_final_message", "invalid_value"},
    {API_EMBEDDINGS, "{\"input\": \"ab\", \"normalize\": false}", "normalize", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, "{}", "messages", "missing_required_parameter"},
    {API_CHAT_COMPLETIONS, "{\"messages\": {}}", "messages", "invalid_type"},
    {API_CHAT_COMPLETIONS, "{\"messages\": []}", "messages", "invalid_value"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [5]}", "messages[0]", "invalid_type"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [{\"content\": \"ab\"}]}", "messages[0]", "invalid_type"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", "messages[0].content",
     "invalid_type"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}",
     "messages[0].content[0]", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
     "messages[0].content[0]", "invalid_type"},
    {API_CHAT_COMPLETIONS, CHAT("\"top_logprobs\": 2"), "top_logprobs", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT("\"logprobs\": 2"), "logprobs", "invalid_type"},
    {API_CHAT_COMPLETIONS, CHAT("\"functions\": [{}]"), "functions", "unsupported_parameter"},
    {API_CHAT_COMPLETIONS, CHAT("\"tools\": [5]"), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"\"}}]"), "tools[0]",
     "invalid_value"},
    {API_CHAT_COMPLETIONS,
     CHAT("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": 5}}]"), "tools[0]",
     "invalid_type"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("a\\\"b")), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("a b")), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("a\\nb")), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("a\\u0000b")), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("é")), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("x" LETTERS_64 LETTERS_64)), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("a\\\"b") ", \"tool_choice\": \"none\""), "tools[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CALLED("</tool_call>"), "messages[0].tool_calls[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, "{\"messages\": [{\"role\": \"tool\", \"content\": \"\", \"name\": \"a\\\"\"}]}",
     "messages[0]", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT("\"tool_choice\": \"required\""), "tool_choice", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": \"perhaps\""), "tool_choice", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"g\"}}"),
     "tool_choice", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"response_format\": {\"type\": \"json_object\"}"), "tools", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT("\"response_format\": 5"), "response_format", "invalid_type"},
    {API_CHAT_COMPLETIONS, CHAT("\"response_format\": {\"type\": \"xml\"}"), "response_format.type", "invalid_value"},
    {API_CHAT_COMPLETIONS, CHAT("\"response_format\": {\"type\": \"json_schema\"}"),
     "response_format.json_schema.schema", "invalid_type"},
    {API_CHAT_COMPLETIONS,
     CHAT("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"not\": {}}}}"),
     "response_format.json_schema.schema", "invalid_value"},
    {API_EMBEDDINGS, "{}", "input", "missing_required_parameter"},
    {API_EMBEDDINGS, "{\"input\": {}}", "input", "invalid_type"},
    {API_EMBEDDINGS, "{\"input\": \"ab\", \"encoding_format\": \"hex\"}", "encoding_format", "invalid_value"},
    {API_EMBEDDINGS, "{\"input\": \"ab\", \"dimensions\": 6}", "dimensions", "invalid_value"},
    {API_EMBEDDINGS, "{\"input\": \"ab\", \"pooling\": \"max\"}", "pooling", "invalid_value"},
    {API_TOKENIZE, "{}", "content", "missing_required_parameter"},
    {API_DETOKENIZE, "{\"tokens\": \"ab\"}", "tokens", "invalid_type"},
    {API_DETOKENIZE, "{\"tokens\": [-5]}", "tokens", "invalid_value"},
    {API_APPLY_TEMPLATE, "{}", "messages", "missing_required_parameter"},
    {API_RERANK, "{\"documents\": [\"ab\"]}", "query", "missing_required_parameter"},
    {API_RERANK, "{\"query\": \"ab\"}", "documents", "missing_required_parameter"},
    {API_RERANK, "{\"query\": [\"ab\"], \"documents\": [\"ab\"]}", "query", "invalid_type"},
    {API_RERANK, "{\"query\": \"ab\", \"documents\": \"ab\"}", "documents", "invalid_type"},
    {API_RERANK, "{\"query\": \"ab\", \"documents\": []}", "documents", "invalid_value"},
    {API_RERANK, "{\"query\": \"ab\", \"documents\": [\"ab\", 5]}", "documents[1]", "invalid_type"},
    {API_RERANK, "{\"query\": \"ab\", \"documents\": [{\"title\": \"ab\"}]}", "documents[0]", "invalid_type"},
    {API_RERANK, "{\"query\": \"ab\", \"documents\": [\"ab\"], \"top_n\": 0}", "top_n", "invalid_value"},
    {API_RERANK, "{\"query\": \"\", \"documents\": [], \"rank_fields\": 1}", "rank_fields", "unsupported_parameter"},
};

static bool same(const json_t *value, const char *want) {
    const char *text = json_string_value(value);
    return want ? text && strcmp(text, want) == 0 : json_is_null(value);
}

static void test_bad_bodies(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        api_result r = api_scene_ask(&s, bad[i].endpoint, bad[i].body);
        if (r.status != 400 || r.streams || !same(api_value_at(r.json, "error.param"), bad[i].param) ||
            !same(api_value_at(r.json, "error.code"), bad[i].code) ||
            !same(api_value_at(r.json, "error.type"), "invalid_request_error"))
            fail_msg("%s: status %d, %s", bad[i].body, r.status, r.bytes.data);
        assert_true(strlen(api_text_at(r.json, "error.message")) > 0);
        api_result_deinit(&r);
    }
    assert_int_equal(s.service.n_submitted, 0);
    api_scene_close(&s);
}

static const struct {
    mr_api_endpoint endpoint;
    const char *body;
} good[] = {
    /* Fields that clients send with values that change nothing. */
    {API_COMPLETIONS,
     COMPLETION(
         "\"lora\": [], \"dynatemp_range\": 0.0, \"dynatemp_exponent\": 1, \"t_max_predict_ms\": -1, \"min_keep\": 0, "
         "\"id_slot\": -1, \"cache_prompt\": true, \"n_keep\": 0, \"return_tokens\": false, \"use_beam_search\": "
         "false, "
         "\"skip_special_tokens\": true, \"post_sampling_probs\": false, \"prompt_logprobs\": null, \"suffix\": \"\", "
         "\"samplers\": [\"penalties\", \"dry\", \"top_n_sigma\", \"top_k\", \"typ_p\", \"top_p\", \"min_p\", \"xtc\", "
         "\"temperature\"], \"reasoning_budget\": -1, \"timings_per_token\": true")},
    {API_CHAT_COMPLETIONS,
     CHAT("\"user\": \"u\", \"metadata\": {\"a\": \"b\"}, \"store\": true, \"service_tier\": \"auto\", \"modalities\": "
          "[\"text\"], \"prediction\": {\"type\": \"content\"}, \"best_of\": 1, \"echo\": false, \"documents\": []")},
    {API_COMPLETIONS,
     COMPLETION("\"guided_regex\": \"\", \"guided_json\": null, \"min_tokens\": 0, \"bad_words\": []")},
    {API_COMPLETIONS, COMPLETION("\"guided_json\": \"{\\\"type\\\": \\\"object\\\"}\"")},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"json\": {\"type\": \"object\"}}")},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"json_object\": true, \"choice\": null}")},
    {API_COMPLETIONS, COMPLETION("\"structured_outputs\": {\"grammar\": \"root ::= \\\"a\\\"\"}")},
    {API_COMPLETIONS, COMPLETION("\"grammar\": \"\\uFEFFroot ::= \\\"a\\\"\"")},
    {API_COMPLETIONS, COMPLETION("\"guided_json\": \"\\uFEFF{\\\"type\\\": \\\"object\\\"}\"")},
    {API_CHAT_COMPLETIONS, CHAT("\"guided_grammar\": \"root ::= \\\"a\\\"\", \"min_tokens\": 4, \"max_tokens\": 4")},
    {API_EMBEDDINGS, "{\"input\": \"ab\", \"user\": \"u\", \"truncate_prompt_tokens\": -1, \"normalize\": true}"},
    {API_COMPLETIONS, COMPLETION("\"no_such_field\": {\"at\": [\"all\"]}")},
    {API_COMPLETIONS, "{\"prompt\": \"\"}"},
    {API_COMPLETIONS, "{\"prompt\": \"a\\u0000b\"}"},
    {API_COMPLETIONS, "{\"prompt\": [\"ab\", \"ba\"]}"},
    {API_COMPLETIONS, "{\"prompt\": [1, 5, 6]}"},
    {API_COMPLETIONS, "{\"prompt\": [[1, 5, 6], [7]]}"},
    {API_COMPLETIONS, "{\"prompt\": 5, \"prompt\": \"ab\"}"},
    {API_COMPLETIONS, COMPLETION("\"temperature\": null, \"stop\": null, \"stream\": null, \"logit_bias\": null")},
    {API_COMPLETIONS, COMPLETION("\"stop\": [\"\", \"b\"], \"best_of\": 1, \"user\": 5, \"model\": 5")},
    {API_COMPLETIONS, COMPLETION("\"max_tokens\": 5.0, \"top_k\": -1, \"priority\": -5")},
    {API_COMPLETIONS, COMPLETION("\"logit_bias\": [[5, -1.5], [\"ab\", false]]")},
    {API_COMPLETIONS, COMPLETION("\"grammar\": \"root ::= \\\"a\\\"\", \"response_format\": {\"type\": \"text\"}")},
    {API_COMPLETIONS, COMPLETION("\"json_schema\": {\"type\": \"object\"}")},
    {API_CHAT_COMPLETIONS, CHAT("\"response_format\": {\"type\": \"json_object\"}")},
    {API_CHAT_COMPLETIONS, CHAT("\"chat_template_kwargs\": {\"x\": 1}, \"reasoning_effort\": \"low\"")},
    {API_CHAT_COMPLETIONS, CHAT("\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", "
                                "\"strict\": true, \"schema\": {\"type\": \"object\"}}}")},
    {API_CHAT_COMPLETIONS, CHAT(TOOL)},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED("http://files.read-all_9"))},
    {API_CHAT_COMPLETIONS, CHAT(TOOL_NAMED(LETTERS_64 LETTERS_64))},
    {API_CHAT_COMPLETIONS, CALLED("/a:b/" LETTERS_64)},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": \"none\"")},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": \"required\", \"parallel_tool_calls\": false")},
    {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"f\"}}")},
    {API_CHAT_COMPLETIONS,
     "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"ab\"}]}]}"},
    {API_EMBEDDINGS, "{\"input\": [\"ab\", \"b\"], \"dimensions\": 5, \"pooling\": \"last\"}"},
    {API_TOKENIZE, "{\"content\": \"\"}"},
    {API_DETOKENIZE, "{\"tokens\": []}"},
    {API_APPLY_TEMPLATE, "{" USER "}"},
    {API_RERANK, "{\"query\": \"\", \"documents\": [\"ab\", {\"text\": \"b\"}], \"top_n\": 9, \"model\": \"m\"}"},
};

static void test_good_bodies(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        api_result r = api_scene_ask(&s, good[i].endpoint, good[i].body);
        if (r.status != 200)
            fail_msg("%s: status %d, %s", good[i].body, r.status, r.bytes.data);
        api_result_deinit(&r);
    }
    api_scene_close(&s);
}

/* Each field of a request reaches the service with its meaning. */
static void test_fields_arrive(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(
        &s, API_COMPLETIONS,
        "{\"prompt\": [1, 261], \"temperature\": 0.5, \"top_p\": 0.25, \"top_k\": 7, \"min_p\": 0.125, \"seed\": 99, "
        "\"repeat_penalty\": 1.5, \"repeat_last_n\": 8, \"max_tokens\": 3, \"max_completion_tokens\": 4, \"n\": 2, "
        "\"stop\": [\"x\", \"yz\"], \"priority\": 5, \"ignore_eos\": true, \"logprobs\": 2, \"echo\": true}");
    const mr_generate_desc *d = &s.service.desc;
    assert_int_equal(r.status, 200);
    assert_int_equal(d->sequence.n_prompt, 2);
    assert_int_equal(s.service.prompt[0], 1);
    assert_int_equal(s.service.prompt[1], 261);
    assert_true(d->sequence.sampling.temperature == 0.5F && d->sequence.sampling.top_p == 0.25F &&
                d->sequence.sampling.min_p == 0.125F);
    assert_true(d->sequence.sampling.repeat_penalty == 1.5F && d->sequence.sampling.repeat_last_n == 8 &&
                d->sequence.sampling.top_k == 7);
    assert_true(d->sequence.sampling.seed == 99 && d->sequence.max_tokens == 4 && d->n_choices == 2 &&
                d->sequence.priority == 5);
    assert_true(d->ignore_end && d->n_logprobs == 2 && d->prompt_logprobs && d->n_stops == 2);
    assert_string_equal(s.service.stops[0], "x");
    assert_string_equal(s.service.stops[1], "yz");
    api_result_deinit(&r);

    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    const mr_sampling_params usual = mr_sampling_params_default();
    assert_true(d->sequence.sampling.temperature == usual.temperature && d->sequence.sampling.top_k == usual.top_k);
    assert_true(d->sequence.max_tokens == -1 && d->n_choices == 1 && d->n_logprobs == -1 && d->n_stops == 0 &&
                !d->sequence.grammar);
    assert_int_equal(s.service.prompt[0], 1); /* <s> */
    uint64_t seed = d->sequence.sampling.seed;
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_true(d->sequence.sampling.seed != seed);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_samplers_arrive(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(
        &s, API_COMPLETIONS,
        "{\"prompt\": \"ab\", \"typical_p\": 0.5, \"top_n_sigma\": 1.5, \"xtc_probability\": 0.25, \"xtc_threshold\": "
        "0.125, "
        "\"presence_penalty\": -0.5, \"frequency_penalty\": 0.75, \"dry_multiplier\": 0.5, \"dry_base\": 1.25, "
        "\"dry_allowed_length\": 3, \"dry_penalty_last_n\": 9, \"dry_sequence_breakers\": [\"🦙\", \"ba\"], "
        "\"mirostat\": 2, \"mirostat_tau\": 4, \"mirostat_eta\": 0.25, "
        "\"logit_bias\": [[5, -1.5], [\"a\", false], [5, 2]]}");
    const mr_sampling_params *p = &s.service.desc.sequence.sampling;
    assert_int_equal(r.status, 200);
    assert_true(p->typical_p == 0.5F && p->top_n_sigma == 1.5F && p->xtc_probability == 0.25F);
    assert_true(p->xtc_threshold == 0.125F && p->presence_penalty == -0.5F && p->frequency_penalty == 0.75F);
    assert_true(p->dry_multiplier == 0.5F && p->dry_base == 1.25F && p->dry_allowed_length == 3 && p->dry_last_n == 9);
    assert_true(p->mirostat == 2 && p->mirostat_tau == 4 && p->mirostat_eta == 0.25F);
    assert_int_equal(p->n_dry_breakers, 3); /* "ba" is a part of "abab", too */
    assert_int_equal(s.service.breakers[0], SPM_LLAMA);
    assert_int_equal(s.service.breakers[1], SPM_ABAB);
    assert_int_equal(s.service.breakers[2], SPM_UNUSED);
    assert_int_equal(p->n_biases, 2);
    assert_true(s.service.bias_ids[0] == 5 && s.service.biases[0] == 2);
    assert_true(s.service.bias_ids[1] == SPM_A && s.service.biases[1] == -(float)INFINITY);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\", \"logit_bias\": {\"7\": 100}, \"top_n_sigma\": -1}");
    assert_true(p->n_biases == 1 && s.service.bias_ids[0] == 7 && s.service.biases[0] == 100);
    assert_true(p->n_dry_breakers == 0 && p->top_n_sigma == 0);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* Of the prompt the last ids reach the service, and the bos. */
static void check_truncated(api_scene *s, mr_api_endpoint endpoint, const char *body, int32_t n, int32_t last) {
    api_result r = api_scene_ask(s, endpoint, body);
    if (r.status != 200)
        fail_msg("%s: %s", body, r.bytes.data);
    assert_int_equal(s->service.desc.sequence.n_prompt, n);
    if (n > 1)
        assert_int_equal(s->service.prompt[0], 1);
    if (n <= FAKE_MAX_TOKENS) /* the fake service keeps no more tokens */
        assert_int_equal(s->service.prompt[n - 1], last);
    api_result_deinit(&r);
}

static void test_truncated_prompts(void **state) {
    (void)state;
    api_scene s;
    mr_text_buf body = {0};
    api_scene_open(&s, "ab");
    check_truncated(&s, API_COMPLETIONS, "{\"prompt\": [1, 5, 6, 7, 8], \"truncate_prompt_tokens\": 3}", 3, 8);
    assert_int_equal(s.service.prompt[1], 7);
    check_truncated(&s, API_COMPLETIONS, "{\"prompt\": [1, 5, 6, 7, 8], \"truncate_prompt_tokens\": 5}", 5, 8);
    check_truncated(&s, API_COMPLETIONS, "{\"prompt\": [1, 5, 6, 7, 8], \"truncate_prompt_tokens\": 1}", 1, 8);
    for (int i = 0; i < API_CONTEXT; i++)
        assert_true(mr_text_buf_append(&body, i ? ",5" : "{\"prompt\": [1", i ? 2 : 13));
    static const char rest[] = ",9,9], \"max_tokens\": 10, \"truncate_prompt_tokens\": -1}";
    assert_true(mr_text_buf_append(&body, rest, sizeof rest));
    check_truncated(&s, API_COMPLETIONS, body.data, API_CONTEXT - 10, 9);
    mr_text_buf_deinit(&body);
    check_truncated(&s, API_EMBEDDINGS, "{\"input\": [1, 5, 6, 7], \"truncate_prompt_tokens\": 2}", 2, 7);
    api_result r =
        api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"abababba\", \"echo\": true, \"truncate_prompt_tokens\": 2}");
    assert_null(strstr(api_text_at(r.json, "choices.0.text"), "abababba"));
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_restrictions_arrive(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    const mr_generate_desc *d = &s.service.desc;
    api_result r =
        api_scene_ask(&s, API_CHAT_COMPLETIONS,
                      CHAT("\"stop_token_ids\": [7, 9], \"min_tokens\": 3, \"bad_words\": [\" a\"], "
                           "\"guided_choice\": [\"a\\\"\", \"b\"], \"samplers\": [\"top_k\", \"temperature\"]"));
    assert_int_equal(r.status, 200);
    assert_true(d->n_stop_ids == 2 && s.service.stop_ids[1] == 9 && d->sequence.sampling.min_tokens == 3);
    assert_int_equal(d->sequence.sampling.n_late_ids, 4); /* </s>, <|im_end|> and the stop ids */
    assert_true(s.service.late_ids[0] == 2 && s.service.late_ids[2] == 7 && s.service.late_ids[3] == 9);
    assert_true(d->sequence.sampling.n_bad_words > 3 && s.service.bad_words[0] == 1 && s.service.bad_words[1] == SPM_A);
    expect_says(s.service.grammar, "root ::= \"a\\\"\" | \"b\"");
    assert_true(d->sequence.sampling.top_k == 40 && d->sequence.sampling.top_p == 1 && d->sequence.sampling.min_p == 0);
    assert_true(d->sequence.sampling.temperature == mr_sampling_params_default().temperature);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_COMPLETIONS, COMPLETION("\"stop_token_ids\": [7], \"samplers\": []"));
    assert_true(d->n_stop_ids == 1 && d->sequence.sampling.n_late_ids == 0 && d->sequence.sampling.temperature == 1);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static const char *prompt_of(api_scene *s, const char *fields, api_result *r) {
    char body[512];
    snprintf(
        body, sizeof body,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"U\"}, {\"role\": \"assistant\", \"content\": \"A\"}]%s}",
        fields);
    *r = api_scene_ask(s, API_APPLY_TEMPLATE, body);
    return api_text_at(r->json, "prompt");
}

static void test_final_messages(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"", "u:U;a:A"},
        {", \"continue_final_message\": true", "u:U;a:A"},
        {", \"continue_final_message\": true, \"add_generation_prompt\": false", "u:U;a:A"},
        {", \"continue_final_message\": false", "u:U;a:A;a:"},
        {", \"add_generation_prompt\": false", "u:U;a:A;"},
    };
    api_scene s;
    api_scene_open_with(&s, "ab",
                        "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
                        "{% if add_generation_prompt %}a:{% endif %}");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        api_result r;
        assert_string_equal(prompt_of(&s, cases[i][0], &r), cases[i][1]);
        api_result_deinit(&r);
    }
    api_scene_close(&s);
}

/* A text of n times part between two others. Free with mr_text_buf_deinit. */
static mr_text_buf repeated(const char *before, const char *part, size_t n, const char *after) {
    mr_text_buf b = {0};
    assert_true(mr_text_buf_append(&b, before, strlen(before)));
    for (size_t i = 0; i < n; i++)
        assert_true(mr_text_buf_append(&b, part, strlen(part)));
    assert_true(mr_text_buf_append(&b, after, strlen(after)));
    return b;
}

static void test_hostile_bodies(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    const struct {
        const char *before, *part;
        size_t n;
        const char *after;
        int status;
    } bodies[] = {
        {"{\"prompt\": \"ab\", \"stop\": [\"x\"", ", \"stop\"", 100000, "]}", 400},
        {"{\"prompt\": \"ab\", \"x\": ", "[", 100000, "", 400},
        {"{\"prompt\": \"ab\", \"x\": ", "{\"a\":", 62, "1}}", 400},
        {"{\"prompt\": [1", ",1", 1 << 20, "]}", 413},
        {"{\"prompt\": [1", ",1", 100000, "]}", 400},
        {"{\"prompt\": \"", "x", 10 << 20, "\"}", 400},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"", "x", 10 << 20, "\"}]}", 400},
        {"{\"prompt\": \"ab\", \"stop\": \"", "x", 100000, "\"}", 400},
        {"{\"prompt\": [\"a\"", ",\"a\"", 5000, "]}", 400},
        {"{\"prompt\": \"ab\", \"logit_bias\": [[5, 1]", ",[5, 1]", 5000, "]}", 400},
        {"{\"messages\": [{\"role\": \"user\"}], \"tools\": [{}", ",{}", 200, "]}", 400},
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        mr_text_buf b = repeated(bodies[i].before, bodies[i].part, bodies[i].n, bodies[i].after);
        mr_api_endpoint endpoint = strstr(bodies[i].before, "messages") ? API_CHAT_COMPLETIONS : API_COMPLETIONS;
        api_result r = api_scene_ask_bytes(&s, endpoint, (mr_str){b.data, b.len});
        if (r.status != bodies[i].status)
            fail_msg("%s...: status %d, %.200s", bodies[i].before, r.status, r.bytes.data);
        api_result_deinit(&r);
        mr_text_buf_deinit(&b);
    }
    assert_int_equal(s.service.n_submitted, 0);
    api_scene_close(&s);
}

/* Each allocation fails once. The result is an error or the answer, and nothing leaks (a sanitizer detects a leak). */
static void test_no_memory(void **state) {
    (void)state;
    static const struct {
        mr_api_endpoint endpoint;
        const char *body;
    } calls[] = {
        {API_COMPLETIONS, "{\"prompt\": [\"ab\", \"b\"], \"n\": 2, \"logprobs\": 2, \"echo\": true, \"stop\": \"x\", "
                          "\"logit_bias\": {\"5\": 1}, \"grammar\": \"root ::= \\\"a\\\"\"}"},
        {API_CHAT_COMPLETIONS, CHAT(TOOL ", \"tool_choice\": \"required\", \"stream\": true, \"logprobs\": true")},
        {API_COMPLETIONS, COMPLETION("\"stop_token_ids\": [5], \"min_tokens\": 2, \"bad_words\": [\"a\"], "
                                     "\"structured_outputs\": {\"choice\": [\"a\", \"b\"]}")},
        {API_CHAT_COMPLETIONS, CHAT("\"guided_regex\": \"a+\", \"documents\": [{}]")},
        {API_EMBEDDINGS, "{\"input\": [\"ab\", \"b\"], \"encoding_format\": \"base64\"}"},
        {API_TOKENIZE, "{\"content\": \"ab\", \"with_pieces\": true}"},
        {API_APPLY_TEMPLATE, "{" USER "}"},
        {API_RERANK, "{\"query\": \"ab\", \"documents\": [\"ab\", \"b\"], \"return_documents\": true}"},
    };
    api_scene s;
    api_scene_open(&s, "ab");
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        bool failed = true;
        for (int64_t at = 0; failed && at < 5000; at++) {
            mr_text_buf out = {0};
            mr_mem_fail_at(at);
            mr_api_call *call = mr_api_call_begin(s.a, calls[i].endpoint, mr_str_from(calls[i].body), NULL, NULL);
            while (call && mr_api_call_next(call, &out) == API_MORE)
                ;
            failed = !call || mr_api_call_broken(call) || mr_api_call_status(call) != 200 ||
                     (mr_api_call_streams(call) && strstr(out.data, "error"));
            mr_api_call_end(call);
            mr_mem_fail_at(-1);
            mr_text_buf_deinit(&out);
        }
        assert_false(failed);
    }
    api_scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_bodies),        cmocka_unit_test(test_good_bodies),
        cmocka_unit_test(test_fields_arrive),     cmocka_unit_test(test_samplers_arrive),
        cmocka_unit_test(test_truncated_prompts), cmocka_unit_test(test_restrictions_arrive),
        cmocka_unit_test(test_final_messages),    cmocka_unit_test(test_hostile_bodies),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
