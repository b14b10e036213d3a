/* coordinator/planning/planner.h - the plan that is fastest by measured facts: which ranks take part, in which order,
 * with which layers. Throughput is the decode rate of so many sequences by the formula of micro_batches.h, latency the
 * time of one token of one sequence. Memory is charged where it is needed: embedding to the first stage, output to the
 * last one, keys and values of the same number of tokens to each layer.
 * How: for each number of micro-batches m the plan with the least max(m * slowest stage, sum): the range of possible
 * times is halved, and for each bound a dynamic programme finds the least sum of stages that stay within it. It is
 * exact over layers, subsets and orders of ranks where they are few (some twelve, or more that are alike); with more,
 * over the cuts and the left out ranks of several orders, which are then improved step by step.
 * Owns:    nothing. Threads: pure functions.
 * Errors:  MR_E_NO_MEMORY: the ranks have too little memory for the model, with figures, or this process has.
 *          MR_E_INVALID: facts that say nothing of any rank. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLANNER_H
#define MR_COORDINATOR_PLANNING_PLANNER_H

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/plan.h"

/* What the parts of a model take of a rank's memory. */
typedef struct mr_model_memory {
    size_t layer_bytes[MR_MAX_LAYER_KINDS];
    size_t stage_bytes; /* of every stage: tensors that all need, buffers */
    size_t head_bytes;  /* of the first stage besides: the embedding */
    size_t tail_bytes;  /* of the last one besides: output norm and matrix, logits */
    size_t token_bytes; /* keys and values of one token in one layer */
} mr_model_memory;

typedef enum mr_objective { MR_OBJECTIVE_THROUGHPUT, MR_OBJECTIVE_LATENCY } mr_objective;

typedef struct mr_planner_config {
    const mr_cluster_facts *facts;
    mr_model_memory memory;
    uint64_t rank_bytes; /* each rank may take no more, whatever it has; 0: no limit */
    mr_objective objective;
    int32_t n_sequences; /* that decode; latency: taken as 1 */
    int32_t depth;       /* positions before each row */
    int64_t kv_tokens;   /* that every stage has room for */
} mr_planner_config;

/* Leaves weight_bytes of the stages 0. */
MR_MUST_USE mr_status mr_planner_solve(const mr_planner_config *config, mr_plan *out, mr_err *err);

/* Whether a plan that was made otherwise fits the memory: MR_E_NO_MEMORY names the first rank that is too small. */
MR_MUST_USE mr_status mr_planner_check_memory(const mr_planner_config *config, const mr_plan *plan, mr_err *err);
/* Tokens of KV cache for which every stage of a plan has memory; INT64_MAX where no memory is known. */
int64_t mr_planner_kv_tokens(const mr_planner_config *config, const mr_plan *plan);

/* Decode rates without a pipeline, of config->n_sequences together. The ranks of a host count as one process that has
 * all of their cores: it takes as long as they would, sharing each layer. */
typedef struct mr_planner_alternatives {
    int32_t rank;      /* the first one of the fastest host that can hold the whole model; -1: there is none */
    double rate;       /* of that host alone; 0: there is none */
    int32_t n_hosts;   /* that can hold the whole model */
    double hosts_rate; /* of all of them, each with a model and a share of the sequences of its own */
} mr_planner_alternatives;
MR_MUST_USE mr_status mr_planner_compare(const mr_planner_config *config, mr_planner_alternatives *out, mr_err *err);

#endif
