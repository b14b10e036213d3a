/* backends/blas/blas_library.c - the calls of the library, declared here: headers differ from library to library (cblas.h,
 * mkl.h, blis.h), the binary interface with 32-bit integers (LP64) does not. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/blas/blas_internal.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 }; /* of the reference cblas.h */

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc);
#ifdef MILLRACE_BLAS_SET_THREADS /* found by CMake; a library without it has no threads */
void MILLRACE_BLAS_SET_THREADS(MILLRACE_BLAS_THREADS_TYPE n);
#endif

void blas_multiply(const blas_product *p) {
    cblas_sgemm(ROW_MAJOR, NO_TRANS, TRANS, p->m, p->n, p->k, 1.0f, p->a, (int)p->lda, p->w, (int)p->ldw, p->beta, p->y,
                (int)p->ldy);
}

enum { SIDE = 128 }; /* large enough for the library not to have a way without buffers */

static void multiply_once(void *ctx, int thread_idx, int n_threads) {
    (void)thread_idx;
    (void)n_threads;
    static const float zeros[SIDE * SIDE];
    float out[SIDE * SIDE];
    const blas_product p = {
        .m = SIDE, .n = SIDE, .k = SIDE, .a = zeros, .w = zeros, .y = out, .lda = SIDE, .ldw = SIDE, .ldy = SIDE};
    mr_pool_barrier(ctx); /* all at once: a buffer for each */
    blas_multiply(&p);
}

void blas_library_start(mr_pool *pool) {
#ifdef MILLRACE_BLAS_SET_THREADS
    MILLRACE_BLAS_SET_THREADS(1);
#endif
    mr_pool_run(pool, multiply_once, pool);
}
