/* backends/cpu/kernels/matmul_int8_kernels.h - the entry points of a level, one for each kind of quantised panel.
 * LEVEL(name) is the name with the level's suffix. Include last, after MATMUL_KERNEL. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_KERNELS_H
#define MR_BACKENDS_CPU_KERNELS_MATMUL_INT8_KERNELS_H

#define LEVEL_KERNEL(name, f) MATMUL_KERNEL(name, f) /* after LEVEL has been resolved */
LEVEL_KERNEL(LEVEL(matmul_q8_0), Q8_0)
LEVEL_KERNEL(LEVEL(matmul_q4_0), Q4_0)
LEVEL_KERNEL(LEVEL(matmul_iq4_nl), IQ4_NL)
LEVEL_KERNEL(LEVEL(matmul_mxfp4), MXFP4)
LEVEL_KERNEL(LEVEL(matmul_q4_k), Q4_K)
LEVEL_KERNEL(LEVEL(matmul_q5_k), Q5_K)
LEVEL_KERNEL(LEVEL(matmul_q6_k), Q6_K)
LEVEL_KERNEL(LEVEL(matmul_iq4_xs), IQ4_XS)
LEVEL_KERNEL(LEVEL(matmul_x8), X8)
LEVEL_KERNEL(LEVEL(matmul_x8m), X8M)

#endif
