/* tests/cluster/test_job_cast.h - the test plays two stages of a job inside the waits of the coordinator's channel.
 * There are no threads, so all events happen in one order.
 * Threads: the test's thread. Errors: every error fails the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_TEST_JOB_CAST_H
#define MR_TESTS_CLUSTER_TEST_JOB_CAST_H

#include "proto/channel_local.h"
#include "proto/link.h"
#include "proto/messages.h"

enum { N_STAGES = 2, COORDINATOR = N_STAGES, VOCAB = 90, EPOCH = 1 };

typedef struct cast cast;
typedef void (*act)(cast *c);

/* The coordinator's channel with the two stages behind it. Act n is played in wait number n of the coordinator. After
 * the last act all stages close their channels, so that no wait lasts for ever. */
struct cast {
    mr_channel base; /* the real channel of the coordinator */
    mr_channel *inner;
    mr_local_hub *hub;
    mr_channel *stages[N_STAGES];
    mr_inbox *control[N_STAGES];
    mr_outbox *report[N_STAGES];
    mr_outbox *tokens, *logits; /* links of the last stage */
    const act *acts;
    int n_acts, n_played;
    int64_t deadline_ns; /* of the present wait */
    act on_first_send;   /* called before the first message of the coordinator; NULL: none */
};

/* Opens the channels of the stages. The caller sets acts, n_acts and on_first_send. */
void cast_create(cast *c);
void cast_destroy(cast *c);
/* A stage closes its channel. */
void cast_leave(cast *c, int stage);

/* Sends a frame of any content with the kind and epoch of the link. */
void cast_send_frame(mr_outbox *out, mr_frame frame, const void *payload);
/* Each sends a report from stage `from` that names stage as its sender. */
void cast_send_ready(cast *c, int from, uint32_t stage);
void cast_send_failure(cast *c, int from, uint32_t stage, mr_status status, const char *text);
enum { CAST_END_OF_COUNTS = -1 };
/* One count of a layer, or the end of the counts. */
void cast_send_use_count(cast *c, int from, int32_t layer);
/* Each sends from the last stage: one token of generation 1, or logits that are zero. */
void cast_send_token(cast *c, uint64_t step, uint32_t slot, uint32_t position);
void cast_send_logits(cast *c, uint64_t step, uint32_t rows, uint32_t row_bytes);

#endif
