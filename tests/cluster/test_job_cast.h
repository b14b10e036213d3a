/* tests/cluster/test_job_cast.h - two stages of a job played by the test itself, inside the waits of the coordinator's
 * channel: no threads, and everything happens in one order.
 * Threads: the test's. Errors: all of them fail the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_JOB_CAST_H
#define MR_TESTS_CLUSTER_TEST_JOB_CAST_H

#include "proto/channel_local.h"
#include "proto/link.h"
#include "proto/messages.h"

enum { N_STAGES = 2, COORDINATOR = N_STAGES, VOCAB = 90, EPOCH = 1 };

typedef struct cast cast;
typedef void (*act)(cast *c);

/* The coordinator's channel with the two stages behind it. Act n is played in the coordinator's wait number n; after
 * the last one all stages leave, so that nothing waits for ever. */
struct cast {
    mr_channel base; /* what the coordinator is given */
    mr_channel *inner;
    mr_local_hub *hub;
    mr_channel *stages[N_STAGES];
    mr_inbox *control[N_STAGES];
    mr_outbox *report[N_STAGES];
    mr_outbox *tokens, *logits; /* of the last stage */
    const act *acts;
    int n_acts, n_played;
    act on_first_send; /* before the first message of the coordinator; NULL: nothing */
};

/* Opens the stages' ends; acts, n_acts and on_first_send are the caller's to set. */
void cast_create(cast *c);
void cast_destroy(cast *c);
/* A stage closes its channel. */
void cast_leave(cast *c, int stage);

/* A frame of any content; kind and epoch are the link's. */
void cast_send_frame(mr_outbox *out, mr_frame frame, const void *payload);
/* Reports sent by stage from in the name of stage. */
void cast_send_ready(cast *c, int from, uint32_t stage);
void cast_send_failure(cast *c, int from, uint32_t stage, mr_status status, const char *text);
/* Tokens with one token of generation 1; logits of zeros. */
void cast_send_token(cast *c, uint64_t step, uint32_t slot, uint32_t position);
void cast_send_logits(cast *c, uint64_t step, uint32_t rows, uint32_t row_bytes);

#endif
