/* engine/model/arch_bamboo.c - Bamboo (Song et al., "Turbo Sparse", 2024): Llama's layer with a ReLU of gate and of up.
 * The feed-forward parts are sparse. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_bamboo = {
    .name = "bamboo",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .relu_unit = MR_RELU_BOTH,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_GLU, SPEC_SPARSE},
    .layer = part_llama_layer,
};
