/* coordinator/serving/batch/batch_run.h - runs a batch. Lines become calls of the API, max_live at a time, in the order
 * of batch_input_order, and the answers go into the file of results. A request without a seed gets one made from its
 * line, so that a batch has the same results however often it is stopped and resumed.
 * Threads: mr_batch_run blocks its thread. This must not be the main thread, which runs the service.
 * Errors:  MR_E_CANCELLED: config.stops asked for an end; MR_E_UNAVAILABLE: the service has ended; MR_E_NOT_FOUND,
 *          MR_E_FORMAT: another program has removed or changed the file of results (batch_results.h); MR_E_IO,
 *          MR_E_NO_MEMORY. After an error the results so far are on the disk, unless another program took them away,
 *          and the batch can be resumed. An error of a single request is the result of this request. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_BATCH_BATCH_RUN_H
#define MR_COORDINATOR_SERVING_BATCH_BATCH_RUN_H

#include "coordinator/serving/api/api.h"
#include "coordinator/serving/batch/batch_results.h"

typedef struct mr_batch_counts {
    uint32_t n_lines, n_done, n_failed;                     /* results of earlier runs included */
    uint32_t n_live;                                        /* open calls */
    int64_t prompt_tokens, cached_tokens, generated_tokens; /* of this run */
} mr_batch_counts;

typedef struct mr_batch_config {
    const mr_api *api;
    mr_batch_input *input;
    mr_batch_results *results;
    int32_t max_live; /* open calls at most */
    /* The url that all requests must have; prompts are for /v1/completions then. NULL: any. Borrowed. */
    const char *url;
    bool prompts_are_chats; /* a line that is a prompt becomes a user's message of a chat; false: a completion */
    int32_t max_tokens;     /* of lines that are prompts; -1: the default of the API */
    int32_t priority;       /* of requests without one; 0: the default of the API */
    int64_t grace_ns;       /* after a stop, open calls get this time to end */
    /* Called several times a second. stops: true ends the batch; may be NULL. progress: may be NULL. */
    bool (*stops)(void *ctx);
    void (*progress)(void *ctx, const mr_batch_counts *counts);
    void *ctx;
} mr_batch_config;

MR_MUST_USE mr_status mr_batch_run(const mr_batch_config *config, mr_batch_counts *out_counts, mr_err *err);

/* batch_request.c: the API call that a line asks for, or the error of a line that is no valid request. */
typedef struct batch_request {
    mr_api_endpoint endpoint;
    char *body; /* JSON; the caller frees it with free. NULL: see code */
    /* The error of the line. NULL: no error. */
    const char *code;
    char message[256];
} batch_request;
/* MR_E_NO_MEMORY is the only error. */
MR_MUST_USE mr_status batch_request_read(const mr_batch_config *config, const batch_line *l, batch_request *out,
                                         mr_err *err);

/* batch_request.c: whether the whole batch is to be refused: it has no line ("empty_file"), or some lines have a url
 * that is not that of the batch, and no line is a valid request ("mismatched_url", "invalid_url"). out->code is NULL
 * where it is not refused. MR_E_NO_MEMORY is the only error. */
MR_MUST_USE mr_status batch_request_refuse_all(const mr_batch_config *config, batch_request *out, uint32_t *out_line,
                                               mr_err *err);

#endif
