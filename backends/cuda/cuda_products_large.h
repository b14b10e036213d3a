/* backends/cuda/cuda_products_large.h - chooses the kernel of an integer product of many rows.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CUDA_CUDA_PRODUCTS_LARGE_H
#define MR_BACKENDS_CUDA_CUDA_PRODUCTS_LARGE_H

#include "backends/cuda/cuda_internal.h"
#include "backends/cuda/cuda_products.h"
#include "backends/cuda/kernels/cuda_products.h"

/* Chooses the launch of a product with a type of cuda_panels.def, and sets args->blocks_of_matrix. desc->args will
 * point to args. False: the kernels of few rows are better. */
bool cuda_large_choose(const cuda_product_size *size, cuda_product_args *args, cuda_launch_desc *desc);

#endif
