/* tests/support/pairwise.h - combinations of the levels of some factors: a short list in which every two levels of two
 * factors stand together at least once, or all that there are. The same numbers of levels give the same list.
 * Owns: nothing. Threads: any. Errors: a list that is too short for all pairs ends the process. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_PAIRWISE_H
#define MR_TESTS_SUPPORT_PAIRWISE_H

enum { PAIRWISE_MAX_FACTORS = 9, PAIRWISE_MAX_LEVELS = 64 };

typedef struct pairwise_factors {
    int n;                              /* 2 to PAIRWISE_MAX_FACTORS */
    int n_levels[PAIRWISE_MAX_FACTORS]; /* [n], each 1 to PAIRWISE_MAX_LEVELS */
} pairwise_factors;

/* Of each factor its level, counted from 0. */
typedef struct combination {
    int level[PAIRWISE_MAX_FACTORS];
} combination;

/* Writes a pairwise list. Returns its length, cap at most. */
int pairwise_list(const pairwise_factors *factors, combination *out, int cap);

/* The number of all combinations, and the i-th of them. */
int pairwise_count_all(const pairwise_factors *factors);
combination pairwise_at(const pairwise_factors *factors, int i);

#endif
