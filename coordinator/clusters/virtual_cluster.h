/* coordinator/clusters/virtual_cluster.h - simulated stages: the other end of a job's channel, on a
 * clock that jumps from event to event. The job that runs on it is the real one, with its scheduler and its ledger, so
 * what it would do with real stages and links of these times can be seen in much less time than that.
 * A step runs on a stage when its plan, its rows and (on the head) its ids are there and the stage has run the one
 * before. Sending takes a stage no time; rows follow each other over a link at its bandwidth, messages of other kinds
 * take its latency. The coordinator itself takes no time.
 * Owns:    messages under way. The clock of the process (mr_clock_freeze) is its own from create to destroy.
 * Threads: bound to one thread, which is the job's.
 * Errors:  create: no memory. A wait without end for nothing is MR_E_INTERNAL. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLUSTERS_VIRTUAL_CLUSTER_H
#define MR_COORDINATOR_CLUSTERS_VIRTUAL_CLUSTER_H

#include "proto/channel.h"

/* What a stage has to do in a step. */
typedef struct mr_virtual_work {
    int32_t n_rows, n_out; /* rows, and those that want a token */
    int64_t n_positions;   /* before them in their sequences, all rows together */
} mr_virtual_work;

typedef struct mr_virtual_cluster_config {
    int32_t n_stages;
    /* How long stage i computes. */
    int64_t (*compute_ns)(void *ctx, int32_t stage, const mr_virtual_work *work);
    void *compute_ctx;
    int64_t latency_ns;      /* of every link */
    double bytes_per_second; /* of links between stages; 0: no limit */
    int32_t row_bytes;       /* of activations */
    int32_t n_vocab;
} mr_virtual_cluster_config;

typedef struct mr_virtual_cluster mr_virtual_cluster;

MR_MUST_USE mr_status mr_virtual_cluster_create(const mr_virtual_cluster_config *config, mr_virtual_cluster **out,
                                                mr_err *err);
/* The coordinator's end, as that of mr_local_cluster. Borrowed; not to be destroyed. */
mr_channel *mr_virtual_cluster_channel(mr_virtual_cluster *c);
/* After mr_job_destroy. NULL is accepted. */
void mr_virtual_cluster_destroy(mr_virtual_cluster *c);

#endif
