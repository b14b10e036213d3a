/* tests/simulation/slow_rank.h - runs in which the ranks were measured, steps take simulated time, and one rank is far
 * slower than its facts, or far faster: the session's --recut moves its layers to the others, or gives it some.
 * Owns:    the facts, from slow_rank_begin to slow_rank_end. Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_SLOW_RANK_H
#define MR_TESTS_SIMULATION_SLOW_RANK_H

#include "coordinator/session/session.h"
#include "tests/simulation/world.h"

/* From now on steps of stages take time: times times as long on rank `rank` as on the others. By the facts that the
 * session plans with it is wrong_times times. The session looks for better plans. */
void slow_rank_begin(world *w, mr_session *s, int32_t rank, int32_t times, int32_t wrong_times);
/* Fills facts, planner and plan of the session. */
void slow_rank_plan(void);
void slow_rank_end(void);
/* Seconds of --recut; 0: off. */
int64_t slow_rank_look_s(void);
/* Layers of the slow rank in the session's plan. */
int32_t slow_rank_layers(void);
/* Any run: the next step of a rank fails with MR_E_TIMEOUT. Until slow_rank_end. */
void slow_rank_time_out(const world *w, int32_t rank);

#endif
