/* engine/model/arch_minimax_m2.c - MiniMax M2 (MiniMax, 2025): Llama's layer with experts; q and k are normed over
 * their whole width. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_minimax_m2 = {
    .name = "minimax-m2",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_WIDE_NORMS, SPEC_GLU, SPEC_MOE, SPEC_CHOICE_BIAS},
    .layer = part_llama_layer,
};
