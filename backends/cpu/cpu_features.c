/* backends/cpu/cpu_features.c - names of instruction sets, whether this CPU has them, and which of them is used: the
 * best one, unless MILLRACE_CPU_ISA names a lower one. */
// SPDX-License-Identifier: Apache-2.0
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

/* The level that MILLRACE_CPU_ISA names; MR_ISA_COUNT when it is unset, empty or unknown. */
static mr_isa env_isa(void) {
    const char *name = getenv("MILLRACE_CPU_ISA");
    mr_isa isa = MR_ISA_SCALAR;
    while (isa < MR_ISA_COUNT && (!name || strcmp(name, NAMES[isa]) != 0))
        isa++;
    return isa;
}

bool mr_isa_is_here(mr_isa isa) {
#if !defined(__aarch64__)
    if (isa == MR_ISA_AVXVNNI)
        return mr_has_avxvnni();
#endif
    return isa <= mr_isa_of_hardware();
}

mr_isa mr_isa_detect(void) {
    mr_isa hardware = mr_isa_of_hardware(), cap = env_isa();
    return cap < hardware ? cap : hardware;
}

const char *mr_isa_env_error(void) {
    const char *name = getenv("MILLRACE_CPU_ISA");
    return name && *name && env_isa() == MR_ISA_COUNT ? name : NULL;
}

const char *mr_isa_name(mr_isa isa) {
    return isa >= 0 && isa < MR_ISA_COUNT ? NAMES[isa] : "?";
}
