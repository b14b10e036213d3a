/* coordinator/lobby/facts_internal.h - a measurement in progress, shared by facts.c (layers, memory, messages),
 * facts_links.c (links between hosts) and facts_ways.c (links between devices). */
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

typedef enum facts_pair_state { PAIR_WAITS, PAIR_RUNS, PAIR_DONE } facts_pair_state;

/* Two ranks that measure. */
typedef struct facts_pair {
    int32_t rank[2];
    uint32_t way; /* as in Millrace__Probe: 0: both directions between the hosts; else from rank[0] to rank[1] */
    facts_pair_state state;
    bool heard[2];
} facts_pair;

typedef struct facts_pairs {
    facts_round *round;
    const char *what; /* is measured */
    facts_pair *at;
    int32_t n, n_done;
    bool *busy; /* [n_ranks] */
    /* Takes what rank[k] of a pair has measured. */
    mr_status (*note)(void *ctx, const facts_pair *pair, int k, const Millrace__LinkFacts *message, mr_err *err);
    void *ctx;
} facts_pairs;

/* Lets all pairs measure, at the same time where they have no rank in common. */
MR_MUST_USE mr_status facts_run_pairs(facts_pairs *pairs, mr_err *err);
/* Measures links, and derives the links that are not measured (facts_links.c). */
MR_MUST_USE mr_status facts_measure_links(facts_round *f, mr_err *err);
/* Measures the ways between the devices of the n pairs whose links were measured (facts_ways.c). A way that fails is
 * noted with its reason. */
MR_MUST_USE mr_status facts_measure_ways(facts_round *f, const facts_pair *pairs, int32_t n, mr_err *err);

#endif
