/* engine/model/arch.c - the list of architectures that this version runs. CONTRIBUTING.md, "Where to add
 * things", lists the places that a new architecture needs. */
// SPDX-License-Identifier: Apache-2.0
#include <string.h>

#include "engine/model/arch.h"

static const mr_arch *const ARCHS[] = {&mr_arch_llama, &mr_arch_qwen2, &mr_arch_qwen3};

mr_status mr_arch_find(const char *name, const mr_arch **out, mr_err *err) {
    for (size_t i = 0; i < sizeof ARCHS / sizeof ARCHS[0]; i++) {
        if (strcmp(ARCHS[i]->name, name) == 0) {
            *out = ARCHS[i];
            return MR_OK;
        }
    }
    return mr_err_set(
        err, MR_E_UNSUPPORTED,
        "the model's architecture is '%s', which this version does not run; it runs llama, qwen2 and qwen3", name);
}
