/* backends/cpu/cpu_features.c - which instruction set this CPU offers, capped by MILLRACE_CPU_ISA. */
// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/kernels.h"

static const char *const NAMES[MR_ISA_COUNT] = {
    [MR_ISA_SCALAR] = "scalar",
#if defined(__aarch64__)
    [MR_ISA_NEON] = "neon",
    [MR_ISA_DOTPROD] = "dotprod",
#else
    [MR_ISA_AVX2] = "avx2",
    [MR_ISA_AVXVNNI] = "avxvnni",
    [MR_ISA_AVX512] = "avx512",
#endif
};

#if defined(__x86_64__)
/* clang 14 does not know "f16c". AVX2, checked besides, says that the system saves the registers. */
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
static mr_isa hardware_isa(void) {
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

/* The level that MILLRACE_CPU_ISA names; MR_ISA_COUNT when it is unset, empty or unknown. */
static mr_isa env_isa(void) {
    const char *name = getenv("MILLRACE_CPU_ISA");
    mr_isa isa = MR_ISA_SCALAR;
    while (isa < MR_ISA_COUNT && (!name || strcmp(name, NAMES[isa]) != 0))
        isa++;
    return isa;
}

mr_isa mr_isa_detect(void) {
    mr_isa hardware = hardware_isa(), cap = env_isa();
    return cap < hardware ? cap : hardware;
}

const char *mr_isa_env_error(void) {
    const char *name = getenv("MILLRACE_CPU_ISA");
    return name && *name && env_isa() == MR_ISA_COUNT ? name : NULL;
}

const char *mr_isa_name(mr_isa isa) {
    return isa >= 0 && isa < MR_ISA_COUNT ? NAMES[isa] : "?";
}
