/* backends/cuda/kernels/product_iq4_nl.cu - products of IQ4_NL matrices and few rows. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cuda/kernels/product_small.h"

PRODUCT_SMALL_KERNELS(iq4_nl)
