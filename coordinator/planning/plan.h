/* coordinator/planning/plan.h - which stage holds which layers. mr_plan_balance cuts the model into contiguous ranges
 * that balance the bytes which each stage reads for a token. Stage i is on rank i unless a caller changes that. The
 * output matrix counts for the last stage. The embedding takes memory, but a step reads only some rows of it.
 * Owns:    nothing; plain data. Threads: pure functions.
 * Errors:  MR_E_INVALID names the wrong cut or number, and what is allowed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_H
#define MR_COORDINATOR_PLANNING_PLAN_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "engine/gguf/model_info.h"
#include "proto/limits.h"
#include "proto/ways.h"

typedef struct mr_plan_stage {
    int32_t first, last;    /* layers [first, last) */
    int32_t rank;           /* the holder: an endpoint of the job's channel; each rank has one stage at most */
    int32_t device_layers;  /* the first layers of the range, which the rank's device holds */
    int32_t host_experts;   /* the last so many of these: their experts stay in the host's memory */
    int32_t device_experts; /* so many experts of each of these layers are on the device, too */
    /* Of each sparse feed-forward part of the device's layers, the last so many partitions of neurons stay in the
     * host's memory. */
    int32_t cold_partitions;
    mr_way way;          /* of the activations to the next stage */
    size_t weight_bytes; /* in the file: the layers, and embedding or output if the stage has them */
    /* Of a synthetic plan: what a step takes, and what each of its rows adds. */
    int64_t synthetic_fixed_ns, synthetic_row_ns;
} mr_plan_stage;

typedef struct mr_plan {
    int32_t n_stages;
    bool must_ways;       /* a way that cannot be had is an error; else activations go through the hosts */
    int32_t n_partitions; /* of the model's widest sparse part; 0: there is none, or it is not known */
    bool synthetic;       /* stages sleep instead of computing; there may be more stages than layers */
    mr_plan_stage stages[MR_MAX_STAGES];
} mr_plan;

/* The cut into n_stages stages whose largest stage is smallest. MR_E_INVALID: more stages than layers. */
MR_MUST_USE mr_status mr_plan_balance(const mr_gguf *g, const mr_model_info *info, int32_t n_stages, mr_plan *out,
                                      mr_err *err);
/* The cut at the n given layers: first_layers[i] is the first layer of stage i + 1; ascending, inside the model. */
MR_MUST_USE mr_status mr_plan_cut(const mr_gguf *g, const mr_model_info *info, const int32_t *first_layers, int32_t n,
                                  mr_plan *out, mr_err *err);

/* Whether two plans give the same ranks the same layers, in the same places. Weights and ways do not count. */
bool mr_plan_is_same(const mr_plan *a, const mr_plan *b);

/* Sets weight_bytes of a plan that another source made. */
void mr_plan_weigh(const mr_gguf *g, const mr_model_info *info, mr_plan *plan);

#endif
