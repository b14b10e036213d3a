/* engine/sample/sampler.h - chooses the next token of a sequence from its logits.
 * The chain, in the order that users of llama.cpp know: repeat penalty, top-k, top-p, min-p, temperature, draw.
 *   repeat penalty  each distinct token of the last repeat_last_n of the history, prompt included: l > 0 ? l / p : l * p
 *                   (Keskar et al., "CTRL: a conditional transformer language model", 2019)
 *   top-k           the k highest logits
 *   top-p           the fewest highest of what is left whose share of its softmax is top_p at least
 *                   (Holtzman et al., "The curious case of neural text degeneration", 2020)
 *   min-p           what has min_p times the probability of the best at least
 *   temperature     softmax of l / temperature over what is left; 0 takes the highest logit and skips the rest
 * "Higher" is by logit, then by lower token id, everywhere. A draw goes through the tokens left by rising id.
 * Rule D of engine/NUMERICS.md: a weight is a 40-bit fixed-point number (weights.h), so sums are exact and have no order; the random
 * number is a pure function of (seed, choice, position). So a result is the same bits on every machine, and a
 * sampler made from a journal goes on as the old one would have.
 * -inf is a token that cannot come; tokens of +inf share all probability equally.
 * Owns:    a sampler the window of its history, a scratch its work memory. Borrows: nothing after create.
 * Threads: caller serialises each object. A scratch serves any number of samplers, one call at a time: a tail stage has
 *          one for each thread that samples. Sampling sets the calling thread to flush denormals (thread.h).
 * Errors:  any create function may return MR_E_NO_MEMORY; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_SAMPLER_H
#define MR_ENGINE_SAMPLE_SAMPLER_H

#include <stdint.h>

#include "engine/base/status.h"

enum { MR_SAMPLER_MAX_VOCAB = 1 << 22 };

typedef struct mr_sampling_params {
    float temperature;     /* [0, 100]; 0: the highest logit */
    int32_t top_k;         /* >= 0; 0: off */
    float top_p;           /* [0, 1]; 1: off; one token stays at least */
    float min_p;           /* [0, 1]; 0: off */
    float repeat_penalty;  /* (0, 100]; 1: off */
    int32_t repeat_last_n; /* >= -1; 0: off, -1: the whole context */
    uint64_t seed;
} mr_sampling_params;

/* Those of llama.cpp: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, no penalty (over 64 when set), seed 0. */
mr_sampling_params mr_sampling_params_default(void);
/* MR_E_INVALID names the field, its value and the range. */
MR_MUST_USE mr_status mr_sampling_params_check(const mr_sampling_params *params, mr_err *err);

/* Work memory for logits of up to n_vocab tokens, about 20 bytes for each. */
typedef struct mr_sampler_scratch mr_sampler_scratch;
MR_MUST_USE mr_status mr_sampler_scratch_create(int32_t n_vocab, mr_sampler_scratch **out_scratch, mr_err *err);
void mr_sampler_scratch_destroy(mr_sampler_scratch *scratch);

typedef struct mr_sampler_config {
    int32_t n_vocab; /* [1, MR_SAMPLER_MAX_VOCAB] */
    mr_sampling_params params;
    uint32_t choice;           /* index of the choice within its request */
    const int32_t *prompt_ids; /* [n_prompt]: prompt, and after a failure what was generated since */
    int32_t n_prompt;
    int32_t max_context; /* bounds the history, > 0 */
} mr_sampler_config;

/* The state of one sequence, small: at most 4 bytes for each token of the penalty's window, none without penalty.
 * MR_E_INVALID: a parameter or a prompt id is out of its range. */
typedef struct mr_sampler mr_sampler;
MR_MUST_USE mr_status mr_sampler_create(const mr_sampler_config *config, mr_sampler **out_sampler, mr_err *err);
void mr_sampler_destroy(mr_sampler *sampler);

/* A generated id joins the history. MR_E_INVALID: it is not in the vocabulary. */
MR_MUST_USE mr_status mr_sampler_accept(mr_sampler *sampler, int32_t id, mr_err *err);

/* Chooses the token for position from logits [n_vocab], which are not modified; allocates nothing, and changes nothing
 * in sampler. scratch holds n_vocab tokens at least. MR_E_NUMERICS: a logit is NaN, or all are -inf. */
MR_MUST_USE mr_status mr_sampler_sample(const mr_sampler *sampler, mr_sampler_scratch *scratch, const float *logits,
                                        int64_t position, int32_t *out_id, mr_err *err);

#endif
