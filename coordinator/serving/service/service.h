/* coordinator/serving/service/service.h - the request queue between a job and other threads. Any thread submits
 * requests and takes their output piece by piece. The main thread runs the job, detokenises, and ends texts at stop
 * texts.
 * Life:    create (before the model is loaded, so that a server can report the progress of loading); run, on the main
 *          thread; destroy, when all requests are released. A request lives until its release, even when the run has
 *          failed.
 * Example: a thread that reads the output of one request (desc.wake wakes the thread):
 *
 *     mr_service_submit(service, &desc, &r, err);
 *     while (!mr_request_ended(r))
 *         if (mr_request_take(r, &piece))            // the output since the last piece
 *             send(piece.text);
 *         else
 *             wait_for_wake();
 *     mr_request_release(r);                         // at any time; cancels what still runs
 *
 * Owns:    requests, with copies of their descriptions, and their output. Borrows: job and tokenizer during run.
 * Threads: each section or function names its thread. The functions of a request are for one thread at a time.
 * Memory:  a request keeps the output that its reader has not taken, which the context bounds. So a slow reader does
 * not
 *          block other requests.
 * Errors:  an error of one request ends only that request. A failure of a stage ends mr_service_run, which returns the
 *          cause. All requests then end with MR_E_UNAVAILABLE, whatever the cause. Their error text names no rank, host
 *          or file. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVICE_SERVICE_H
#define MR_COORDINATOR_SERVING_SERVICE_SERVICE_H

#include "coordinator/job/job.h"
#include "engine/base/str.h"
#include "engine/sample/sampler.h"
#include "engine/text/tokenizer.h"

enum {
    MR_SERVICE_MAX_CHOICES = 128, /* of one request */
    MR_SERVICE_MAX_STOPS = 64,
    MR_SERVICE_MAX_STOP_BYTES = 256, /* of one stop text */
    MR_SERVICE_MAX_STOP_IDS = 256,
    MR_SERVICE_MAX_LOGPROBS = 20,
};

typedef struct mr_service mr_service;
typedef struct mr_request mr_request;

/* --- Requests: any thread ---------------------------------------------------------------------------------------- */

typedef enum mr_pooling {
    MR_POOLING_NONE, /* not an embedding: tokens are generated */
    MR_POOLING_MEAN,
    MR_POOLING_CLS, /* the first position */
    MR_POOLING_LAST,
    MR_POOLING_RANK, /* the last position, not scaled: what the rank head of a reranker reads */
} mr_pooling;

typedef struct mr_generate_desc {
    /* Prompt, sampling, grammar and priority of each choice. max_tokens: -1: to the end of the context; 0: nothing is
     * generated. The service sets the other fields. */
    mr_sequence_desc sequence;
    int32_t n_choices;        /* at least one; the choices share the prompt */
    const char *const *stops; /* [n_stops]; none is empty */
    int32_t n_stops;
    const int32_t *stop_ids; /* [n_stop_ids]: ids that end a choice like end tokens, also where ignore_end is set */
    int32_t n_stop_ids;
    bool ignore_end;    /* end tokens do not end a choice. Without effect where there is a grammar */
    bool with_special;  /* control tokens become text, too */
    int32_t n_logprobs; /* alternatives of each token, at most MR_SERVICE_MAX_LOGPROBS; 0: the token alone; -1: none */
    bool prompt_logprobs; /* log-probabilities of the prompt, too: n_logprobs alternatives at each position */
    bool goes_on;         /* continues earlier work: accepted even where the queue is full */
    /* Not NONE: nothing is generated, and the piece that ends the only choice has the embedding, whose length is 1. */
    mr_pooling pooling;
    int32_t n_embedding; /* the embedding is made of so many first numbers of the pooled row; 0 or too many: of all */
    /* Says that mr_request_take has a piece. Called on the main thread, never after release has returned. wake must not
     * block and must not call the service. NULL: the reader polls. */
    void (*wake)(void *ctx);
    void *ctx;
} mr_generate_desc;

/* Copies desc with all that desc points to. MR_E_INVALID: the request can never run. MR_E_TOO_LONG: the prompt, and one
 * token more where tokens are generated, do not fit mr_service_max_ids. MR_E_BUSY: the queue is full; try again later.
 * MR_E_UNAVAILABLE: the model is not loaded, has failed, or the service is ending; the text says which. */
MR_MUST_USE mr_status mr_service_submit(mr_service *service, const mr_generate_desc *desc, mr_request **out,
                                        mr_err *err);

/* The most tokens of one sequence, prompt and output together, in the latest plan; 0: the model is not loaded. */
int32_t mr_service_max_ids(mr_service *service);

typedef struct mr_piece_logprob {
    int32_t id;
    float logprob;
} mr_piece_logprob;

typedef struct mr_piece_token {
    int32_t id;
    float logprob; /* NaN: not asked for, or the first token of the prompt, which has none */
    int32_t n_top;
    const mr_piece_logprob *top; /* [n_top], in falling order */
    size_t text_offset;          /* bytes of the choice's text in front of the text of this token */
    bool is_cut; /* the token is not in the text but ends it: an end token, a stop id, or what spells a stop text */
} mr_piece_token;

/* The output of one choice since its last piece. Pointers are valid until the next take. */
typedef struct mr_piece {
    int32_t choice;
    /* true: the tokens are the prompt's, for prompt_logprobs; text is empty, and choice is 0. */
    bool is_prompt;
    mr_str text; /* whole characters, without the stop text and without an end that may become a stop text */
    /* The tokens whose text has been given out. The last piece has the rest of the n_generated tokens, also those that
     * are not in the text. */
    const mr_piece_token *tokens;
    int32_t n_tokens;
    const float *embedding; /* [n_embedding]; NULL: none */
    int32_t n_embedding;
    mr_finish finish;  /* NONE: more pieces follow. Otherwise this is the last piece of the choice */
    mr_status status;  /* where finish is ERROR */
    const char *error; /* where finish is ERROR: the text */
    int32_t n_prompt;
    int32_t n_cached;    /* tokens of the prompt that were in the prefix cache */
    int32_t n_generated; /* by this choice so far, end token included */
    /* Monotonic times: submitted, got a slot, first token, latest token; 0: not yet. */
    int64_t submit_ns, begin_ns, first_token_ns, token_ns;
} mr_piece;

/* Takes the next piece. false: there is none now, and wake will be called; or the request has ended. */
bool mr_request_take(mr_request *request, mr_piece *out);
/* Whether the last piece of every choice has been taken. */
bool mr_request_ended(mr_request *request);
/* Frees the request. Its running sequences are cancelled, and their KV blocks are free at once. Waits until a running
 * wake has returned. NULL is accepted. */
void mr_request_release(mr_request *request);

/* --- The service ------------------------------------------------------------------------------------------------- */

typedef struct mr_service_config {
    int32_t max_waiting; /* bound of the queue: sequences (choices) that wait for a slot; 0: 1024 */
    /* Main thread, in run: requests are accepted from now on. Must not ask for stats. May be NULL. */
    void (*on_ready)(void *ctx);
    void *on_ready_ctx;
    /* Main thread: a token was generated. ns: the time since its request was submitted (is_first), or since the token
     * before it. May be NULL. */
    void (*on_latency)(void *ctx, bool is_first, int64_t ns);
    void *on_latency_ctx;
} mr_service_config;

MR_MUST_USE mr_status mr_service_create(const mr_service_config *config, mr_service **out, mr_err *err);
/* After run has returned and all requests are released. NULL is accepted. */
void mr_service_destroy(mr_service *service);

/* Any thread, before run: the progress of loading, for stats. */
void mr_service_set_loaded(mr_service *service, size_t done_bytes, size_t total_bytes);
/* Any thread, before run: says that the model could not be loaded, and why. */
void mr_service_fail(mr_service *service, const char *text);

/* Main thread: runs the job until a drain or stop (MR_OK), or until the job fails. All requests have ended then. tok
 * may be NULL: the output then has tokens and no text. */
MR_MUST_USE mr_status mr_service_run(mr_service *service, mr_job *job, const mr_tokenizer *tok, mr_err *err);
/* Any thread: no more requests are accepted, and run returns when the open requests have ended. */
void mr_service_drain(mr_service *service);
/* Any thread: run returns at once. Requests end with MR_E_UNAVAILABLE. */
void mr_service_stop(mr_service *service);

typedef enum mr_service_state {
    MR_SERVICE_LOADING,
    MR_SERVICE_READY,
    MR_SERVICE_ENDING, /* is draining, or has stopped */
    MR_SERVICE_FAILED, /* text says why */
} mr_service_state;
const char *mr_service_state_name(mr_service_state state);

typedef struct mr_service_stats {
    mr_service_state state;
    char text[MR_ERR_TEXT_BYTES]; /* FAILED: the whole cause, for the operator of the server; otherwise empty */
    double loaded;                /* share of the bytes, 0 to 1 */
    int64_t n_requests;           /* accepted since the start */
    int32_t n_open;               /* not ended or not released yet */
    mr_job_stats job;             /* zeros before the first run */
} mr_service_stats;

/* Any thread. Asks the main thread for new numbers of the job, and waits at most 1/4 s; then the last ones count. */
void mr_service_get_stats(mr_service *service, mr_service_stats *out);
/* Likewise: the state of the sequences that have slots. Returns their number; out has the first cap of them. */
int32_t mr_service_get_slots(mr_service *service, mr_job_slot *out, int32_t cap);

#endif
