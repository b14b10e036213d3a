/* backends/cuda/cuda_order.h - which nodes of a program have to wait for which: from the memory that they read and
 * write, and the order in which the program lists them.
 * Threads: the caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_ORDER_H
#define MR_BACKENDS_CUDA_CUDA_ORDER_H

#include "backends/cuda/cuda_internal.h"

/* Memory that a node uses. */
typedef struct cuda_use {
    cuda_address first;
    size_t bytes;
    bool is_written;
} cuda_use;
/* Of a node: its tensors, scratch memory, and what it shares. */
enum { CUDA_MAX_USES = MR_MAX_INPUTS + 2 + CUDA_MAX_SHARED };

typedef struct cuda_order cuda_order;

MR_MUST_USE mr_status cuda_order_create(int32_t n_nodes, cuda_order **out, mr_err *err);
void cuda_order_destroy(cuda_order *o);
/* Adds the next node. Returns how many earlier nodes it has to wait for, and writes their numbers. A node is left out
 * if one of the others waits for it. out_before: [n_nodes], newest first. */
int32_t cuda_order_add(cuda_order *o, const cuda_use *uses, int32_t n_uses, int32_t *out_before);

#endif
