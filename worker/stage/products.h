/* worker/stage/products.h - which products go to a backend that only multiplies: those in which it is faster than the
 * CPU, by a measurement with the model's own matrices. For each type, from how many rows of a graph on.
 * Threads: caller serialises. Errors: those of the backends. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_PRODUCTS_H
#define MR_WORKER_STAGE_PRODUCTS_H

#include "backends/backend.h"
#include "engine/model/model.h"

/* A matrix of the file, or its first rows. */
typedef struct mr_product_sample {
    mr_type type;
    int32_t k, n;
    const uint8_t *rows;
    bool is_mapped; /* the stage reads it in the file */
} mr_product_sample;

/* The seconds that backend be needs for a product with n_rows rows of activations. */
typedef mr_status mr_product_timer(void *ctx, mr_backend *be, const mr_product_sample *s, int32_t n_rows,
                                   double *out_seconds, mr_err *err);

enum { MR_PRODUCTS_TYPES = 5 /* that are measured; files have one to four */ };

/* The types of the stage's matrices that mr_products_measure measures: those with the largest. Returns their number. */
int32_t mr_products_types(const mr_weights *weights, mr_type out_types[MR_PRODUCTS_TYPES]);
/* Leaves the products of all types to the last backend. */
void mr_products_leave_all(mr_backends *backends);

/* Fills backends->min_rows for the samples' types, graphs of 1, 2, 4 ... max_rows rows, and all backends but the last,
 * which is what they are compared with. Types that are not among the samples, or for which there was no time, are left
 * to it. */
MR_MUST_USE mr_status mr_products_choose(mr_backends *backends, const mr_product_sample *samples, int32_t n_samples,
                                         int32_t max_rows, mr_product_timer *timer, void *ctx, mr_err *err);

/* The same with the matrices of a stage, by the clock: under half a second. */
MR_MUST_USE mr_status mr_products_measure(mr_backends *backends, const mr_weights *weights, bool map_weights,
                                          int32_t max_rows, mr_err *err);

#endif
