/* worker/stage/expert_renewal.h - decides which experts a device should hold, by how often the rows of the running job
 * use them. Counts decay, so that a job whose texts change gets other experts. An expert is exchanged only if another
 * one is used clearly more often than chance explains, so even use changes nothing. Bytes are limited for each step, so
 * that no pause between two steps is long. Results do not depend on any of this (rule X of engine/NUMERICS.md).
 * Life:    create; then after each step mr_expert_renewal_begin, and mr_expert_renewal_next until it returns false. The
 *          caller makes each exchange at once:
 *
 *     mr_expert_renewal_begin(r, layers);
 *     while (mr_expert_renewal_next(r, &swap))
 *         mr_weights_exchange_expert(w, swap.layer, swap.place, swap.expert, err);
 *
 * Owns:    its counts. Borrows: the lists of held experts, which the caller keeps up to date, and the counts of uses.
 * Threads: caller serialises.
 * Errors:  create: MR_E_NO_MEMORY. The other functions allocate nothing and cannot fail. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_EXPERT_RENEWAL_H
#define MR_WORKER_STAGE_EXPERT_RENEWAL_H

#include <stddef.h>

#include "worker/stage/stage.h"

typedef struct mr_expert_renewal mr_expert_renewal;

/* A layer whose experts lie on a device and on the host. */
typedef struct mr_renewed_layer {
    int32_t layer;       /* of the stage */
    int32_t n;           /* experts */
    const int32_t *held; /* [n_held]: the expert in each place of the device. Borrowed */
    int32_t n_held;
    size_t expert_bytes; /* that an exchange loads */
} mr_renewed_layer;

/* An expert to be loaded over another one. */
typedef struct mr_expert_swap {
    int32_t layer, place, expert; /* layer: of the stage */
} mr_expert_swap;

/* layers: [n_layers], copied. rules->rows is above 0. */
MR_MUST_USE mr_status mr_expert_renewal_create(const mr_expert_rules *rules, const mr_renewed_layer *layers,
                                               int32_t n_layers, mr_expert_renewal **out, mr_err *err);
/* NULL is accepted. */
void mr_expert_renewal_destroy(mr_expert_renewal *r);

/* A step has ended. uses: [n_layers], the counts of each layer of create since its start. Borrowed until the next
 * call. */
void mr_expert_renewal_begin(mr_expert_renewal *r, const mr_use_counts *const *uses);
/* The next exchange that is due within the bytes of this step. False: there is none. */
bool mr_expert_renewal_next(mr_expert_renewal *r, mr_expert_swap *out);
/* How the uses until the last look were shared, and the exchanges so far. */
mr_expert_share mr_expert_renewal_share(const mr_expert_renewal *r);

#endif
