/* coordinator/planning/step_times.h - how long something takes for 1, 2, 4 ... rows: a measured curve, and what lies
 * between its points.
 * Owns:    nothing; plain data. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_STEP_TIMES_H
#define MR_COORDINATOR_PLANNING_STEP_TIMES_H

#include "proto/measured.h"

/* Seconds for any number of rows: straight lines between the points, the line of the last two points beyond them, the
 * first point below it; 0 for no rows, and where nothing is known. */
double mr_step_times_at(const mr_step_times *t, double rows);

#endif
