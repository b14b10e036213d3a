/* tests/support/fake_api.h - implements the calls of coordinator/serving/api/api.h without a model. A thread answers
 * each call after a delay with {"echo":BODY}, where BODY is the body of the request. A body that contains "refuse" gets
 * status 400, and a body that contains "fail" gets status 503. Some calls are answered with "busy". Link this file in
 * front of mr_api.
 * Threads: as api.h says. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_FAKE_API_H
#define MR_TESTS_SUPPORT_FAKE_API_H

#include "coordinator/serving/api/api.h"

/* delay_us: longest time for an answer; answers are made one at a time. Each busy_every-th call gets "busy". */
void fake_api_start(int delay_us, int busy_every);
void fake_api_stop(void);
/* Calls begun since fake_api_start, and the highest number of calls open at a time. */
int fake_api_n_calls(void);
int fake_api_max_live(void);

#endif
