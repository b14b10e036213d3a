/* tests/golden/test_golden_run.h - runs a model file through one stage and compares the logits with a reference.
 * Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_GOLDEN_TEST_GOLDEN_RUN_H
#define MR_TESTS_GOLDEN_TEST_GOLDEN_RUN_H

#include <stddef.h>
#include <stdint.h>

#include "backends/backend.h"
#include "engine/base/status.h"
#include "engine/tensor/type.h"

/* Decimal numbers separated by white space; freed by the caller. NULL when the file cannot be read. */
int32_t *golden_read_ids(const char *path, int32_t *out_n);
/* Raw little-endian float32; freed by the caller. NULL when the file cannot be read or is not of n values. */
float *golden_read_floats(const char *path, size_t n);

typedef struct golden_logits {
    int32_t n_positions, n_vocab;
    float *values; /* [n_positions, n_vocab]; freed by the caller */
} golden_logits;

/* Prefills ids[n] in chunks, and gives the logits of the last n_last positions. */
MR_MUST_USE mr_status golden_run_on(mr_backend *backend, const char *model_path, mr_type kv_type, const int32_t *ids,
                                    int32_t n, int32_t n_last, golden_logits *out, mr_err *err);
/* golden_run_on with a CPU backend of its own. */
MR_MUST_USE mr_status golden_run(const char *model_path, mr_type kv_type, const int32_t *ids, int32_t n, int32_t n_last,
                                 golden_logits *out, mr_err *err);

/* sum((got - want)^2) / sum(want^2); not a number where a logit is none. */
double golden_nmse(const float *got, const float *want, size_t n);

#endif
