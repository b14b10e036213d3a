/* worker/stage/stage_internal.h - the stage object, which stage.c builds and stage_run.c runs. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_STAGE_INTERNAL_H
#define MR_WORKER_STAGE_STAGE_INTERNAL_H

#include "backends/pinned.h"
#include "worker/stage/expert_renewal.h"
#include "worker/stage/stage.h"
#include "worker/stage/stage_state.h"
#include "worker/stage/use_counts.h"

enum { STAGE_MAX_BUCKETS = 16 };

/* A graph for up to max_rows rows: 1, 2, 4 ... */
typedef struct stage_bucket {
    int32_t max_rows;
    mr_graph *graph;
    mr_stage_io io;
} stage_bucket;

/* Rows of a result in memory that the host reads: the graph's, or a copy of what a device has computed. */
typedef struct stage_result {
    const uint8_t *first;
    size_t row_bytes; /* from one row to the next */
    uint8_t *copy;    /* memory of a copy */
} stage_result;

/* A step that is filled, runs, or has ended. */
typedef struct stage_slot {
    mr_step_rows rows;
    stage_bucket *bucket;
    mr_stage_step step;
    uint8_t *record;    /* the i32 inputs as the graph wants them */
    int32_t *out_place; /* [max_rows]: the row of the graph that an out row has. Those with only_top come first */
    int32_t n_top;      /* how many have only_top */
    stage_result top, logits, hidden;
    mr_graph_flight *flight;
} stage_slot;

struct mr_stage {
    mr_stage_config config;
    mr_synthetic synthetic; /* config.synthetic points here, or is NULL */
    mr_backends backends;
    mr_weights *weights;
    mr_stage_state *state;
    mr_buffer *work[MR_MAX_BACKENDS]; /* shared by all buckets, whose runs stand one behind the other in the queues */
    size_t work_bytes[MR_MAX_BACKENDS];
    stage_bucket buckets[STAGE_MAX_BUCKETS];
    int32_t n_buckets;
    bool reuses_graphs;
    bool notes_works;                 /* the graphs do */
    bool needs_host;                  /* in some step: steps are not started one behind the other */
    int32_t n_copies;                 /* the most in one graph */
    stage_slot slots[MR_STAGE_STEPS]; /* step i is in slot i % MR_STAGE_STEPS */
    uint64_t n_started, n_ended;      /* steps */
    int32_t *row_arrays;              /* memory of the rows of all slots */
    bool *only_top;                   /* the same */
    size_t record_bytes;              /* the most that a graph needs */
    /* Of the copies of a slot; 0: these results lie in the host's memory. */
    size_t top_bytes, logits_bytes, hidden_bytes;
    mr_pinned staging;             /* of the records and copies of all slots */
    use_counts *uses;              /* NULL: nothing is counted */
    mr_expert_renewal *renewal;    /* NULL: the experts of the device stay */
    const mr_use_counts **renewed; /* [its layers]: their counts */
    float *zeros;                  /* [the longest row]: each result row of a synthetic stage; else NULL */
};

/* Builds the bucket's graph anew in the memory of the old one (MILLRACE_GRAPH_REUSE=off), to measure what reuse
 * saves. */
MR_MUST_USE mr_status stage_rebuild_bucket(mr_stage *s, stage_bucket *b, mr_err *err);

/* Whether config.renews has something to do: stage_experts.c. */
bool stage_renews(const mr_stage *s);
/* Call after use_counts_allocate. */
MR_MUST_USE mr_status stage_create_renewal(mr_stage *s, mr_err *err);

#endif
