/* tests/simulation/scenario.h - what clients ask for in a run, and what they hear. The undisturbed run on one rank says
 * what they must hear in every other run.
 * Owns:    models and grammars, between scenarios_init and scenarios_deinit.
 * Threads: one thread.
 * Errors:  none: a callback that must not come fails the world. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_SCENARIO_H
#define MR_TESTS_SIMULATION_SCENARIO_H

#include "coordinator/job/job.h"
#include "tests/simulation/world.h"
#include "tests/support/tiny_model.h"

enum {
    SCENARIO_REQUESTS = 6,
    SCENARIO_VOCAB = 100,
    SCENARIO_WIDTH = 64,
    SCENARIO_TOKENS = 40,
    SCENARIO_ROWS = 40,
    SCENARIO_TOP = 2,
    SCENARIO_CONTEXT = 64,
    N_SCENARIOS = 11,
};

/* What one client has heard. The bytes of two of them are compared. */
typedef struct scenario_heard {
    int32_t n, ids[SCENARIO_TOKENS];
    float logprobs[SCENARIO_TOKENS], top_logprobs[SCENARIO_TOKENS][SCENARIO_TOP];
    int32_t top_ids[SCENARIO_TOKENS][SCENARIO_TOP];
    int32_t finish, n_rows;
    float rows[SCENARIO_ROWS][SCENARIO_VOCAB];
} scenario_heard;

typedef struct scenario_client {
    world *world;
    scenario_heard heard;
    int64_t sequence; /* -1: not submitted */
    int32_t n_prompt, end_id;
    bool is_cancelled;
    bool may_lack_memory; /* an allocation of the coordinator has failed: it may refuse the sequence */
    /* With this token, a callback cancels the sequence of the other client; 0: never. */
    int32_t cancels_at;
    struct scenario_client *other;
    mr_job *job;
} scenario_client;

typedef struct scenario {
    const char *name;
    int32_t n_clients, max_rows, max_sequences, n_kv_blocks;
    bool grammars;
} scenario;

void scenarios_init(void);
void scenarios_deinit(void);
const char *scenarios_path(void);
const tiny_model *scenarios_model(void);

const scenario *scenario_at(int32_t number);
/* Submits the request of client i. */
void scenario_submit(int32_t number, int32_t i, mr_job *job, scenario_client *c);
/* Whether the client has heard all that it wants. */
bool scenario_has_ended(const scenario_client *c);
/* Fails the world unless the client has heard what it must hear; of a cancelled sequence, the beginning of that. */
void scenario_check(world *w, int32_t i, const scenario_client *c, const scenario_heard *due);

#endif
