/* coordinator/session/rank_place.h - the place that a launcher (mpirun, srun) gave to this process: rank, local rank
 * and cores. All is known before MPI starts.
 * Source:  the environment: OMPI_COMM_WORLD_* of Open MPI, PMI_* and MPI_LOCAL* of MPICH's launchers, PMIX_RANK and
 *          SLURM_* of srun. What Open MPI's mpirun binds to was measured with 4.1.4.
 * Threads: rank_place_share and rank_place_take_share change the CPUs of the calling thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RANK_PLACE_H
#define MR_COORDINATOR_SESSION_RANK_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/cores.h"

enum { RANK_MAX_CPUS = MR_CORES_MAX };

typedef struct mr_rank_place {
    int32_t rank, n_ranks;       /* 0 of 1: without a launcher */
    int32_t local_rank, n_local; /* among the ranks of this host */
} mr_rank_place;

/* Reads the environment. */
mr_rank_place mr_rank_place_get(void);

/* The CPUs of one rank on its host. */
typedef struct rank_share {
    int32_t n_cpus; /* one of each core; 0: the ranks share cores, so no thread is bound */
    int cpu_ids[RANK_MAX_CPUS];
    /* Cores that the rank can keep busy: n_cpus, or fewer by a quota of the control group; at least 1. */
    int32_t n_cores;
} rank_share;

/* Gives this rank its part of the host's cores. mpirun binds processes by default (to one core if there are one or two
 * ranks); this default binding is undone for the calling thread and the threads that it starts. A binding that the user
 * asked mpirun or srun for stays, and is the share. */
void rank_place_share(const mr_rank_place *place, rank_share *out);
/* Computes the share: consecutive cores of those that the rank sees. All ranks get equal parts, because stages are
 * balanced for equal parts of a host. So a rank may have cores of two NUMA nodes. usable: from mr_cores_usable. chosen:
 * each rank was bound to cores of its own on purpose. */
void rank_place_divide(const mr_rank_place *place, const mr_cores *cores, int32_t usable, bool chosen, rank_share *out);
/* Binds the calling thread, and those that it starts, to the share. */
void rank_place_take_share(const rank_share *share);

#endif
