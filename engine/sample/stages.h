/* engine/sample/stages.h - internal: the sampler object and the entries of its chain (sampler.c holds the order).
 * A stage that is off in the parameters returns at once.
 * Threads: caller serialises. Errors: none; stages allocate nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_STAGES_H
#define MR_ENGINE_SAMPLE_STAGES_H

#include "engine/sample/candidates.h"

struct mr_sampler {
    int32_t n_vocab;
    uint32_t choice;
    mr_sampling_params params;
    double log_min_p; /* where min_p > 0 */
    /* The last tokens of the history, for the penalty; a ring. */
    int32_t *window;      /* [window_capacity] */
    int32_t window_count; /* <= window_capacity */
    int32_t window_next;  /* where the next id goes */
    int32_t window_capacity;
};

/* Stages that change logits see all tokens, c->ids being NULL, and no max_logit yet. */
void stage_penalty(const mr_sampler *s, candidates *c);

/* Stages that narrow the candidates; one stays at least. */
void stage_top_k(const mr_sampler *s, candidates *c);
void stage_top_p(const mr_sampler *s, candidates *c);
void stage_min_p(const mr_sampler *s, candidates *c);

#endif
