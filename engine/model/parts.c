// SPDX-License-Identifier: Apache-2.0
#include "engine/model/parts.h"

#define NONE MR_NO_TENSOR

static int32_t norm_if(mr_graph *g, int32_t x, int32_t weight, float eps) {
    return weight == NONE ? x : mr_graph_rms_norm(g, x, weight, eps);
}

static int32_t rope_if(mr_graph *g, const layer_ctx *ctx, int32_t x) {
    return ctx->rope_table == NONE ? x : mr_graph_rope(g, x, ctx->rope_table, &ctx->rope);
}

int32_t part_gqa(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add) {
    int32_t q = mr_graph_matmul(g, w[W_Q], h, w[W_Q_BIAS], NONE); /* [H*K, R] */
    int32_t k = mr_graph_matmul(g, w[W_K], h, w[W_K_BIAS], NONE); /* [G*K, R] */
    int32_t v = mr_graph_matmul(g, w[W_V], h, w[W_V_BIAS], NONE); /* [G*V, R] */
    q = norm_if(g, q, w[W_Q_NORM], ctx->eps);
    k = norm_if(g, k, w[W_K_NORM], ctx->eps);
    q = rope_if(g, ctx, q);
    k = rope_if(g, ctx, k);
    q = norm_if(g, q, w[W_Q_LATE_NORM], ctx->eps);
    k = norm_if(g, k, w[W_K_LATE_NORM], ctx->eps);
    mr_attention_desc attention = ctx->attention;
    attention.sinks = w[W_SINKS];
    int32_t a = mr_graph_attention(g, q, k, v, &attention); /* [H*V, R] */
    return mr_graph_matmul(g, w[W_O], a, w[W_O_BIAS], add);
}

int32_t part_latent(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add) {
    int32_t n_heads = ctx->layer->n_heads, k_dim = ctx->latent.k_dim, n_rot = ctx->rope.n_rot, h_q = h;
    mr_rope_desc q_rope = ctx->rope, k_rope = ctx->rope;
    q_rope.head_dim = k_dim;
    q_rope.first = k_dim - n_rot;
    k_rope.first = ctx->layer->v_dim;
    mr_attention_desc attention = ctx->attention;
    attention.sinks = NONE;
    if (w[W_Q_A] != NONE)
        h_q = mr_graph_rms_norm(g, mr_graph_matmul(g, w[W_Q_A], h, NONE, NONE), w[W_Q_A_NORM], ctx->eps);
    int32_t q = mr_graph_matmul(g, w[W_Q], h_q, NONE, NONE); /* [H*k_dim, R] */
    q = mr_graph_rope(g, q, ctx->rope_table, &q_rope);
    q = mr_graph_head_matmul(g, w[W_K_B], q, n_heads);         /* [H*K, R] */
    int32_t kv = mr_graph_matmul(g, w[W_KV_A], h, NONE, NONE); /* [K, R]: the latent, then the shared part of keys */
    kv = mr_graph_rms_norm_first(g, kv, w[W_KV_A_NORM], ctx->eps);
    int32_t k = mr_graph_rope(g, kv, ctx->rope_table, &k_rope);
    int32_t a = mr_graph_attention(g, q, k, kv, &attention); /* [H*V, R] */
    a = mr_graph_head_matmul(g, w[W_V_B], a, n_heads);
    return mr_graph_matmul(g, w[W_O], a, NONE, add);
}

/* matrices, biases: of gate, up and down. */
static int32_t glu(mr_graph *g, const layer_ctx *ctx, const int32_t matrices[3], const int32_t biases[3], int32_t h,
                   int32_t add) {
    int32_t gate = mr_graph_matmul(g, matrices[0], h, biases[0], NONE); /* [f, R] */
    int32_t up = mr_graph_matmul(g, matrices[1], h, biases[1], NONE);   /* [f, R] */
    return mr_graph_matmul(g, matrices[2], mr_graph_glu(g, gate, up, ctx->glu), biases[2], add);
}

int32_t part_glu(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add) {
    return glu(g, ctx, (const int32_t[]){w[W_GATE], w[W_UP], w[W_DOWN]},
               (const int32_t[]){w[W_GATE_BIAS], w[W_UP_BIAS], w[W_DOWN_BIAS]}, h, add);
}

int32_t part_sparse(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x, int32_t h) {
    const mr_neurons_desc cold = {w[W_GATE_COLD], w[W_UP_COLD], w[W_DOWN_ROWS_COLD]};
    const mr_sparse_desc desc = {.predict_in = w[W_PREDICT_IN],
                                 .predict_out = w[W_PREDICT_OUT],
                                 .gate = w[W_GATE],
                                 .up = w[W_UP],
                                 .down = w[W_DOWN_ROWS],
                                 .cold = cold.gate == NONE ? NULL : &cold,
                                 .threshold = ctx->sparse_threshold,
                                 .unit = ctx->relu_unit};
    return mr_graph_sparse(g, x, h, x, &desc);
}

int32_t part_moe(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add) {
    const mr_expert_biases biases = {.router = w[W_ROUTER_BIAS],
                                     .choice = w[W_CHOICE_BIAS],
                                     .gate = w[W_GATE_EXPERTS_BIAS],
                                     .up = w[W_UP_EXPERTS_BIAS],
                                     .down = w[W_DOWN_EXPERTS_BIAS]};
    mr_experts_desc experts = {.n = ctx->n_experts,
                               .n_used = ctx->n_experts_used,
                               .router = w[W_ROUTER],
                               .gate = w[W_GATE_EXPERTS],
                               .up = w[W_UP_EXPERTS],
                               .down = w[W_DOWN_EXPERTS],
                               .routing = ctx->routing,
                               .glu = ctx->glu,
                               .biases = &biases,
                               .shared = NONE,
                               .held = ctx->held};
    if (w[W_GATE_SHARED] == NONE)
        return mr_graph_experts(g, h, add, &experts);
    int32_t shared = glu(g, ctx, (const int32_t[]){w[W_GATE_SHARED], w[W_UP_SHARED], w[W_DOWN_SHARED]},
                         (const int32_t[]){NONE, NONE, NONE}, h, NONE);
    if (w[W_SHARED_GATE] == NONE) {
        experts.shared = shared;
        return mr_graph_experts(g, h, add, &experts);
    }
    int32_t gate = mr_graph_matmul(g, w[W_SHARED_GATE], h, NONE, NONE); /* [1, R] */
    return mr_graph_add_gated(g, mr_graph_experts(g, h, add, &experts), shared, gate);
}

int32_t part_ffn(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t h, int32_t add) {
    return ctx->layer->has_experts ? part_moe(g, ctx, w, h, add) : part_glu(g, ctx, w, h, add);
}

int32_t part_llama_layer(mr_graph *g, const layer_ctx *ctx, const int32_t w[LAYER_SLOTS], int32_t x) {
    x = part_gqa(g, ctx, w, mr_graph_rms_norm(g, x, w[W_ATTN_NORM], ctx->eps), x);
    int32_t h = mr_graph_rms_norm(g, x, w[W_FFN_NORM], ctx->eps);
    return w[W_PREDICT_IN] == NONE ? part_ffn(g, ctx, w, h, x) : part_sparse(g, ctx, w, x, h);
}
