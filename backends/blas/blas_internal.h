/* backends/blas/blas_internal.h - what the files of the BLAS backend share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BLAS_BLAS_INTERNAL_H
#define MR_BACKENDS_BLAS_BLAS_INTERNAL_H

#include "backends/backend.h"
#include "engine/base/pool.h"

enum { BLAS_ALIGNMENT = 64 }; /* of tensors in buffers; also what the note of a matrix's place takes */

typedef struct blas_backend {
    mr_backend base;
    mr_pool *pool;
    int n_threads;
    /* Where a thread makes float32 of a block of rows: for thread i at scratch + i * scratch_floats. Grown by
     * program_create. */
    float *scratch;
    void *scratch_memory;  /* scratch is aligned inside it */
    size_t scratch_floats; /* of each thread, a multiple of 16 */
} blas_backend;

mr_status blas_program_create(mr_backend *base, const mr_program_desc *desc, mr_program **out, mr_err *err);
void blas_program_destroy(mr_backend *be, mr_program *program);
mr_status blas_submit(mr_backend *be, mr_program *program, const mr_run *run, mr_fence *out, mr_err *err);

/* Of the library that is loaded. */
const char *blas_library_name(void);
/* Lets the library take its memory for so many threads. */
void blas_library_warm_up(mr_pool *pool);

/* y[m][n] = a[m][k] * w[n][k]^T + beta * y, row by row; ld: floats from one row to the next. */
typedef struct blas_product {
    int32_t m, n, k;
    const float *a, *w;
    float *y;
    size_t lda, ldw, ldy;
    float beta;
} blas_product;
void blas_multiply(const blas_product *p);

/* out[n] = the values of n elements at src, a whole number of blocks of the type. */
typedef void blas_to_floats_fn(mr_type type, const void *src, float *out, int64_t n);
/* The fastest on this CPU. Not to be asked in a step: virtual machines take their time to say what a CPU has. */
blas_to_floats_fn *blas_to_floats_of(mr_type type);
/* Of F16, compiled for F16C. */
blas_to_floats_fn blas_halves_f16c;

#endif
