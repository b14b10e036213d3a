/* coordinator/serving/api/api_choice.h - one choice of a call: the output so far, and which part of the output has been
 * sent ("said") to the client.
 * Owns:    texts, tool calls, log-probabilities. Borrows: the tokenizer.
 * Threads: caller serialises.
 * Errors:  false means no memory; the choice must not be used any more, except for deinit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_CHOICE_H
#define MR_COORDINATOR_SERVING_API_API_CHOICE_H

#include <jansson.h>

#include "coordinator/serving/api/api_request.h"
#include "coordinator/serving/chat/chat_output.h"

typedef struct api_tool_call {
    json_t *id, *name;
    mr_text_buf arguments;
    bool begun;    /* id and name have been sent */
    size_t n_said; /* bytes of the arguments that have been sent */
} api_tool_call;

/* {0} may be deinitialised. */
typedef struct api_choice {
    const mr_tokenizer *tokenizer;
    int32_t index;
    bool is_chat;
    mr_chat_output *parser;      /* NULL: all output is content */
    mr_text_buf text, reasoning; /* all so far; the first n_text_said and n_reasoning_said bytes have been sent */
    size_t n_text_said, n_reasoning_said;
    size_t echo_bytes; /* at the beginning of text: the prompt, where the request has echo */
    api_tool_call *tool_calls;
    int32_t n_tool_calls, cap_tool_calls;
    bool one_tool_call;                /* the client wants one tool call at most; further ones are left out */
    bool only_calls;                   /* a grammar allows nothing but tool calls */
    int32_t n_top_logprobs;            /* -1: no log-probabilities */
    json_t *logprobs;                  /* not sent yet; NULL: none */
    size_t offset_bytes, offset_chars; /* a place in text, in bytes and in characters (see chars_before) */
    bool role_said;
    mr_finish finish;
    int32_t n_prompt, n_cached, n_generated;
    int64_t begin_ns, first_token_ns, token_ns;
} api_choice;

/* Creates the parser of a chat's output. on_delta and ctx of desc are set here. */
MR_MUST_USE bool api_choice_open_parser(api_choice *c, const mr_chat_output_desc *desc);
void api_choice_deinit(api_choice *c);

/* Adds a piece. With echo, the caller has put the text of the prompt into c->text before. */
MR_MUST_USE bool api_choice_take(api_choice *c, const mr_piece *piece);
/* Adds the log-probabilities of the prompt (api_logprobs.c). */
MR_MUST_USE bool api_choice_take_prompt(api_choice *c, const mr_piece *piece);

/* Whether there is unsent output. The finish reason does not count. */
bool api_choice_has_news(const api_choice *c);
/* The finish reason: "stop", "length", "tool_calls"; NULL: the choice has not ended. */
const char *api_choice_finish(const api_choice *c);

/* Creates empty lists of log-probabilities, where there are none yet (api_logprobs.c). */
MR_MUST_USE bool api_logprobs_open(api_choice *c);
/* Adds the log-probabilities of a token in the form of the endpoint. offset: bytes of c->text in front of the token. */
MR_MUST_USE bool api_logprobs_add(api_choice *c, const mr_piece_token *token, size_t offset);

/* JSON of a choice; NULL: no memory. whole: all of it, for an answer that does not stream. news: the unsent output,
 * which then counts as sent. */
json_t *api_choice_whole(api_choice *c);
json_t *api_choice_news(api_choice *c);
/* The last chunk of a choice, which holds the finish reason and no output. */
json_t *api_choice_end(api_choice *c);
/* The first chunk of a chat's choice, which names the role. */
json_t *api_choice_role(api_choice *c);

#endif
