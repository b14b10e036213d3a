/* tests/simulation/fibre.h - fibres of one thread: at any time either the caller of fibre_resume runs, or one fibre.
 * The simulator runs coordinator and ranks on them, so that nothing but its own draws decides who runs when.
 * Owns:    a fibre owns its stack until fibre_destroy.
 * Threads: all calls from one thread; fibre_pause from inside a fibre.
 * Errors:  none. The process ends when there is no memory for a stack. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SIMULATION_FIBRE_H
#define MR_TESTS_SIMULATION_FIBRE_H

#include <stdbool.h>

typedef struct fibre fibre;

fibre *fibre_create(void);
void fibre_destroy(fibre *f);
/* The next fibre_resume begins run(ctx). The fibre has never begun, or has ended. */
void fibre_begin(fibre *f, void (*run)(void *ctx), void *ctx);
/* Runs the fibre until its next fibre_pause or its end. */
void fibre_resume(fibre *f);
void fibre_pause(void);
bool fibre_has_ended(const fibre *f);

#endif
