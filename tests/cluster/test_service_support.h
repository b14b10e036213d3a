/* tests/cluster/test_service_support.h - a service over a job of threads, a thread that runs the service, and readers.
 * Owns:    a service_rig owns cluster, job, service and thread.
 * Threads: functions of a rig are called by the test's thread; a reader may be used by any one thread.
 * Errors:  errors fail the test, except the errors of readers, which are returned. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_SERVICE_SUPPORT_H
#define MR_TESTS_CLUSTER_TEST_SERVICE_SUPPORT_H

#include <stdatomic.h>

#include "coordinator/serving/service/service.h"
#include "engine/base/thread.h"
#include "tests/cluster/test_job_support.h"

/* Special tokens of the vocabulary. All other tokens have two letters. */
enum { TOKEN_UNKNOWN, TOKEN_BEGIN, TOKEN_END, TOKEN_BYTE_E2, TOKEN_BYTE_82, TOKEN_BYTE_AC, TOKEN_FIRST_WORD };
mr_tokenizer *service_tokenizer(int32_t n_tokens);

typedef struct service_rig {
    job_rig job;
    mr_service *service;
    const mr_tokenizer *tok;
    int32_t n_first, n_next; /* counts of reported latencies of first and next tokens */
    int64_t latency_ns;      /* sum of the latencies */
    atomic_bool is_ready;    /* on_ready was called */
    mr_thread *thread;       /* runs the service */
    mr_status status;        /* of the run */
    mr_err err;
} service_rig;

void service_rig_start(service_rig *rig, const job_rig_config *config, const mr_tokenizer *tok, int32_t max_waiting);
/* Stops the service and waits for the end of its run. Checks that all blocks are free and no sequence is left. */
void service_rig_end_run(service_rig *rig);
void service_rig_stop(service_rig *rig);

enum { READER_MAX_IDS = 128, READER_MAX_CHOICES = 8 };

typedef struct choice_heard {
    int32_t ids[READER_MAX_IDS], n_ids;
    size_t offsets[READER_MAX_IDS];
    bool is_cut[READER_MAX_IDS];
    float logprobs[READER_MAX_IDS];
    mr_piece_logprob top[READER_MAX_IDS][4]; /* the first 4 alternatives of each token */
    int32_t n_top[READER_MAX_IDS];
    mr_text_buf text;
    mr_finish finish;
    mr_status status;
    mr_piece last; /* the last piece, for its counts and times */
} choice_heard;

/* Reads one request to its end. */
typedef struct reader {
    mr_mutex lock;
    mr_cond cond;
    int32_t n_wakes, n_seen;
    mr_request *request;
    choice_heard choices[READER_MAX_CHOICES];
    choice_heard prompt;
    int32_t n_pieces;
    const char *wrong; /* a description of an unexpected piece; NULL: none */
} reader;

void reader_init(reader *r);
void reader_deinit(reader *r);
/* Submits desc with the reader's wake. */
mr_status reader_submit(reader *r, mr_service *service, mr_generate_desc desc, mr_err *err);
/* Waits for the next piece and takes the piece. false: the request has ended, or the wait timed out. */
bool reader_step(reader *r);
/* Reads to the end and releases the request. */
void reader_finish(reader *r);
void reader_release(reader *r);

/* A request with the sampling of job_sequence and a random prompt of n ids. The caller owns ids. */
mr_generate_desc service_request(int32_t number, int32_t n, int32_t *ids, int32_t max_tokens);

#endif
