/* worker/stage/use_counts.h - how many rows have used each expert, or each neuron of a sparse feed-forward part, in the
 * layers of a stage. The graphs expose what their layers choose (mr_layer_choice). After each step the host reads the
 * choices and counts them, so no op changes and a stage that does not count has no further work.
 * Life:    create; for each bucket build its graph with use_counts_choices, and note it; allocate; then add after each
 *          step.
 * Owns:    counts and a copy of the choices of one layer. Borrows nothing.
 * Threads: bound to the step thread.
 * Errors:  MR_E_DEVICE: a row has an expert that does not exist. use_counts_add allocates nothing. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_USE_COUNTS_H
#define MR_WORKER_STAGE_USE_COUNTS_H

#include "engine/model/model.h"
#include "worker/stage/stage.h"

typedef struct use_counts use_counts;

MR_MUST_USE mr_status use_counts_create(mr_layer_range range, int32_t max_buckets, use_counts **out, mr_err *err);
/* NULL is accepted. */
void use_counts_destroy(use_counts *u);
/* mr_stage_shape.choices for the graph of a bucket; NULL if u is NULL. */
mr_layer_choice *use_counts_choices(use_counts *u, int32_t bucket);
/* Bytes of the counts. Call after the graph of bucket 0 was built. */
size_t use_counts_bytes(const use_counts *u);
/* Notes where the choices of a bucket lie. graph: that of the bucket, finished. Does nothing if u is NULL. */
void use_counts_note(use_counts *u, int32_t bucket, const mr_graph *graph);
/* Takes the memory of the counts, after all buckets were noted. bucket: any of them. */
MR_MUST_USE mr_status use_counts_allocate(use_counts *u, int32_t bucket, mr_err *err);
/* Adds what the rows of the last run of the bucket's graph have chosen. */
MR_MUST_USE mr_status use_counts_add(use_counts *u, int32_t bucket, mr_graph *graph, int32_t n_rows, mr_err *err);

/* The counts of layers that choose experts or neurons, [*out_n] in order. */
const mr_use_counts *use_counts_layers(const use_counts *u, int32_t *out_n);

#endif
