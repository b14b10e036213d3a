/* proto/phases.h - what a stage does with its time: at every moment the step thread is in one of these phases. If a
 * device runs the steps, its times are those of the phase COMPUTE, and the thread is in other phases meanwhile, or in
 * none.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_PROTO_PHASES_H
#define MR_PROTO_PHASES_H

#include <stdint.h>

typedef enum mr_phase {
    MR_PHASE_NO_WORK,  /* no step is planned */
    MR_PHASE_WAIT_IN,  /* a step is planned, but its activations or ids have not come */
    MR_PHASE_WAIT_OUT, /* the input has come, but no send buffer is free */
    MR_PHASE_COMPUTE,
    MR_PHASE_WIRE, /* reading messages, and packing, checking and sending them */
    MR_PHASE_SAMPLING,
    MR_PHASE_COUNT,
    /* No phases, but kinds of spans: if both the CPU and a device compute in a step, when each of them did. */
    MR_SPAN_CPU = MR_PHASE_COUNT,
    MR_SPAN_DEVICE,
    MR_SPAN_KINDS,
} mr_phase;

/* The most time of one phase of one stage, so that the sum over all phases fits int64. */
#define MR_MAX_PHASE_NS (INT64_MAX / MR_PHASE_COUNT)

/* "compute", "wait-in" and so on. */
static inline const char *mr_phase_name(mr_phase phase) {
    static const char *const NAMES[MR_SPAN_KINDS] = {"no-work", "wait-in",  "wait-out", "compute",
                                                     "wire",    "sampling", "cpu",      "device"};
    return NAMES[phase];
}

/* A stay in one phase, or the time of one piece of work of the CPU or of a device. */
typedef struct mr_span {
    int64_t start_ns, end_ns;
    uint64_t step; /* the present step, or the last one */
    uint32_t rows; /* rows of this step */
    mr_phase phase;
} mr_span;

#endif
