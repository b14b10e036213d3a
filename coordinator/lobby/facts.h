/* coordinator/lobby/facts.h - lets the ranks in the lobby measure themselves and their links, for the planner.
 * Layers come first. Each rank is asked for the results that it has kept of earlier measurements, and checks them by a
 * quick sample. If one rank of a host has no valid results, all ranks of the host measure their layers at the same
 * time, because they compute at the same time in a run.
 * Links come last, while no rank computes. Measured are the links between neighbours, and between rank 0 and one rank
 * of each other host. Every other pair takes the worst figures of the measured pairs between the same two hosts, or
 * else of all measured pairs.
 * Pairs of ranks with devices for layers then measure each way between these (mr_way_facts).
 * Owns:    an mr_facts owns its arrays. Threads: bound to the coordinator thread.
 * Errors:  texts name the rank and its host. MR_E_TIMEOUT, MR_E_CANCELLED, and the errors that ranks report. If
 *          mr_facts.all_answered is false after an error, ranks may still be measuring: the roll call may then only be
 *          dismissed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_FACTS_H
#define MR_COORDINATOR_LOBBY_FACTS_H

#include "coordinator/lobby/roll_call.h"
#include "coordinator/planning/cluster_facts.h"
#include "engine/gguf/model_info.h"

typedef struct mr_facts {
    mr_cluster_facts view; /* points to the arrays below */
    uint8_t *kind;
    mr_rank_facts *ranks;
    mr_link_facts *links;
    mr_way_facts *ways;
    bool all_answered; /* all ranks that were asked have answered: no rank is measuring */
} mr_facts;

/* Allocates the arrays, and reads the kinds of the layers. Nothing else is known yet. */
MR_MUST_USE mr_status mr_facts_init(mr_facts *f, const mr_gguf *gguf, const mr_model_info *info, int32_t n_ranks,
                                    mr_err *err);
/* {0} is accepted. */
void mr_facts_deinit(mr_facts *f);

typedef struct mr_facts_wish {
    int32_t kv_type;  /* mr_type */
    int32_t max_rows; /* of the largest step that is measured */
    bool map_weights, fast_numerics;
    bool anew;             /* measure, whatever results the ranks have kept */
    uint32_t ways;         /* bit i: measure way i between devices (proto/ways.h) */
    uint64_t memory_limit; /* for each rank's weights, KV cache and buffers; 0: no limit */
    /* Called ten times a second with the present phase and how many ranks or links are done. Returns false to cancel.
     * May be NULL. */
    bool (*progress)(void *ctx, const char *what, int32_t n_done, int32_t n);
    void *ctx;
} mr_facts_wish;

/* Measures all ranks and links. f has as many ranks as the roll call. Call after mr_roll_call_check and before
 * mr_roll_call_start. */
MR_MUST_USE mr_status mr_facts_measure(mr_facts *f, mr_roll_call *r, const mr_facts_wish *wish, mr_err *err);

#endif
