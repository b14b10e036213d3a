/* backends/cuda/kernels/product_large_mxfp4.cu - products of MXFP4 matrices and many rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_large.h"

PRODUCT_LARGE_KERNELS(mxfp4)
