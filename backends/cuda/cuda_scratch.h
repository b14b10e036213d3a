/* backends/cuda/cuda_scratch.h - the layout of a program's scratch memory, by its builder.
 * Memory of single nodes comes first: the nodes of one group have places of their own, so that they can run at the same
 * time, and the next group has the same places again. Behind it lies what nodes share, each piece at a place of its
 * own. The nodes are planned twice: the first time counts.
 *
 *     cuda_scratch_init(&s, n_nodes, err);
 *     for each node: cuda_scratch_begin(&s, i, is_new_group); plan;        // counts
 *     cuda_scratch_place(&s, address);                                    // after that, cuda_scratch_bytes of memory
 *     for each node: cuda_scratch_begin(&s, i, false); plan;               // gives out addresses
 *
 * Owns:    its arrays. Threads: the caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_SCRATCH_H
#define MR_BACKENDS_CUDA_CUDA_SCRATCH_H

#include "backends/cuda/cuda_order.h"

/* Memory that nodes share. */
typedef struct cuda_shared_piece {
    cuda_shared_key key;
    size_t first, bytes; /* first: in the scratch memory, once it is placed */
    int32_t user;        /* the first node that shares it */
} cuda_shared_piece;

/* What one node has. */
typedef struct cuda_node_scratch {
    size_t first, bytes;
    int32_t shared[CUDA_MAX_SHARED], n_shared; /* pieces */
} cuda_node_scratch;

typedef struct cuda_scratch_layout {
    cuda_address address; /* of the memory; while counting, one that stands for any */
    bool is_placed;
    cuda_node_scratch *nodes;  /* [n_nodes] */
    cuda_shared_piece *pieces; /* [n_pieces], room for CUDA_MAX_SHARED of each node */
    int32_t n_pieces;
    int32_t node;      /* that is planned */
    size_t end;        /* of what the nodes of this group have so far */
    size_t most_bytes; /* of any group */
} cuda_scratch_layout;

MR_MUST_USE mr_status cuda_scratch_init(cuda_scratch_layout *s, int32_t n_nodes, mr_err *err);
void cuda_scratch_deinit(cuda_scratch_layout *s);
/* The calls of cuda_scratch_take and cuda_scratch_share that follow are for this node. */
void cuda_scratch_begin(cuda_scratch_layout *s, int32_t node, bool is_new_group);
/* The functions behind cuda_scratch and cuda_shared. */
MR_MUST_USE mr_status cuda_scratch_take(cuda_scratch_layout *s, size_t bytes, void **out, mr_err *err);
MR_MUST_USE mr_status cuda_scratch_share(cuda_scratch_layout *s, const cuda_shared_key *key, size_t bytes, void **out,
                                         bool *out_is_first, mr_err *err);
/* The bytes of the whole memory, when all nodes are counted. MR_E_TOO_LONG: they overflow. */
MR_MUST_USE mr_status cuda_scratch_bytes(cuda_scratch_layout *s, size_t *out, mr_err *err);
void cuda_scratch_place(cuda_scratch_layout *s, cuda_address address);
/* Lists the scratch memory of a node, which writes it. Returns how many uses, at most 1 + CUDA_MAX_SHARED. */
int32_t cuda_scratch_uses(const cuda_scratch_layout *s, int32_t node, cuda_use *out);

#endif
