/* backends/cuda/kernels/cuda_top.h - arguments of the kernels that find the first tokens of rows of logits: TOP.
 * A block has a piece (gpu_block_y) of a row (gpu_block), in all of these kernels:
 *   cuda_top_begin    the highest key of each piece
 *   cuda_top_count    once for each level: a radix selection of the last key that is taken. Counts the keys that begin
 *                     as this one does, by their next bits. Level 0 also adds the weights of each piece
 *   cuda_top_list     counts the tokens of each piece that are taken
 *   cuda_top_write    writes them, in the order of their ids
 * Blocks never wait for each other: what all blocks have counted is read by each block of the next launch. Counts and
 * sums are integers, so their order changes no bit. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_TOP_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_TOP_H

#include "backends/cuda/kernels/cuda_step.h"

enum {
    CUDA_TOP_THREADS = 256,
    CUDA_TOP_EACH = 8, /* logits of a thread */
    CUDA_TOP_PIECE = CUDA_TOP_THREADS * CUDA_TOP_EACH,
    CUDA_TOP_LEVELS = 3, /* with 11, 11 and 10 bits of a key */
    CUDA_TOP_BINS = 1 << 11,
};

/* What is known of the last key that is taken: its first bits, and how many keys with these bits are taken. */
typedef struct cuda_top_cut {
    uint32_t key;
    int32_t n_left;
} cuda_top_cut;

/* Scratch memory of a row. */
typedef struct cuda_top_state {
    int32_t bins[CUDA_TOP_LEVELS][CUDA_TOP_BINS];
    cuda_top_cut cuts[CUDA_TOP_LEVELS + 1]; /* before each level, and after the last one */
} cuda_top_state;

/* Scratch memory of a piece of a row. */
typedef struct cuda_top_piece {
    uint64_t sum; /* of weights */
    uint32_t max_key;
    int32_t n_above, n_equal; /* tokens with a key above that of the cut, and with this key */
} cuda_top_piece;

typedef struct cuda_top_args {
    const cuda_step *step;
    cuda_rows rows;         /* of out */
    int32_t n, n_pieces;    /* of a row: logits and pieces */
    int32_t n_taken;        /* tokens */
    int32_t level;          /* for cuda_top_count */
    cuda_top_state *states; /* [rows] */
    cuda_top_piece *pieces; /* [rows][n_pieces] */
    const uint8_t *logits;  /* f32 [n] */
    uint8_t *out;           /* an mr_top in each row */
    uint32_t logits_row_bytes, out_row_bytes;
} cuda_top_args;

#endif
