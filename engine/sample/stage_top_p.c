/* The cut by a radix selection over the bits of the logits, with the masses of the tokens in place of counts: four
 * passes whatever the distribution, and no sorting. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/sample/stages.h"

/* Adds up the masses of the candidates whose key has the prefix (the bits above shift + n_bits), by their next n_bits.
 */
static void bins_fill(const candidates *c, uint32_t prefix, int shift, int n_bits) {
    uint64_t *bins = c->scratch->bins;
    const uint64_t *weights = c->scratch->weights;
    memset(bins, 0, sizeof *bins << n_bits);
    uint32_t mask = (UINT32_C(1) << n_bits) - 1;
    uint32_t prefix_mask = (uint32_t)(UINT64_C(0xffffffff) << (shift + n_bits));
    for (int32_t i = 0; i < c->n; i++) {
        uint32_t key = logit_key(c->logits[i]);
        if (((key ^ prefix) & prefix_mask) == 0)
            bins[key >> shift & mask] += weights[i];
    }
}

/* The token at which the mass of the highest tokens reaches target, which is in [1, the mass of all]. */
static cut find_cut(const candidates *c, uint64_t target) {
    static const struct { int shift, n_bits; } levels[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t key = 0;
    for (int l = 0; l < 3; l++) {
        bins_fill(c, key, levels[l].shift, levels[l].n_bits);
        uint32_t bin = (UINT32_C(1) << levels[l].n_bits) - 1;
        for (; c->scratch->bins[bin] < target; bin--)
            target -= c->scratch->bins[bin];
        key |= bin << levels[l].shift;
    }
    /* Now target is what the tokens with this very logit have to give, by rising id. */
    for (int32_t i = 0;; i++) {
        if (logit_key(c->logits[i]) != key)
            continue;
        if (c->scratch->weights[i] >= target)
            return (cut){key_logit(key), candidates_id(c, i)};
        target -= c->scratch->weights[i];
    }
}

void stage_top_p(const mr_sampler *s, candidates *c) {
    if (s->params.top_p >= 1.0f || c->n == 1)
        return;
    uint64_t total = c->scratch->weights_of(c->logits, c->n, c->max_logit, 1.0f, c->scratch->weights);
    double share = (double)s->params.top_p * (double)total;
    uint64_t target = (uint64_t)share;
    target += (double)target < share || target == 0;
    candidates_keep(c, find_cut(c, target < total ? target : total));
}
