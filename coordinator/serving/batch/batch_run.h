/* coordinator/serving/batch/batch_run.h - works through a batch: lines become calls of the API, as many at a time as
 * fill the cluster, in an order in which equal beginnings of prompts meet; their answers go into the file of results.
 * A request without a seed gets one from its line, so that a batch has the same results whenever it is stopped.
 * Threads: mr_batch_run runs in a thread that it may block, not in the one that turns the service.
 * Errors:  MR_E_CANCELLED: it was stopped; MR_E_UNAVAILABLE: the service has ended; MR_E_IO, MR_E_NO_MEMORY. The
 *          results so far are on the disk then, and the batch can go on from there. What is wrong with a request is its
 *          result. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_RUN_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_RUN_H

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/batch/batch_results.h"

typedef struct mr_batch_counts {
    uint32_t n_lines, n_done, n_failed; /* those done before the start are counted as well */
    uint32_t n_live;
    int64_t prompt_tokens, cached_tokens, generated_tokens; /* since the start */
} mr_batch_counts;

typedef struct mr_batch_config {
    const mr_api *api;
    mr_batch_input *input;
    mr_batch_results *results;
    int32_t max_live; /* calls at a time */
    /* The url that all requests have to have; prompts are for /v1/completions then. NULL: any. Borrowed. */
    const char *url;
    bool prompts_are_chats; /* a line that is a prompt becomes a message of a user, not a text to go on with */
    int32_t max_tokens;     /* of the answers to these; -1: as the API has it */
    int32_t priority;       /* of requests that name none; 0: as the API has it */
    int64_t grace_ns;       /* how long calls may go on after a stop */
    /* Asked several times a second: the batch shall stop. */
    bool (*stops)(void *ctx);
    void (*progress)(void *ctx, const mr_batch_counts *counts); /* likewise told; may be NULL */
    void *ctx;
} mr_batch_config;

MR_MUST_USE mr_status mr_batch_run(const mr_batch_config *config, mr_batch_counts *out_counts, mr_err *err);

/* batch_request.c: what a line asks for. */
typedef struct batch_request {
    mr_api_endpoint endpoint;
    char *body; /* JSON, to be freed with free */
    /* Otherwise why it cannot be asked for: a code, NULL for none, and a text. */
    const char *code;
    char message[256];
} batch_request;
/* MR_E_NO_MEMORY alone. */
MR_MUST_USE mr_status batch_request_read(const mr_batch_config *config, const batch_line *l, batch_request *out,
                                         mr_err *err);

#endif
