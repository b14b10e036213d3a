/* backends/cuda/kernels/product_q8_0.cu - products of Q8_0 matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(q8_0)
