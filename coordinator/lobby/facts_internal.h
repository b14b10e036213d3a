/* coordinator/lobby/facts_internal.h - a measurement in progress, shared by facts.c (layers, memory, messages) and
 * facts_links.c (links). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_FACTS_INTERNAL_H
#define MR_COORDINATOR_LOBBY_FACTS_INTERNAL_H

#include "coordinator/lobby/facts.h"
#include "coordinator/lobby/roll_call_internal.h"

typedef struct facts_round {
    mr_facts *facts;
    mr_roll_call *roll;
    const mr_facts_wish *wish;
    int32_t *host; /* [n_ranks]: the number of the rank's host, from 0 */
    int32_t n_hosts;
    int64_t deadline_ns; /* of the present phase */
} facts_round;

/* Starts the deadline of a phase. */
void facts_begin_phase(facts_round *f);
/* Call between looks at the reports: reports the progress and waits a moment. late: a rank whose answer is missing. */
MR_MUST_USE mr_status facts_wait(facts_round *f, const char *what, int32_t n_done, int32_t n, int32_t late,
                                 mr_err *err);
/* Sets an error with the name of the rank, and returns status. */
MR_MUST_USE mr_status facts_rank_failed(const facts_round *f, int32_t rank, uint32_t status, const char *text,
                                        mr_err *err);
/* Measures links, and derives the links that are not measured (facts_links.c). */
MR_MUST_USE mr_status facts_measure_links(facts_round *f, mr_err *err);

#endif
