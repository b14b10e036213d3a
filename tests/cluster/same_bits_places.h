/* tests/cluster/same_bits_places.h - where the layers of a model lie in a test of same bits. Two files implement it:
 * same_bits_cpu.c has the CPU alone, tests/cuda_emulation/same_bits_cuda.c adds emulated GPUs. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CLUSTER_SAME_BITS_PLACES_H
#define MR_TESTS_CLUSTER_SAME_BITS_PLACES_H

#include <stdbool.h>

#include "coordinator/planning/plan.h"
#include "worker/stage/devices.h"

/* Place 0 is the CPU. Places 1 to PLACES_N put layers on devices. */
extern const int PLACES_N;

const char *places_name(int place);
/* The devices of the stages of a local cluster. */
mr_devices_config places_devices(int place);
/* Puts layers of each stage on its device. n_partitions: as mr_model_partitions. */
void places_apply(int place, int32_t n_partitions, mr_plan *plan);

/* Counts of the runs of programs begin anew. Call when the cluster is made. */
void places_begin(void);
/* Fails the test if a device has left work to the CPU, or the other way round. n_steps: of the job, which is over. */
void places_check(int place, const mr_plan *plan, int64_t n_steps, const char *what);

#endif
