/* backends/blas/blas_backend.h - matrix products by a BLAS library (any with cblas_sgemm), in addition to the CPU
 * backend: float32 activations times weights of every type, in the memory of the host. These are fast numerics: the
 * bits depend on the library, the rows and the threads.
 * The backend reads matrices at their address in the file (keeps_source). The library gets F32 matrices as they are;
 * other types are converted to float32 in blocks of rows. The library is the one that CMake found, or the one named by
 * MILLRACE_BLAS_LIBRARY. It is loaded when the first backend is created.
 * The backend has its own threads, and each calls the library, which is set to one thread. So conversion and product of
 * a block stay on one core, and no thread of the library spins while the CPU backend computes.
 * Threads: see backends/backend.h. The thread that submits computes, too. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BLAS_BLAS_BACKEND_H
#define MR_BACKENDS_BLAS_BLAS_BACKEND_H

#include "backends/backend.h"

typedef struct mr_blas_options {
    int32_t n_threads; /* computing threads, the caller's included; at least 1 */
    /* [n_threads] Thread i > 0 is bound to CPU cpu_ids[i]; the caller has bound itself to cpu_ids[0]. NULL: no thread
     * is bound. Read in create only. */
    const int *cpu_ids;
} mr_blas_options;

/* MR_E_UNSUPPORTED: the library was not found. */
MR_MUST_USE mr_status mr_blas_backend_create(const mr_blas_options *options, mr_backend **out, mr_err *err);

/* Loads the library, if it is not loaded yet; mr_blas_backend_create does the same. Call this before the process starts
 * other threads, because environment variables are set for the time of loading. */
MR_MUST_USE mr_status mr_blas_library_load(mr_err *err);

#endif
