/* engine/model/arch_gemma3.c - Gemma 3 (Gemma team, 2025): norms in front of attention and the feed-forward part and
 * behind them, norms of the heads of q and k, GELU, and a sliding window in five of six layers. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

static const tensor_spec OWN[] = {
    {W_ATTN_POST_NORM, "post_attention_norm.weight", SIZE_D, SIZE_ONE, 0},
    {W_FFN_POST_NORM, "post_ffw_norm.weight", SIZE_D, SIZE_ONE, 0},
    {0},
};

static int32_t layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x /* [d, R] */) {
    int32_t h = mr_graph_rms_norm(g, x, w[W_ATTN_NORM], ctx->eps);
    h = part_gqa(g, ctx, w, h, MR_NO_TENSOR);
    x = mr_graph_add(g, x, mr_graph_rms_norm(g, h, w[W_ATTN_POST_NORM], ctx->eps));
    h = mr_graph_rms_norm(g, x, w[W_FFN_NORM], ctx->eps);
    h = part_glu(g, ctx, w, h, MR_NO_TENSOR);
    return mr_graph_add(g, x, mr_graph_rms_norm(g, h, w[W_FFN_POST_NORM], ctx->eps));
}

const mr_arch mr_arch_gemma3 = {
    .name = "gemma3",
    .rope_pairs = MR_ROPE_HALVES,
    .glu = {.kind = MR_GLU_GELU},
    .tensors = {SPEC_NORMS, SPEC_GQA, SPEC_HEAD_NORMS, OWN, SPEC_GLU},
    .layer = layer,
};
