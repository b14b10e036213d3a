/* coordinator/clusters/local_cluster.h - the whole cluster inside one process: each stage is a thread on a local
 * channel. The same worker and coordinator code as between ranks (invariant I7).
 * Owns:    hub, channels, backends, stage threads.
 * Threads: create and destroy by one thread, which then uses the coordinator's channel.
 * Errors:  create: no memory, no threads, a backend that is not built in. What fails in a stage is reported over its
 *          channel. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLUSTERS_LOCAL_CLUSTER_H
#define MR_COORDINATOR_CLUSTERS_LOCAL_CLUSTER_H

#include "engine/base/status.h"
#include "proto/channel.h"
#include "worker/stage/devices.h"

typedef struct mr_local_cluster mr_local_cluster;

typedef struct mr_local_cluster_config {
    const char *model_path; /* copied */
    int32_t n_stages;
    int32_t threads_per_stage;
    bool threads_adapt;        /* mr_cpu_options.adapts */
    mr_devices_config devices; /* of each stage */
    uint32_t epoch;
    /* Called once for each endpoint, and may put another channel around its own, which it then owns: how tests let
     * messages take time. MR_LOCAL_CLUSTER_REQUESTS may be posted. NULL: none. */
    mr_status (*wrap)(void *ctx, mr_channel **channel, mr_err *err);
    void *wrap_ctx;
} mr_local_cluster_config;

enum { MR_LOCAL_CLUSTER_REQUESTS = 4096 }; /* posted by one endpoint at most */

MR_MUST_USE mr_status mr_local_cluster_create(const mr_local_cluster_config *config, mr_local_cluster **out,
                                              mr_err *err);
/* The coordinator's end: stages are endpoints 0 .. n_stages - 1. Borrowed. */
mr_channel *mr_local_cluster_channel(mr_local_cluster *c);
/* Ends the coordinator's channel, which ends stages that still wait, and joins them. After mr_job_destroy. */
void mr_local_cluster_destroy(mr_local_cluster *c);

#endif
