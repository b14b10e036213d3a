/* Answers of the API: complete answers and streams with one and several choices, log-probabilities, tool calls and
 * errors. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/test.h"
#include "tests/unit/coordinator/serving/test_api_support.h"

#define USER "\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}]"
#define TOOL                                                                                                           \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]"

/* The objects of a stream, which ends with [DONE]. */
static json_t *events_of(const mr_text_buf *bytes) {
    json_t *events = json_array();
    const char *at = bytes->data;
    for (;;) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_memory_equal(at, "data: ", 6);
        if (strncmp(at + 6, "[DONE]", 6) == 0) {
            assert_true(end + 2 == bytes->data + bytes->len);
            return events;
        }
        json_t *event = json_loadb(at + 6, (size_t)(end - at - 6), 0, NULL);
        assert_non_null(event);
        json_array_append_new(events, event);
        at = end + 2;
    }
}

/* The texts at path of all events for a choice, in one. Free with mr_text_buf_deinit. */
static mr_text_buf gather(const json_t *events, int index, const char *path) {
    mr_text_buf all = {0};
    assert_true(mr_text_buf_append(&all, "", 0));
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *choice = api_value_at(json_array_get(events, i), "choices.0");
        const char *text = json_string_value(api_value_at(choice, path));
        if (text && json_integer_value(json_object_get(choice, "index")) == index)
            assert_true(mr_text_buf_append(&all, text, strlen(text)));
    }
    return all;
}

static void expect_gathered(const json_t *events, int index, const char *path, const char *want) {
    mr_text_buf text = gather(events, index, path);
    assert_string_equal(text.data, want);
    mr_text_buf_deinit(&text);
}

static json_int_t int_at(const json_t *root, const char *path) {
    const json_t *value = api_value_at(root, path);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void test_completion(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, " ab 🦙");
    api_result r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_string_equal(api_text_at(r.json, "object"), "text_completion");
    assert_string_equal(api_text_at(r.json, "model"), "small");
    assert_string_equal(api_text_at(r.json, "system_fingerprint"), "mr-test");
    assert_memory_equal(api_text_at(r.json, "id"), "cmpl-", 5);
    assert_string_equal(api_text_at(r.json, "choices.0.text"), " ab 🦙");
    assert_string_equal(api_text_at(r.json, "choices.0.finish_reason"), "stop");
    assert_true(json_is_null(api_value_at(r.json, "choices.0.logprobs")));
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 2);
    assert_int_equal(int_at(r.json, "usage.completion_tokens"), s.service.n_ids);
    assert_int_equal(int_at(r.json, "usage.total_tokens"), 2 + s.service.n_ids);
    assert_int_equal(int_at(r.json, "usage.prompt_tokens_details.cached_tokens"), 1);
    assert_true(json_number_value(api_value_at(r.json, "timings.prompt_ms")) == 2.0);
    assert_true(json_number_value(api_value_at(r.json, "timings.predicted_ms")) == 5.0);
    assert_int_equal(r.stats.generated_tokens, s.service.n_ids);
    api_result_deinit(&r);
    s.service.finish = MR_FINISH_LENGTH;
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_string_equal(api_text_at(r.json, "choices.0.finish_reason"), "length");
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_completion_streams(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, " ab 🦙");
    api_result r = api_scene_ask(&s, API_COMPLETIONS,
                                 "{\"prompt\": [\"ab\", \"b\"], \"n\": 2, \"stream\": true, "
                                 "\"stream_options\": {\"include_usage\": true}}");
    assert_true(r.streams && r.status == 200);
    json_t *events = events_of(&r.bytes);
    expect_gathered(events, 0, "text", " ab 🦙");
    expect_gathered(events, 1, "text", " ab 🦙🦙");
    expect_gathered(events, 2, "text", " ab 🦙");
    expect_gathered(events, 3, "text", " ab 🦙🦙");
    expect_gathered(events, 3, "finish_reason", "stop");
    size_t n = json_array_size(events);
    const json_t *last = json_array_get(events, n - 1);
    assert_int_equal(json_array_size(json_object_get(last, "choices")), 0);
    assert_int_equal(int_at(last, "usage.prompt_tokens"), 5);
    assert_int_equal(int_at(last, "usage.completion_tokens"), 4 * s.service.n_ids + 2);
    assert_true(json_is_null(json_object_get(json_array_get(events, 0), "usage")));
    assert_non_null(json_object_get(json_array_get(events, n - 2), "timings"));
    json_decref(events);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* With continuous_usage_stats every chunk has the tokens so far; with include_usage a chunk for it alone comes last. */
static void test_usage_in_chunks(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, " ab 🦙");
    for (int i = 0; i < 4; i++) {
        bool is_chat = i % 2, alone = i > 1;
        char body[256];
        snprintf(body, sizeof body, "{%s, \"stream\": true, \"stream_options\": {\"continuous_usage_stats\": true%s}}",
                 is_chat ? USER : "\"prompt\": \"ab\"", alone ? "" : ", \"include_usage\": true");
        api_result r = api_scene_ask(&s, is_chat ? API_CHAT_COMPLETIONS : API_COMPLETIONS, body);
        json_t *events = events_of(&r.bytes);
        json_int_t n = 0;
        for (size_t k = 0; k < json_array_size(events); k++) {
            const json_t *usage = json_object_get(json_array_get(events, k), "usage");
            assert_true(int_at(usage, "completion_tokens") >= n);
            n = int_at(usage, "completion_tokens");
            assert_int_equal(int_at(usage, "total_tokens"), int_at(usage, "prompt_tokens") + n);
            assert_int_equal(n, k + !is_chat < (size_t)s.service.n_ids ? k + !is_chat : (size_t)s.service.n_ids);
        }
        const json_t *last = json_array_get(events, json_array_size(events) - 1);
        assert_int_equal(json_array_size(json_object_get(last, "choices")), alone);
        json_decref(events);
        api_result_deinit(&r);
    }
    api_scene_close(&s);
}

/* Offsets are characters; what is a part of a character is written by its byte. */
static void test_completion_logprobs(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "🦙aöb");
    api_result r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"öa\", \"logprobs\": 2, \"echo\": true}");
    assert_string_equal(api_text_at(r.json, "choices.0.text"), "öa🦙aöb");
    const json_t *l = api_value_at(r.json, "choices.0.logprobs");
    /* The tokens are: <s>, the space of SentencePiece, two byte tokens, a; then llama, a, two byte tokens, b. */
    static const char *const tokens[] = {"<s>",  " ", "bytes:\\xc3", "bytes:\\xb6", "a",
                                         "🦙", "a", "bytes:\\xc3", "bytes:\\xb6", "b"};
    static const int offsets[] = {0, 0, 0, 0, 1, 2, 3, 4, 4, 5};
    assert_int_equal(json_array_size(json_object_get(l, "tokens")), 10);
    for (size_t i = 0; i < 10; i++) {
        assert_string_equal(json_string_value(json_array_get(json_object_get(l, "tokens"), i)), tokens[i]);
        assert_int_equal(json_integer_value(json_array_get(json_object_get(l, "text_offset"), i)), offsets[i]);
    }
    assert_true(json_is_null(api_value_at(l, "token_logprobs.0")) && json_is_null(api_value_at(l, "top_logprobs.0")));
    assert_true(json_real_value(api_value_at(l, "token_logprobs.1")) == -0.25);
    assert_true(json_real_value(api_value_at(l, "top_logprobs.5.🦙")) == -0.5);
    assert_int_equal(json_object_size(api_value_at(l, "top_logprobs.5")), 2);
    api_result_deinit(&r);

    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"öa\", \"logprobs\": 0, \"echo\": true, \"stream\": true}");
    json_t *events = events_of(&r.bytes);
    expect_gathered(events, 0, "text", "öa🦙aöb");
    json_decref(events);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_chat(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab ab");
    api_result r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", \"logprobs\": true, \"top_logprobs\": 2}");
    assert_string_equal(api_text_at(r.json, "object"), "chat.completion");
    assert_string_equal(api_text_at(r.json, "choices.0.message.role"), "assistant");
    assert_string_equal(api_text_at(r.json, "choices.0.message.content"), "ab ab");
    assert_string_equal(api_text_at(r.json, "choices.0.finish_reason"), "stop");
    assert_null(api_value_at(r.json, "choices.0.message.tool_calls"));
    const json_t *first = api_value_at(r.json, "choices.0.logprobs.content.0");
    assert_string_equal(api_text_at(first, "token"), "ab");
    assert_int_equal(int_at(first, "bytes.0"), 'a');
    assert_true(json_real_value(json_object_get(first, "logprob")) == -0.5);
    assert_true(json_real_value(api_value_at(first, "top_logprobs.1.logprob")) == -9999.0); /* JSON has no -inf */
    api_result_deinit(&r);

    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", \"stream\": true, \"n\": 2}");
    json_t *events = events_of(&r.bytes);
    assert_string_equal(api_text_at(json_array_get(events, 0), "object"), "chat.completion.chunk");
    assert_string_equal(api_text_at(json_array_get(events, 0), "choices.0.delta.role"), "assistant");
    expect_gathered(events, 0, "delta.role", "assistant");
    expect_gathered(events, 0, "delta.content", "ab ab");
    expect_gathered(events, 0, "finish_reason", "stop");
    expect_gathered(events, 1, "delta.role", "assistant");
    expect_gathered(events, 1, "delta.content", "ab ab ab");
    json_decref(events);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_tools(void **state) {
    (void)state;
    static const char answer[] =
        "<think>a b</think>ba<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}</tool_call>";
    api_scene s;
    api_scene_open(&s, answer);
    api_result r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", " TOOL "}");
    const json_t *m = api_value_at(r.json, "choices.0.message");
    assert_string_equal(api_text_at(m, "reasoning_content"), "a b");
    assert_string_equal(api_text_at(m, "content"), "ba");
    assert_string_equal(api_text_at(m, "tool_calls.0.type"), "function");
    assert_string_equal(api_text_at(m, "tool_calls.0.function.name"), "f");
    assert_string_equal(api_text_at(m, "tool_calls.0.function.arguments"), "{\"x\": [1, 2]}");
    assert_true(strlen(api_text_at(m, "tool_calls.0.id")) > 0);
    assert_string_equal(api_text_at(r.json, "choices.0.finish_reason"), "tool_calls");
    api_result_deinit(&r);

    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", " TOOL ", \"stream\": true}");
    json_t *events = events_of(&r.bytes);
    expect_gathered(events, 0, "delta.reasoning_content", "a b");
    expect_gathered(events, 0, "delta.content", "ba");
    expect_gathered(events, 0, "delta.tool_calls.0.function.name", "f");
    expect_gathered(events, 0, "delta.tool_calls.0.function.arguments", "{\"x\": [1, 2]}");
    expect_gathered(events, 0, "finish_reason", "tool_calls");
    json_decref(events);
    api_result_deinit(&r);

    api_scene_say(&s, "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"
                      "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 2}}</tool_call>");
    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", " TOOL "}");
    assert_string_equal(api_text_at(r.json, "choices.0.message.tool_calls.1.function.arguments"), "{\"x\": 2}");
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", " TOOL ", \"parallel_tool_calls\": false}");
    assert_int_equal(json_array_size(api_value_at(r.json, "choices.0.message.tool_calls")), 1);
    assert_string_equal(api_text_at(r.json, "choices.0.message.tool_calls.0.function.arguments"), "{\"x\": 1}");
    api_result_deinit(&r);

    /* Without tools and with reasoning_format none, the whole answer is content. */
    api_scene_say(&s, answer);
    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", \"reasoning_format\": \"none\"}");
    assert_string_equal(api_text_at(r.json, "choices.0.message.content"), answer);
    assert_string_equal(api_text_at(r.json, "choices.0.finish_reason"), "stop");
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", \"response_format\": {\"type\": \"json_object\"}}");
    assert_string_equal(api_text_at(r.json, "choices.0.message.content"), answer);
    assert_true(s.service.desc.sequence.grammar && s.service.desc.sequence.grammar_bytes > 0);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_errors(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    s.service.submit_status = MR_E_BUSY;
    api_result r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", \"stream\": true}");
    assert_true(r.status == 429 && !r.streams && r.retry_after_s > 0);
    assert_string_equal(api_text_at(r.json, "error.type"), "rate_limit_error");
    assert_string_equal(api_text_at(r.json, "error.message"), "refused by the test");
    api_result_deinit(&r);
    /* The queue has room for one request: the requests are submitted one after another. */
    s.service.n_submit_ok = s.service.n_submitted + 1;
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": [\"ab\", \"b\", \"a\"]}");
    assert_int_equal(r.status, 200);
    assert_string_equal(api_text_at(r.json, "choices.2.finish_reason"), "stop");
    assert_false(r.stats.failed);
    api_result_deinit(&r);
    s.service.n_submit_ok = 0;
    s.service.submit_status = MR_E_UNAVAILABLE;
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_int_equal(r.status, 503);
    assert_null(api_value_at(r.json, "error.n_ctx"));
    api_result_deinit(&r);
    s.service.submit_status = MR_E_TOO_LONG; /* a plan whose KV cache has no room for the prompt */
    s.service.max_ids = 2;
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": \"ab\"}");
    assert_int_equal(r.status, 400);
    expect_says(api_text_at(r.json, "error.message"),
                "This model's maximum context length is 2 tokens, and the prompt has 2 "
                "and needs room for one more");
    assert_int_equal(int_at(r.json, "error.n_prompt_tokens"), 2);
    assert_int_equal(int_at(r.json, "error.n_ctx"), 2);
    assert_string_equal(api_text_at(r.json, "error.code"), "context_length_exceeded");
    assert_string_equal(r.stats.code, "context_length_exceeded");
    api_result_deinit(&r);

    /* An error in the middle of an answer. */
    s.service.submit_status = MR_OK;
    s.service.finish = MR_FINISH_ERROR;
    s.service.error = MR_E_NUMERICS;
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": [\"ab\", \"b\"]}");
    assert_int_equal(r.status, 500);
    assert_string_equal(api_text_at(r.json, "error.message"), "broken by the test");
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_COMPLETIONS, "{\"prompt\": [\"ab\", \"b\"], \"stream\": true}");
    json_t *events = events_of(&r.bytes);
    assert_int_equal(r.status, 200);
    assert_true(r.stats.failed);
    expect_gathered(events, 0, "text", "ab");
    assert_string_equal(api_text_at(json_array_get(events, json_array_size(events) - 1), "error.type"), "server_error");
    json_decref(events);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* More prompts than the service takes at a time wait for each other. */
static void test_many_prompts(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    s.service.max_open = 3;
    char body[2048] = "{\"prompt\": [\"ab\"";
    for (int i = 1; i < 200; i++)
        strcat(body, ", \"b\"");
    strcat(body, "]}");
    api_result r = api_scene_ask(&s, API_COMPLETIONS, body);
    assert_int_equal(r.status, 200);
    assert_int_equal(json_array_size(json_object_get(r.json, "choices")), 200);
    assert_string_equal(api_text_at(r.json, "choices.199.text"), "ab");
    assert_int_equal(s.service.n_submitted, 200);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* Nothing is said until it is there, and a call may end at any point. */
static void test_waits(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "abb");
    for (int n_takes = 0; n_takes < 4; n_takes++) {
        mr_text_buf out = {0};
        s.service.n_takes = 0;
        mr_api_call *call =
            mr_api_call_begin(s.a, API_COMPLETIONS, mr_str_from("{\"prompt\": \"ab\", \"stream\": true}"), NULL, NULL);
        assert_int_equal(mr_api_call_next(call, &out), API_WAIT);
        assert_int_equal(s.service.n_open, 1);
        for (int i = 0; i < n_takes; i++) {
            s.service.n_takes = 1;
            assert_int_equal(mr_api_call_next(call, &out), API_MORE);
        }
        assert_int_equal(mr_api_call_next(call, &out), n_takes == 3 ? API_END : API_WAIT);
        mr_api_call_end(call);
        assert_int_equal(s.service.n_open, 0);
        mr_text_buf_deinit(&out);
    }
    s.service.n_takes = -1;
    api_scene_close(&s);
}

static void test_embeddings(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(&s, API_EMBEDDINGS, "{\"input\": [[1], [7]]}");
    assert_string_equal(api_text_at(r.json, "object"), "list");
    assert_string_equal(api_text_at(r.json, "data.1.object"), "embedding");
    assert_int_equal(int_at(r.json, "data.1.index"), 1);
    assert_true(json_real_value(api_value_at(r.json, "data.1.embedding.4")) == 7.5);
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 2);
    assert_int_equal(s.service.desc.pooling, MR_POOLING_MEAN);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_EMBEDDINGS, "{\"input\": [7], \"encoding_format\": \"base64\", \"pooling\": \"cls\"}");
    /* The values 7, 7.125, 7.25, 7.375 and 7.5 as float32, little-endian, in base64. */
    assert_string_equal(api_text_at(r.json, "data.0.embedding"), "AADgQAAA5EAAAOhAAADsQAAA8EA=");
    assert_int_equal(s.service.desc.pooling, MR_POOLING_CLS);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_short_embeddings(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(&s, API_EMBEDDINGS, "{\"input\": [7], \"dimensions\": 3}");
    assert_int_equal(s.service.desc.n_embedding, 3);
    assert_int_equal(json_array_size(api_value_at(r.json, "data.0.embedding")), 3);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* Rank i of the results has this document, whose prompt begins with this id. */
static void expect_rank(const api_result *r, int i, int index, int32_t first_id) {
    char path[64];
    snprintf(path, sizeof path, "results.%d.index", i);
    assert_int_equal(int_at(r->json, path), index);
    snprintf(path, sizeof path, "results.%d.relevance_score", i);
    double want = 1 / (1 + exp(-(double)first_id / API_RANK_SCALE));
    if (fabs(json_real_value(api_value_at(r->json, path)) - want) > 1e-9)
        fail_msg("%s: %s, not %.9f", path, r->bytes.data, want);
}

static void test_rerank(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(
        &s, API_RERANK,
        "{\"query\": \"b\", \"documents\": [\"b\", \"<|im_end|>\", {\"text\": \"a\", \"id\": 1}, \"<|im_start|>\"]}");
    assert_int_equal(r.status, 200);
    assert_int_equal(json_array_size(api_value_at(r.json, "results")), 4);
    expect_rank(&r, 0, 1, SPM_IM_END);
    expect_rank(&r, 1, 3, SPM_IM_START);
    expect_rank(&r, 2, 2, SPM_SPACE_AB); /* "ab" of document and query */
    expect_rank(&r, 3, 0, SPM_SPACE);
    assert_null(api_value_at(r.json, "results.0.document"));
    assert_int_equal(int_at(r.json, "usage.prompt_tokens"), 10);
    assert_int_equal(int_at(r.json, "usage.total_tokens"), 10);
    assert_string_equal(api_text_at(r.json, "model"), "small");
    assert_int_equal(s.service.desc.pooling, MR_POOLING_RANK);
    assert_int_equal(s.service.desc.n_embedding, 0);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_RERANK,
                      "{\"query\": \"\", \"documents\": [\"b\", {\"text\": \"ab\"}, \"b\"], \"top_n\": 2, "
                      "\"return_documents\": true}");
    assert_int_equal(json_array_size(api_value_at(r.json, "results")), 2);
    expect_rank(&r, 0, 1, SPM_SPACE_AB);
    expect_rank(&r, 1, 0, SPM_SPACE); /* of two equal scores the first */
    assert_string_equal(api_text_at(r.json, "results.0.document.text"), "ab");
    assert_string_equal(api_text_at(r.json, "results.1.document.text"), "b");
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* A model without a rank head, and an error of the service. */
static void test_no_rerank(void **state) {
    (void)state;
    static const char body[] = "{\"query\": \"b\", \"documents\": [\"b\"]}";
    api_scene s;
    api_scene_open(&s, "ab");
    s.service.submit_status = MR_E_UNAVAILABLE;
    api_result r = api_scene_ask(&s, API_RERANK, body);
    assert_int_equal(r.status, 503);
    api_result_deinit(&r);
    s.service.submit_status = MR_OK;
    mr_reranker_destroy(s.reranker);
    s.reranker = NULL;
    mr_api_destroy(s.a);
    api_scene_make_api(&s);
    r = api_scene_ask(&s, API_RERANK, body);
    assert_int_equal(r.status, 400);
    expect_says(api_text_at(r.json, "error.message"), "no reranker");
    assert_int_equal(s.service.n_submitted, 0);
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_texts(void **state) {
    (void)state;
    api_scene s;
    api_scene_open(&s, "ab");
    api_result r = api_scene_ask(&s, API_TOKENIZE, "{\"content\": \"ab\", \"add_special\": true}");
    assert_int_equal(int_at(r.json, "tokens.0"), 1);
    assert_int_equal(int_at(r.json, "tokens.1"), SPM_SPACE_AB);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_TOKENIZE, "{\"content\": \"ö\", \"with_pieces\": true}");
    assert_int_equal(int_at(r.json, "tokens.1.piece.0"), 0xC3);
    assert_int_equal(int_at(r.json, "tokens.1.id"), SPM_BYTE_0 + 0xC3);
    assert_string_equal(api_text_at(r.json, "tokens.0.piece"), " ");
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_TOKENIZE, "{\"content\": \"<s>\", \"parse_special\": false}");
    assert_true(json_array_size(json_object_get(r.json, "tokens")) > 1);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_DETOKENIZE, "{\"tokens\": [264, 261]}");
    assert_true(strlen(api_text_at(r.json, "content")) > 0);
    api_result_deinit(&r);
    r = api_scene_ask(&s, API_APPLY_TEMPLATE, "{" USER "}");
    expect_says(api_text_at(r.json, "prompt"), "ab");
    char *whole = strdup(api_text_at(r.json, "prompt"));
    api_result_deinit(&r);
    /* A message of the assistant at the end is continued. */
    r = api_scene_ask(&s, API_APPLY_TEMPLATE,
                      "{\"messages\": [{\"role\": \"user\", \"content\": \"ab\"}, "
                      "{\"role\": \"assistant\", \"content\": \"ba\"}]}");
    assert_memory_equal(api_text_at(r.json, "prompt"), whole, strlen(whole));
    assert_string_equal(api_text_at(r.json, "prompt") + strlen(whole), "ba");
    free(whole);
    api_result_deinit(&r);
    api_scene_close(&s);
}

/* A template that wants a description of each tool gets one. */
static void test_bare_tools(void **state) {
    (void)state;
    api_scene s;
    api_scene_open_with(&s, "ab",
                        "{{ messages[0].content }}:{% for t in tools %}{{ t.function.name + t.function.description }}"
                        "{{ t.function.parameters.type }}{% endfor %}");
    api_result r = api_scene_ask(&s, API_APPLY_TEMPLATE,
                                 "{" USER ", \"tools\": [{\"type\": \"function\", "
                                 "\"function\": {\"name\": \"f\"}}]}");
    assert_int_equal(r.status, 200);
    expect_says(api_text_at(r.json, "prompt"), "ab:fobject");
    api_result_deinit(&r);
    api_scene_close(&s);
    api_scene_open_with(&s, "ab",
                        "{% for m in messages %}{% if m.content == 'ab' %}{{ raise_exception('no ab') }}"
                        "{% endif %}{{ m.content }}{% endfor %}");
    r = api_scene_ask(&s, API_CHAT_COMPLETIONS, "{" USER ", " TOOL "}");
    assert_int_equal(r.status, 400);
    assert_string_equal(api_text_at(r.json, "error.param"), "messages");
    expect_says(api_text_at(r.json, "error.message"), "no ab");
    api_result_deinit(&r);
    api_scene_close(&s);
}

static void test_paths(void **state) {
    (void)state;
    mr_api_endpoint e = API_TOKENIZE;
    assert_true(mr_api_endpoint_of(mr_str_from("/v1/chat/completions"), &e) && e == API_CHAT_COMPLETIONS);
    assert_true(mr_api_endpoint_of(mr_str_from("/completions"), &e) && e == API_COMPLETIONS);
    assert_true(mr_api_endpoint_of(mr_str_from("/apply-template"), &e) && e == API_APPLY_TEMPLATE);
    assert_true(mr_api_endpoint_of(mr_str_from("/v1/rerank"), &e) && e == API_RERANK);
    assert_true(mr_api_endpoint_of(mr_str_from("/reranking"), &e) && e == API_RERANK);
    assert_false(mr_api_endpoint_of(mr_str_from("/v1"), &e) || mr_api_endpoint_of(mr_str_from("/v1/models"), &e));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_completion_streams),
        cmocka_unit_test(test_usage_in_chunks),
        cmocka_unit_test(test_completion_logprobs),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_many_prompts),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_embeddings),
        cmocka_unit_test(test_short_embeddings),
        cmocka_unit_test(test_rerank),
        cmocka_unit_test(test_no_rerank),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_bare_tools),
        cmocka_unit_test(test_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
