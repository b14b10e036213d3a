/* proto/measured.h - what a rank measures of itself with the layers of a model, before there is a plan.
 * Owns:    nothing; plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MEASURED_H
#define MR_PROTO_MEASURED_H

#include <stdint.h>

enum {
    MR_STEP_TIMES_MAX = 16,
    MR_MAX_LAYER_KINDS = 16, /* layers of a model that differ in tensor types or shapes */
};

/* How long something takes for 1, 2, 4 ... rows: points in ascending order of rows. n 0: nothing is known. */
typedef struct mr_step_times {
    int32_t n;
    int32_t rows[MR_STEP_TIMES_MAX];
    double seconds[MR_STEP_TIMES_MAX];
} mr_step_times;

typedef struct mr_measured {
    int32_t n_kinds;
    mr_step_times layer[MR_MAX_LAYER_KINDS]; /* of one layer of each kind, at an empty context */
    mr_step_times output; /* output norm, matrix and greedy sampling, for so many rows that want a token */
    double position_s;    /* more seconds of one row in one layer for each position before it */
    double sample_s;      /* of the quick sample that shows later whether all this still holds */
    double core_share;    /* of the time of the measurement, in which the measuring thread had a core; 0: not known */
} mr_measured;

#endif
