/* coordinator/planning/planner.h - finds the fastest plan by measured facts: which ranks take part, in which order,
 * with which layers. Throughput is the decode rate of n_sequences sequences by the formula of micro_batches.h. Latency
 * is the time of one token of one sequence. Memory counts at the stage that needs it: the embedding at the first stage,
 * the output at the last, keys and values of kv_tokens tokens at each layer.
 * If the device of a rank was measured, a stage there may have its first layers on the device: as many as fit the
 * device's memory, if this is faster. Their rows then cross to the device and back once in a step. The last of these
 * layers may leave their experts in the host's memory, so that more layers fit.
 * How:     for each number of micro-batches m, the planner looks for the plan with the least max(m * slowest stage,
 *          sum). It halves the range of possible times. For each bound, dynamic programming finds the least sum of
 *          stages within the bound. With few ranks (some twelve, or more that are alike) the search is exact over
 *          layers, subsets and orders of ranks. With more ranks it covers all cuts and omissions of several orders,
 *          which are then improved step by step.
 * Owns:    nothing. Threads: pure functions.
 * Errors:  MR_E_NO_MEMORY: the ranks have too little memory for the model (the text has the figures), or this process
 *          has too little. MR_E_INVALID: the facts have no ranks or no layers. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLANNER_H
#define MR_COORDINATOR_PLANNING_PLANNER_H

#include "coordinator/planning/cluster_facts.h"
#include "coordinator/planning/plan.h"

/* The memory that the parts of a model take at a rank. */
typedef struct mr_model_memory {
    size_t layer_bytes[MR_MAX_LAYER_KINDS];
    size_t stage_bytes;                     /* at every stage: shared tensors, buffers */
    size_t head_bytes;                      /* at the first stage in addition: the embedding */
    size_t tail_bytes;                      /* at the last stage in addition: output norm and matrix, logits */
    size_t token_bytes[MR_MAX_LAYER_KINDS]; /* keys and values of one token in one layer */
} mr_model_memory;

typedef enum mr_objective { MR_OBJECTIVE_THROUGHPUT, MR_OBJECTIVE_LATENCY } mr_objective;

typedef struct mr_planner_config {
    const mr_cluster_facts *facts;
    mr_model_memory memory;
    uint64_t rank_bytes; /* limit of memory for each rank, beside its own; 0: no limit */
    mr_objective objective;
    int32_t n_sequences; /* that decode; for latency 1 is used */
    int32_t depth;       /* positions before each row */
    int64_t kv_tokens;   /* capacity of every stage's KV cache */
    bool fills_devices;  /* a device holds as many layers as fit, even where the CPU is faster */
    bool limits_devices; /* to most_device_layers layers of a stage */
    int32_t most_device_layers;
    bool limits_neurons; /* a device holds at most most_hot_partitions partitions of a sparse part's neurons */
    int32_t most_hot_partitions;
} mr_planner_config;

/* Finds the fastest plan. weight_bytes of its stages stays 0. */
MR_MUST_USE mr_status mr_planner_solve(const mr_planner_config *config, mr_plan *out, mr_err *err);

/* Chooses for a plan from another source which layers the devices hold: the first ones of each stage, as many as fit,
 * or none where the CPU is faster (but see fills_devices). mr_planner_solve has done so. */
MR_MUST_USE mr_status mr_planner_use_devices(const mr_planner_config *config, mr_plan *plan, mr_err *err);
/* Whether a plan from another source fits the memory. MR_E_NO_MEMORY names the first rank that has too little.
 * MR_E_INVALID: it puts layers on a device that is not known. */
MR_MUST_USE mr_status mr_planner_check_memory(const mr_planner_config *config, const mr_plan *plan, mr_err *err);
/* What the layers of a stage take on the device of its rank, with a KV cache of kv_tokens tokens; 0: it has none. */
double mr_planner_device_bytes(const mr_cluster_facts *facts, const mr_plan_stage *stage, int64_t kv_tokens);
/* The tokens of KV cache that fit the memory of every stage of a plan; INT64_MAX: no memory is known. */
int64_t mr_planner_kv_tokens(const mr_planner_config *config, const mr_plan *plan);

/* Decode rates without a pipeline, for config->n_sequences sequences together. All ranks of a host count as one process
 * with all of their cores, which share the work of each layer. */
typedef struct mr_planner_alternatives {
    int32_t rank;      /* the first rank of the fastest host that can hold the whole model; -1: there is none */
    double rate;       /* of that host alone; 0: there is none */
    int32_t n_hosts;   /* hosts that can hold the whole model */
    double hosts_rate; /* of all these hosts together, each with the whole model and a share of the sequences */
} mr_planner_alternatives;
MR_MUST_USE mr_status mr_planner_compare(const mr_planner_config *config, mr_planner_alternatives *out, mr_err *err);

#endif
