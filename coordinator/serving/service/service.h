/* coordinator/serving/service/service.h - the request queue between a job and other threads: any of them submits
 * requests and takes their answers, piece by piece; the main thread turns the job, detokenises, and cuts texts at stop
 * texts.
 * Life:    create (before the model is loaded, so that a server can say how far that is); run, on the main thread;
 *          destroy, when all requests are released. A request lives until its release, whatever becomes of the run.
 * Example, a thread that reads one answer (r is woken by desc.wake):
 *
 *     mr_service_submit(service, &desc, &r, err);
 *     while (!mr_request_ended(r))
 *         if (mr_request_take(r, &piece))            // what has come since the last piece
 *             send(piece.text);
 *         else
 *             wait_for_wake();
 *     mr_request_release(r);                         // at any time; in mid-answer it cancels
 *
 * Owns:    requests with all they were given, and their answers. Borrows: job and tokenizer while it runs.
 * Threads: functions say who may call them. A request's own functions are for one thread at a time.
 * Memory:  a request keeps what its reader has not taken: one whole answer at most, bounded by the context. So a slow
 *          reader holds nobody up.
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
} mr_pooling;

typedef struct mr_generate_desc {
    /* Prompt, sampling, grammar and priority of each choice; max_tokens -1: to the end of the context; 0: nothing is
     * generated. The rest of it is the service's. */
    mr_sequence_desc sequence;
    int32_t n_choices;        /* at least one; they share the prompt */
    const char *const *stops; /* [n_stops]; none is empty */
    int32_t n_stops;
    const int32_t *stop_ids; /* [n_stop_ids] that end it as end tokens do, whatever ignore_end says */
    int32_t n_stop_ids;
    bool ignore_end;    /* end tokens do not end it, unless it has a grammar, where nothing comes behind them */
    bool with_special;  /* control tokens come out as text, too */
    int32_t n_logprobs; /* the highest of each position, at most MR_SERVICE_MAX_LOGPROBS; 0: its own alone; -1: none */
    bool prompt_logprobs; /* those of the prompt, too: n_logprobs of each position */
    bool goes_on;         /* with work that was begun before: taken however many wait */
    /* Not NONE: the piece that ends the only choice has the embedding, of length 1; nothing is generated. */
    mr_pooling pooling;
    /* There is something to take. Called on the main thread, never after release has returned. It must not block, and
     * calls nothing of the service. NULL: the reader looks by itself. */
    void (*wake)(void *ctx);
    void *ctx;
} mr_generate_desc;

/* Copies desc with all it points to. MR_E_INVALID, MR_E_TOO_LONG: it can never run. MR_E_BUSY: too many wait already;
 * try again later. MR_E_UNAVAILABLE: the model is not loaded, has failed, or the service is ending; the text says
 * which. */
MR_MUST_USE mr_status mr_service_submit(mr_service *service, const mr_generate_desc *desc, mr_request **out,
                                        mr_err *err);

typedef struct mr_piece_logprob {
    int32_t id;
    float logprob;
} mr_piece_logprob;

typedef struct mr_piece_token {
    int32_t id;
    float logprob; /* NaN: not wanted, or the first of the prompt, which has none */
    int32_t n_top;
    const mr_piece_logprob *top; /* [n_top], falling */
    size_t text_offset;          /* bytes of the choice's text in front of this token's */
} mr_piece_token;

/* What came of one choice since the last piece of it. Pointers are valid until the next take. */
typedef struct mr_piece {
    int32_t choice;
    /* true: tokens are those of the prompt (and text is empty), as prompt_logprobs wants; choice is 0. */
    bool is_prompt;
    mr_str text; /* whole characters, without the stop text; nothing of what may still become one */
    /* Those whose text has come out by now; the end token is not among them, nor what stood behind a stop text. */
    const mr_piece_token *tokens;
    int32_t n_tokens;
    const float *embedding; /* [n_embedding]; NULL: none */
    int32_t n_embedding;
    mr_finish finish;  /* NONE: more comes. Else the last piece of this choice */
    mr_status status;  /* of an ERROR */
    const char *error; /* likewise */
    int32_t n_prompt;
    int32_t n_cached;    /* tokens of the prompt that were there already */
    int32_t n_generated; /* by this choice so far, the end token among them */
    /* Monotonic: submitted, got a slot, first token, latest token; 0: not yet. */
    int64_t submit_ns, begin_ns, first_token_ns, token_ns;
} mr_piece;

/* The next piece; false: nothing now, wake will come; or it has ended. */
bool mr_request_take(mr_request *request, mr_piece *out);
/* The last piece of every choice has been taken. */
bool mr_request_ended(mr_request *request);
/* Ends it: what runs is cancelled, and its blocks are free at once. Waits for a wake under way. NULL is accepted. */
void mr_request_release(mr_request *request);

/* --- The service ------------------------------------------------------------------------------------------------- */

typedef struct mr_service_config {
    int32_t max_waiting; /* sequences (choices) that wait for a slot at most; 0: 1024 */
    /* Main thread, in run: requests are taken from now on. It must not ask for stats. May be NULL. */
    void (*on_ready)(void *ctx);
    void *on_ready_ctx;
    /* Main thread: a token has come, so long after its request was submitted, or after the token before it. May be
     * NULL. */
    void (*on_latency)(void *ctx, bool is_first, int64_t ns);
    void *on_latency_ctx;
} mr_service_config;

MR_MUST_USE mr_status mr_service_create(const mr_service_config *config, mr_service **out, mr_err *err);
/* After run has returned and all requests are released. NULL is accepted. */
void mr_service_destroy(mr_service *service);

/* Any thread, before run: how far the stages have loaded. */
void mr_service_set_loaded(mr_service *service, size_t done_bytes, size_t total_bytes);
/* Any thread, before run: there will be none, and why. */
void mr_service_fail(mr_service *service, const char *text);

/* Main thread: turns the job until a drain or stop (MR_OK), or until the job breaks. All requests have ended then. tok
 * may be NULL: answers have no text then. */
MR_MUST_USE mr_status mr_service_run(mr_service *service, mr_job *job, const mr_tokenizer *tok, mr_err *err);
/* Any thread: no more requests are taken, and run returns when those that are there have ended. */
void mr_service_drain(mr_service *service);
/* Any thread: run returns at once. Requests end with MR_E_UNAVAILABLE. */
void mr_service_stop(mr_service *service);

typedef enum mr_service_state {
    MR_SERVICE_LOADING,
    MR_SERVICE_READY,
    MR_SERVICE_ENDING, /* drains, or has stopped */
    MR_SERVICE_FAILED, /* text says why */
} mr_service_state;
const char *mr_service_state_name(mr_service_state state);

typedef struct mr_service_stats {
    mr_service_state state;
    char text[MR_ERR_TEXT_BYTES]; /* of FAILED: all that is known, for whoever runs the server; else empty */
    double loaded;                /* share of the bytes, 0 to 1 */
    int64_t n_requests;           /* taken, since the start */
    int32_t n_open;               /* not ended or not released yet */
    mr_job_stats job;             /* zeros before the first run */
} mr_service_stats;

/* Any thread. What the job says is at most as old as its last turn, which this asks for and waits for a moment. */
void mr_service_get_stats(mr_service *service, mr_service_stats *out);
/* Likewise: what the sequences that have slots are doing; returns how many there are, out has the first cap of them. */
int32_t mr_service_get_slots(mr_service *service, mr_job_slot *out, int32_t cap);

#endif
