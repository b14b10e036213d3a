/* backends/cpu/cpu_top.c - finds the first tokens of a row of logits and the sum of all weights (engine/base/top.h).
 * Plain C for all instruction sets: where the CPU computes the logits, the sampler reads them where they are. This is
 * the reference for devices. */
// SPDX-License-Identifier: Apache-2.0
#include <math.h>
#include <string.h>

#include "backends/cpu/cpu_internal.h"
#include "engine/base/top.h"

enum { LEVEL_BITS = 8, BINS = 1 << LEVEL_BITS };

/* The last token that is taken: all tokens with a greater key, and the first n_ties tokens with this key. */
typedef struct last_taken {
    uint32_t key;
    int32_t n_ties;
} last_taken;

/* Counts the keys that begin with the bits of prefix above shift + LEVEL_BITS, by their next LEVEL_BITS bits. */
static void count(const float *logits, int32_t n, uint32_t prefix, int shift, int32_t *bins) {
    uint32_t mask = (uint32_t)(UINT64_MAX << (shift + LEVEL_BITS));
    memset(bins, 0, BINS * sizeof *bins);
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = mr_logit_key(logits[i]);
        if (((key ^ prefix) & mask) == 0)
            bins[key >> shift & (BINS - 1)]++;
    }
}

/* A radix selection of the n_wanted highest keys, from the first bits to the last. */
static last_taken find_last(const float *logits, int32_t n, int32_t n_wanted) {
    int32_t bins[BINS];
    last_taken last = {.n_ties = n_wanted};
    for (int shift = 32 - LEVEL_BITS; shift >= 0; shift -= LEVEL_BITS) {
        uint32_t bin = BINS - 1;
        count(logits, n, last.key, shift, bins);
        for (; bins[bin] < last.n_ties; bin--)
            last.n_ties -= bins[bin];
        last.key |= bin << shift;
    }
    return last;
}

static void take(const float *logits, int32_t n, last_taken last, mr_top *out) {
    for (int32_t i = 0; i < n; i++) {
        uint32_t key = mr_logit_key(logits[i]);
        if (key < last.key || (key == last.key && last.n_ties-- <= 0))
            continue;
        out->ids[out->n] = i;
        out->logits[out->n++] = logits[i];
    }
}

/* Adds all weights. Returns whether no logit is NaN. */
static bool add_weights(const float *logits, int32_t n, mr_top *out) {
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        if (isnan(logits[i]))
            return false;
        max = logits[i] > max ? logits[i] : max;
    }
    for (int32_t i = 0; i < n; i++)
        out->sum += mr_weight_of(logits[i] == max ? 0.0f : logits[i] - max); /* also for two infinities */
    return true;
}

void cpu_run_top(const cpu_node *n, int32_t row) {
    const float *logits = cpu_float_row(n->in[0], row);
    int32_t n_logits = n->in[0]->ne[0];
    mr_top *out = (mr_top *)(void *)cpu_int_row(n->out, row);
    memset(out, 0, sizeof *out);
    if (add_weights(logits, n_logits, out))
        take(logits, n_logits, find_last(logits, n_logits, mr_min_i32(n_logits, MR_TOP_TOKENS)), out);
}
