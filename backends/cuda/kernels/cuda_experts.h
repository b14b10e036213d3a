/* backends/cuda/kernels/cuda_experts.h - arguments of the kernels that choose experts and add what they computed: rule
 * X of engine/NUMERICS.md. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_KERNELS_CUDA_EXPERTS_H
#define MR_BACKENDS_CUDA_KERNELS_CUDA_EXPERTS_H

#include "backends/cuda/kernels/cuda_step.h"
#include "engine/tensor/tensor.h"

enum {
    CUDA_ROUTE_BYTES = 16,                      /* dynamic shared memory for each expert of a layer */
    CUDA_ROUTE_THREADS = 32,                    /* a warp has a row */
    CUDA_LIST_THREADS = 256,                    /* of a block of EXPERT_ROWS */
    CUDA_LIST_EXPERTS = CUDA_LIST_THREADS / 32, /* of such a block: a warp has one */
};

/* routes[r] = the n_used experts of the row, then the bits of their weights. */
typedef struct cuda_route_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n, n_used;
    mr_routing routing;
    const uint8_t *logits; /* f32 [n] */
    const float *bias;     /* [n], or NULL */
    uint8_t *routes;       /* i32 [2 * n_used] */
    uint32_t logits_row_bytes, routes_row_bytes;
} cuda_route_args;

/* The slots of each expert, as in mr_expert_rows. n: how many have a list. */
typedef struct cuda_expert_rows_args {
    const cuda_step *step;
    cuda_rows rows; /* of routes */
    int32_t n, n_used;
    const uint8_t *routes;
    const int32_t *places; /* [all experts]: the number of each expert among the n, or -1. NULL: n is all experts */
    uint32_t routes_row_bytes;
    int32_t *first, *slots, *of_rows; /* [n + 1], [slots], [slots] */
} cuda_expert_rows_args;

/* out[r] = add[r] + the weighted sum of rows r * n_used … of y (+ shared[r]). Slots of expert e with places[e] < 0 are
 * rows of others instead of y. A block has elements of one row, as in cuda_elements.h. */
typedef struct cuda_expert_sum_args {
    const cuda_step *step;
    cuda_rows rows;
    int32_t n, n_used; /* n: columns */
    const uint8_t *y, *routes, *add;
    const uint8_t *shared; /* or NULL */
    const uint8_t *others; /* or NULL */
    const int32_t *places; /* or NULL */
    uint8_t *out;          /* may be add */
    uint32_t y_row_bytes, routes_row_bytes, add_row_bytes, shared_row_bytes, others_row_bytes, out_row_bytes;
} cuda_expert_sum_args;

#endif
