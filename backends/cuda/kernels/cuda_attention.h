/* backends/cuda/kernels/cuda_attention.h - arguments of the kernels of attention (rule T). */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_ATTENTION_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_ATTENTION_H

#include "backends/cuda/kernels/cuda_kv.h"

enum {
    CUDA_PARTITION = 512, /* positions */
    CUDA_ATTENTION_LIST_THREADS = 256,
    CUDA_ATTENTION_WARPS = 4, /* of a block */
    CUDA_ATTENTION_THREADS = CUDA_ATTENTION_WARPS * 32,
    CUDA_ATTENTION_BLOCKS = 3, /* that fit on a multiprocessor at least */
    CUDA_ATTENTION_SUMS = 32,  /* floats of a state beside its weighted sums */
};

/* What a block computes at a time is a unit: the attention of some rows, and some query heads of one KV head. The rows
 * of a unit are a run: rows of one sequence at positions that follow each other. An entry is a run, or one partition of
 * a run that is split. Each entry has a unit for each share of the heads. */
typedef struct cuda_attention_entry {
    int32_t row, n_rows;
    int32_t partition; /* -1: all that the rows see */
    int32_t slot;      /* of a split run: its first slot for states */
} cuda_attention_entry;

/* The entries of a step: whole[n_whole], then split[n_split]. */
typedef struct cuda_attention_work {
    int32_t n_whole, n_split, n_slots;
    int32_t next; /* the first unit that no block has claimed */
} cuda_attention_work;

/* cuda_attention_list, one block: lists the entries of a step. Several nodes may share the list, one after the other.
 * cuda_attention_TYPE_KDIM, any number of blocks: each claims units until there are none. A unit of a split run leaves
 * a state (m, l, o of rule T) for each row and head. The block that completes a run's states for a share of the heads
 * merges them. */
typedef struct cuda_attention_args {
    const cuda_step *step;
    cuda_rows rows;
    const uint8_t *q, *k_store, *v_store; /* q: [n_heads][k_dim] f32 for each row */
    uint8_t *out;                         /* [n_heads][v_dim] f32 for each row */
    uint32_t q_row_bytes, out_row_bytes;
    uint64_t k_block_bytes, v_block_bytes; /* from one block to the next */
    uint64_t k_head_bytes, v_head_bytes;   /* of one block and head */
    const int32_t *row_seq, *row_position; /* [rows] */
    const int32_t *block_table;            /* [sequences][table_stride] */
    const float *sinks;                    /* [n_heads], or NULL */
    int32_t table_stride, n_heads, n_kv_heads, k_dim, v_dim, window;
    float scale, soft_cap, temperature_growth;
    int32_t temperature_length;
    int32_t unit_heads, unit_rows; /* most query heads and rows of a unit */
    int32_t n_units_each;          /* units of a KV head */
    int32_t n_blocks;              /* of the grid that claims units */
    cuda_attention_work *work;
    cuda_attention_entry *whole, *split; /* [rows] and [max_slots] */
    float *states;                       /* [max_slots][n_heads][v_dim + CUDA_ATTENTION_SUMS] */
    int32_t *done; /* [max_slots][n_kv_heads * n_units_each]: at a run's first slot, its partitions with states */
    int32_t max_slots;
} cuda_attention_args;

#endif
