/* coordinator/serving/chat/chat_output.h - divides the output of a model, while it is generated, into reasoning,
 * content and tool calls. Models write tool calls in many forms; mr_chat_format_of finds the form by the chat template
 * (chat_formats.c has the table of forms). Text that looks like a tool call and is none becomes content. The deltas add
 * up to the same result however the text is divided into pieces. The caller
 *   - decodes the output with MR_DECODE_SPECIAL where mr_chat_format_needs_special says so, because marks are control
 *     tokens in many vocabularies. End tokens must be left out;
 *   - gives the rendered prompt, because some templates end it with the first mark of the output ("<think>");
 *   - where format.native_tool_calls is false and there are tools, tells the model about them in the system message
 *     (chat_tools_instruct), because the template does not. Tool calls are then looked for in the form of Hermes.
 * White space around reasoning and tool calls is left out, and so are marks of structure.
 * Arguments that the model writes as JSON are passed on unchanged. Arguments in tags are turned into JSON; the schema
 * of the tool says which values are text. An output that ends inside a tool call leaves the arguments incomplete.
 * Owns:    copies of all in the description but tools, of which it keeps a reference.
 * Threads: caller serialises.
 * Errors:  MR_E_NO_MEMORY, and errors of the callback, which end push or end at once. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_OUTPUT_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_OUTPUT_H

#include <jansson.h>

#include "engine/base/str.h"
#include "engine/text/tokenizer.h"

enum {
    CHAT_MAX_TOOL_CALLS = 128, /* of one output; further ones are content */
    CHAT_MAX_NAME_BYTES = 128, /* of a tool */
};

/* Whether a tool may have this name: 1 to CHAT_MAX_NAME_BYTES letters, digits, _, -, ., / and :. Names go into JSON and
 * into rendered prompts without escapes, so a name has no character that means something there. */
bool mr_chat_is_tool_name(mr_str name);

typedef struct chat_tool_calls chat_tool_calls; /* a form of tool calls */
typedef struct chat_marks chat_marks;           /* marks around reasoning */

typedef struct mr_chat_format {
    const chat_tool_calls *calls;
    const chat_marks *reasoning;
    bool native_tool_calls; /* the template shows this form to the model */
} mr_chat_format;

/* Finds the form by the source of a template. Where the template shows none: the form of Hermes, and <think>. */
mr_chat_format mr_chat_format_of(mr_str template_source);
/* A short name such as "hermes", for logs and /props. */
const char *chat_format_name(mr_chat_format format);
/* Whether marks of the format are control tokens of this vocabulary. */
MR_MUST_USE mr_status mr_chat_format_needs_special(mr_chat_format format, const mr_tokenizer *tok, bool *out_needs,
                                                   mr_err *err);

typedef enum chat_delta_kind {
    CHAT_CONTENT,
    CHAT_REASONING,
    CHAT_TOOL_BEGIN,     /* text is the name of the tool; id is set */
    CHAT_TOOL_ARGUMENTS, /* text is the next part of the arguments */
    CHAT_TOOL_END,
} chat_delta_kind;

typedef struct mr_chat_delta {
    chat_delta_kind kind;
    int32_t tool_call; /* number of the tool call in the output, from 0; -1 for content and reasoning */
    mr_str text;       /* whole characters where the caller pushes whole characters; valid during the callback */
    mr_str id;
} mr_chat_delta;

typedef struct mr_chat_output_desc {
    mr_chat_format format;
    mr_str prompt;       /* as rendered */
    const json_t *tools; /* the request's list ({"type": "function", "function": {...}}); NULL: no tool calls */
    mr_str request_id;   /* ids of tool calls are made from it, where the model writes none in front of arguments */
    bool keep_reasoning; /* reasoning stays content, with its marks */
    /* A grammar allows nothing but tool calls, behind reasoning. So what the end of the output cuts off is a part of a
     * call, and is left out. */
    bool only_calls;
    mr_status (*on_delta)(void *ctx, const mr_chat_delta *delta, mr_err *err);
    void *ctx;
} mr_chat_output_desc;

typedef struct mr_chat_output mr_chat_output;

MR_MUST_USE mr_status mr_chat_output_create(const mr_chat_output_desc *desc, mr_chat_output **out, mr_err *err);
void mr_chat_output_destroy(mr_chat_output *o);
/* Adds a piece of the output. */
MR_MUST_USE mr_status mr_chat_output_push(mr_chat_output *o, mr_str text, mr_err *err);
/* Ends the output: emits what was held back. */
MR_MUST_USE mr_status mr_chat_output_end(mr_chat_output *o, mr_err *err);
/* The number of tool calls begun so far. Where it is not 0 and the output ended by itself, the finish reason is
 * "tool_calls". */
int32_t chat_output_n_tool_calls(const mr_chat_output *o);

#endif
