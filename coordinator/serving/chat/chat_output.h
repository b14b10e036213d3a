/* coordinator/serving/chat/chat_output.h - what a model answers, taken apart as it comes: reasoning, content, calls of
 * tools. Models write calls in many forms; mr_chat_format_of finds the form by the chat template (chat_formats.c has
 * them). What looks like a call and is none comes out as content. The deltas are the same in sum for any cuts of the
 * text. The caller
 *   - decodes the answer with MR_DECODE_SPECIAL where mr_chat_format_needs_special says so: marks are control tokens
 *     in many vocabularies. End tokens must not come here;
 *   - gives the rendered prompt, because templates end it with the first mark of the answer ("<think>");
 *   - where format.native_tool_calls is false and there are tools, tells the model about them in the system message
 *     (chat_tools_instructions): the template does not, and calls are then looked for as Hermes models write them.
 * Left out are white space around reasoning and calls, and marks that only give the answer its structure.
 * Arguments come as the model writes them where that is JSON; of calls in tags, JSON is made, a value being text where
 * the schema of the tool says so. An answer that ends in the midst of a call leaves its arguments incomplete.
 * Owns:    copies of all in the description but tools, which it keeps a reference of.
 * Threads: caller serialises.
 * Errors:  MR_E_NO_MEMORY; whatever the callback returns ends the call with that. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_OUTPUT_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_OUTPUT_H

#include <jansson.h>

#include "engine/base/str.h"
#include "engine/text/tokenizer.h"

enum {
    CHAT_MAX_TOOL_CALLS = 128, /* of one answer; what follows is content */
    CHAT_MAX_NAME_BYTES = 128,
};

typedef struct chat_tool_calls chat_tool_calls; /* how calls are written */
typedef struct chat_marks chat_marks;           /* around reasoning */

typedef struct mr_chat_format {
    const chat_tool_calls *calls;
    const chat_marks *reasoning;
    bool native_tool_calls; /* the template shows this form to the model */
} mr_chat_format;

/* Never fails: a template that says nothing gives Hermes calls and <think>. */
mr_chat_format mr_chat_format_of(mr_str template_source);
/* A short name such as "hermes", for logs and /props. */
const char *chat_format_name(mr_chat_format format);
/* Whether marks of the format are control tokens of this vocabulary. */
MR_MUST_USE mr_status mr_chat_format_needs_special(mr_chat_format format, const mr_tokenizer *tok, bool *out_needs,
                                                   mr_err *err);

typedef enum chat_delta_kind {
    CHAT_CONTENT,
    CHAT_REASONING,
    CHAT_TOOL_BEGIN,     /* text is the name, id is set */
    CHAT_TOOL_ARGUMENTS, /* text goes behind the arguments so far */
    CHAT_TOOL_END,
} chat_delta_kind;

typedef struct mr_chat_delta {
    chat_delta_kind kind;
    int32_t tool_call; /* number of the call in the answer; -1 for content and reasoning */
    mr_str text;       /* whole characters where the caller pushes whole characters; lives during the callback */
    mr_str id;
} mr_chat_delta;

typedef struct mr_chat_output_desc {
    mr_chat_format format;
    mr_str prompt;       /* as rendered */
    const json_t *tools; /* the request's list ({"type": "function", "function": {...}}); NULL: calls are content */
    mr_str
        request_id; /* ids of calls are made from it and the number of the call, unless the model gives one in time */
    bool keep_reasoning; /* reasoning stays content, with its marks */
    mr_status (*on_delta)(void *ctx, const mr_chat_delta *delta, mr_err *err);
    void *ctx;
} mr_chat_output_desc;

typedef struct mr_chat_output mr_chat_output;

MR_MUST_USE mr_status mr_chat_output_create(const mr_chat_output_desc *desc, mr_chat_output **out, mr_err *err);
void mr_chat_output_destroy(mr_chat_output *o);
/* More of the answer. */
MR_MUST_USE mr_status mr_chat_output_push(mr_chat_output *o, mr_str text, mr_err *err);
/* The answer is over: what was held back comes out. */
MR_MUST_USE mr_status mr_chat_output_end(mr_chat_output *o, mr_err *err);
/* Calls begun so far: the finish reason is "tool_calls" where an answer that was not cut has any. */
int32_t chat_output_n_tool_calls(const mr_chat_output *o);

#endif
