/* backends/cuda/kernels/cuda_record.h - the records by which the host hands small data to a graph without changing it.
 * The records lie in a ring in memory of the host that the device can read. The host fills a record with pieces and the
 * real rows of the step. The first kernel of each graph, cuda_begin, takes the next record of the ring, so that a step
 * costs one launch. Records and launches of cuda_begin come in pairs, in the same order. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_RECORD_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_RECORD_H

#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_BEGIN_THREADS = 512,
    CUDA_RECORDS = 8,               /* of the ring */
    CUDA_RECORD_PIECES = 256,       /* most pieces of a record */
    CUDA_RECORD_BYTES = 128 * 1024, /* most bytes of all its pieces, each rounded up to CUDA_PIECE_ALIGNMENT */
    CUDA_PIECE_ALIGNMENT = 16,
};

typedef struct cuda_piece {
    uint64_t address; /* where the piece goes, in the device's memory */
    uint32_t bytes;
    uint32_t offset; /* in cuda_record.bytes, a multiple of CUDA_PIECE_ALIGNMENT */
} cuda_piece;

/* The pieces of a record do not overlap in the device's memory. */
typedef struct cuda_record {
    cuda_step step;
    int32_t n_pieces, unused[3];
    cuda_piece pieces[CUDA_RECORD_PIECES];
    uint8_t bytes[CUDA_RECORD_BYTES];
} cuda_record;

/* One block copies the pieces of record n of the ring and the record's step, and adds 1 to n. */
typedef struct cuda_begin_args {
    const cuda_record *ring; /* [CUDA_RECORDS], in the host's memory */
    uint32_t *n;             /* counts records; record n is ring[n % CUDA_RECORDS] */
    cuda_step *step;
} cuda_begin_args;

#endif
