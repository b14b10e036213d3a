/* coordinator/planning/plan_problem.h - internal to the planner: facts in the shape in which its searches ask for them,
 * and what a search gives.
 * Owns:    its arrays. Borrows: the config. {0} may be destroyed.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_PLAN_PROBLEM_H
#define MR_COORDINATOR_PLANNING_PLAN_PROBLEM_H

#include <stdbool.h>

#include "coordinator/planning/planner.h"

typedef struct plan_problem {
    const mr_planner_config *config;
    int32_t n_ranks, n_layers;
    uint64_t *limit;      /* [n_ranks]: memory; UINT64_MAX: not known */
    size_t *weight_bytes; /* [n_layers + 1]: of the layers before */
    /* For the rows of a step that plan_problem_set_rows was told: */
    double rows;
    double *layer_s;  /* [n_ranks][n_layers + 1]: of the layers before */
    double *output_s; /* [n_ranks] */
    double *rest_s;   /* [n_layers + 1]: what the layers behind take at least, each on the rank that is fastest at it */
    double return_s;  /* of the ids from the last rank to the first: the mean of all links */
} plan_problem;

MR_MUST_USE mr_status plan_problem_init(plan_problem *p, const mr_planner_config *config, mr_err *err);
void plan_problem_deinit(plan_problem *p);
/* Steps have so many rows, all of which want a token. */
void plan_problem_set_rows(plan_problem *p, double rows);

/* Seconds of a step of layers [first, last) on a rank. */
static inline double plan_stage_seconds(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    const double *before = p->layer_s + (size_t)rank * ((size_t)p->n_layers + 1);
    return p->config->facts->ranks[rank].step_s + before[last] - before[first] +
           (last == p->n_layers ? p->output_s[rank] : 0);
}

/* Memory that layers [first, last) need, and whether a rank has it. */
uint64_t plan_stage_bytes(const plan_problem *p, int32_t first, int32_t last);
static inline bool plan_stage_fits(const plan_problem *p, int32_t rank, int32_t first, int32_t last) {
    return p->limit[rank] == UINT64_MAX || plan_stage_bytes(p, first, last) <= p->limit[rank];
}

/* The most layers, wherever they are, that a rank can hold and run within so many seconds. */
int32_t plan_most_layers(const plan_problem *p, int32_t rank, double slowest_s);

/* Seconds in which the activations of a step go from one rank to another; of those the link is taken for a part
 * only. */
double plan_hop_seconds(const plan_problem *p, int32_t from, int32_t to);
double plan_link_seconds(const plan_problem *p, int32_t from, int32_t to);

/* What a search looks for: the least sum of all stages and hops, none of which takes more than slowest_s, and whose sum
 * is below sum_s. */
typedef struct plan_bounds {
    double slowest_s, sum_s;
} plan_bounds;

/* A plan, and what it takes by these measures. */
typedef struct plan_candidate {
    bool found;
    double slowest_s, sum_s;
    int32_t n_stages;
    mr_plan_stage stages[MR_MAX_STAGES];
} plan_candidate;

/* Fills in slowest_s and sum_s. */
void plan_candidate_time(const plan_problem *p, plan_candidate *c);

/* --- plan_exact.c: all subsets and orders of ranks --------------------------------------------------------------- */

typedef struct plan_exact plan_exact;

/* Ranks whose facts differ by less than tolerance (0.05: a twentieth) count as alike. *out stays NULL where there are
 * too many subsets to look at all of them. */
MR_MUST_USE mr_status plan_exact_create(const plan_problem *p, double tolerance, plan_exact **out, mr_err *err);
void plan_exact_destroy(plan_exact *x);
/* After plan_problem_set_rows. */
void plan_exact_solve(plan_exact *x, plan_bounds bounds, plan_candidate *out);

/* --- plan_order.c: all cuts of ranks in a given order, some left out --------------------------------------------- */

typedef struct plan_order plan_order;

MR_MUST_USE mr_status plan_order_create(const plan_problem *p, plan_order **out, mr_err *err);
void plan_order_destroy(plan_order *o);
/* order: [n_ranks]. */
void plan_order_solve(plan_order *o, const int32_t *order, plan_bounds bounds, plan_candidate *out);

#endif
