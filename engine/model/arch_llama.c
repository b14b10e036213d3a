/* engine/model/arch_llama.c - Llama (Touvron et al., 2023) and the models with the same layers: Mistral, TinyLlama,
 * SmolLM and others; with experts Mixtral (Jiang et al., 2024).
 * R rows, d width, H heads of D elements, G KV heads, f feed-forward width. */
// SPDX-License-Identifier: Apache-2.0
#include "engine/model/model.h"

#define NONE MR_NO_TENSOR

int32_t mr_llama_layer(mr_graph *g, const mr_layer_ctx *ctx, const int32_t w[MR_LAYER_SLOTS], int32_t x /* [d, R] */) {
    int32_t h = mr_graph_rms_norm(g, x, w[MR_W_ATTN_NORM], ctx->eps);   /* [d, R] */
    int32_t q = mr_graph_matmul(g, w[MR_W_Q], h, w[MR_W_Q_BIAS], NONE); /* [H*D, R] */
    int32_t k = mr_graph_matmul(g, w[MR_W_K], h, w[MR_W_K_BIAS], NONE); /* [G*D, R] */
    int32_t v = mr_graph_matmul(g, w[MR_W_V], h, w[MR_W_V_BIAS], NONE); /* [G*D, R] */
    q = mr_graph_rope(g, q, ctx->rope_table, &ctx->rope);
    k = mr_graph_rope(g, k, ctx->rope_table, &ctx->rope);
    int32_t a = mr_graph_attention(g, q, k, v, &ctx->attention); /* [H*D, R] */
    x = mr_graph_matmul(g, w[MR_W_O], a, w[MR_W_O_BIAS], x);     /* [d, R] */

    h = mr_graph_rms_norm(g, x, w[MR_W_FFN_NORM], ctx->eps); /* [d, R] */
    if (ctx->layer->has_experts) {
        mr_experts_desc experts = {.n = ctx->n_experts,
                                   .n_used = ctx->n_experts_used,
                                   .router = w[MR_W_ROUTER],
                                   .gate = w[MR_W_GATE_EXPERTS],
                                   .up = w[MR_W_UP_EXPERTS],
                                   .down = w[MR_W_DOWN_EXPERTS]};
        return mr_graph_experts(g, h, x, &experts);
    }
    int32_t gate = mr_graph_matmul(g, w[MR_W_GATE], h, NONE, NONE); /* [f, R] */
    int32_t up = mr_graph_matmul(g, w[MR_W_UP], h, NONE, NONE);     /* [f, R] */
    return mr_graph_matmul(g, w[MR_W_DOWN], mr_graph_silu_mul(g, gate, up), NONE, x);
}

const mr_arch mr_arch_llama = {
    .name = "llama",
    .rope_pairs = MR_ROPE_INTERLEAVED,
    .required = 1u << MR_W_ATTN_NORM | 1u << MR_W_Q | 1u << MR_W_K | 1u << MR_W_V | 1u << MR_W_O | 1u << MR_W_FFN_NORM |
                1u << MR_W_GATE | 1u << MR_W_UP | 1u << MR_W_DOWN,
    .optional = 1u << MR_W_Q_BIAS | 1u << MR_W_K_BIAS | 1u << MR_W_V_BIAS | 1u << MR_W_O_BIAS,
    .has_experts = true,
    .layer = mr_llama_layer,
};
