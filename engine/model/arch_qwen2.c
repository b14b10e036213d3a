/* engine/model/arch_qwen2.c - Qwen2 and Qwen2.5 (Qwen team, 2024): Llama's layer with biases on q, k and v. RoPE
 * rotates an element of a head's first half together with one of the second half. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

const mr_arch mr_arch_qwen2 = {
    .name = "qwen2",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_QKV_BIASES, SPEC_GLU},
    .layer = part_llama_layer,
};
