/* coordinator/serving/api/api.h - OpenAI's requests and answers as bytes, without HTTP: a body goes in, bytes of an
 * answer come out. A call is one request. What cannot be read or done is a call too, whose answer is the error, so that
 * whoever carries the bytes treats all calls alike. With the same seed, ids are the same whether the answer streams or
 * not.
 * Owns:    a call owns copies of all it needs of its body. Borrows: what mr_api_config names, which outlives the api;
 *          the api outlives its calls.
 * Threads: an api does not change: any thread begins calls. A call is used by one thread at a time; its wake comes from
 *          the thread of the service, at any time between begin and the return of end, also before begin has returned.
 * Bounds:  of bodies: depth API_MAX_DEPTH, API_MAX_VALUES values; of requests: the ranges below and in api_request.c.
 *          The length of a body is the carrier's to bound.
 * Source:  OpenAI's API reference (completions, chat completions, embeddings); llama-server's README for the rest. */
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

enum {
    API_MAX_CHOICES = 128, /* n */
    API_MAX_INPUTS = 2048, /* prompts or inputs of one request; choices of all its prompts */
    API_MAX_STOPS = 64,
    API_MAX_STOP_BYTES = 256,
    API_MAX_STOP_IDS = 256,
    API_MAX_BAD_WORDS = 256,
    API_MAX_GUIDED_CHOICES = 4096,
    API_MAX_BREAKERS = 64, /* dry_sequence_breakers */
    API_MAX_TOOLS = 128,
    API_MAX_TOOL_NAME_BYTES = 64,
    API_MAX_TOP_LOGPROBS = 20,
};

typedef struct mr_api_config {
    mr_service *service;
    const mr_tokenizer *tokenizer;
    const struct mr_chat_template *chat; /* NULL: chat completions are refused */
    const char *model;                   /* its name in answers */
    const char *fingerprint;             /* system_fingerprint of answers: what, with a seed, gives the same ids */
    mr_sampling_params sampling;         /* of requests that leave a parameter out; its seed is not used */
    int32_t max_context;                 /* tokens of one sequence, prompt included */
    int32_t n_vocab;                     /* rows of the output matrix */
    int32_t n_embd;                      /* numbers of an embedding */
    mr_pooling pooling;                  /* of embeddings that name none */
} mr_api_config;

typedef struct mr_api mr_api;
/* MR_E_NO_MEMORY. */
MR_MUST_USE mr_status mr_api_create(const mr_api_config *config, mr_api **out, mr_err *err);
/* No call is left. NULL is accepted. */
void mr_api_destroy(mr_api *a);

typedef enum mr_api_endpoint {
    API_COMPLETIONS,
    API_CHAT_COMPLETIONS,
    API_EMBEDDINGS,
    API_TOKENIZE,
    API_DETOKENIZE,
    API_APPLY_TEMPLATE,
} mr_api_endpoint;

/* The endpoint of a path such as "/v1/completions" (those with /v1 are known without it too); false: none of these. */
bool mr_api_endpoint_of(mr_str path, mr_api_endpoint *out);

typedef struct mr_api_call mr_api_call;

/* Starts what the body asks for. wake(ctx): mr_api_call_next has more to say; it must not block and calls nothing of
 * the api, and waits for no lock that is held around next or end, which may wait for a wake under way. NULL only where
 * there is no memory for the call itself. The answer to everything else that is wrong is the call's. */
mr_api_call *mr_api_call_begin(const mr_api *a, mr_api_endpoint endpoint, mr_str body, void (*wake)(void *ctx),
                               void *ctx);

typedef enum mr_api_state {
    API_MORE, /* bytes were appended */
    API_WAIT, /* nothing now: wake comes */
    API_END,  /* that was all */
} mr_api_state;

/* Appends what there is to say: the whole body or, of a call that streams, some whole events ("data: ...\n\n"). Where
 * there is no memory for the answer it ends early, and mr_api_call_broken tells. */
mr_api_state mr_api_call_next(mr_api_call *call, mr_text_buf *out);

/* Known when begin has returned: the bytes are server-sent events, and the status is 200 whatever comes. */
bool mr_api_call_streams(const mr_api_call *call);
/* The status of HTTP; that of a call that does not stream is known once next said API_MORE. */
int mr_api_call_status(const mr_api_call *call);
/* Seconds after which a client that got a 429 or 503 should try again; 0: nothing is known. */
int mr_api_call_retry_after_s(const mr_api_call *call);
/* The answer could not be completed: its bytes are cut short. */
bool mr_api_call_broken(const mr_api_call *call);

/* For logs and metrics: what is known so far. */
typedef struct mr_api_call_stats {
    int32_t n_choices;
    int64_t prompt_tokens, cached_tokens, generated_tokens;
    int64_t begun_ns;       /* monotonic */
    int64_t first_token_ns; /* 0: none yet */
    bool failed;            /* the answer is an error, or ends in one */
    const char *code;       /* of the error, NULL: none or it has none; static */
} mr_api_call_stats;
mr_api_call_stats mr_api_call_get_stats(const mr_api_call *call);

/* Ends the call, whatever it was doing: what runs is cancelled and its blocks are free at once. NULL is accepted. */
void mr_api_call_end(mr_api_call *call);

#endif
