/* backends/cuda/cuda_kv.h - what the plans of KV_WRITE and ATTENTION share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_KV_H
#define MR_BACKENDS_CUDA_CUDA_KV_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/kernels/cuda_kv.h"

enum { CUDA_HEAD_DIM = 1024 }; /* most elements of a head */

/* Bytes of the keys (or values) of one block and head in the store (backends/cpu/kernels.h). */
static inline size_t cuda_kv_head_bytes(mr_type type, int32_t dim) {
    return (size_t)dim * MR_KV_BLOCK * (type == MR_TYPE_F16 ? 2 : 4);
}

/* Whether the kernels can read and write a store of keys or values. Its blocks are copied 16 bytes at a time. */
static inline bool cuda_kv_is_supported(const mr_tensor *store, int32_t dim) {
    return (store->type == MR_TYPE_F16 || store->type == MR_TYPE_F32) && store->row_bytes % 16 == 0 && dim % 16 == 0 &&
           dim >= 16 && dim <= CUDA_HEAD_DIM;
}

#endif
