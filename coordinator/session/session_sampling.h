/* coordinator/session/session_sampling.h - internal to the program: sampling parameters from options.
 * Owns:    its lists, until deinit. Threads: bound to the main thread.
 * Errors:  MR_E_INVALID names option, value and what is allowed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_SAMPLING_H
#define MR_COORDINATOR_SESSION_SESSION_SAMPLING_H

#include "coordinator/console/options.h"
#include "engine/sample/sampler.h"
#include "engine/text/tokenizer.h"

typedef struct mr_session_sampling {
    mr_sampling_params params; /* its lists are those below */
    mr_token_buf bias_ids, breakers;
    float *biases;
} mr_session_sampling;

/* Everything but what needs the vocabulary; a seed of -1 becomes a random one. s is to be handed to deinit, whatever
 * comes back. */
MR_MUST_USE mr_status mr_session_sampling_init(mr_session_sampling *s, const mr_options *options, mr_err *err);
/* The tokens of --dry-sequence-breaker, and ids of --logit-bias held against the vocabulary. */
MR_MUST_USE mr_status mr_session_sampling_set_tokenizer(mr_session_sampling *s, const mr_options *options,
                                                        const mr_tokenizer *tok, mr_err *err);
void mr_session_sampling_deinit(mr_session_sampling *s);
/* Says how tokens are sampled, as a note: what is on. */
void mr_session_sampling_note(const mr_sampling_params *p);

#endif
