/* tests/simulation/session_stand_in.h - the parts of a session that its recovery (session_recover.c, the product's own)
 * calls, without options, launcher and output: ranks are lost when the simulated lifeline says so, plans are balanced
 * by bytes, and warnings go to the log of the world.
 * Threads: one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_SESSION_STAND_IN_H
#define MR_TESTS_SIMULATION_SESSION_STAND_IN_H

#include "coordinator/session/session.h"
#include "tests/simulation/net.h"

/* The world and the network in which the session lives from now on. */
void session_stand_in(world *w, net *n);
/* How many spares the options want from now on. */
void session_stand_in_spares(int32_t n);
/* How many layers each rank has memory for, until wait_ns have passed since a plan was refused for that. */
void session_stand_in_memory(const int32_t budgets[WORLD_MAX_RANKS], int64_t wait_ns);
/* The job is told to end. */
void session_stand_in_interrupt(void);
bool session_stand_in_interrupted(void);

#endif
