/* coordinator/lobby/facts.h - has the ranks in the lobby measure themselves and the links between them, for the
 * planner. First each rank is asked for what was kept of earlier measurements, and checks it by a quick sample. Where
 * that does not hold for one rank of a host, all ranks of the host measure their layers at the same time, because in a
 * run they compute at the same time. Links come last, while nobody computes: neighbours, and rank 0 with one rank of
 * each other host; pairs of other ranks take the worst figures of pairs between the same hosts, or of all.
 * Owns:    mr_facts its arrays. Threads: bound to the coordinator thread.
 * Errors:  name the rank and its host. MR_E_TIMEOUT, MR_E_CANCELLED; whatever a rank could not do, and has told. Unless
 *          mr_facts.all_answered, ranks may still be measuring, and the roll call is only good for being dismissed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_LOBBY_FACTS_H
#define MR_COORDINATOR_LOBBY_FACTS_H

#include "coordinator/lobby/roll_call.h"
#include "coordinator/planning/cluster_facts.h"
#include "engine/gguf/model_info.h"

typedef struct mr_facts {
    mr_cluster_facts view; /* of the arrays */
    uint8_t *kind;
    mr_rank_facts *ranks;
    mr_link_facts *links;
    bool all_answered; /* whoever was asked last: no rank is measuring */
} mr_facts;

/* Nothing is known yet but the kinds of the layers. */
MR_MUST_USE mr_status mr_facts_init(mr_facts *f, const mr_gguf *gguf, const mr_model_info *info, int32_t n_ranks,
                                    mr_err *err);
/* {0} is accepted. */
void mr_facts_deinit(mr_facts *f);

typedef struct mr_facts_wish {
    int32_t kv_type;  /* mr_type */
    int32_t max_rows; /* of one step */
    bool map_weights, fast_numerics;
    bool anew;             /* what was kept does not count */
    uint64_t memory_limit; /* of each rank's weights, KV cache and buffers; 0: none */
    /* Called ten times a second with what goes on and how many ranks or links are done; false: give up. May be NULL. */
    bool (*progress)(void *ctx, const char *what, int32_t n_done, int32_t n);
    void *ctx;
} mr_facts_wish;

/* f is for as many ranks as the roll call. After mr_roll_call_check, before mr_roll_call_start. */
MR_MUST_USE mr_status mr_facts_measure(mr_facts *f, mr_roll_call *r, const mr_facts_wish *wish, mr_err *err);

#endif
