/* backends/cuda/cuda_products_int.h - products of quantised matrices: layout (kernels/cuda_panels.h) and choice of
 * kernels.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_PRODUCTS_INT_H
#define MR_BACKENDS_CUDA_CUDA_PRODUCTS_INT_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/cuda_products.h"
#include "backends/cuda/kernels/cuda_panels.h"
#include "backends/cuda/kernels/cuda_products.h"

/* Bytes of a matrix in panels of quants. 0: the type has none, or columns is no multiple of its blocks. */
size_t cuda_int_bytes(mr_type type, int32_t columns, int32_t rows);
/* The launch that repacks such a matrix. args: what desc->args will point to. */
void cuda_int_repack(const cuda_repack *repack, cuda_repack_panel_args *args, cuda_launch_desc *desc);
/* Chooses the launch of a product, and sets args->blocks_of_matrix. desc->args will point to args. */
void cuda_int_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc);

#endif
