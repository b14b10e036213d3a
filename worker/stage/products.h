/* worker/stage/products.h - chooses the matrix products that run on a backend that only multiplies (BLAS). A product
 * goes to this backend if a measurement with the matrices of the model shows that the backend is faster than the CPU.
 * The result is, for each type of weights, the least number of rows of a graph from which on the backend is used.
 * Threads: caller serialises. Errors: those of the backends. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_WORKER_STAGE_PRODUCTS_H
#define MR_WORKER_STAGE_PRODUCTS_H

#include "backends/backend.h"
#include "engine/model/model.h"

/* A matrix of the model file, or the first rows of one: [n, k]. */
typedef struct mr_product_sample {
    mr_type type;
    int32_t k, n;
    const uint8_t *rows;
    bool is_mapped; /* the stage reads the matrix in the mapped file */
} mr_product_sample;

/* Measures the seconds that backend be takes for a product with n_rows rows of activations. */
typedef mr_status mr_product_timer(void *ctx, mr_backend *be, const mr_product_sample *s, int32_t n_rows,
                                   double *out_seconds, mr_err *err);

enum { MR_PRODUCTS_TYPES = 5 /* most types that are measured; files have one to four */ };

/* The types that mr_products_measure measures: those with the largest matrices of the stage. Returns their number. */
int32_t mr_products_types(const mr_weights *weights, mr_type out_types[MR_PRODUCTS_TYPES]);
/* Makes the last backend run the products of all types. */
void mr_products_leave_all(mr_backends *backends);

/* Fills backends->min_rows of all backends except the last. Compares each backend with the last backend, for the types
 * of the samples and graphs of 1, 2, 4 ... max_rows rows. The last backend runs the types without a sample, and the
 * types for which no time was left. */
MR_MUST_USE mr_status mr_products_choose(mr_backends *backends, const mr_product_sample *samples, int32_t n_samples,
                                         int32_t max_rows, mr_product_timer *timer, void *ctx, mr_err *err);

/* Fills backends->rates of all backends, if one of them has memory of its own: the largest matrix of the last backend
 * is multiplied on each of them, and copied to those that have memory. Large products may then move there for a step
 * (mr_graph_matrix_source). Does nothing if the last backend has no matrices. Takes less than half a second. */
MR_MUST_USE mr_status mr_products_measure_rates(mr_backends *backends, const mr_weights *weights, bool map_weights,
                                                int32_t max_rows, mr_err *err);

/* mr_products_choose with the matrices of a stage and the real clock. Takes less than half a second. */
MR_MUST_USE mr_status mr_products_measure(mr_backends *backends, const mr_weights *weights, bool map_weights,
                                          int32_t max_rows, mr_err *err);

#endif
