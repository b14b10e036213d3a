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
    int64_t sequence; /* in the job; -1: none yet, or the sequence has ended */
    bool ended;       /* the last piece has been made */
    mr_output_text text;
    size_t n_text;    /* bytes of text that were passed to `part` */
    output_part held; /* tokens whose text was not passed on */
    float *embedding; /* [n_embedding]; NULL: no embedding is asked for */
    double *embedding_sum;
    int32_t n_embedding;
    /* Under the request's lock. */
    output_part part; /* output that the reader has not taken */
    bool has_news;    /* part, head or error has changed since the last take */
    mr_piece head;    /* the next piece without its output */
    char *error;
} request_choice;

struct mr_request {
    mr_service *service;
    mr_generate_desc desc; /* owns all that it points to; desc.sequence is kept until all choices have started */
    const mr_tokenizer *tok;
    mr_request *next_new, *next_released; /* lists that other threads fill; a request may be in both */
    mr_request *before, *after;           /* main thread: list of all requests */
    mr_request *next_dirty;               /* main thread: list of requests whose readers are to be woken */
    mr_request *next_starting;            /* main thread: list of requests with choices to submit to the job */
    bool is_dirty, is_starting;
    int32_t n_prompt;
    int32_t n_started;       /* main thread: choices that were submitted to the job */
    mr_job *job;             /* main thread: set when the request starts */
    int64_t prompt_sequence; /* main thread: the sequence that computes logits of the prompt; -1: none */
    bool has_prompt;         /* main thread: the logits of the prompt are complete */
    mr_mutex wake_lock;
    bool is_released; /* under wake_lock */
    mr_mutex lock;
    output_part prompt_part; /* under lock */
    bool has_prompt_news;    /* under lock */
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
/* Moves the first n tokens to the end of another part. */
MR_MUST_USE bool output_part_move(output_part *from, size_t n, output_part *to);

/* --- choice.c: the main thread ----------------------------------------------------------------------------------- */

/* Submits the next sequence of a request to the job. Only one at a time, so that steps go on in between. A choice that
 * the job refuses ends with the error. Returns whether there are more. */
bool request_start_next(mr_request *r);
/* Cancels the sequences of a request in the job. */
void request_cancel(mr_request *r);
/* Makes the last piece of a choice; does nothing where the choice has ended. */
void choice_finish(request_choice *c, mr_finish how, mr_status status, const char *text);
/* Ends every choice that has not ended. */
void request_fail(mr_request *r, mr_status status, const char *text);

/* Submits the sequence of an embedding to the job (embedding.c). */
void request_start_embedding(mr_request *r);

/* --- service.c --------------------------------------------------------------------------------------------------- */

/* Main thread: work memory for logits of the job; NULL: no memory. */
mr_sampler_scratch *service_scratch(mr_service *s, mr_err *err);
/* Main thread: see mr_service_config. */
void service_note_latency(const mr_service *s, bool is_first, int64_t ns);
/* Main thread: has the sequences of a request submitted to the job, in this turn or the next ones. */
void service_start(mr_request *r);
/* Main thread: has the reader of a request woken before the main thread waits again. */
void service_mark_dirty(mr_request *r);

#endif
