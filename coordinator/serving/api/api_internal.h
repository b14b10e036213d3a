/* coordinator/serving/api/api_internal.h - the struct of a call, and the functions that the files of this folder share.
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
    mr_api_error error; /* status not 0: the error is the answer, or ends the stream */
    mr_text_buf ready;  /* the answer of a call that needs no model; is_ready: it is complete */
    bool is_ready, streams, ended, broken;
    char id[16 + API_ID_LETTERS];
    int64_t created_s; /* Unix time */
    int64_t begun_ns;  /* monotonic */
    uint64_t seed;
    mr_request **service_requests; /* [request.n_prompts]; NULL: not submitted, or ended */
    int32_t n_submitted;           /* prompts are submitted in order: the first n_submitted */
    int32_t n_open;                /* submitted and not ended */
    api_choice *choices;           /* [n_prompts * n]: the choices of a prompt stand together */
    int32_t n_choices;
    double *scores;     /* [n_prompts]: of documents to rerank */
    json_t *embeddings; /* "data" of the answer, one element for each input; null: not computed yet */
};

/* Finds the form in which the model writes tool calls (api_chat.c). */
MR_MUST_USE mr_status api_chat_open(mr_api *a, mr_err *err);

/* Chats (api_chat.c). render: the messages as the text of a prompt. prepare: the same, and makes this prompt the call's
 * own, with a grammar where a tool must be called. open_parsers: a parser for the output of each choice. false, here
 * and below: call->error says why. */
MR_MUST_USE bool api_chat_render(mr_api_call *call, mr_text_buf *out_prompt);
MR_MUST_USE bool api_chat_prepare(mr_api_call *call, mr_text_buf *out_prompt);
MR_MUST_USE bool api_chat_open_parsers(mr_api_call *call, mr_str prompt);

/* Answers tokenize, detokenize and apply-template, which need no model, into call->ready (api_text.c). */
MR_MUST_USE bool api_text_answer(mr_api_call *call);

/* Embeddings (api_embeddings.c). prepare: after the prompts have been read. take: adds the vector of an input, where
 * the piece has one. answer: NULL: no memory. */
MR_MUST_USE bool api_embeddings_prepare(mr_api_call *call);
MR_MUST_USE bool api_embeddings_take(mr_api_call *call, int32_t input, const mr_piece *piece);
json_t *api_embeddings_answer(const mr_api_call *call);

/* Reranking (api_rerank.c). prepare: makes the prompts. take: computes the score of a document, where the piece has the
 * hidden row. answer: NULL: no memory. */
MR_MUST_USE bool api_rerank_prepare(mr_api_call *call);
void api_rerank_take(mr_api_call *call, int32_t document, const mr_piece *piece);
json_t *api_rerank_answer(const mr_api_call *call);

/* Bytes of answers (api_answer.c); false: no memory. */
MR_MUST_USE bool api_answer_whole(mr_api_call *call, mr_text_buf *out);
/* The event in front of the output of a chat's choice, once; to be called before the choice takes its first piece. */
MR_MUST_USE bool api_answer_role(mr_api_call *call, api_choice *c, mr_text_buf *out);
/* The unsent output of a choice as events. */
MR_MUST_USE bool api_answer_events(mr_api_call *call, api_choice *c, mr_text_buf *out);
/* The end of a stream: the error, or usage where the client wants it, and [DONE]. */
MR_MUST_USE bool api_answer_last(mr_api_call *call, mr_text_buf *out);

#endif
