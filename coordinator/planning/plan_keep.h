/* coordinator/planning/plan_keep.h - a plan for ranks that hold some layers already. Of the plans that are nearly as
 * fast as the best one, it takes the one with the fewest bytes to load: ranks stay where they are in the pipeline, a
 * rank that holds the layers of a lost one takes its place, and cuts move where fewer layers change hands.
 * Owns:    nothing. Threads: pure functions.
 * Errors:  MR_E_NO_MEMORY alone. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_KEEP_H
#define MR_COORDINATOR_PLANNING_PLAN_KEEP_H

#include "coordinator/planning/planner.h"

/* Arrays of layers have an entry more, for the output behind the last layer. */
typedef struct mr_keep_wish {
    const mr_planner_config *planner; /* stages count by their measured times; NULL: by read_bytes */
    int32_t n_layers, n_ranks;
    const size_t *load_bytes; /* [n_layers + 1]: what a rank that does not hold it loads */
    const size_t *read_bytes; /* [n_layers + 1]: what a step reads */
    const bool *holds;        /* [n_ranks][n_layers + 1] */
    const bool *takes_part;   /* [n_ranks]: may get a stage */
    /* [n_ranks]: of ranks that lack equally little, the one with most memory is an heir. UINT64_MAX: not known */
    const uint64_t *memory_bytes;
    const mr_plan *former; /* the plan before */
} mr_keep_wish;

/* Bytes that the ranks of a plan lack. */
size_t mr_plan_load_bytes(const mr_keep_wish *w, const mr_plan *plan);

/* plan: the best plan, which is replaced by one that loads less, if there is one that is slower by some per cent at
 * most. It has at most as many stages. Device layers of a replaced plan are set with a planner alone; ways and
 * weight_bytes are not. */
MR_MUST_USE mr_status mr_plan_keep(const mr_keep_wish *w, mr_plan *plan, mr_err *err);

#endif
