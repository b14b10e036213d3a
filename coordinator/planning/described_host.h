/* coordinator/planning/described_host.h - facts of hosts that nobody has measured, from a few figures of each. The time
 * of a layer is the longer one of two: reading its weights from memory, and computing its products. Of a layer with
 * experts, a step reads those that its rows choose. If every row chooses `used` of n experts at random, `rows` rows
 * choose n * (1 - (1 - used / n)^rows) different ones.
 * Owns:    nothing. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_DESCRIBED_HOST_H
#define MR_COORDINATOR_PLANNING_DESCRIBED_HOST_H

#include "coordinator/planning/cluster_facts.h"

typedef struct mr_described_host {
    char name[64];
    double memory_bytes;
    double read_bytes_s; /* bytes that memory delivers in a second */
    double operations_s; /* of matrix products, in a second: a multiplication and an addition are two; 0: no limit */
    double link_bytes_s, latency_s; /* of a message to or from any other host */
} mr_described_host;

/* The facts of a host. f: the kinds and windows of the model's layers. */
void mr_described_host_facts(const mr_described_host *host, const mr_gguf *g, const mr_model_info *info,
                             const mr_cluster_facts *f, mr_type kv_type, mr_rank_facts *out);
/* The link between two hosts has the figures of the slower one. */
mr_link_facts mr_described_host_link(const mr_described_host *from, const mr_described_host *to);

#endif
