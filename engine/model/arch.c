/* engine/model/arch.c - the list of architectures that this version runs. CONTRIBUTING.md, "Where to add
 * things", lists the places that a new architecture needs. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/arch.h"

#include <stdio.h>
#include <string.h>

static const mr_arch *const ARCHS[] = {
    &mr_arch_bamboo,  &mr_arch_deepseek2,  &mr_arch_dots1,    &mr_arch_ernie4_5_moe, &mr_arch_gemma3,
    &mr_arch_glm_dsa, &mr_arch_glm4moe,    &mr_arch_gpt_oss,  &mr_arch_granite,      &mr_arch_hunyuan_moe,
    &mr_arch_llama,   &mr_arch_minimax_m2, &mr_arch_mistral3, &mr_arch_olmo2,        &mr_arch_phi3,
    &mr_arch_qwen2,   &mr_arch_qwen2moe,   &mr_arch_qwen3,    &mr_arch_qwen3moe,     &mr_arch_smollm3,
};
enum { N_ARCHS = sizeof ARCHS / sizeof ARCHS[0] };

mr_status mr_arch_find(const char *name, const mr_arch **out, mr_err *err) {
    char names[256];
    int n = 0;
    for (int i = 0; i < N_ARCHS; i++) {
        if (strcmp(ARCHS[i]->name, name) == 0) {
            *out = ARCHS[i];
            return MR_OK;
        }
        const char *joint = i == 0 ? "" : i == N_ARCHS - 1 ? " and " : ", ";
        n += n < (int)sizeof names ? snprintf(names + n, sizeof names - (size_t)n, "%s%s", joint, ARCHS[i]->name) : 0;
    }
    return mr_err_set(err, MR_E_UNSUPPORTED,
                      "the model's architecture is '%s', which this version does not run; it runs %s", name, names);
}
