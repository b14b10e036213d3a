/* engine/model/arch_deepseek2.c - DeepSeek V2, V3 and R1 (DeepSeek-AI, 2024) and the models with the same layers: Kimi
 * K2, Mistral Large 3, and GLM-5 with its indexer left out. Attention is latent. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

/* V2 has none. */
static const tensor_spec CHOICE_BIAS[] = {
    {W_CHOICE_BIAS, "exp_probs_b.bias", SIZE_EXPERTS, SIZE_ONE, IN_EXPERTS | OPTIONAL},
    {0},
};

static int32_t layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x /* [d, R] */) {
    x = part_latent(g, ctx, w, mr_graph_rms_norm(g, x, w[W_ATTN_NORM], ctx->eps), x);
    return part_ffn(g, ctx, w, mr_graph_rms_norm(g, x, w[W_FFN_NORM], ctx->eps), x);
}

const mr_arch mr_arch_deepseek2 = {
    .name = "deepseek2",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_LATENT, SPEC_GLU, SPEC_MOE, CHOICE_BIAS, SPEC_SHARED},
    .layer = layer,
};

const mr_arch mr_arch_glm_dsa = {
    .name = "glm-dsa",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .tensors = {SPEC_NORMS, SPEC_LATENT, SPEC_GLU, SPEC_MOE, CHOICE_BIAS, SPEC_SHARED},
    .layer = layer,
};
