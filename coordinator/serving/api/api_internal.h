/* coordinator/serving/api/api_internal.h - a call, and what the files of this folder say to each other.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_INTERNAL_H
#define MR_COORDINATOR_SERVING_API_API_INTERNAL_H

#include "coordinator/serving/api/api_choice.h"
#include "coordinator/serving/api/api_request.h"

enum { API_ID_LETTERS = 24 };

struct mr_api_call {
    const mr_api *a;
    void (*wake)(void *ctx);
    void *ctx;
    api_request request;
    mr_api_error error; /* with a status: it is the answer, or ends it */
    mr_text_buf ready;  /* the answer of calls that need no model */
    bool is_ready, streams, ended, broken;
    char id[16 + API_ID_LETTERS];
    int64_t created_s; /* of the calendar */
    int64_t begun_ns;
    uint64_t seed;
    mr_request **service_requests; /* [request.n_prompts]; NULL: not submitted, or it has ended */
    int32_t n_submitted;           /* the first prompts */
    int32_t n_open;                /* of these: not ended */
    api_choice *choices;           /* [n_prompts * n]: those of a prompt stand together */
    int32_t n_choices;
    json_t *embeddings; /* data of the answer, by input; null: not there yet */
};

/* Finds the form in which the model calls tools (api_chat.c). */
MR_MUST_USE mr_status api_chat_open(mr_api *a, mr_err *err);

/* Of chats (api_chat.c): the messages as the model reads them; the same as the call's prompt, with a grammar for tools
 * that must be called; what reads the answers. false: error says why, here and below where nothing else is said. */
MR_MUST_USE bool api_chat_render(mr_api_call *call, mr_text_buf *out_prompt);
MR_MUST_USE bool api_chat_prepare(mr_api_call *call, mr_text_buf *out_prompt);
MR_MUST_USE bool api_chat_open_parsers(mr_api_call *call, mr_str prompt);

/* Calls that need no model: tokenize, detokenize, apply-template (api_text.c). Fills ready. */
MR_MUST_USE bool api_text_answer(mr_api_call *call);

/* Embeddings (api_embeddings.c). prepare: after the prompts have been read. */
MR_MUST_USE bool api_embeddings_prepare(mr_api_call *call);
MR_MUST_USE bool api_embeddings_take(mr_api_call *call, int32_t input, const mr_piece *piece);
json_t *api_embeddings_answer(const mr_api_call *call);

/* Bytes of answers (api_answer.c); false: no memory. */
MR_MUST_USE bool api_answer_whole(mr_api_call *call, mr_text_buf *out);
/* What is new of a choice, as events. */
MR_MUST_USE bool api_answer_events(mr_api_call *call, api_choice *c, mr_text_buf *out);
/* What ends a stream: usage or the error, and [DONE]. */
MR_MUST_USE bool api_answer_last(mr_api_call *call, mr_text_buf *out);

#endif
