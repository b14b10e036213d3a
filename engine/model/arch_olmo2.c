/* engine/model/arch_olmo2.c - OLMo 2 (Team OLMo, 2025): norms stand behind attention and the feed-forward part, and q
 * and k are normed over their whole width. OLMo 3 has the same layers, most of them with a sliding window. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_ATTN_NORM, "post_attention_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_FFN_NORM, "post_ffw_norm.weight", SIZE_D, SIZE_ONE, 0},
    {0},
};

static int32_t layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x /* [d, R] */) {
    int32_t a = part_gqa(g, ctx, w, x, MR_NO_TENSOR);
    x = mr_graph_add(g, x, mr_graph_rms_norm(g, a, w[W_ATTN_NORM], ctx->eps));
    int32_t f = part_ffn(g, ctx, w, x, MR_NO_TENSOR);
    return mr_graph_add(g, x, mr_graph_rms_norm(g, f, w[W_FFN_NORM], ctx->eps));
}

const mr_arch mr_arch_olmo2 = {
    .name = "olmo2",
    .rope_pairs = MR_ROPE_HALVES,
    .tensors = {OWN, SPEC_GQA, SPEC_WIDE_NORMS, SPEC_GLU},
    .layer = layer,
};
