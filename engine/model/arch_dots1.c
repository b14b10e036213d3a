/* engine/model/arch_dots1.c - dots.llm1 (rednote-hilab, 2025): Qwen3's layer; experts with a shared one behind the
 * first layers. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_dots1 = {
    .name = "dots1",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_HEAD_NORMS, SPEC_GLU, SPEC_MOE, SPEC_CHOICE_BIAS, SPEC_SHARED},
    .layer = part_llama_layer,
};
