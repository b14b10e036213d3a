/* coordinator/session/synthetic_plan.h - plans of stages that sleep instead of computing, from the text of
 * --synthetic-stage.
 * Owns:    nothing. Threads: pure functions.
 * Errors:  MR_E_INVALID: the text cannot be parsed, or the number of stages does not fit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SYNTHETIC_PLAN_H
#define MR_COORDINATOR_SESSION_SYNTHETIC_PLAN_H

#include "coordinator/planning/plan.h"

/* The number of pairs in text: "5,0.1;10,0.2" has 2. */
int32_t synthetic_plan_count(const char *text);
/* A plan of n_stages stages that sleep. text gives the milliseconds for a step and for each row, as one pair for all
 * stages or one pair for each. The layers of the model are divided among the stages, and some stages may get none. */
MR_MUST_USE mr_status synthetic_plan_make(const char *text, int32_t n_layers, int32_t n_stages, mr_plan *out,
                                          mr_err *err);
/* MR_E_INVALID: a step of max_rows would sleep longer than MR_MAX_SYNTHETIC_STEP_MS. */
MR_MUST_USE mr_status synthetic_plan_check(const mr_plan *plan, int32_t max_rows, mr_err *err);

#endif
