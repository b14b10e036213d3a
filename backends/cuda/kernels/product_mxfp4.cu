/* backends/cuda/kernels/product_mxfp4.cu - products of MXFP4 matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(mxfp4)
