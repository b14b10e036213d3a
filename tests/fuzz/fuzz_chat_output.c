/* tests/fuzz/fuzz_chat_output.c - fuzzes answers of models in every form of tool calls. The sum of the deltas must not
 * depend on the sizes of the pieces. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_output.h"
#include "tests/fuzz/fuzz.h"

/* Words by which a template is recognised as one of the forms. */
static const char *const SOURCES[] = {
    "<tool_call> json object",
    "<|channel|>analysis<|message|> <|end|>",
    "{\"name\": function name, \"parameters\"",
    "<tool_call> <function=",
    "<tool_call> <arg_key>",
    "<seed:tool_call> <seed:think> </seed:think>",
    "[TOOL_CALLS] [THINK] [/THINK]",
    "[TOOL_CALLS] [ARGS] [CALL_ID]",
    "<|START_ACTION|> <|START_THINKING|> <|END_THINKING|>",
    "<｜tool▁call▁begin｜> ```json",
    "<｜tool▁call▁begin｜>",
    "｜DSML｜ tool_calls>",
    "<|tool_call_begin|>",
    "<|tool_call:begin|> <|think|> <|end|>",
    ">>>all",
    "<function= <|start_header_id|>",
    "<|tool_call|>",
    "<tool_calls>",
    "<|open|> <|sep|> <|close|>",
    "]<]minimax[>[ <invoke name= <mm:think> </mm:think>",
    "｜DSML｜  calls>  invoke name=",
    "<|tool_call>call: <|channel>thought <channel|>",
    "List of tools: <|im_start|>",
    "<|tools_prefix|> <|inner_prefix|> <|inner_suffix|>",
    "<atem:function_calls>",
    "<function name= <param name=",
};
enum { N_SOURCES = sizeof SOURCES / sizeof SOURCES[0] };

typedef struct sums {
    mr_text_buf text;
    chat_delta_kind last;
    int32_t n_begun, n_ended;
} sums;

static mr_status take(void *ctx, const mr_chat_delta *d, mr_err *err) {
    sums *s = ctx;
    char mark = (char)('0' + d->kind);
    (void)err;
    MR_ASSERT(d->tool_call >= -1 && d->tool_call < CHAT_MAX_TOOL_CALLS);
    s->n_begun += d->kind == CHAT_TOOL_BEGIN;
    s->n_ended += d->kind == CHAT_TOOL_END;
    MR_ASSERT(s->n_begun - s->n_ended == (d->kind == CHAT_TOOL_BEGIN || d->kind == CHAT_TOOL_ARGUMENTS));
    if (s->last != d->kind)
        MR_ASSERT(mr_text_buf_append(&s->text, &mark, 1));
    MR_ASSERT(mr_text_buf_append(&s->text, d->text.data ? d->text.data : "", d->text.len));
    s->last = d->kind;
    return MR_OK;
}

static void parse(const mr_chat_output_desc *base, const uint8_t *data, size_t size, size_t piece, sums *s) {
    mr_chat_output_desc desc = *base;
    mr_chat_output *o = NULL;
    mr_err err;
    *s = (sums){.last = CHAT_CONTENT};
    desc.ctx = s;
    MR_ASSERT(mr_chat_output_create(&desc, &o, &err) == MR_OK);
    for (size_t i = 0; i < size; i += piece)
        MR_ASSERT(mr_chat_output_push(o, (mr_str){(const char *)data + i, size - i < piece ? size - i : piece}, &err) ==
                  MR_OK);
    MR_ASSERT(mr_chat_output_end(o, &err) == MR_OK && s->n_begun == s->n_ended &&
              chat_output_n_tool_calls(o) == s->n_begun);
    mr_chat_output_destroy(o);
}

/* The first byte selects the form, the second byte the settings. The other bytes are the answer, which is pushed in
 * pieces of several sizes. */
int mr_fuzz_chat_output(const uint8_t *data, size_t size) {
    static const size_t PIECES[] = {1, 3, 64};
    static json_t *tools; /* created once and never freed */
    if (size < 2)
        return 0;
    if (!tools)
        tools = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
                           "\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"l\":{\"type\":\"array\"}}}}}]",
                           0, NULL);
    mr_chat_output_desc desc = {.format = mr_chat_format_of(mr_str_from(SOURCES[data[0] % N_SOURCES])),
                                .prompt = mr_str_from(data[1] & 1   ? ">>>"
                                                      : data[1] & 2 ? "<|start|>assistant"
                                                                    : "<think>\n"),
                                .tools = data[1] & 4 ? NULL : tools,
                                .keep_reasoning = data[1] & 8,
                                .request_id = mr_str_from("id"),
                                .on_delta = take};
    sums whole, s;
    parse(&desc, data + 2, size - 2, size, &whole);
    for (int i = 0; i < 3; i++) {
        parse(&desc, data + 2, size - 2, PIECES[i], &s);
        MR_ASSERT(s.text.len == whole.text.len &&
                  (!s.text.len || memcmp(s.text.data, whole.text.data, s.text.len) == 0));
        mr_text_buf_deinit(&s.text);
    }
    mr_text_buf_deinit(&whole.text);
    return 0;
}
