/* tests/kernels/simde/hardware.c - replaces backends/cpu/cpu_hardware.c in the build with emulation: every instruction
 * set is available. */
// SPDX-License-Identifier: Apache-2.0
#include <stdbool.h>

#include "backends/cpu/kernels.h"

mr_isa mr_isa_of_hardware(void) {
    return MR_ISA_AVX512;
}

bool mr_has_avxvnni(void) {
    return true;
}
