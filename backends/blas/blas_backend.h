/* backends/blas/blas_backend.h - matrix products by a BLAS library (any with cblas_sgemm), beside the CPU backend:
 * float32 activations times weights of every type, in the memory of the host. Fast numerics: the bits depend on the
 * library, the rows and the threads.
 * Matrices stay where the file has them (keeps_source). F32 is read there; other types become float32 in blocks of
 * rows. The library is the one that CMake found, or MILLRACE_BLAS_LIBRARY; it is loaded when the first backend is made.
 * The threads are our own and call the library, which is told to use one thread itself: conversion and product of a
 * block stay on one core, and no thread of the library spins while the CPU backend computes.
 * Threads: see backends/backend.h; the thread that submits computes too. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_BLAS_BLAS_BACKEND_H
#define MR_BACKENDS_BLAS_BLAS_BACKEND_H

#include "backends/backend.h"

typedef struct mr_blas_options {
    int32_t n_threads; /* computing threads, the caller's included; at least 1 */
    const int
        *cpu_ids; /* [n_threads] CPUs to bind them to, all but the caller's; NULL: bind nobody. Read in create only */
} mr_blas_options;

/* MR_E_UNSUPPORTED: the library is not there. */
MR_MUST_USE mr_status mr_blas_backend_create(const mr_blas_options *options, mr_backend **out, mr_err *err);

/* Loads the library, which create does otherwise. To be called before there are other threads: environment variables
 * are set for the time of loading. */
MR_MUST_USE mr_status mr_blas_library_load(mr_err *err);

#endif
