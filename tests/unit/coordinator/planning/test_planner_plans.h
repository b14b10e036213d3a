/* tests/unit/coordinator/planning/test_planner_plans.h - small random clusters, and the best of all their plans, found
 * by trying each one.
 * Threads: one; the random numbers are those of one counter. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_UNIT_COORDINATOR_PLANNING_TEST_PLANNER_PLANS_H
#define MR_TESTS_UNIT_COORDINATOR_PLANNING_TEST_PLANNER_PLANS_H

#include "coordinator/planning/planner.h"

enum { MAX_RANKS = 6, MAX_LAYERS = 61 };

typedef struct cluster {
    mr_cluster_facts facts;
    mr_rank_facts ranks[MAX_RANKS];
    mr_link_facts links[MAX_RANKS * MAX_RANKS];
    uint8_t kind[MAX_LAYERS];
    mr_planner_config config;
} cluster;

double random_in(double low, double high);
int32_t random_int(int32_t low, int32_t high);
mr_step_times curve(double fixed, double row);

/* Everything differs, but where equal is set: then some ranks are copies of others. */
void cluster_random(cluster *c, int32_t n_ranks, int32_t n_layers, bool equal);
/* Gives every other rank a device that is faster than its CPU. */
void add_devices(cluster *c);
/* The layers of kind 1 have experts, which the devices may leave to the host. */
void add_trunks(cluster *c);

/* Whether a stage fits the memory of its rank and of the device, and its seconds in a step. */
bool stage_fits(const cluster *c, const mr_plan_stage *s);
double stage_seconds(const cluster *c, const mr_plan_stage *s, double rows);

/* Whether each stage fits the memory of its rank and of the rank's device. */
bool fits(const cluster *c, const mr_plan *plan);
/* Seconds of a token of n sequences in m micro-batches, with the plan's layers on the devices, or with the best number
 * of them. seconds_of: with the best number of micro-batches. INFINITY: no number of layers fits. */
double seconds_with(const cluster *c, const mr_plan *plan, double n, int32_t m, bool best);
double seconds_of(const cluster *c, const mr_plan *plan, bool best);
/* The least time of all plans that begin as this one does. */
double try_all(const cluster *c, mr_plan *plan);

#endif
