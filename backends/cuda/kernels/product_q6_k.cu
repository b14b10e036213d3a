/* backends/cuda/kernels/product_q6_k.cu - products of Q6_K matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(q6_k)
