/* coordinator/serving/api/api.h - OpenAI's requests and answers as bytes, without HTTP: the body of a request goes in,
 * the bytes of the answer come out. A call is one request that is being answered. A request that is wrong is a call as
 * well, whose answer is the error. So the HTTP server and the batch runner treat all calls alike. With the same seed a
 * request gets the same token ids, with and without streaming.
 * Owns:    a call owns copies of all that it needs of its body. Borrows: what mr_api_config names, which outlives the
 *          api; the api outlives its calls.
 * Threads: an api does not change, so any thread may begin calls. One thread at a time uses a call. The main thread,
 *          which runs the service, calls wake at any time between begin and the return of end, also before begin has
 *          returned.
 * Bounds:  of a body: depth API_MAX_DEPTH, API_MAX_VALUES values; of fields: the ranges below and in
 *          api_request_fields.c. The caller bounds the length of a body.
 * Source:  OpenAI's API reference (completions, chat completions, embeddings); Jina's and Cohere's references
 *          (reranking); llama-server's README for the rest. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_API_API_H
#define MR_COORDINATOR_SERVING_API_API_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/serving/service/service.h"
#include "coordinator/serving/wire/api_error.h"
#include "engine/base/str.h"
#include "engine/sample/sampler.h"
#include "engine/text/buffers.h"
#include "engine/text/tokenizer.h"

struct mr_chat_template; /* coordinator/serving/chat/chat_template.h */
struct mr_reranker;      /* coordinator/serving/rerank/reranker.h */

enum {
    API_MAX_CHOICES = 128, /* n */
    API_MAX_INPUTS = 2048, /* choices of all prompts (or inputs) of one request */
    API_MAX_STOPS = 64,
    API_MAX_STOP_BYTES = 256,
    API_MAX_STOP_IDS = 256,
    API_MAX_BAD_WORDS = 256,
    API_MAX_GUIDED_CHOICES = 4096,
    API_MAX_BREAKERS = 64, /* dry_sequence_breakers */
    API_MAX_TOOLS = 128,
    API_MAX_TOP_LOGPROBS = 20,
};

typedef struct mr_api_config {
    mr_service *service;
    const mr_tokenizer *tokenizer;
    const struct mr_chat_template *chat; /* NULL: chat completions are refused */
    const struct mr_reranker *reranker;  /* NULL: reranking is refused */
    const char *model;                   /* the name of the model in answers */
    const char *fingerprint;             /* system_fingerprint of answers: same fingerprint and seed, same ids */
    mr_sampling_params sampling;         /* defaults for requests that leave a parameter out; seed is not used */
    int32_t max_context;                 /* tokens of one sequence, prompt included */
    int32_t n_vocab;                     /* rows of the output matrix */
    int32_t n_embd;                      /* numbers of an embedding */
    mr_pooling pooling;                  /* default for embeddings; NONE: mean */
} mr_api_config;

typedef struct mr_api mr_api;
/* MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_api_create(const mr_api_config *config, mr_api **out, mr_err *err);
/* After all calls have ended. NULL is accepted. */
void mr_api_destroy(mr_api *a);

typedef enum mr_api_endpoint {
    API_COMPLETIONS,
    API_CHAT_COMPLETIONS,
    API_EMBEDDINGS,
    API_TOKENIZE,
    API_DETOKENIZE,
    API_APPLY_TEMPLATE,
    API_RERANK,
    API_ENDPOINTS, /* their number */
} mr_api_endpoint;

/* The endpoint of a path such as "/v1/completions"; "/completions" is the same. false: no endpoint has this path. */
bool mr_api_endpoint_of(mr_str path, mr_api_endpoint *out);

typedef struct mr_api_call mr_api_call;

/* Reads the body and submits its prompts; this may take seconds. NULL: no memory for the call. Every other error
 * becomes the answer of the call.
 * wake(ctx) says that mr_api_call_next has news. wake must not block and must not call the api. It must not wait for a
 * lock that a caller of next or end holds, because next and end may wait until wake has returned. */
mr_api_call *mr_api_call_begin(const mr_api *a, mr_api_endpoint endpoint, mr_str body, void (*wake)(void *ctx),
                               void *ctx);

typedef enum mr_api_state {
    API_MORE, /* bytes were appended */
    API_WAIT, /* nothing now: wake is called later */
    API_END,  /* the answer is complete */
} mr_api_state;

/* Appends the next bytes of the answer: the whole body or, for a call that streams, some whole events
 * ("data: ...\n\n"). Where there is no memory for the answer, the answer ends early and mr_api_call_broken is true. */
mr_api_state mr_api_call_next(mr_api_call *call, mr_text_buf *out);

/* Whether the bytes are server-sent events; known when begin has returned. The HTTP status is 200 then. */
bool mr_api_call_streams(const mr_api_call *call);
/* The HTTP status. For a call that does not stream, the status is known once next has returned API_MORE. */
int mr_api_call_status(const mr_api_call *call);
/* Seconds after which the client should try again, where the status is 429 or 503; otherwise 0. */
int mr_api_call_retry_after_s(const mr_api_call *call);
/* Whether the answer is cut short, because there was no memory for the rest. */
bool mr_api_call_broken(const mr_api_call *call);

/* Counts so far, for logs and metrics. */
typedef struct mr_api_call_stats {
    int32_t n_choices;
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t begun_ns;       /* monotonic */
    int64_t first_token_ns; /* 0: none yet */
    bool failed;            /* the answer is an error, or ends in one */
    const char *code;       /* of the error, static; NULL: no error, or an error without a code */
} mr_api_call_stats;
mr_api_call_stats mr_api_call_get_stats(const mr_api_call *call);

/* Ends the call in any state: cancels running sequences, whose KV blocks are free at once. NULL is accepted. */
void mr_api_call_end(mr_api_call *call);

#endif
