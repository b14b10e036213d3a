/* engine/model/arch_qwen3.c - Qwen3 (Qwen team, 2025): each head of q and k gets an RMS norm before RoPE.
 * R rows, d width, H heads of D elements, G KV heads, f feed-forward width. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/model.h"

#define NONE MR_NO_TENSOR

static int32_t layer(mr_graph *g, const mr_layer_ctx *ctx, const int32_t w[MR_LAYER_SLOTS], int32_t x /* [d, R] */) {
    int32_t h = mr_graph_rms_norm(g, x, w[MR_W_ATTN_NORM], ctx->eps); /* [d, R] */
    int32_t q = mr_graph_matmul(g, w[MR_W_Q], h, NONE, NONE);         /* [H*D, R] */
    int32_t k = mr_graph_matmul(g, w[MR_W_K], h, NONE, NONE);         /* [G*D, R] */
    int32_t v = mr_graph_matmul(g, w[MR_W_V], h, NONE, NONE);         /* [G*D, R] */
    q = mr_graph_rms_norm(g, q, w[MR_W_Q_NORM], ctx->eps);            /* each head by itself */
    k = mr_graph_rms_norm(g, k, w[MR_W_K_NORM], ctx->eps);
    q = mr_graph_rope(g, q, ctx->rope_table, &ctx->rope);
    k = mr_graph_rope(g, k, ctx->rope_table, &ctx->rope);
    int32_t a = mr_graph_attention(g, q, k, v, &ctx->attention); /* [H*D, R] */
    x = mr_graph_matmul(g, w[MR_W_O], a, NONE, x);               /* [d, R] */

    h = mr_graph_rms_norm(g, x, w[MR_W_FFN_NORM], ctx->eps);        /* [d, R] */
    int32_t gate = mr_graph_matmul(g, w[MR_W_GATE], h, NONE, NONE); /* [f, R] */
    int32_t up = mr_graph_matmul(g, w[MR_W_UP], h, NONE, NONE);     /* [f, R] */
    return mr_graph_matmul(g, w[MR_W_DOWN], mr_graph_silu_mul(g, gate, up), NONE, x);
}

const mr_arch mr_arch_qwen3 = {
    .name = "qwen3",
    .rope_pairs = MR_ROPE_HALVES,
    .required = 1u << MR_W_ATTN_NORM | 1u << MR_W_Q | 1u << MR_W_Q_NORM | 1u << MR_W_K | 1u << MR_W_K_NORM |
                1u << MR_W_V | 1u << MR_W_O | 1u << MR_W_FFN_NORM | 1u << MR_W_GATE | 1u << MR_W_UP | 1u << MR_W_DOWN,
    .layer = layer,
};
