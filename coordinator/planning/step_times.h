/* coordinator/planning/step_times.h - how long an operation takes for any number of rows, interpolated from a curve
 * that was measured for 1, 2, 4 ... rows.
 * Owns:    nothing; plain data. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_STEP_TIMES_H
#define MR_COORDINATOR_PLANNING_STEP_TIMES_H

#include "proto/measured.h"

/* Seconds for any number of rows: linear between the points, and beyond the last point with the slope of the last two.
 * Below the first point, the time of the first point. 0 for no rows, and for an empty curve. */
double mr_step_times_at(const mr_step_times *t, double rows);
/* How many times the seconds of another curve the points of this one take together. 0: the other curve is empty. */
double mr_step_times_ratio(const mr_step_times *t, const mr_step_times *to);

#endif
