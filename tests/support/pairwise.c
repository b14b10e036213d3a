// SPDX-License-Identifier: Apache-2.0
#include "tests/support/pairwise.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/rng.h"

enum { N_ATTEMPTS = 100 };

/* Pairs of levels that stand together in the list: [f][level of f][g][level of g] for f < g. */
typedef struct pair_table {
    bool is_covered[PAIRWISE_MAX_FACTORS][PAIRWISE_MAX_LEVELS][PAIRWISE_MAX_FACTORS][PAIRWISE_MAX_LEVELS];
} pair_table;

static int count_pairs(const pairwise_factors *factors) {
    int n = 0;
    for (int f = 0; f < factors->n; f++)
        for (int g = f + 1; g < factors->n; g++)
            n += factors->n_levels[f] * factors->n_levels[g];
    return n;
}

/* Returns how many pairs of c are not covered, and covers them if so told. */
static int visit_pairs(const pairwise_factors *factors, const combination *c, pair_table *table, bool covers) {
    int n_new = 0;
    for (int f = 0; f < factors->n; f++)
        for (int g = f + 1; g < factors->n; g++) {
            bool *pair = &table->is_covered[f][c->level[f]][g][c->level[g]];
            n_new += !*pair;
            *pair = *pair || covers;
        }
    return n_new;
}

/* Sets the two levels of the first pair that is not covered. */
static void set_missing_pair(const pairwise_factors *factors, const pair_table *table, combination *c) {
    for (int f = 0; f < factors->n; f++)
        for (int g = f + 1; g < factors->n; g++)
            for (int i = 0; i < factors->n_levels[f]; i++)
                for (int k = 0; k < factors->n_levels[g]; k++)
                    if (!table->is_covered[f][i][g][k]) {
                        c->level[f] = i;
                        c->level[g] = k;
                        return;
                    }
}

/* Greedy: each next combination has a missing pair, and is the one of some random ones that covers the most. */
int pairwise_list(const pairwise_factors *factors, combination *out, int cap) {
    pair_table *table = calloc(1, sizeof *table);
    uint64_t counter = 0;
    int n = 0;
    for (int left = count_pairs(factors); left > 0; n++) {
        int most = 0;
        if (!table || n == cap) {
            fprintf(stderr, "no memory, or more than %d combinations\n", cap);
            exit(1);
        }
        for (int attempt = 0; attempt < N_ATTEMPTS; attempt++) {
            combination c = {{0}};
            for (int f = 0; f < factors->n; f++)
                c.level[f] = (int)(mr_rng_u64(4, 0, counter++) % (uint64_t)factors->n_levels[f]);
            set_missing_pair(factors, table, &c);
            int n_new = visit_pairs(factors, &c, table, false);
            if (n_new > most) {
                most = n_new;
                out[n] = c;
            }
        }
        left -= visit_pairs(factors, &out[n], table, true);
    }
    free(table);
    return n;
}

int pairwise_count_all(const pairwise_factors *factors) {
    int n = 1;
    for (int f = 0; f < factors->n; f++)
        n *= factors->n_levels[f];
    return n;
}

combination pairwise_at(const pairwise_factors *factors, int i) {
    combination c = {{0}};
    for (int f = 0; f < factors->n; f++) {
        c.level[f] = i % factors->n_levels[f];
        i /= factors->n_levels[f];
    }
    return c;
}
