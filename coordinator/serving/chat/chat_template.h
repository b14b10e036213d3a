/* coordinator/serving/chat/chat_template.h - the text of a conversation as a model expects it: the Jinja template of
 * the model file, rendered with messages in the form that the template can read. Loading a template finds this form by
 * rendering small conversations: whether contents are strings or lists of parts, where instructions may stand and under
 * which role, whether arguments of calls are objects or texts, how many calls a message may have, under which name
 * reasoning is read, and so on (chat_abilities lists all). Where a template never reads tool calls, those of forms that
 * are lists are written behind the content; where it knows no tools at all, the system message describes them.
 * No text of a message is lost: each is in the prompt, or the conversation is refused.
 * Owns:    copies of all that it needs; file and tokenizer may be closed.
 * Threads: a loaded template is constant: any number of threads may render it.
 * Errors:  MR_E_NO_MEMORY; those of mr_jinja_parse and mr_jinja_render; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_CHAT_CHAT_TEMPLATE_H
#define MR_COORDINATOR_SERVING_CHAT_CHAT_TEMPLATE_H

#include <jansson.h>

#include "coordinator/serving/chat/chat_output.h"
#include "engine/gguf/gguf.h"
#include "engine/text/tokenizer.h"

typedef struct mr_chat_template mr_chat_template;

typedef enum mr_chat_template_origin {
    CHAT_TEMPLATE_GIVEN,  /* override_source of the caller */
    CHAT_TEMPLATE_FILE,   /* of the model file */
    CHAT_TEMPLATE_CHATML, /* the file has no template, and its vocabulary has <|im_start|> */
    CHAT_TEMPLATE_PLAIN,  /* neither: contents alone, which the model continues */
} mr_chat_template_origin;

/* Loads the template of a model: override_source if not NULL; otherwise tokenizer.chat_template of the file, and for
 * tools tokenizer.chat_template.tool_use, where there is one; otherwise a built-in template. gguf may be NULL.
 * MR_E_FORMAT: the template is malformed; the text says where. */
MR_MUST_USE mr_status mr_chat_template_load(const mr_gguf *gguf, const mr_tokenizer *tok, const char *override_source,
                                            mr_chat_template **out, mr_err *err);
void mr_chat_template_destroy(mr_chat_template *t);

/* The sources of the templates for chats without and with tools; valid until destroy. */
const char *mr_chat_template_source(const mr_chat_template *t);
const char *mr_chat_template_source_with_tools(const mr_chat_template *t);
/* The form in which the model answers, to chats without and with tools. */
mr_chat_format mr_chat_template_format(const mr_chat_template *t, bool with_tools);
mr_chat_template_origin mr_chat_template_get_origin(const mr_chat_template *t);
/* The origin in words: "the template of the model file" and so on. */
const char *mr_chat_template_origin_text(mr_chat_template_origin origin);

/* Appends the prompt. messages: an array of objects with role and content as OpenAI has them; tools: an array or NULL;
 * extra_variables: an object with more variables of the template, or NULL; these replace the date of today and other
 * defaults (chat_template_defaults.c). With add_generation_prompt, the prompt ends with the beginning of an answer.
 * The prompt is to be tokenised with MR_ENCODE_PARSE_SPECIAL | MR_ENCODE_BOS, which adds no second bos.
 * MR_E_INVALID: a message has no role or a wrong type of content, or the template refuses the conversation or leaves a
 * text out; the error names the message by its index (messages[3]). MR_E_UNSUPPORTED: a content part that is no text.
 */
MR_MUST_USE mr_status mr_chat_template_render(const mr_chat_template *t, const json_t *messages, const json_t *tools,
                                              const json_t *extra_variables, bool add_generation_prompt,
                                              mr_text_buf *out, mr_err *err);

#endif
