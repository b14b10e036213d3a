/* backends/cuda/kernels/product_large_q6_k.cu - products of Q6_K matrices and many rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_large.h"

PRODUCT_LARGE_KERNELS(q6_k)
