/* tests/support/fake_api.h - the calls of coordinator/serving/api/api.h without a model: a thread answers each call
 * after a while, with its own body inside: {"echo":BODY}. A body that has "refuse" in it gets status 400, one with
 * "fail" 503; some calls are told to come later. Link it in front of mr_api.
 * Threads: as the real one. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_FAKE_API_H
#define MR_TESTS_SUPPORT_FAKE_API_H

#include "coordinator/serving/api/api.h"

/* delay_us: of each answer, at most, one at a time. Each busy_every-th call is told to come later. */
void fake_api_start(int delay_us, int busy_every);
void fake_api_stop(void);
/* Calls begun since the start, and the highest number of them at a time. */
int fake_api_n_calls(void);
int fake_api_max_live(void);

#endif
