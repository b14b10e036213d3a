/* coordinator/session/rank_place.h - where a launcher (mpirun, srun) has put this process: known before MPI starts.
 * Source:  the environment: OMPI_COMM_WORLD_* of Open MPI, PMI_* and MPI_LOCAL* of MPICH's launchers, PMIX_RANK and
 *          SLURM_* of srun. What Open MPI's mpirun binds to was measured with 4.1.4.
 * Threads: rank_place_share and rank_place_take_share move the calling thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_RANK_PLACE_H
#define MR_COORDINATOR_SESSION_RANK_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/cores.h"

enum { RANK_MAX_CPUS = MR_CORES_MAX };

typedef struct mr_rank_place {
    int32_t rank, n_ranks;       /* 0 of 1: alone */
    int32_t local_rank, n_local; /* among the ranks of this host */
} mr_rank_place;

mr_rank_place mr_rank_place_get(void);

/* The CPUs of one rank on its host. */
typedef struct rank_share {
    int32_t n_cpus; /* one of each core; 0: the ranks share cores, and none is bound */
    int cpu_ids[RANK_MAX_CPUS];
    int32_t n_cores; /* that the rank can keep busy: n_cpus, or less by a quota of the control group; at least 1 */
} rank_share;

/* Undoes what mpirun bound this process to of its own accord (one core where there are two ranks or one), for this
 * thread and those that it starts, and gives this rank its part of the host's cores. What the user asked mpirun or srun
 * to bind to stays, and is the share. */
void rank_place_share(const mr_rank_place *place, rank_share *out);
/* Its part of the cores that it sees, neighbours in their order: alike for all ranks, even where one then has cores of
 * two NUMA nodes, because stages are balanced for hosts' even parts. usable: by mr_cores_usable; chosen: somebody has
 * bound each rank to what is its own. */
void rank_place_divide(const mr_rank_place *place, const mr_cores *cores, int32_t usable, bool chosen, rank_share *out);
/* Binds the calling thread, and those that it starts, to the share. */
void rank_place_take_share(const rank_share *share);

#endif
