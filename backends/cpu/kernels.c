/* backends/cpu/kernels.c - one table of kernels for each instruction set. The tables are filled from cpu_kernels.def at
 * compile time. A kernel without a version for the instruction set comes from a lower one. */
// SPDX-License-Identifier: Apache-2.0
#include "backends/cpu/kernels.h"

#if defined(__x86_64__)
#define PICK_00(name, level) mr_##name##_scalar
#define PICK_10(name, level) ((level) >= MR_ISA_AVX2 ? mr_##name##_avx2 : mr_##name##_scalar)
#define PICK_01(name, level) ((level) >= MR_ISA_AVX512 ? mr_##name##_avx512 : mr_##name##_scalar)
#define PICK_11(name, level)                                                                                           \
    ((level) >= MR_ISA_AVX512 ? mr_##name##_avx512 : (level) >= MR_ISA_AVX2 ? mr_##name##_avx2 : mr_##name##_scalar)
#define PICK_20(name, level)                                                                                           \
    ((level) == MR_ISA_AVXVNNI ? mr_##name##_avxvnni : (level) >= MR_ISA_AVX2 ? mr_##name##_avx2 : mr_##name##_scalar)
#define PICK_21(name, level) ((level) >= MR_ISA_AVX512 ? mr_##name##_avx512 : PICK_20(name, level))
#define PICK(name, has_avx2, has_avx512, has_neon, level) PICK_##has_avx2##has_avx512(name, level)
#elif defined(__aarch64__)
#define PICK_0(name, level) mr_##name##_scalar
#define PICK_1(name, level) ((level) >= MR_ISA_NEON ? mr_##name##_neon : mr_##name##_scalar)
#define PICK_2(name, level) ((level) >= MR_ISA_DOTPROD ? mr_##name##_dotprod : PICK_1(name, level))
#define PICK(name, has_avx2, has_avx512, has_neon, level) PICK_##has_neon(name, level)
#else
#define PICK(name, has_avx2, has_avx512, has_neon, level) mr_##name##_scalar
#endif

/* One table for each level. LEVEL is the level of the table while the list is included. */
#define KERNEL(name, type, ...) .name = PICK(name, __VA_ARGS__, LEVEL),
#define MATMUL(name, panel, ...) .matmul[panel] = PICK(name, __VA_ARGS__, LEVEL),
static const mr_kernels TABLES[MR_ISA_COUNT] = {
    [MR_ISA_SCALAR] =
        {
#define LEVEL MR_ISA_SCALAR
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
#if defined(__aarch64__)
    [MR_ISA_NEON] =
        {
#define LEVEL MR_ISA_NEON
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
    [MR_ISA_DOTPROD] =
        {
#define LEVEL MR_ISA_DOTPROD
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
#else
    [MR_ISA_AVX2] =
        {
#define LEVEL MR_ISA_AVX2
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
    [MR_ISA_AVXVNNI] =
        {
#define LEVEL MR_ISA_AVXVNNI
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
    [MR_ISA_AVX512] =
        {
#define LEVEL MR_ISA_AVX512
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
#endif
};

const mr_kernels *mr_kernels_get(mr_isa isa) {
#if !defined(__aarch64__)
    if (isa == MR_ISA_AVXVNNI && !mr_has_avxvnni())
        isa = MR_ISA_AVX2;
#endif
    return &TABLES[isa];
}
