/* coordinator/serving/chat/chat_formats.c - the table of the forms of tool calls and of the marks around reasoning, and
 * the choice of a form by the source of a chat template. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/chat/chat_formats.h"

#include <string.h>

#define CALL_OF_TAGS                                                                                                   \
    "<function=" PAT_NAME ">\n" PAT_LOOP "<parameter=" PAT_KEY ">" PAT_LINES "</parameter>\n" PAT_LOOP_END "</"        \
    "function>"
#define CALL_OF_DSML                                                                                                   \
    "<｜DSML｜invoke name=\"" PAT_NAME "\">\n" PAT_LOOP "<｜DSML｜parameter name=\"" PAT_KEY                           \
    "\" string=\"" PAT_IS_TEXT "\">" PAT_VALUE "</｜DSML｜parameter>\n" PAT_LOOP_END "</｜DSML｜invoke>"
#define CALL_OF_SPACED_DSML                                                                                            \
    "<｜DSML｜ invoke name=\"" PAT_NAME "\">\n" PAT_LOOP "<｜DSML｜ parameter name=\"" PAT_KEY                         \
    "\" string=\"" PAT_IS_TEXT "\">" PAT_VALUE "</｜DSML｜ parameter>\n" PAT_LOOP_END "</｜DSML｜ invoke>"
#define CALL_OF_MISTRAL_LIST "[TOOL_CALLS]" PAT_CALLS
#define CALL_OF_MISTRAL_ID "[TOOL_CALLS]" PAT_NAME "[CALL_ID]" PAT_ID "[ARGS]" PAT_ARGS
#define CALL_OF_MISTRAL "[TOOL_CALLS]" PAT_NAME "[ARGS]" PAT_ARGS

/* The first entry that fits a template counts, so special forms stand before general ones. */
static const chat_tool_calls TABLE[] = {
    {
        .name = "harmony",
        .in_template = {"<|channel|>analysis<|message|>"},
        .calls = {"<|channel|>commentary to=functions." PAT_NAME PAT_SKIP "<|message|>" PAT_ARGS "<|call|>",
                  "<|start|>assistant to=functions." PAT_NAME PAT_SKIP "<|message|>" PAT_ARGS "<|call|>",
                  "<|channel|>analysis to=functions." PAT_NAME PAT_SKIP "<|message|>" PAT_ARGS "<|call|>"},
        .drops = {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>final <|constrain|>json<|message|>",
                  "<|channel|>commentary<|message|>", "<|end|>", "<|return|>", "<|call|>"},
        .prompt_end = "<|start|>assistant",
        .skipped = " <|constrain|>json",
    },
    {
        .name = "solar",
        .in_template = {"<|tool_call:begin|>"},
        .section = "<|tool_calls|>",
        .calls = {"<|tool_call:begin|>" PAT_ID "<|tool_call:name|>" PAT_NAME "<|tool_call:args|>" PAT_ARGS
                  "<|tool_call:end|>"},
        .between = "",
        .drops = {"<|begin|>assistant", "<|content|>", "<|end|>", "<|calls|>"},
        .prompt_end = "<|begin|>assistant",
    },
    {
        .name = "functionary-3.2",
        .in_template = {">>>all"},
        .calls = {">>>" PAT_NAME "\n" PAT_ARGS},
        .between = "",
        .drops = {">>>all\n"},
        .prompt_end = ">>>",
        .known_names = true,
    },
    {
        .name = "functionary-3.1",
        .in_template = {"<function=", "<|start_header_id|>"},
        .calls = {"<function=" PAT_NAME ">" PAT_ARGS "</function>"},
        .between = "",
    },
    {
        .name = "deepseek-v4.1",
        .in_template = {"｜DSML｜", " calls>", " invoke name="},
        .section = "<｜DSML｜ calls>\n",
        .section_end = "\n</｜DSML｜ calls>",
        .calls = {CALL_OF_SPACED_DSML},
        .between = "\n",
    },
    {
        .name = "deepseek-v4",
        .in_template = {"｜DSML｜", "tool_calls>"},
        .section = "<｜DSML｜tool_calls>\n",
        .section_end = "\n</｜DSML｜tool_calls>",
        .calls = {CALL_OF_DSML},
        .between = "\n",
    },
    {
        .name = "deepseek-v3.2",
        .in_template = {"｜DSML｜"},
        .section = "<｜DSML｜function_calls>\n",
        .section_end = "\n</｜DSML｜function_calls>",
        .calls = {CALL_OF_DSML},
        .between = "\n",
    },
    {
        .name = "deepseek-r1",
        .in_template = {"<｜tool▁call▁begin｜>", "```json"},
        .section = "<｜tool▁calls▁begin｜>",
        .section_end = "<｜tool▁calls▁end｜>",
        .calls = {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>" PAT_NAME "\n```json\n" PAT_ARGS
                  "\n```<｜tool▁call▁end｜>",
                  "<｜tool▁call▁begin｜>" PAT_NAME "<｜tool▁sep｜>" PAT_ARGS "<｜tool▁call▁end｜>"},
        .between = "\n",
    },
    {
        .name = "deepseek-v3.1",
        .in_template = {"<｜tool▁call▁begin｜>"},
        .section = "<｜tool▁calls▁begin｜>",
        .section_end = "<｜tool▁calls▁end｜>",
        .calls = {"<｜tool▁call▁begin｜>" PAT_NAME "<｜tool▁sep｜>" PAT_ARGS "<｜tool▁call▁end｜>",
                  "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" PAT_NAME "\n```json\n" PAT_ARGS
                  "\n```<｜tool▁call▁end｜>"},
        .between = "",
    },
    {
        .name = "kimi-k3",
        .in_template = {"<|open|>", "<|sep|>", "<|close|>"},
        .before = "<|open|>response<|sep|><|close|>response<|sep|>",
        .section = "<|open|>tools<|sep|>",
        .section_end = "<|close|>tools<|sep|>",
        .calls = {"<|open|>call tool=\"" PAT_NAME "\" index=\"" PAT_NUMBER "\"<|sep|>" PAT_LOOP
                  "<|open|>argument key=\"" PAT_KEY "\" type=\"" PAT_TYPE "\"<|sep|>" PAT_VALUE
                  "<|close|>argument<|sep|>" PAT_LOOP_END "<|close|>call<|sep|>",
                  "<|open|>call tool=\"" PAT_NAME "\" index=\"" PAT_NUMBER
                  "\"<|sep|><|open|>json type=\"object\"<|sep|>" PAT_ARGS "<|close|>json<|sep|><|close|>call<|sep|>"},
        .between = "",
        .drops = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"},
    },
    {
        .name = "kimi-k2",
        .in_template = {"<|tool_call_begin|>"},
        .section = "<|tool_calls_section_begin|>",
        .section_end = "<|tool_calls_section_end|>",
        .calls = {"<|tool_call_begin|>" PAT_FULL_NAME "<|tool_call_argument_begin|>" PAT_ARGS "<|tool_call_end|>"},
        .between = "",
        .ends_reasoning = "<|tool_calls_section_begin|>",
    },
    {
        .name = "mistral-id",
        .in_template = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"},
        .calls = {CALL_OF_MISTRAL_ID, CALL_OF_MISTRAL, CALL_OF_MISTRAL_LIST},
        .between = "",
        .ids = CHAT_ID_NINE,
    },
    {
        .name = "mistral-args",
        .in_template = {"[TOOL_CALLS]", "[ARGS]"},
        .calls = {CALL_OF_MISTRAL, CALL_OF_MISTRAL_ID, CALL_OF_MISTRAL_LIST},
        .between = "",
        .ids = CHAT_ID_NINE,
    },
    {
        .name = "mistral-list",
        .in_template = {"[TOOL_CALLS]"},
        .calls = {CALL_OF_MISTRAL_LIST, CALL_OF_MISTRAL, CALL_OF_MISTRAL_ID},
        .ids = CHAT_ID_NINE,
    },
    {
        .name = "granite",
        .in_template = {"<|tool_call|>"},
        .calls = {"<|tool_call|>" PAT_CALLS},
        .drops = {"<response>", "</response>"},
    },
    {
        .name = "command-r",
        .in_template = {"<|START_ACTION|>"},
        .calls = {"<|START_ACTION|>" PAT_CALLS "<|END_ACTION|>"},
        .drops = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"},
        .name_key = "tool_name",
        .args_key = "parameters",
    },
    {
        .name = "seed",
        .in_template = {"<seed:tool_call>"},
        .section = "<seed:tool_call>\n",
        .section_end = "\n</seed:tool_call>",
        .calls = {"<function=" PAT_NAME ">\n" PAT_LOOP "<parameter=" PAT_KEY ">" PAT_VALUE "</parameter>\n" PAT_LOOP_END
                  "</function>"},
        .between = "\n</seed:tool_call>\n<seed:tool_call>\n",
    },
    {
        .name = "hunyuan-3",
        .in_template = {"<tool_call{}>", ":opensource"},
        .section = "<tool_calls:opensource>\n",
        .section_end = "\n</tool_calls:opensource>",
        .calls = {"<tool_call:opensource>" PAT_NAME "<tool_sep:opensource>\n" PAT_LOOP "<arg_key:opensource>" PAT_KEY
                  "</arg_key:opensource>\n<arg_value:opensource>" PAT_VALUE "</arg_value:opensource>\n" PAT_LOOP_END
                  "</tool_call:opensource>"},
        .between = "\n",
    },
    {
        .name = "minimax-m3",
        .in_template = {"]<]minimax[>[", "<invoke name="},
        .section = "]<]minimax[>[<tool_call>\n",
        .section_end = "\n]<]minimax[>[</tool_call>",
        .calls = {"]<]minimax[>[<invoke name=\"" PAT_NAME "\">" PAT_LOOP "]<]minimax[>[<" PAT_KEY ">" PAT_TREE
                  "]<]minimax[>[</" PAT_KEY_END ">" PAT_LOOP_END "]<]minimax[>[</invoke>"},
        .between = "\n",
    },
    {
        .name = "minimax-m2",
        .in_template = {"minimax:tool_call>", "<invoke name="},
        .section = "<minimax:tool_call>\n",
        .section_end = "\n</minimax:tool_call>",
        .calls = {"<invoke name=\"" PAT_NAME "\">\n" PAT_LOOP "<parameter name=\"" PAT_KEY "\">" PAT_VALUE
                  "</parameter>\n" PAT_LOOP_END "</invoke>"},
        .between = "\n",
    },
    {
        .name = "glm",
        .in_template = {"<tool_call>", "<arg_key>"},
        .calls = {"<tool_call>" PAT_NAME "\n" PAT_LOOP "<arg_key>" PAT_KEY "</arg_key>\n<arg_value>" PAT_VALUE
                  "</arg_value>\n" PAT_LOOP_END "</tool_call>"},
        .between = "\n",
    },
    {
        .name = "qwen3-coder",
        .in_template = {"<tool_call>", "<function="},
        .section = "<tool_call>\n",
        .section_end = "\n</tool_call>",
        .calls = {CALL_OF_TAGS},
        .between = "\n</tool_call>\n<tool_call>\n",
    },
    {
        .name = "tool-calls-tag",
        .in_template = {"<tool_calls>"},
        .calls = {"<tool_calls>" PAT_CALLS "</tool_calls>", "<tool_call>" PAT_CALL "</tool_call>"},
    },
    {
        .name = "functools",
        .in_template = {"functools["},
        .calls = {"functools" PAT_CALLS},
    },
    {
        .name = "nemotron",
        .in_template = {"<TOOLCALL>"},
        .calls = {"<TOOLCALL>" PAT_CALLS "</TOOLCALL>"},
    },
    {
        .name = "gigachat",
        .in_template = {"<|function_call|>"},
        .calls = {"<|function_call|>" PAT_CALL},
    },
    {
        .name = "gigachat-3",
        .in_template = {"function call", "<|role_sep|>", "<|message_sep|>"},
        .calls = {"<|message_sep|>\n\nfunction call<|role_sep|>\n" PAT_CALL},
    },
    {
        .name = "gemma-4",
        .in_template = {"<|tool_call>call:"},
        .calls = {"<|tool_call>call:" PAT_NAME PAT_OBJECT "<tool_call|>"},
        .between = "",
    },
    {
        .name = "lfm2",
        .in_template = {"List of tools: ", "<|im_start|>"},
        .calls = {"<|tool_call_start|>" PAT_PYTHON "<|tool_call_end|>",
                  "<|tool_call_start|>" PAT_CALLS "<|tool_call_end|>"},
    },
    {
        .name = "apertus",
        .in_template = {"<|tools_prefix|>"},
        .calls = {"<|tools_prefix|>" PAT_NAMED "<|tools_suffix|>"},
        .ends_reasoning = "<|tools_prefix|>",
    },
    {
        .name = "muse",
        .in_template = {"<atem:function_calls>"},
        .calls = {"<|start|>assistant to=" PAT_NAME "<|message|><atem:function_calls>\n<atem:invoke name=\"" PAT_NAME
                  "\">\n" PAT_LOOP "<atem:parameter name=\"" PAT_KEY "\">" PAT_VALUE "</atem:parameter>\n" PAT_LOOP_END
                  "</atem:invoke>\n</atem:function_calls>"},
        .between = "<|eom|>",
        .drops = {"<|start|>assistant to=user<|message|>", "<|start|>assistant<|message|>", "<|eom|>", "<|eot|>"},
        .prompt_end = "<|start|>assistant",
    },
    {
        .name = "minicpm-5",
        .in_template = {"<function name=", "<param name="},
        .calls = {"<function name=\"" PAT_NAME "\">" PAT_LOOP "<param name=\"" PAT_KEY "\">" PAT_VALUE
                  "</param>" PAT_LOOP_END "</function>"},
        .between = "\n",
        .cdata = true,
    },
    {
        .name = "llama-3",
        .in_template = {"{\"name\": function name, \"parameters\""},
        .calls = {PAT_CALL, "<|python_tag|>" PAT_CALL},
        .args_key = "parameters",
        .known_names = true,
    },
    {
        .name = "hermes",
        .in_template = {"<tool_call>", "json object"},
        .calls = {"<tool_call>\n" PAT_CALL "\n</tool_call>"},
        .between = "\n",
    },
};
enum { N_TABLE = sizeof TABLE / sizeof TABLE[0], HERMES = N_TABLE - 1 };

/* The marks around reasoning: the first pair that a template contains counts. The last pair is the default. */
static const chat_marks MARKS[] = {
    {.open = "<|channel|>analysis<|message|>", .close = "<|end|>"},
    {.open = "<|open|>think<|sep|>", .close = "<|close|>think<|sep|>", .in_template = "<|open|>"},
    {.open = "<|think|>", .close = "<|end|>"},
    {.open = "[THINK]", .close = "[/THINK]"},
    {.open = "<|START_THINKING|>", .close = "<|END_THINKING|>"},
    {.open = "<seed:think>", .close = "</seed:think>"},
    {.open = "<mm:think>", .close = "</mm:think>"},
    {.open = "<|inner_prefix|>", .close = "<|inner_suffix|>"},
    {.open = "<|channel>thought", .close = "<channel|>"},
    {.open = "<|start|>assistant to=self<|message|>", .close = "<|eom|>"},
    {.open = "Here are my reasoning steps:", .close = "[BEGIN FINAL RESPONSE]"},
    {.open = "<think:opensource>", .close = "</think:opensource>", .in_template = "'<think{}>'"},
    {.open = "<think>", .close = "</think>"},
};
enum { N_MARKS = sizeof MARKS / sizeof MARKS[0] };

static bool has(mr_str text, const char *what) {
    return text.len && memmem(text.data, text.len, what, strlen(what)) != NULL;
}

static bool fits(const chat_tool_calls *c, mr_str source) {
    for (size_t i = 0; i < sizeof c->in_template / sizeof c->in_template[0] && c->in_template[i]; i++)
        if (!has(source, c->in_template[i]))
            return false;
    return true;
}

mr_chat_format mr_chat_format_of(mr_str source) {
    mr_chat_format f = {.calls = &TABLE[HERMES], .reasoning = &MARKS[N_MARKS - 1]};
    for (int i = 0; i < N_TABLE && !f.native_tool_calls; i++)
        if (fits(&TABLE[i], source)) {
            f.calls = &TABLE[i];
            f.native_tool_calls = true;
        }
    for (int i = N_MARKS - 1; i >= 0; i--) {
        const chat_marks *m = &MARKS[i];
        if (m->in_template ? has(source, m->in_template) : has(source, m->open) && has(source, m->close))
            f.reasoning = m;
    }
    return f;
}

const char *chat_format_name(mr_chat_format format) {
    return format.calls->name;
}

/* Appends the literals of the pattern with spaces between them. */
static bool literals(const char *pattern, mr_text_buf *out) {
    for (; pattern && *pattern; pattern++)
        if (!mr_text_buf_append(out, pat_is_field(*pattern) ? " " : pattern, 1))
            return false;
    return mr_text_buf_append(out, " ", 1);
}

static bool all_marks(mr_chat_format f, mr_text_buf *out) {
    bool ok = literals(f.reasoning->open, out) && literals(f.reasoning->close, out) &&
              literals(f.calls->section, out) && literals(f.calls->section_end, out);
    for (int i = 0; i < PAT_MAX_CALLS; i++)
        ok = ok && literals(f.calls->calls[i], out);
    for (int i = 0; i < PAT_MAX_DROPS; i++)
        ok = ok && literals(f.calls->drops[i], out);
    return ok;
}

mr_status mr_chat_format_needs_special(mr_chat_format format, const mr_tokenizer *tok, bool *out_needs, mr_err *err) {
    mr_text_buf text = {0};
    mr_token_buf ids = {0};
    mr_status status = MR_E_NO_MEMORY;
    if (!all_marks(format, &text)) {
        mr_err_set(err, status, "no memory for the marks of a chat format");
        goto out;
    }
    status = mr_tokenizer_encode(tok, (mr_str){text.data, text.len}, MR_ENCODE_PARSE_SPECIAL, &ids, err);
    if (status != MR_OK)
        goto out;
    *out_needs = false;
    for (size_t i = 0; i < ids.n; i++)
        *out_needs = *out_needs || mr_tokenizer_is_control(tok, ids.ids[i]);
out:
    mr_token_buf_deinit(&ids);
    mr_text_buf_deinit(&text);
    return status;
}
