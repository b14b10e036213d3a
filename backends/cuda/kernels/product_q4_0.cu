/* backends/cuda/kernels/product_q4_0.cu - products of Q4_0 matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(q4_0)
