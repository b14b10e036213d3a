/* backends/cpu/cpu_backend.h - the CPU as a backend: kernels in the numerics of engine/NUMERICS.md on a thread pool.
 * Threads: see backends/backend.h; the thread that submits computes too. It must not be one of two backends' at
 *          once. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_CPU_BACKEND_H
#define MR_BACKENDS_CPU_CPU_BACKEND_H

#include "backends/backend.h"

typedef struct mr_cpu_options {
    int32_t n_threads; /* computing threads, the caller's included; at least 1 */
    bool adapts;       /* takes fewer threads for a program where these turn out to be faster (cpu_choice.h) */
    const int
        *cpu_ids; /* [n_threads] CPUs to bind them to, all but the caller's; NULL: bind nobody. Read in create only */
} mr_cpu_options;

MR_MUST_USE mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out, mr_err *err);

#endif
