/* coordinator/planning/chunk_choice.h - how many rows of prompts a step takes at most, by the times of the stages. A
 * step reads the weights of nearly all experts once it has some hundred rows, so with more rows each expert serves more
 * of them for the same reading. Against large chunks stands that running sequences wait while a stage works on a chunk.
 * The scheduler takes smaller chunks where that is better; this is the size that buffers are made for.
 * Owns:    nothing; plain data. Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_PLANNING_CHUNK_CHOICE_H
#define MR_COORDINATOR_PLANNING_CHUNK_CHOICE_H

#include "coordinator/planning/micro_batches.h"

enum { MR_CHUNK_MOST = 2048, MR_CHUNK_SIZES = 12 };

typedef enum mr_chunk_reason {
    MR_CHUNK_GAINS_LITTLE, /* larger chunks would be less than a tenth faster */
    MR_CHUNK_TAKES_LONG,   /* of a larger chunk a stage would have more than MR_CHUNK_STEP_S of work */
    MR_CHUNK_LARGEST,      /* no larger size was measured, or is considered */
    MR_CHUNK_FILLS_MEMORY, /* set by the caller: the buffers of a larger chunk do not fit */
} mr_chunk_reason;

/* The longest step that sequences may have to wait for, unless the usual chunk takes longer already. */
#define MR_CHUNK_STEP_S 1.0

typedef struct mr_chunk_choice {
    int32_t n; /* 0: nothing was chosen */
    int32_t rows[MR_CHUNK_SIZES];
    double rate[MR_CHUNK_SIZES];   /* tokens of prompts in a second, while all stages have work */
    double step_s[MR_CHUNK_SIZES]; /* of the slowest stage */
    int32_t chosen;                /* index */
    mr_chunk_reason reason;        /* why it is no larger */
} mr_chunk_choice;

/* Compares chunks of usual, 2 * usual ... rows, up to MR_CHUNK_MOST and to the rows that all stages' curves have. */
void mr_chunk_choose(const mr_pipeline_times *t, int32_t usual, mr_chunk_choice *out);

#endif
