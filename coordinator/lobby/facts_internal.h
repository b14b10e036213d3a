/* coordinator/lobby/facts_internal.h - internal to facts*.c. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_FACTS_INTERNAL_H
#define MR_COORDINATOR_LOBBY_FACTS_INTERNAL_H

#include "coordinator/lobby/facts.h"
#include "coordinator/lobby/roll_call_internal.h"

typedef struct facts_round {
    mr_facts *facts;
    mr_roll_call *roll;
    const mr_facts_wish *wish;
    int32_t *host; /* [n_ranks]: ranks of one host have the same number, from 0 */
    int32_t n_hosts;
    int64_t deadline_ns; /* of the phase */
} facts_round;

void facts_begin_phase(facts_round *f);
/* Between looks at the reports: tells of the progress and waits a moment. late: a rank that is waited for. */
MR_MUST_USE mr_status facts_wait(facts_round *f, const char *what, int32_t n_done, int32_t n, int32_t late,
                                 mr_err *err);
/* Says whose error it is, and returns its status. */
MR_MUST_USE mr_status facts_rank_failed(const facts_round *f, int32_t rank, uint32_t status, const char *text,
                                        mr_err *err);
/* facts_links.c: measures links and fills in those that were not. */
MR_MUST_USE mr_status facts_measure_links(facts_round *f, mr_err *err);

#endif
