/* coordinator/serving/api/api_choice.h - what has come of one choice of a call, and which of it has been said already.
 * Owns:    texts, calls of tools, log-probabilities. Borrows: what api_choice_begin is given.
 * Threads: caller serialises.
 * Errors:  false is "no memory", and the choice is not used further. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_CHOICE_H
#define MR_COORDINATOR_SERVING_API_API_CHOICE_H

#include <jansson.h>

#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/chat/chat_output.h"

typedef struct api_tool_call {
    json_t *id, *name;
    mr_text_buf arguments;
    bool begun; /* its beginning has been said */
    size_t n_said;
} api_tool_call;

/* {0} may be deinitialised. */
typedef struct api_choice {
    const mr_tokenizer *tokenizer;
    int32_t index;
    bool is_chat;
    mr_chat_output *parser;      /* NULL: all is content */
    mr_text_buf text, reasoning; /* whole; n_..._said bytes of them are with the client */
    size_t n_text_said, n_reasoning_said;
    size_t echo_bytes; /* of text: the prompt */
    api_tool_call *tool_calls;
    int32_t n_tool_calls, cap_tool_calls;
    bool one_tool_call;     /* the client wants one call at most: what the model writes of others is left out */
    int32_t n_top_logprobs; /* -1: no log-probabilities */
    json_t *logprobs;       /* not said yet; NULL: none */
    size_t offset_bytes, offset_chars; /* the place in text that log-probabilities have come to */
    bool role_said;
    mr_finish finish;
    int32_t n_prompt, n_cached, n_generated;
    int64_t begin_ns, first_token_ns, token_ns;
} api_choice;

/* Opens a choice of a chat for reading what the model answers; desc without its callback. */
MR_MUST_USE bool api_choice_open_parser(api_choice *c, const mr_chat_output_desc *desc);
void api_choice_deinit(api_choice *c);

/* Takes what has come. Text of the prompt, which echo wants, is put into c->text before. */
MR_MUST_USE bool api_choice_take(api_choice *c, const mr_piece *piece);
/* The prompt's log-probabilities (api_logprobs.c). */
MR_MUST_USE bool api_choice_take_prompt(api_choice *c, const mr_piece *piece);

/* Something is there that has not been said, the finish apart. */
bool api_choice_has_news(const api_choice *c);
/* "stop", "length", "tool_calls"; NULL: goes on. */
const char *api_choice_finish(const api_choice *c);

/* Lists without a token, if there are none yet. */
MR_MUST_USE bool api_logprobs_open(api_choice *c);
/* Log-probabilities in the shape of the endpoint; offset: bytes of c->text in front of the token (api_logprobs.c). */
MR_MUST_USE bool api_logprobs_add(api_choice *c, const mr_piece_token *token, size_t offset);

/* The choice as a whole, of an answer that does not stream; and what is new of it, said then. NULL: no memory. */
json_t *api_choice_whole(api_choice *c);
json_t *api_choice_news(api_choice *c);
/* The chunk that ends it, without anything else. */
json_t *api_choice_end(api_choice *c);
/* The first chunk of a chat's choice, which names the role. */
json_t *api_choice_role(api_choice *c);

#endif
