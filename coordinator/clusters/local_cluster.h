/* coordinator/clusters/local_cluster.h - a whole cluster inside one process: each stage is a thread with a local
 * channel. Workers and coordinator run the same code as between ranks (invariant I7).
 * Owns:    hub, channels, backends, stage threads.
 * Threads: create and destroy on one thread, which also uses the coordinator's channel.
 * Errors:  create: no memory, no threads, a backend that is not built in. A stage reports its own errors over its
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
    /* Called once for each endpoint. May replace *channel by another channel that wraps and owns it: tests delay
     * messages in this way. The wrapper must allow MR_LOCAL_CLUSTER_REQUESTS posted requests. NULL: no wrapping. */
    mr_status (*wrap)(void *ctx, mr_channel **channel, mr_err *err);
    void *wrap_ctx;
} mr_local_cluster_config;

enum { MR_LOCAL_CLUSTER_REQUESTS = 4096 }; /* posted by one endpoint at most */

/* Starts the threads of all stages, which wait for the plan of a job. */
MR_MUST_USE mr_status mr_local_cluster_create(const mr_local_cluster_config *config, mr_local_cluster **out,
                                              mr_err *err);
/* The coordinator's channel. The stages are its endpoints 0 .. n_stages - 1. Borrowed from the cluster. */
mr_channel *mr_local_cluster_channel(mr_local_cluster *c);
/* Destroys the coordinator's channel, which ends the stages that still wait, and joins the threads. Call after
 * mr_job_destroy. */
void mr_local_cluster_destroy(mr_local_cluster *c);

#endif
