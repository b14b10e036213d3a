/* coordinator/serving/service/service_internal.h - requests as the main thread sees them; shared by service.c (submit
 * and run), request.c (what a request owns, and how its reader takes pieces), choice.c (what the sequences of a request
 * generate) and embedding.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVICE_SERVICE_INTERNAL_H
#define MR_COORDINATOR_SERVING_SERVICE_SERVICE_INTERNAL_H

#include "coordinator/serving/service/service.h"
#include "coordinator/serving/text/output_text.h"
#include "engine/base/thread.h"

/* Output of a choice: text and tokens. {0}: none. */
typedef struct output_part {
    mr_text_buf text;
    mr_piece_token *tokens;
    size_t n_tokens, cap_tokens;
    mr_piece_logprob *top; /* of all tokens, one after the other */
    size_t n_top, cap_top;
} output_part;

typedef struct request_choice {
    mr_request *request;
    int32_t idx;
    /* Main thread. */
    int64_t sequence; /* in the job; -1: none yet, or it has ended there */
    bool ended;       /* its last piece is there */
    mr_output_text text;
    size_t n_text;    /* bytes of it that were passed on */
    output_part held; /* tokens whose text was not */
    float *embedding; /* [n_embedding]; NULL: none is wanted */
    double *embedding_sum;
    int32_t n_embedding;
    /* Under the request's lock. */
    output_part part; /* what the reader has not taken */
    bool has_news;
    mr_piece head; /* of the next piece, but for its content */
    char *error;
} request_choice;

struct mr_request {
    mr_service *service;
    mr_generate_desc desc; /* what it points to is owned; its sequence is kept until all choices have started */
    const mr_tokenizer *tok;
    mr_request *next_new, *next_released; /* in the inboxes of the service; it may be in both */
    mr_request *before, *after;           /* main thread: among all */
    mr_request *next_dirty;               /* main thread: to be woken */
    mr_request *next_starting;            /* main thread: of which more is to be put into the job */
    bool is_dirty, is_starting;
    int32_t n_prompt;
    int32_t n_started;       /* main thread: choices that were put into the job */
    mr_job *job;             /* main thread: since it started */
    int64_t prompt_sequence; /* main thread: the sequence that brings logits of the prompt; -1: none */
    bool has_prompt;         /* main thread: it has brought them */
    mr_mutex wake_lock;
    bool is_released; /* under wake_lock */
    mr_mutex lock;
    output_part prompt_part; /* under lock */
    bool has_prompt_news;    /* likewise */
    /* The reader. */
    output_part taken;
    int32_t last_choice, n_taken_ends;
    int32_t n_choices;
    request_choice choices[];
};

/* --- request.c --------------------------------------------------------------------------------------------------- */

/* base: as mr_job_base_key. */
MR_MUST_USE mr_status request_create(mr_service *service, const mr_generate_desc *desc, const mr_prefix_key *base,
                                     mr_request **out, mr_err *err);
void request_destroy(mr_request *r);

MR_MUST_USE bool output_part_add_token(output_part *p, mr_piece_token token);
/* Moves the tokens that stand before the first n to another part. */
MR_MUST_USE bool output_part_move(output_part *from, size_t n, output_part *to);

/* --- choice.c: the main thread ----------------------------------------------------------------------------------- */

/* Puts a sequence that a request wants into the job, one of its choices at a time, so that steps go on meanwhile; what
 * does not get in ends with the error. Returns whether there is more to put. */
bool request_start_next(mr_request *r);
/* Takes what is left of it out of the job again. */
void request_cancel(mr_request *r);
/* The last piece of a choice; nothing happens if it has ended. */
void choice_finish(request_choice *c, mr_finish how, mr_status status, const char *text);
/* Ends every choice that has not ended. */
void request_fail(mr_request *r, mr_status status, const char *text);

/* Puts the sequence of an embedding into the job (embedding.c). */
void request_start_embedding(mr_request *r);

/* --- service.c --------------------------------------------------------------------------------------------------- */

/* Main thread: work memory for logits of the job; NULL: there is none. */
mr_sampler_scratch *service_scratch(mr_service *s, mr_err *err);
/* Main thread: what prompt and answer of one sequence may have in the job. */
int32_t service_most_ids(const mr_service *s);
/* Main thread: see mr_service_config. */
void service_note_latency(const mr_service *s, bool is_first, int64_t ns);
/* Main thread: its sequences are put into the job, in this turn or the next ones. */
void service_start(mr_request *r);
/* Main thread: its reader is to be woken before the next wait. */
void service_mark_dirty(mr_request *r);

#endif
