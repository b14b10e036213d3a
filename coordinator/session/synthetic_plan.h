/* coordinator/session/synthetic_plan.h - plans of stages that sleep instead of computing, from the text of
 * --synthetic-stage.
 * Owns:    nothing. Threads: pure functions.
 * Errors:  MR_E_INVALID for a text that does not say it, or a number of stages that does not fit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SYNTHETIC_PLAN_H
#define MR_COORDINATOR_SESSION_SYNTHETIC_PLAN_H

#include "coordinator/planning/plan.h"

/* Pairs in text: "5,0.1;10,0.2" has 2. */
int32_t synthetic_plan_count(const char *text);
/* n_stages stages that sleep as text says: milliseconds of a step and of each row, one pair for all or one for each.
 * The model's layers are shared out, and some stages may get none. */
MR_MUST_USE mr_status synthetic_plan_make(const char *text, int32_t n_layers, int32_t n_stages, mr_plan *out,
                                          mr_err *err);
/* MR_E_INVALID: a step of max_rows would sleep longer than MR_MAX_SYNTHETIC_STEP_MS. */
MR_MUST_USE mr_status synthetic_plan_check(const mr_plan *plan, int32_t max_rows, mr_err *err);

#endif
