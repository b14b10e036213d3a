/* coordinator/clusters/virtual_cluster.h - simulated stages at the other end of a job's channel, on a clock that jumps
 * from event to event. The job is the real one, with its scheduler and its ledger. So a run shows what the job would do
 * with real stages and links of these times, in much less time.
 * A step runs on a stage when its plan, its rows and (on the head) its ids have come, and the stage has run the step
 * before. Sending costs a stage no time. Rows follow each other over a link at the link's bandwidth. Messages of other
 * kinds take the link's latency. The coordinator itself takes no time.
 * Owns:    messages under way. From create to destroy it controls the clock of the process (mr_clock_freeze).
 * Threads: bound to the thread of the job.
 * Errors:  create: no memory. MR_E_INTERNAL: a wait without a deadline while no message is under way. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLUSTERS_VIRTUAL_CLUSTER_H
#define MR_COORDINATOR_CLUSTERS_VIRTUAL_CLUSTER_H

#include "proto/channel.h"

/* The work of a stage in a step. */
typedef struct mr_virtual_work {
    int32_t n_rows, n_out; /* rows, and rows that bring a token */
    int64_t n_positions;   /* positions before the rows in their sequences, summed over the rows */
} mr_virtual_work;

typedef struct mr_virtual_cluster_config {
    int32_t n_stages;
    /* Returns how long stage i computes. */
    int64_t (*compute_ns)(void *ctx, int32_t stage, const mr_virtual_work *work);
    void *compute_ctx;
    int64_t latency_ns;      /* of every link */
    double bytes_per_second; /* of the links between stages; 0: no limit */
    int32_t row_bytes;       /* activations of one row */
    int32_t n_vocab;
} mr_virtual_cluster_config;

typedef struct mr_virtual_cluster mr_virtual_cluster;

/* Also freezes the clock of the process. */
MR_MUST_USE mr_status mr_virtual_cluster_create(const mr_virtual_cluster_config *config, mr_virtual_cluster **out,
                                                mr_err *err);
/* The coordinator's channel, as of mr_local_cluster. Borrowed from the cluster. */
mr_channel *mr_virtual_cluster_channel(mr_virtual_cluster *c);
/* Call after mr_job_destroy. NULL is accepted. */
void mr_virtual_cluster_destroy(mr_virtual_cluster *c);

#endif
