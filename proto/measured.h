/* proto/measured.h - the times that a rank measures with the layers of a model, before the plan.
 * Owns:    nothing; plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MEASURED_H
#define MR_PROTO_MEASURED_H

#include <stdint.h>

enum {
    MR_STEP_TIMES_MAX = 16,
    MR_MAX_LAYER_KINDS = 16, /* kinds: layers of one kind have equal tensor types and shapes */
};

/* A curve of time over rows (1, 2, 4 ...), in ascending order of rows. n 0: not measured. */
typedef struct mr_step_times {
    int32_t n;
    int32_t rows[MR_STEP_TIMES_MAX];
    double seconds[MR_STEP_TIMES_MAX];
} mr_step_times;

typedef struct mr_measured {
    int32_t n_kinds;
    mr_step_times layer[MR_MAX_LAYER_KINDS]; /* one layer of each kind, with an empty context */
    mr_step_times output; /* output norm, output matrix and greedy sampling, over rows that want a token */
    /* Seconds that one row takes more in one layer of each kind, for each earlier position that the row attends to. */
    double position_s[MR_MAX_LAYER_KINDS];
    double sample_s;   /* seconds of the quick sample, which shows later whether the times are still valid */
    double core_share; /* share of the measuring time in which the thread had a core; 0: not known */
} mr_measured;

#endif
