/* backends/cuda/kernels/product_q5_k.cu - products of Q5_K matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(q5_k)
