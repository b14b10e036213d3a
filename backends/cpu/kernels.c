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
#define PICK(name, has_avx2, has_avx512, level) PICK_##has_avx2##has_avx512(name, level)
#else
#define PICK_20(name, level)                                                                                           \
    ((level) == MR_ISA_AVXVNNI ? mr_##name##_avxvnni : (level) >= MR_ISA_AVX2 ? mr_##name##_avx2 : mr_##name##_scalar)
#define PICK_21(name, level) ((level) >= MR_ISA_AVX512 ? mr_##name##_avx512 : PICK_20(name, level))
#define PICK(name, has_avx2, has_avx512, level) mr_##name##_scalar
#endif

/* One table for each level, filled from the list by constant expressions. */
#define KERNEL(name, type, has_avx2, has_avx512) .name = PICK(name, has_avx2, has_avx512, LEVEL),
#define MATMUL(name, panel, has_avx2, has_avx512) .matmul[panel] = PICK(name, has_avx2, has_avx512, LEVEL),
static const mr_kernels TABLES[MR_ISA_COUNT] = {
    [MR_ISA_SCALAR] =
        {
#define LEVEL MR_ISA_SCALAR
#include "backends/cpu/cpu_kernels.def"
#undef LEVEL
        },
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
};

const mr_kernels *mr_kernels_get(mr_isa isa) {
    return &TABLES[isa == MR_ISA_AVXVNNI && !mr_has_avxvnni() ? MR_ISA_AVX2 : isa];
}
