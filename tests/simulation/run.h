/* tests/simulation/run.h - one run of the simulator: the coordinator's job with the session's recovery, and ranks with
 * their lobbies and stages, on the actors of a world, with the faults of a seed.
 * Threads: one thread.
 * Errors:  none: a run that is wrong prints its events and ends the process. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_RUN_H
#define MR_TESTS_SIMULATION_RUN_H

#include "tests/simulation/faults.h"
#include "tests/simulation/scenario.h"

typedef struct run_config {
    uint64_t seed;
    int32_t scenario;
    bool traces, digests; /* of world.h */
    bool is_calm;         /* no faults and equal delays, on one rank: what clients hear is what they must hear */
    /* Kills rank victim at its kill_at-th message, and nothing else; 0: the faults of the seed. */
    int32_t victim;
    int64_t kill_at;
    /* The ranks were measured, and one of them is so many times slower than the others; 0: off. Without other faults
     * unless has_faults. */
    int32_t slow_times;
    int32_t wrong_times; /* but its facts say so many times */
    bool has_faults;
} run_config;

typedef struct run_result {
    uint64_t digest; /* of all events */
    int64_t n_events, n_messages, n_sent_by_victim;
    int32_t n_recoveries, n_faults[FAULT_KINDS], n_stuck;
    int32_t n_kv_kept, n_kv_ahead; /* recoveries after which KV blocks went on; of these, with some copied before */
    bool has_waited;               /* the job, for memory */
    bool has_ended_early;          /* the coordinator had too little memory, or the job was told to end */
    int32_t most_requests, most_waiting;
    int32_t n_ranks;
    int32_t slow_layers_first, slow_layers_last; /* of the slow rank: in the first plan, and in the last one */
} run_result;

/* The undisturbed runs of all scenarios. Call first. */
void run_undisturbed(void);
run_result run_one(const run_config *config);
/* Frees what runs share. */
void run_end(void);

#endif
