/* backends/cuda/kernels/product_large_iq4_nl.cu - products of IQ4_NL matrices and many rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_large.h"

PRODUCT_LARGE_KERNELS(iq4_nl)
