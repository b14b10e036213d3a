/* backends/cuda/cuda_products_float.h - products of F32, F16 and BF16 matrices: layout and choice of kernels.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_PRODUCTS_FLOAT_H
#define MR_BACKENDS_CUDA_CUDA_PRODUCTS_FLOAT_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/cuda_products.h"
#include "backends/cuda/kernels/cuda_products.h"

/* Bytes of a matrix in panels of floats (cuda_products.h). 0: the type has none, or there are fewer than two columns,
 * since rows of activations with one column are not padded. */
size_t cuda_float_bytes(mr_type type, int32_t columns, int32_t rows);
/* The launch that repacks such a matrix. args: what desc->args will point to. */
void cuda_float_repack(const cuda_repack *repack, cuda_repack_float_args *args, cuda_launch_desc *desc);

/* Chooses the launch of a product of floats, and sets args->blocks_of_matrix. desc->args will point to args. */
void cuda_float_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc);

#endif
