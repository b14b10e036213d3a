/* coordinator/planning/cluster_facts.h - what is known of the ranks of a job and of the links between them before there
 * is a plan. The planner and the simulator compute with these facts. The ranks measured them, or they come from a file.
 * Owns:    nothing; the creator of a value owns the arrays. Threads: plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_CLUSTER_FACTS_H
#define MR_COORDINATOR_PLANNING_CLUSTER_FACTS_H

#include "coordinator/planning/step_times.h"
#include "engine/gguf/model_info.h"
#include "proto/ways.h"

enum { MR_WAY_WHY_BYTES = 160 };

typedef struct mr_rank_facts {
    char host[64];
    int32_t threads;
    uint64_t memory_bytes; /* the rank's part of its host's memory, for weights, KV cache, buffers; 0: not known */
    mr_step_times layer[MR_MAX_LAYER_KINDS]; /* of one layer of each kind, at an empty context */
    /* Seconds that each earlier position that a row attends to adds to this row, in one layer of each kind. */
    double position_s[MR_MAX_LAYER_KINDS];
    mr_step_times output; /* output norm, matrix and sampling, by the rows that bring a token */
    double step_s;        /* of each step in addition: receiving and sending a message */
    double core_share;    /* see mr_measured.core_share */
    mr_measured_device device;
} mr_rank_facts;

typedef struct mr_link_facts {
    double latency_s;        /* one way, for a small message */
    double bytes_per_second; /* for large messages */
} mr_link_facts;

/* A way of activations from the device of a rank to that of another one, as measured: between the memories of the
 * devices, with all copies. */
typedef struct mr_way_facts {
    int32_t from, to; /* ranks */
    mr_way way;
    mr_link_facts link;         /* zeros: measuring failed */
    char why[MR_WAY_WHY_BYTES]; /* it failed; "": it has not */
} mr_way_facts;

typedef struct mr_cluster_facts {
    int32_t n_ranks, n_layers, n_kinds;
    int32_t n_partitions;               /* of the widest sparse feed-forward part; 0: the model is not sparse */
    int32_t row_bytes;                  /* activations of one row between two stages */
    const uint8_t *kind;                /* [n_layers]: the kind of each layer */
    int32_t window[MR_MAX_LAYER_KINDS]; /* how many tokens a token attends to, itself included; 0: to all */
    int32_t n_experts;                  /* of a layer that has experts */
    /* [n_experts + 1]: which part of the rows' choices falls on the so many experts that are used most, as a mean over
     * the layers. NULL: not known; then all experts count as used alike. Borrowed. */
    const double *expert_shares;
    const mr_rank_facts *ranks; /* [n_ranks] */
    const mr_link_facts *links; /* [n_ranks][n_ranks]: from, to */
    const mr_way_facts *ways;   /* [n_ways]; NULL: none is measured */
    int32_t n_ways;
} mr_cluster_facts;

/* Sets the windows of the kinds, n_experts and n_partitions. The model has n_layers layers. */
void mr_cluster_facts_set_model(mr_cluster_facts *f, const mr_model_info *info);
/* What was measured of a way between two ranks; or else the worst that was measured of it between ranks of the same two
 * hosts. NULL: nothing. */
const mr_way_facts *mr_cluster_facts_way(const mr_cluster_facts *f, int32_t from, int32_t to, mr_way way);
/* Whether the way was measured, and works. NULL is accepted. */
static inline bool mr_way_facts_works(const mr_way_facts *w) {
    return w && w->link.bytes_per_second > 0;
}
/* Seconds of a payload. */
static inline double mr_link_facts_seconds(const mr_link_facts *link, double bytes) {
    return link->latency_s + (link->bytes_per_second > 0 ? bytes / link->bytes_per_second : 0);
}
/* Seconds of one layer of a kind on a rank, or on the rank's device, for a step of `rows` rows with `depth` positions
 * before each. The rank need not be one of f. */
double mr_cluster_facts_layer_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                      int32_t depth);
double mr_cluster_facts_device_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                       int32_t depth);
/* The same of a layer on the device whose experts, or neurons of a sparse part, are in the host's memory. */
double mr_cluster_facts_trunk_seconds(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind, double rows,
                                      int32_t depth);
/* Seconds that such a layer takes less, for each part of the choices that falls on experts of the device. This counts
 * as if the two sides worked one after the other, so it is a lower bound. Below 0: the device is slower. 0 if no whole
 * layer was measured on the device. */
double mr_cluster_facts_experts_seconds(const mr_rank_facts *rank, int32_t kind, double rows);
/* Which part of the choices falls on the n experts that are used most. */
double mr_cluster_facts_expert_share(const mr_cluster_facts *f, int32_t n);
/* Bytes of an expert of a layer on the device; 0: the kind has no experts, or they are not known. */
double mr_cluster_facts_expert_bytes(const mr_cluster_facts *f, const mr_rank_facts *rank, int32_t kind);

#endif
