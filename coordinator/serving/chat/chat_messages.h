/* coordinator/serving/chat/chat_messages.h - the messages of a conversation in one form, whatever a client sends.
 * Internal to this folder.
 * In this form no member is null, and a message has
 *   role          a string: system, developer, user, assistant, tool or another word
 *   content       a string, or a list of {"type": "text", "text"}; missing where an answer has none
 *   reasoning     of an answer: a string that is not empty, whatever the client calls it; or missing
 *   tool_calls    a list of at least one call, or missing; each call has a function with "name", a string, and
 *                 "arguments", an object. "text" is the text of the arguments where the client sent one that is an
 *                 object.
 * Other members are as they came.
 * Threads: pure functions.
 * Errors:  NULL and false mean that there is no memory, where nothing else is said. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_MESSAGES_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_MESSAGES_H

#include <jansson.h>

#include "engine/base/status.h"
#include "engine/text/buffers.h"

/* Reads messages of OpenAI's form; the caller owns *out, which shares values with messages. The error names a message
 * by its index. MR_E_INVALID: a wrong type; MR_E_UNSUPPORTED: a content part that is no text. */
MR_MUST_USE mr_status chat_messages_read(const json_t *messages, json_t **out, mr_err *err);

/* The arguments of a call as an object; the caller owns it. Nothing, null and empty texts are {}. Of a text that ends
 * too early the object has what can be read; what holds no object becomes {"arguments": what was given}. given may be
 * NULL. out_is_whole: given is the text of the object. */
json_t *chat_arguments_read(json_t *given, bool *out_is_whole);

/* A copy of a list of tools without members that are null, in objects of any depth. "default" and "const" may be null,
 * and values that a schema lists stay as they are. */
json_t *chat_without_nulls(const json_t *value);

const char *chat_role(const json_t *message);
bool chat_is_role(const json_t *message, const char *role);
/* Appends the texts of a content (a string, a list of parts or nothing), one line each. */
MR_MUST_USE bool chat_content_append(const json_t *content, mr_text_buf *out);

#endif
