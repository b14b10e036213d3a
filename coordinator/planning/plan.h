/* coordinator/planning/plan.h - who holds which layers: contiguous ranges that balance the bytes which each stage reads
 * for a token; stage i on rank i, as long as nobody moves it.
 * The output matrix is charged to the last stage; the embedding costs memory, but a step reads only rows of it.
 * Owns:    nothing; plain data. Threads: pure functions.
 * Errors:  MR_E_INVALID names the cut or number that is wrong and what is allowed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_H
#define MR_COORDINATOR_PLANNING_PLAN_H

#include <stdbool.h>

#include "engine/base/status.h"
#include "engine/gguf/model_info.h"
#include "proto/limits.h"

typedef struct mr_plan_stage {
    int32_t first, last; /* layers [first, last) */
    int32_t rank;        /* who holds them: an endpoint of the job's channel; each rank has one stage at most */
    size_t weight_bytes; /* in the file: its layers, and embedding or output where it has them */
    int64_t synthetic_fixed_ns,
        synthetic_row_ns; /* of a synthetic plan: what a step takes, and each of its rows adds */
} mr_plan_stage;

typedef struct mr_plan {
    int32_t n_stages;
    bool synthetic; /* stages sleep instead of computing; more of them than layers are possible */
    mr_plan_stage stages[MR_MAX_STAGES];
} mr_plan;

/* The cut into n_stages whose largest stage is smallest. More stages than layers are refused. */
MR_MUST_USE mr_status mr_plan_balance(const mr_gguf *g, const mr_model_info *info, int32_t n_stages, mr_plan *out,
                                      mr_err *err);
/* The cut at the given layers: first_layers[i] is the first layer of stage i + 1, ascending, inside the model. */
MR_MUST_USE mr_status mr_plan_cut(const mr_gguf *g, const mr_model_info *info, const int32_t *first_layers, int32_t n,
                                  mr_plan *out, mr_err *err);

/* Fills in weight_bytes of a plan that was made otherwise. */
void mr_plan_weigh(const mr_gguf *g, const mr_model_info *info, mr_plan *plan);

#endif
