/* tests/golden/plain_sparse.h - makes a CPU backend compute sparse feed-forward parts by rule S of engine/NUMERICS.md
 * said plainly: neuron by neuron, in scalar code, without lists of active neurons. The other ops stay the backend's.
 * Threads: caller serialises; one backend at a time, which is destroyed before the next begins. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_GOLDEN_PLAIN_SPARSE_H
#define MR_TESTS_GOLDEN_PLAIN_SPARSE_H

#include "backends/backend.h"

typedef enum plain_form {
    PLAIN_DENSE,  /* every neuron is active: scores and thresholds are not looked at */
    PLAIN_ACTIVE, /* the neurons whose scores say so */
} plain_form;

/* be: a CPU backend without programs. */
void plain_sparse_begin(mr_backend *be, plain_form form);
/* The neurons that took part since the beginning, as a share of all neurons of all rows. */
double plain_sparse_share(void);

#endif
