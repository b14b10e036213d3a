/* coordinator/session/session_cluster.h - where the stages of a command run: on threads of this process, or on the
 * ranks that a launcher has started.
 * Life:    mr_session_cluster_open; mr_session_cluster_start when there is a plan; mr_session_cluster_close. {0} may be
 *          closed.
 * Owns:    ranks, roll call, local cluster.
 * Threads: bound to the main thread.
 * Errors:  texts name rank and host. */
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
    int32_t n_ranks;        /* 0: stages are threads */
    int32_t n_without_file; /* ranks that get parts of the model file from other ranks */
    int32_t threads;        /* of rank 0's stage; 0: there are no ranks */
    rank_process *rank;
    mr_roll_call *roll;
    mr_local_cluster *local;
    mr_virtual_cluster *simulated; /* set by the caller for simulated stages; owned */
    mr_devices_config devices;     /* of each stage */
    bool threads_adapt;            /* --threads is not given: a stage uses fewer threads if that is faster */
    int64_t *clock_offset_ns;      /* [n_ranks]; NULL: not compared */
    bool told;                     /* the user was told that a signal ends the ranks */
    bool well;                     /* the command has succeeded */
} mr_session_cluster;

/* Whether the command should end: a signal has come, or a rank is lost. */
bool mr_session_cluster_ended(void);

/* The backends that the options ask for. MR_E_INVALID: the options contradict each other. */
MR_MUST_USE mr_status mr_session_cluster_devices(const mr_options *options, mr_devices_config *out, mr_err *err);
/* The configuration of rank_start and mr_rank_follow, by the command line. */
mr_rank_config mr_session_cluster_rank_config(const mr_options *options, const char *model_path);

/* With ranks: waits until all have called, and checks that they fit together. */
MR_MUST_USE mr_status mr_session_cluster_open(const mr_options *options, const char *model_path, mr_session_cluster *c,
                                              mr_err *err);
/* At rank 0 that lacks parts of the model file: has them sent from other ranks as far as the coordinator reads them,
 * and opens the file. */
MR_MUST_USE mr_status mr_session_cluster_open_file(mr_session_cluster *c, const mr_options *options,
                                                   const char *model_path, mr_gguf **out, mr_err *err);
/* Compares the clocks of all ranks with that of this host. Call before mr_session_cluster_start: a rank answers in the
 * lobby. Later calls do nothing. */
MR_MUST_USE mr_status mr_session_cluster_compare_clocks(mr_session_cluster *c, mr_err *err);
/* How far the clock of a rank's host is ahead of this host's; 0 for threads, and before the comparison. */
int64_t mr_session_cluster_clock_offset_ns(const mr_session_cluster *c, int32_t rank);
/* Starts the stages of a plan in an epoch. Ranks without a stage go on waiting in the lobby. Without ranks, stage i is
 * a thread with rank i. */
MR_MUST_USE mr_status mr_session_cluster_start(mr_session_cluster *c, const char *model_path, const mr_plan *plan,
                                               int32_t threads, uint32_t epoch, mr_err *err);
/* The coordinator's channel to the stages. Borrowed from the cluster. */
mr_channel *mr_session_cluster_channel(mr_session_cluster *c);
/* The roll call's entry for a rank; NULL: stages are threads. */
const mr_rank_info *mr_session_cluster_rank(const mr_session_cluster *c, int32_t rank);
/* Says anew which ranks have which parts of the model file, without the ranks that were lost. MR_E_NOT_FOUND: no rank
 * has a part any more. */
MR_MUST_USE mr_status mr_session_cluster_share_file(mr_session_cluster *c, mr_err *err);
/* Whether a rank was lost. */
bool mr_session_cluster_is_lost(const mr_session_cluster *c, int32_t rank);
/* As rank_take_silence_ns. */
int64_t mr_session_cluster_take_silence_ns(mr_session_cluster *c);
/* Call when all stages of a plan are loaded. Ranks without a stage, which may have sent layers to other ranks, only
 * wait from here on: their loss is no error any more. */
void mr_session_cluster_set_idle(mr_session_cluster *c, const mr_plan *plan);
/* For a command that has failed before rank_start: tells the other ranks to end. Needed where the launcher keeps ranks
 * alive after the end of rank 0 (mpirun --enable-recovery). */
void mr_session_cluster_dismiss_unmet(void);
/* Tells the user, once, that a signal ends the ranks. main() would do this too late: mpirun gives ranks one second. */
void mr_session_cluster_tell_of_interrupt(mr_session_cluster *c);
/* Call after the job is destroyed. */
void mr_session_cluster_close(mr_session_cluster *c);

#endif
