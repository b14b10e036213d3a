/* coordinator/serving/chat/chat_tools.h - tools on their way to the model: a grammar that forces a call, and the words
 * that tell a model about tools where its template has none.
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
    bool parallel;       /* several calls, where the form knows such */
    mr_str prompt;       /* as rendered: an answer that begins inside reasoning first ends it */
} mr_chat_tools_desc;

/* Appends GBNF: exactly one call (or several) as the model writes them, whose arguments follow the tool's schema;
 * properties that `properties` does not list are left out. MR_E_NOT_FOUND: no tool has this name. MR_E_INVALID: a name
 * that cannot be written. MR_E_UNSUPPORTED: a keyword that cannot be honoured, by its name; forms without JSON honour
 * fewer. Other errors are those of mr_grammar_schema_to_gbnf.
 * In forms of tags, a text inside a JSON value may contain the closing tag, which ends the value for the parser: it
 * then takes what there is of it for text. */
MR_MUST_USE mr_status mr_chat_tools_grammar(const mr_chat_tools_desc *desc, mr_text_buf *out_gbnf, mr_err *err);

/* For templates without tools: writes them into the system message of the list, and earlier calls and their results
 * into the contents of messages, as Hermes models know them. Messages that change are replaced by copies. On failure
 * the list is not to be used. MR_E_INVALID: a call without a name. */
MR_MUST_USE mr_status mr_chat_tools_instruct(json_t *messages, const json_t *tools, mr_err *err);

#endif
