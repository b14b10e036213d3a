/* backends/cuda/kernels/product_large_q8_0.cu - products of Q8_0 matrices and many rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_large.h"

PRODUCT_LARGE_KERNELS(q8_0)
