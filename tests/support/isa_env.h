/* tests/support/isa_env.h - sets MILLRACE_CPU_ISA for a part of a test and restores the value that the run of the tests
 * was started with. Threads: caller serialises. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_SUPPORT_ISA_ENV_H
#define MR_TESTS_SUPPORT_ISA_ENV_H

#include <stdlib.h>
#include <string.h>

/* Sets the variable, or unsets it (isa NULL). Returns the old value for isa_env_restore. */
static inline char *isa_env_set(const char *isa) {
    const char *old = getenv("MILLRACE_CPU_ISA");
    char *saved = old ? strdup(old) : NULL;
    if ((isa ? setenv("MILLRACE_CPU_ISA", isa, 1) : unsetenv("MILLRACE_CPU_ISA")) != 0 || (old && !saved))
        abort();
    return saved;
}

static inline void isa_env_restore(char *saved) {
    free(isa_env_set(saved));
    free(saved);
}

#endif
