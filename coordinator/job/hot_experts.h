/* coordinator/job/hot_experts.h - which experts the devices of a plan get.
 * Owns:    mr_hot_experts owns its lists. {0} may be deinitialised. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_JOB_HOT_EXPERTS_H
#define MR_COORDINATOR_JOB_HOT_EXPERTS_H

#include "coordinator/planning/plan.h"
#include "coordinator/planning/profile.h"

typedef struct mr_hot_experts {
    uint32_t *at;            /* the lists of all stages, one behind the other */
    size_t n[MR_MAX_STAGES]; /* the length of each; 0: the stage takes the first experts of each layer */
} mr_hot_experts;

/* Lists the most used experts of each layer that shares its experts between device and host. profile: NULL for none.
 * There are no lists if they are too long for a plan. */
MR_MUST_USE mr_status mr_hot_experts_list(const mr_plan *plan, const mr_profile *profile, mr_hot_experts *out,
                                          mr_err *err);
void mr_hot_experts_deinit(mr_hot_experts *h);

#endif
