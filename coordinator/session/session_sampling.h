/* coordinator/session/session_sampling.h - sampling parameters from the options of the command line.
 * Owns:    its lists, until deinit. Threads: bound to the main thread.
 * Errors:  MR_E_INVALID names the option, the value and what is allowed. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SESSION_SESSION_SAMPLING_H
#define MR_COORDINATOR_SESSION_SESSION_SAMPLING_H

#include "coordinator/console/options.h"
#include "engine/sample/sampler.h"
#include "engine/text/tokenizer.h"

typedef struct mr_session_sampling {
    mr_sampling_params params; /* its lists point into the fields below */
    mr_token_buf bias_ids, breakers;
    float *biases;
} mr_session_sampling;

/* Sets all that does not need the vocabulary. A seed of -1 becomes a random seed. Call deinit even after an error. */
MR_MUST_USE mr_status mr_session_sampling_init(mr_session_sampling *s, const mr_options *options, mr_err *err);
/* Adds the tokens of --dry-sequence-breaker, and checks the ids of --logit-bias against the vocabulary. */
MR_MUST_USE mr_status mr_session_sampling_set_tokenizer(mr_session_sampling *s, const mr_options *options,
                                                        const mr_tokenizer *tok, mr_err *err);
void mr_session_sampling_deinit(mr_session_sampling *s);
/* Writes the active sampling parameters as a note. */
void mr_session_sampling_note(const mr_sampling_params *p);

#endif
