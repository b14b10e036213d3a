/* backends/cpu/cpu_hardware.c - asks the CPU which instruction sets it has. It is a file of its own because tests
 * replace it by an emulation (tests/kernels/simde). */
// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <stdbool.h>

#include "backends/cpu/kernels.h"

#if defined(__x86_64__)
/* clang 14 does not know the name "f16c", so CPUID is read here. Callers also check AVX2, which includes whether the
 * operating system saves the registers. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

bool mr_has_avxvnni(void) {
#if defined(__x86_64__)
    unsigned a, b, c, d;
    return __builtin_cpu_supports("avx2") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 4);
#else
    return false;
#endif
}

/* The compiler's run-time check also asks the operating system (XGETBV) whether it saves the registers. */
mr_isa mr_isa_of_hardware(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return MR_ISA_SCALAR;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
        return MR_ISA_AVX512;
    return mr_has_avxvnni() ? MR_ISA_AVXVNNI : MR_ISA_AVX2;
#elif defined(__aarch64__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP ? MR_ISA_DOTPROD : MR_ISA_NEON;
#else
    return MR_ISA_SCALAR;
#endif
}
