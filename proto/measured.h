/* proto/measured.h - the times that a rank measures with the layers of a model, before the plan.
 * Owns:    nothing; plain data. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_MEASURED_H
#define MR_PROTO_MEASURED_H

#include <stdbool.h>
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

/* Layers on a device of the rank: the first device with memory of its own that the numerics allow. */
typedef struct mr_measured_device {
    bool is_known; /* false: there is no such device, or it has no memory for a layer */
    char name[64];
    uint64_t memory_bytes; /* most bytes that all buffers may have; 0: not known */
    mr_step_times layer[MR_MAX_LAYER_KINDS];
    mr_step_times output;
    double position_s[MR_MAX_LAYER_KINDS];
    /* Seconds that a step takes more if any of its layers are on the device: its rows go there, and come back. */
    mr_step_times crossing;
    /* In the device's layout: one layer of each kind; keys and values of one token in one layer; buffers of a stage; in
     * addition those of the first layer of the model (embedding) and of the last one (output matrix). */
    uint64_t layer_bytes[MR_MAX_LAYER_KINDS], token_bytes[MR_MAX_LAYER_KINDS], stage_bytes, head_bytes, tail_bytes;
    /* The same of layers whose experts, or neurons of sparse parts, are in the host's memory. No points: layers of the
     * kind have neither, or the device has no memory for one. layer has no points for kinds of which only this fits. */
    mr_step_times trunk[MR_MAX_LAYER_KINDS];
    uint64_t trunk_bytes[MR_MAX_LAYER_KINDS];
} mr_measured_device;

typedef struct mr_measured {
    int32_t n_kinds;
    mr_step_times layer[MR_MAX_LAYER_KINDS]; /* one layer of each kind, with an empty context */
    mr_step_times output; /* output norm, output matrix and greedy sampling, over rows that want a token */
    /* Seconds that one row takes more in one layer of each kind, for each earlier position that the row attends to. */
    double position_s[MR_MAX_LAYER_KINDS];
    double sample_s;   /* seconds of the quick sample, which shows later whether the times are still valid */
    double core_share; /* share of the measuring time in which the thread had a core; 0: not known */
    mr_measured_device device;
} mr_measured;

#endif
