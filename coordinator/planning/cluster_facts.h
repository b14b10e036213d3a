/* coordinator/planning/cluster_facts.h - what is known of the ranks of a job and of the links between them before there
 * is a plan: what the planner and the simulator reckon with. Measured by the ranks, or read from a file.
 * Owns:    nothing; who fills it in owns the arrays. Threads: plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_CLUSTER_FACTS_H
#define MR_COORDINATOR_PLANNING_CLUSTER_FACTS_H

#include "coordinator/planning/step_times.h"

typedef struct mr_rank_facts {
    char host[64];
    int32_t threads;
    uint64_t memory_bytes; /* this rank's part of its host's: for weights, KV cache, buffers; 0: not known */
    mr_step_times layer[MR_MAX_LAYER_KINDS]; /* of one layer of each kind, at an empty context */
    double position_s;                       /* more seconds of one row in one layer for each position before it */
    mr_step_times output;                    /* output norm, matrix and sampling, for so many rows that want a token */
    double step_s;                           /* of each step besides: a message in and one out */
    double core_share;                       /* mr_measured.core_share */
} mr_rank_facts;

typedef struct mr_link_facts {
    double latency_s;        /* of a small message, one way */
    double bytes_per_second; /* of a large one */
} mr_link_facts;

typedef struct mr_cluster_facts {
    int32_t n_ranks, n_layers, n_kinds;
    int32_t row_bytes;          /* of the activations of one row between two stages */
    const uint8_t *kind;        /* [n_layers] */
    const mr_rank_facts *ranks; /* [n_ranks] */
    const mr_link_facts *links; /* [n_ranks][n_ranks]: from, to */
} mr_cluster_facts;

#endif
