/* coordinator/planning/recut.h - when a running job moves to a better plan, and which rank is suspected of being ill.
 * Decisions alone: figures and times come in as arguments.
 * When:    mr_recut_weigh after each look for a better plan, mr_recut_note_epoch when a plan begins to run;
 *          mr_suspicion_add for each report of a stage.
 * Owns:    nothing; plain data. {0} is the beginning of a suspicion. Threads: bound to one thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_RECUT_H
#define MR_COORDINATOR_PLANNING_RECUT_H

#include <stdbool.h>
#include <stdint.h>

#include "coordinator/planning/rank_paces.h"

/* Looks for a better plan. A plan is changed when several looks in a row agree, and not soon after the last change. */
typedef struct mr_recut {
    int64_t look_ns;  /* from one look to the next */
    int64_t hold_ns;  /* a new plan runs so long at least; doubles with each change, and falls back in time */
    int64_t next_ns;  /* of the next look */
    int64_t until_ns; /* no change before */
    int64_t since_ns; /* of the last change; 0: there was none */
    int32_t n_agree;  /* looks in a row that found a better plan */
} mr_recut;

/* What a look has found. */
typedef struct mr_recut_offer {
    double present_rate, best_rate; /* tokens per second, by what was learned */
    double cost_s;                  /* of the change: the stages load layers, and compute the live sequences again */
} mr_recut_offer;

/* look_ns > 0. */
mr_recut mr_recut_begin(int64_t look_ns, int64_t now_ns);
static inline bool mr_recut_is_due(const mr_recut *r, int64_t now_ns) {
    return now_ns >= r->next_ns;
}
/* Whether the best plan is faster by more than its cost. */
bool mr_recut_is_worth(const mr_recut_offer *offer);
/* Whether to change the plan now. took_ns: how long the look has taken. */
bool mr_recut_weigh(mr_recut *r, const mr_recut_offer *offer, int64_t took_ns, int64_t now_ns);
/* A plan begins to run. by_recut: because of this decision. */
void mr_recut_note_epoch(mr_recut *r, bool by_recut, int64_t now_ns);

/* A rank whose steps take far longer than its plan says. */
typedef struct mr_suspicion {
    bool is_on;
    int64_t n_slow, n_usual; /* steps in a row */
    int32_t n_slow_reports;  /* in a row */
    int64_t until_ns;        /* of a rank without steps: when the suspicion ends */
    int64_t hold_ns;         /* how long the next such suspicion lasts */
} mr_suspicion;

/* How many times the predicted seconds other ranks took lately. */
typedef struct mr_other_ranks {
    double of_host; /* the slowest of the same host; 0: there is none */
    double fastest; /* of all stages; 0: there is none */
} mr_other_ranks;

/* Takes steps of the rank. A rank is slow if it is so in comparison with the fastest other one, too: the prediction may
 * be wrong for all. Returns whether is_on has changed. */
bool mr_suspicion_add(mr_suspicion *s, const mr_paced_steps *steps, const mr_other_ranks *others, int64_t now_ns);
/* The rank has no steps any more. Returns whether the suspicion has ended. */
bool mr_suspicion_rest(mr_suspicion *s, int64_t now_ns);

#endif
