/* coordinator/serving/chat/chat_tools.h - a grammar that forces a tool call, and a description of the tools for models
 * whose template knows no tools.
 * Threads: pure functions.
 * Errors:  MR_E_NO_MEMORY, and those named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_TOOLS_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_TOOLS_H

#include "coordinator/serving/chat/chat_output.h"

typedef struct mr_chat_tools_desc {
    mr_chat_format format;
    const json_t *tools; /* as the request has them */
    const char *name;    /* the tool to be called; NULL: any of them */
    bool parallel;       /* allows several calls, where the form can write several */
    mr_str prompt;       /* as rendered; where it ends inside reasoning, the grammar first ends the reasoning */
} mr_chat_tools_desc;

/* Appends GBNF for exactly one tool call (or several) in the form of the model. The arguments follow the schema of the
 * tool; properties that `properties` does not list are left out. MR_E_NOT_FOUND: no tool has this name. MR_E_INVALID: a
 * name that cannot be written. MR_E_UNSUPPORTED: a keyword that cannot be honoured; the text names it. Forms without
 * JSON honour fewer keywords. Other errors are those of mr_grammar_schema_to_gbnf.
 * In forms of tags, a string inside a JSON value may contain the closing tag. The parser ends the value there, and
 * takes the incomplete JSON for text. */
MR_MUST_USE mr_status mr_chat_tools_grammar(const mr_chat_tools_desc *desc, mr_text_buf *out_gbnf, mr_err *err);

/* For templates that know tools, and leave out earlier calls: whether calls of the form can be written; and appends
 * the calls of a message (chat_messages.h), as the model writes them. */
bool chat_tools_can_write(mr_chat_format format);
MR_MUST_USE mr_status chat_tools_write(mr_chat_format format, const json_t *calls, mr_text_buf *out, mr_err *err);

/* For templates that know no tools: writes the tools into the system message of the list, and earlier tool calls and
 * their results into the contents of messages, in the form of Hermes models. messages: those of chat_messages.h, which
 * change. tools may be NULL. false: no memory; the list must not be used then. */
MR_MUST_USE bool chat_tools_instruct(json_t *messages, const json_t *tools);

#endif
