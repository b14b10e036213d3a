/* engine/sample/sampler.h - chooses the next token of a sequence from its logits.
 * The chain has the order of llama.cpp. First come the processors that change logits:
 *   bias         + bias of the token; -inf forbids it
 *   mask         tokens whose bit is 0 cannot come (grammars)
 *   late         while fewer than min_tokens were generated, late ids cannot come, unless the mask allows nothing else
 *   bad words    the last id of a sequence of ids cannot come if the ids before it were generated last
 *   repeat       each distinct token of the last repeat_last_n of the history, prompt included: l > 0 ? l / p : l * p
 *                (Keskar et al., "CTRL: a conditional transformer language model", 2019)
 *   presence, frequency  of each token that was generated, c times so far: l - (c * frequency + presence), as OpenAI's;
 *                over all that was generated, and nothing of the prompt
 *   DRY          a token that would continue a repetition. The end of the history may stand earlier in the history,
 *                followed by this token. n is the length of the longest such end. If n >= allowed_length:
 *                l - multiplier * base^(n - allowed_length). Only the last dry_last_n tokens count, and no end reaches
 *                over a breaker (text-generation-webui's, by p-e-w, 2024)
 * Then come the processors that narrow the candidates. They keep at least one:
 *   top-n-sigma  the logits of at least max - n * their standard deviation (Tang et al., "Top-nsigma: not all logits
 *                are you need", 2024)
 *   top-k        the k highest logits
 *   typical      the fewest tokens that have a share of at least typical_p, the ones whose -log p is nearest to the
 *                entropy first (Meister et al., "Locally typical sampling", 2022)
 *   top-p        the fewest highest tokens that have a share of at least top_p in the softmax of what is left
 *                (Holtzman et al., "The curious case of neural text degeneration", 2020)
 *   min-p        the tokens with at least min_p times the probability of the best one
 *   XTC          with xtc_probability: of the tokens with a share of at least xtc_threshold, only the lowest stays
 *                (p-e-w, 2024)
 *   temperature  softmax of l / temperature over what is left; 0 takes the highest logit after the changes and skips
 *                the rest
 * With mirostat 1 or 2 the narrowing is Mirostat's, over l / temperature (Basu et al., "Mirostat: a neural text
 * decoding algorithm that directly controls perplexity", 2021): version 1 estimates the exponent of Zipf's law from the
 * 100 highest.
 * "Higher" is by logit, then by lower token id, everywhere. A draw goes through the tokens left by rising id.
 * Rule D of engine/NUMERICS.md: a weight is a 40-bit fixed-point number (weights.h), so sums are exact and have no
 * order; the random number is a pure function of (seed, choice, position). A result therefore has the same bits on
 * every machine, and a sampler made from a journal continues as the old one would have. All state of a sampler follows
 * from the ids, except Mirostat's mu, which the journal keeps with them (mr_sampler_mirostat_mu).
 * A token with logit -inf cannot come. Tokens with +inf share all probability equally.
 * Owns:    a sampler the window of its history and copies of the lists, a scratch its work memory. Borrows: nothing
 *          after create.
 * Threads: caller serialises each object. A scratch serves any number of samplers, one call at a time: a tail stage has
 *          one for each thread that samples. Sampling sets the calling thread to flush denormals (thread.h).
 * Errors:  any create function may return MR_E_NO_MEMORY; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_SAMPLE_SAMPLER_H
#define MR_ENGINE_SAMPLE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/status.h"
#include "engine/base/top.h"

enum {
    MR_SAMPLER_MAX_VOCAB = 1 << 22,
    MR_SAMPLER_MAX_BIASES = 4096,
    MR_SAMPLER_MAX_BREAKERS = 16384,
    MR_SAMPLER_MAX_LATE = 1024,
    MR_SAMPLER_MAX_BAD_WORDS = 4096, /* length of the list */
    MR_SAMPLER_MAX_TOP = 20,         /* log-probabilities of one position, besides the one of the chosen token */
};

/* For greedy sampling and nothing else, set top_p = 1, repeat_penalty = 1 and all other fields to 0. */
typedef struct mr_sampling_params {
#define MR_SAMPLING(type, name, ...) type name;
#include "engine/sample/params.def" /* says what each may be */
#undef MR_SAMPLING
    uint64_t seed;
    /* Lists, borrowed. Code that keeps the parameters copies the lists. */
    const int32_t *bias_ids; /* [n_biases]; an id that occurs twice gets both biases */
    const float *biases;     /* finite or -inf */
    int32_t n_biases;
    const int32_t *dry_breakers; /* [n_dry_breakers] ids */
    int32_t n_dry_breakers;
    int32_t min_tokens;      /* >= 0 */
    const int32_t *late_ids; /* [n_late_ids] ids */
    int32_t n_late_ids;
    /* [n_bad_words]: for each sequence of ids their number, at least one, and then the ids */
    const int32_t *bad_words;
    int32_t n_bad_words;
} mr_sampling_params;

/* The defaults of llama.cpp: temperature 0.8, top-k 40, top-p 0.95, min-p 0.05, seed 0. All others are off. If they are
 * turned on: the repeat penalty covers 64 tokens, DRY has base 1.75 and begins at 2 tokens over the whole context, XTC
 * has threshold 0.1, and Mirostat tau 5 and eta 0.1. */
mr_sampling_params mr_sampling_params_default(void);
/* MR_E_INVALID: the error text names the field, its value and the range. */
MR_MUST_USE mr_status mr_sampling_params_check(const mr_sampling_params *params, mr_err *err);
/* For parameters that were checked. MR_E_INVALID: an id of a list is not in the vocabulary. */
MR_MUST_USE mr_status mr_sampling_params_check_ids(const mr_sampling_params *params, int32_t n_vocab, mr_err *err);

/* Work memory for logits of up to n_vocab tokens, about 30 bytes for each. */
typedef struct mr_sampler_scratch mr_sampler_scratch;
MR_MUST_USE mr_status mr_sampler_scratch_create(int32_t n_vocab, mr_sampler_scratch **out_scratch, mr_err *err);
void mr_sampler_scratch_destroy(mr_sampler_scratch *scratch);

typedef struct mr_sampler_config {
    int32_t n_vocab; /* [1, MR_SAMPLER_MAX_VOCAB] */
    mr_sampling_params params;
    uint32_t choice;           /* index of the choice within its request */
    const int32_t *prompt_ids; /* [n_prompt]: the prompt, and after a failure the ids generated since */
    int32_t n_prompt;
    int32_t n_generated; /* how many of prompt_ids, at their end, were generated */
    int32_t max_context; /* bounds the history, > 0 */
    double mirostat_mu;  /* mu after the last of prompt_ids; not read if n_generated is 0 */
} mr_sampler_config;

/* Returns how many of the last ids the sampler of a sequence needs, when n_generated of its ids were generated. With
 * fewer ids the sampler would choose other tokens; with more ids it chooses the same. At most max_context. */
int32_t mr_sampler_n_history(const mr_sampling_params *params, int32_t n_generated, int32_t max_context);

/* The state of one sequence: at most 8 bytes for each token that a penalty or a bad word looks back on, none without
 * these. MR_E_INVALID: a parameter, an id of a list or an id of the prompt is out of its range. */
typedef struct mr_sampler mr_sampler;
MR_MUST_USE mr_status mr_sampler_create(const mr_sampler_config *config, mr_sampler **out_sampler, mr_err *err);
void mr_sampler_destroy(mr_sampler *sampler);

/* Appends an id to the history: the one sampled last, or any other. MR_E_INVALID: the id is not in the vocabulary. */
MR_MUST_USE mr_status mr_sampler_accept(mr_sampler *sampler, int32_t id, mr_err *err);
/* Returns Mirostat's bound of surprise in bits, after the last accepted id; 2 * tau at the start. */
double mr_sampler_mirostat_mu(const mr_sampler *sampler);

/* Whether the next token follows from the first tokens of its row (mr_top): the same id, or the same error, as from all
 * logits. Ask before the row is computed, after all earlier ids were accepted. True for greedy sampling and for
 * top-k, if logits are only lowered, and not too many of them: biases, penalties, bad words and late ids. A row with a
 * mask needs all logits in any case. */
bool mr_sampler_can_use_top(const mr_sampler *sampler);

typedef struct mr_sampler_row {
    const float *logits; /* [n_vocab], not modified. With top: not read */
    const mr_top *top;   /* instead of logits, if mr_sampler_can_use_top; else NULL */
    /* Token i may come if bit i % 64 of word i / 64 is set. Bits beyond the vocabulary are ignored. NULL: all tokens
     * may come. */
    const uint64_t *mask;
    int64_t position; /* position of the token that is chosen */
} mr_sampler_row;

/* Chooses a token. Allocates nothing. Later results depend on the accepted ids alone, not on how often this function
 * was called. scratch must have room for n_vocab tokens. MR_E_NUMERICS: a logit is NaN, or all logits are -inf.
 * MR_E_INVALID: all logits are -inf after mask, biases and penalties have changed them; or top was passed where it is
 * not enough. */
MR_MUST_USE mr_status mr_sampler_sample(mr_sampler *sampler, mr_sampler_scratch *scratch, const mr_sampler_row *row,
                                        int32_t *out_id, mr_err *err);

/* Log-probabilities of the model itself: of the softmax of its logits, before biases, masks and the other
 * processors. */
typedef struct mr_logprobs {
    float logprob; /* of the given token */
    int32_t n_top;
    int32_t top_ids[MR_SAMPLER_MAX_TOP]; /* the most likely tokens, by falling probability; ties by rising id */
    float top[MR_SAMPLER_MAX_TOP];       /* their log-probabilities, in [-inf, 0] */
} mr_logprobs;

/* Computes the log-probabilities of id, which must be in the vocabulary, and of the n_top most likely tokens (at most
 * MR_SAMPLER_MAX_TOP and n_vocab). The fixed-point weights make them the same bits on every machine. Allocates nothing.
 * scratch must have room for n_vocab tokens. MR_E_NUMERICS: a logit is NaN, or all logits are -inf. */
MR_MUST_USE mr_status mr_logprobs_get(mr_sampler_scratch *scratch, const float *logits, int32_t n_vocab, int32_t id,
                                      int32_t n_top, mr_logprobs *out);
/* The same from the first tokens of the row. MR_E_INVALID: the token is not among them; an id that was sampled from
 * them is. */
MR_MUST_USE mr_status mr_logprobs_get_top(mr_sampler_scratch *scratch, const mr_top *top, int32_t id, int32_t n_top,
                                          mr_logprobs *out);

#endif
