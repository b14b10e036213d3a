/* coordinator/session/session_cluster.h - where the stages of a command run: as threads of this process, or as the
 * ranks that a launcher has started.
 * Life:    open; start once there is a plan; close. {0} may be closed.
 * Owns:    ranks, roll call, local cluster.
 * Threads: bound to the main thread.
 * Errors:  name rank and host. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_CLUSTER_H
#define MR_COORDINATOR_SESSION_SESSION_CLUSTER_H

#include "coordinator/clusters/local_cluster.h"
#include "coordinator/clusters/virtual_cluster.h"
#include "coordinator/console/options.h"
#include "coordinator/lobby/roll_call.h"
#include "coordinator/planning/plan.h"
#include "coordinator/session/rank.h"

typedef struct mr_session_cluster {
    int32_t n_ranks;        /* 0: threads */
    int32_t n_without_file; /* ranks that get their layers from others */
    int32_t threads;        /* of each stage, where ranks have decided it; 0: not yet */
    rank_process *rank;
    mr_roll_call *roll;
    mr_local_cluster *local;
    mr_virtual_cluster *simulated; /* set by who wants simulated stages; owned */
    mr_devices_config devices;     /* of each stage */
    bool threads_adapt;            /* nobody has said how many: a stage takes fewer where that is faster */
    bool told;                     /* that a signal ends the ranks */
    bool well;                     /* the command has done what it should */
} mr_session_cluster;

/* Whether there is no use in going on: a signal has come, or a rank is lost. */
bool mr_session_cluster_ended(void);

/* The backends that the options want. MR_E_INVALID where they contradict each other. */
MR_MUST_USE mr_status mr_session_cluster_devices(const mr_options *options, mr_devices_config *out, mr_err *err);
/* What rank_start and mr_rank_follow need to know from the command line. */
mr_rank_config mr_session_cluster_rank_config(const mr_options *options, const char *model_path);

/* With ranks: waits for all of them, and checks that they fit together. */
MR_MUST_USE mr_status mr_session_cluster_open(const mr_options *options, const char *model_path, mr_session_cluster *c,
                                              mr_err *err);
/* How far the clocks of the stages' hosts are ahead: out_offset_ns[n_stages]; 0 for threads. Before start. */
MR_MUST_USE mr_status mr_session_cluster_compare_clocks(mr_session_cluster *c, const mr_plan *plan,
                                                        int64_t *out_offset_ns, mr_err *err);
/* Starts the stages of a plan in an epoch; ranks that it leaves out go on waiting. Threads: stage i is rank i. */
MR_MUST_USE mr_status mr_session_cluster_start(mr_session_cluster *c, const char *model_path, const mr_plan *plan,
                                               int32_t threads, uint32_t epoch, mr_err *err);
mr_channel *mr_session_cluster_channel(mr_session_cluster *c);
/* What is known of a rank; NULL where stages are threads. */
const mr_rank_info *mr_session_cluster_rank(const mr_session_cluster *c, int32_t rank);
/* Once all is loaded: ranks without a stage, which may have sent layers to others, only wait for the end from here
 * on. */
void mr_session_cluster_set_idle(mr_session_cluster *c, const mr_plan *plan);
/* Where the launcher lets ranks live on without the first one (mpirun --enable-recovery): tells them to end after all,
 * for a command that has failed before it met them. */
void mr_session_cluster_dismiss_unmet(void);
/* Says now, once, that a signal ends ranks; main() would say it too late: mpirun gives them a second. */
void mr_session_cluster_tell_of_interrupt(mr_session_cluster *c);
/* After the job is destroyed. */
void mr_session_cluster_close(mr_session_cluster *c);

#endif
