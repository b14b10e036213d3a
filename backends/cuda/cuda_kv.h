/* backends/cuda/cuda_kv.h - what the plans of KV_WRITE and ATTENTION share. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_KV_H
#define MR_BACKENDS_CUDA_CUDA_KV_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/kernels/cuda_kv.h"

enum { CUDA_HEAD_DIM = 1024 }; /* most elements of a head */

/* Bytes of the keys (or values) of one block and head in the store (backends/cpu/kernels.h). */
static inline size_t cuda_kv_head_bytes(mr_type type, int32_t dim) {
    size_t elements = (size_t)dim * MR_KV_BLOCK;
    return type == MR_TYPE_F16 ? elements * 2 : type == MR_TYPE_F32 ? elements * 4 : elements + elements / 32 * 2;
}

/* Whether the kernels can read and write a store of keys or values. Its blocks are copied 16 bytes at a time. */
static inline bool cuda_kv_is_supported(const mr_tensor *store, int32_t dim) {
    bool is_type = store->type == MR_TYPE_F16 || store->type == MR_TYPE_F32 || store->type == MR_TYPE_Q8_0;
    return is_type && store->row_bytes % 16 == 0 && dim % (store->type == MR_TYPE_Q8_0 ? 32 : 2) == 0 && dim >= 2 &&
           dim <= CUDA_HEAD_DIM;
}

/* The name of a kernel for this type of store. */
#define CUDA_KV_KERNEL(type, prefix, suffix)                                                                           \
    ((type) == MR_TYPE_F16 ? prefix "f16" suffix : (type) == MR_TYPE_F32 ? prefix "f32" suffix : prefix "q8_0" suffix)

#endif
