/* tests/simulation/run_internal.h - a run, which run.c begins and checks, and whose faults run_faults.c applies.
 * Owns:    as run.h says. Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_RUN_INTERNAL_H
#define MR_TESTS_SIMULATION_RUN_INTERNAL_H

#include "coordinator/session/session.h"
#include "tests/simulation/faults.h"
#include "tests/simulation/net.h"
#include "tests/simulation/run.h"
#include "tests/simulation/scenario.h"
#include "worker/lobby/lobby.h"

typedef struct rank {
    struct run *run;
    int32_t idx;
    mr_lobby_config config;
    int64_t fails_at; /* the allocation that fails; -1: none */
    uint64_t n_allocs;
    bool is_hurt; /* a fault may end its process */
} rank;

typedef struct run {
    const run_config *config;
    world *world;
    net *net;
    mr_session session;
    rank ranks[WORLD_MAX_RANKS];
    scenario_client clients[SCENARIO_REQUESTS];
    int64_t submit_ns[SCENARIO_REQUESTS];
    bool gives_up[SCENARIO_REQUESTS]; /* the client cancels at the next turn */
    faults faults;
    mr_plan former;                       /* before the latest recovery */
    bool was_to_leave[WORLD_MAX_RANKS];   /* drained then, or about to be */
    int64_t n_messages, n_since_recovery; /* since the job began; since the latest recovery began */
    int64_t job_fails_at;                 /* the allocation of the coordinator that fails; -1: none */
    uint64_t n_job_allocs;
    bool job_may_lack_memory; /* one has failed */
    bool is_armed;            /* the job has begun */
    bool is_over;             /* and has ended */
    run_result result;
} run;

/* As net_config.on_send; ctx is the run. Counts the message, and applies the faults that come with it. */
void run_note_send(void *ctx, int32_t from, int32_t to, uint32_t tag);
/* An allocation fails only while the actor has its turn that is to meet it. */
void run_arm(run *r, int32_t actor);

#endif
