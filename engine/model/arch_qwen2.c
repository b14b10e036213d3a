/* engine/model/arch_qwen2.c - Qwen2 and Qwen2.5 (Qwen team, 2024): Llama's layer with biases on q, k and v. RoPE
 * rotates an element of a head's first half together with one of the second half. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/model.h"

const mr_arch mr_arch_qwen2 = {
    .name = "qwen2",
    .rope_pairs = MR_ROPE_HALVES,
    .required = 1u << MR_W_ATTN_NORM | 1u << MR_W_Q | 1u << MR_W_Q_BIAS | 1u << MR_W_K | 1u << MR_W_K_BIAS |
                1u << MR_W_V | 1u << MR_W_V_BIAS | 1u << MR_W_O | 1u << MR_W_FFN_NORM | 1u << MR_W_GATE |
                1u << MR_W_UP | 1u << MR_W_DOWN,
    .layer = mr_llama_layer,
};
