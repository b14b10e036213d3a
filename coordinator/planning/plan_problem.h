/* coordinator/planning/plan_problem.h - internal to the planner: the facts in the form that its searches need, and the
 * interface of the two searches.
 * Owns:    its arrays. Borrows: the config. {0} may be deinitialised.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_PROBLEM_H
#define MR_COORDINATOR_PLANNING_PLAN_PROBLEM_H

#include <stdbool.h>

#include "coordinator/planning/planner.h"

/* Layers on a device, whole or without their experts, or neurons of sparse parts. */
typedef struct plan_device_layers {
    double *bytes;     /* [n_layers + 1]: with keys and values, sums over the layers before */
    int32_t *end;      /* [n_layers + 1]: where the layers end that fit the device, from each layer on */
    double *s;         /* [n_layers + 1]: seconds, sums over the layers before. Set by plan_problem_set_rows */
    int32_t tail_from; /* all layers from here on fit with the output; n_layers: not even the last one does */
} plan_device_layers;

/* The device of a rank that holds layers. */
typedef struct plan_device {
    bool is_known;   /* there is one */
    bool has_trunks; /* it may hold layers without their experts */
    double limit;    /* bytes of its memory that a plan may use; INFINITY: not known */
    plan_device_layers whole, trunk;
    /* With has_trunks, sums over the layers before: bytes of one expert of each layer, and the seconds that a layer
     * takes less for each part of the choices that falls on experts of the device. [n_layers + 1] */
    double *expert_bytes, *experts_s; /* experts_s is set by plan_problem_set_rows */
    /* Set by plan_problem_set_rows: */
    double crossing_s, output_s;
} plan_device;

/* What the device of a rank holds of a stage: as in mr_plan_stage, with neurons of sparse parts as experts. */
typedef struct plan_placement {
    int32_t layers, host_experts, device_experts;
} plan_placement;

typedef struct plan_problem {
    const mr_planner_config *config;
    int32_t n_ranks, n_layers;
    uint64_t *limit;      /* [n_ranks]: bytes of memory; UINT64_MAX: not known */
    size_t *weight_bytes; /* [n_layers + 1]: sums over the layers before */
    size_t *token_bytes;  /* [n_layers + 1]: keys and values of one token, sums over the layers before */
    plan_device *device;  /* [n_ranks] */
    /* Set by plan_problem_set_rows, for steps of this many rows: */
    double rows;
    double *layer_s;  /* [n_ranks][n_layers + 1]: sums over the layers before */
    double *output_s; /* [n_ranks] */
    double *rest_s;   /* [n_layers + 1]: least time of all later layers, each on its fastest rank */
    double return_s;  /* of the ids from the last rank to the first: the mean over all links */
} plan_problem;

MR_MUST_USE mr_status plan_problem_init(plan_problem *p, const mr_planner_config *config, mr_err *err);
void plan_problem_deinit(plan_problem *p);
/* Sets the number of rows of the steps. All rows bring a token. */
void plan_problem_set_rows(plan_problem *p, double rows);

/* How a rank runs a stage. */
typedef struct plan_stage_cost {
    bool fits; /* its memory */
    plan_placement on_device;
    double seconds; /* of a step */
} plan_stage_cost;

/* The device gets as many of the first layers as it has memory for, or none, whichever is faster and fits. Of layers
 * with experts, it gets as many as fit without these, if that is faster. Then it gets the experts of as many of them as
 * fit and some experts of each other one, or some of each layer, whichever is faster. */
plan_stage_cost plan_stage_on_device(const plan_problem *p, int32_t rank, int32_t first, int32_t last);

/* Memory of the host that layers [first, last) need. A layer whose experts alone are in the host's memory counts as a
 * whole. */
uint64_t plan_stage_bytes(const plan_problem *p, int32_t rank, int32_t first, int32_t last, plan_placement on_device);

/* Writes the placement into a stage. The neurons of a sparse model that stay in the host's memory are spread over all
 * layers of the device. plan_placement_of returns a placement of the same bytes. */
void plan_place(const plan_problem *p, plan_placement on_device, mr_plan_stage *s);
plan_placement plan_placement_of(const plan_problem *p, const mr_plan_stage *s);

/* Seconds of a step of layers [first, last) on the CPU of a rank. */
static inline double plan_cpu_seconds(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    const double *before = p->layer_s + (size_t)rank * ((size_t)p->n_layers + 1);
    return p->config->facts->ranks[rank].step_s + before[last] - before[first] +
           (last == p->n_layers ? p->output_s[rank] : 0);
}

/* Whether the host's memory is enough. */
static inline bool plan_host_fits(const plan_problem *p, int32_t rank, int32_t first, int32_t last,
                                  plan_placement on_device) {
    return p->limit[rank] == UINT64_MAX || plan_stage_bytes(p, rank, first, last, on_device) <= p->limit[rank];
}

static inline plan_stage_cost plan_stage_on_cpu(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    const plan_placement none = {0};
    return (plan_stage_cost){plan_host_fits(p, rank, first, last, none), none, plan_cpu_seconds(p, rank, first, last)};
}

/* Layers [first, last) on a rank. Seconds do not fall, and what does not fit does not fit again, as last grows. */
static inline plan_stage_cost plan_stage(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    if (p->device[rank].is_known)
        return plan_stage_on_device(p, rank, first, last);
    return plan_stage_on_cpu(p, rank, first, last);
}

/* The most consecutive layers, at any position, that a rank can hold and run within slowest_s. */
int32_t plan_most_layers(const plan_problem *p, int32_t rank, double slowest_s);

/* plan_hop_seconds: seconds until the activations of a step have gone from one rank to another. plan_link_seconds: the
 * part of that time in which the link is occupied. */
double plan_hop_seconds(const plan_problem *p, int32_t from, int32_t to);
double plan_link_seconds(const plan_problem *p, int32_t from, int32_t to);

/* The bounds of a search for the least sum over all stages and hops: no stage and no link takes more than slowest_s,
 * and the sum is below sum_s. */
typedef struct plan_bounds {
    double slowest_s, sum_s;
} plan_bounds;

/* A plan, with its slowest stage or link and its sum. */
typedef struct plan_candidate {
    bool found;
    double slowest_s, sum_s;
    int32_t n_stages;
    mr_plan_stage stages[MR_MAX_STAGES];
} plan_candidate;

/* Sets slowest_s and sum_s, and the layers of each stage that its device holds. */
void plan_candidate_time(const plan_problem *p, plan_candidate *c);

/* --- plan_exact.c: all subsets and orders of ranks --------------------------------------------------------------- */

typedef struct plan_exact plan_exact;

/* Ranks whose facts differ by less than tolerance (0.05: a twentieth) count as equal. *out is NULL if there are too
 * many subsets to search them all. */
MR_MUST_USE mr_status plan_exact_create(const plan_problem *p, double tolerance, plan_exact **out, mr_err *err);
void plan_exact_destroy(plan_exact *x);
/* Call after plan_problem_set_rows. */
void plan_exact_solve(plan_exact *x, plan_bounds bounds, plan_candidate *out);

/* --- plan_order.c: all cuts of ranks in a given order, some left out --------------------------------------------- */

typedef struct plan_order plan_order;

MR_MUST_USE mr_status plan_order_create(const plan_problem *p, plan_order **out, mr_err *err);
void plan_order_destroy(plan_order *o);
/* order: [n_ranks]. Call after plan_problem_set_rows. */
void plan_order_solve(plan_order *o, const int32_t *order, plan_bounds bounds, plan_candidate *out);

#endif
