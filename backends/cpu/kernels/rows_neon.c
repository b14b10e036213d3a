/* backends/cpu/kernels/rows_neon.c - the row operations of rows_vec.h with NEON. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels/vec_neon.h"

#include "backends/cpu/kernels/rows_vec.h"

MR_ROWS_OF(neon)
