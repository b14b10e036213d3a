/* backends/cpu/self_test.h - a digest of the bits that this process computes.
 * The kernels run on fixed inputs, and all bits of their results go into a digest that starts from MR_NUMERICS_VERSION
 * (any NaN counts as the same, rule A4). The digest is the same for every instruction set, compiler and machine that
 * follows engine/NUMERICS.md. Ranks whose digests differ must not share a job. The digest finds faults, not malice.
 * Covered: every kernel of cpu_kernels.def with full tiles and tails, repacking, mr_dequantize, and the functions of
 * fmath.h. Not covered: how a graph is cut into tasks, the op ADD, sampling.
 * Owns:    nothing; a call allocates some 4 MiB and frees them.
 * Threads: thread-safe. The call leaves the calling thread in the denormal mode of threads that compute (rule A2). It
 *          tests the CPU and the rounding mode of the calling thread.
 * Errors:  MR_E_NO_MEMORY. A wrong result is not an error: it only changes the digest. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_SELF_TEST_H
#define MR_BACKENDS_CPU_SELF_TEST_H

#include <stdint.h>

#include "backends/cpu/kernels.h"
#include "engine/base/status.h"

/* The digest of the kernels that this process uses: the table of mr_isa_detect(). */
MR_MUST_USE mr_status mr_cpu_self_test(uint64_t *out_digest, mr_err *err);

/* The digest of any table of kernels that this CPU can run. */
MR_MUST_USE mr_status mr_kernels_digest(const mr_kernels *kernels, uint64_t *out_digest, mr_err *err);

#endif
