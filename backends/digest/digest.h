/* backends/digest/digest.h - a digest of the bits that a backend computes, in parts: one for each op and type.
 * The backend runs small programs of one node on fixed inputs: every op, every type of weights, of activations and of
 * keys, row counts of 1 to 57, zeros of both signs, denormals, infinities. All bits of a result go into the part of its
 * op and type. Any NaN counts as the same (rule A4 of engine/NUMERICS.md). A part starts from MR_NUMERICS_VERSION. It
 * is the same for every backend, instruction set, compiler, machine and number of threads that follows the rules, so
 * parts that differ name what computes other bits. The digest finds faults, not malice.
 * Covered: every op and the kernels behind it, repacking, mr_dequantize, and the functions of fmath.h on the calling
 * thread. Not covered: fusing and splitting of graphs, sampling.
 * Owns:    nothing. A call holds some 4 MiB on the backend and 3 MiB on the host.
 * Threads: the caller serialises the calls on the backend. mr_digest_compute leaves the calling thread in the denormal
 *          mode of threads that compute (rule A2). The others are pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_DIGEST_DIGEST_H
#define MR_BACKENDS_DIGEST_DIGEST_H

#include "backends/backend.h"

enum {
    MR_DIGEST_PARTS = 192,             /* at most */
    MR_DIGEST_FUNCTIONS = MR_OP_COUNT, /* as an op: the functions of fmath.h */
    MR_DIGEST_NO_TYPE = MR_TYPE_FILE_COUNT,
};

typedef struct mr_digest_part {
    int32_t op;   /* mr_op, or MR_DIGEST_FUNCTIONS */
    int32_t type; /* mr_type of the weights or keys; MR_DIGEST_NO_TYPE: the op has none */
    uint64_t bits;
} mr_digest_part;

/* Parts in the order in which they were computed. The part of an op and type that the backend does not support is
 * missing. */
typedef struct mr_digest {
    mr_digest_part parts[MR_DIGEST_PARTS];
    int32_t n;
} mr_digest;

/* Computes the digest of be. Nodes that `beside` does not support are left out, so that a device can be compared with
 * the CPU: each is computed beside the other. NULL: nothing is left out for it. MR_E_NO_MEMORY, and what the calls of
 * the backend return. A wrong result is not an error: it only changes the digest. */
MR_MUST_USE mr_status mr_digest_compute(mr_backend *be, const mr_backend *beside, mr_digest *out, mr_err *err);

/* Returns how many parts that a and b both have differ. Writes the names of the first of them to out: "matmul Q4_K,
 * attention Q8_0 and 3 more". */
int32_t mr_digest_compare(const mr_digest *a, const mr_digest *b, char *out, size_t bytes);
/* One number for all parts. */
uint64_t mr_digest_sum(const mr_digest *d);

#endif
